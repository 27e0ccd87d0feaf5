"""A model's shapes and its dtype, and the one array that stands for all of its layers.

A model computes in :attr:`Layout.point_dtype` and travels in :attr:`Layout.wire_dtype`:

========== ============== ==========================================
dtype      computes in    travels as
========== ============== ==========================================
float64    float64        float64
float32    float32        float32
float16    float32        float16
bfloat16   float32        uint16, the upper half of a float32's bits
========== ============== ==========================================

NumPy has no bfloat16: here it is float32 numbers that a bfloat16 can hold. Server and
clients have the same numbers, because a model is rounded when it is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "FloatArray", "Layers", "Layout"]

#: Points of a model. Their dtype is that of the model, mostly float64.
FloatArray = NDArray[np.float64]

#: What a model may be made of, the widest first.
DType = Literal["float64", "float32", "float16", "bfloat16"]
DTYPES: tuple[DType, ...] = get_args(DType)
_POINT: dict[str, np.dtype[Any]] = {
    name: np.dtype("f8" if name == "float64" else "f4") for name in DTYPES
}
_WIRE: dict[str, np.dtype[Any]] = dict(
    zip(DTYPES, map(np.dtype, ("<f8", "<f4", "<f2", "<u2")), strict=True)
)


@dataclass(frozen=True)
class Layout:
    """The shapes of a model's arrays, and the one array that stands for them all.

    A model of one array is optimised in that array's shape (a matrix stays a matrix,
    for the nuclear-norm ball); one of several layers as the vector of all their
    entries, one layer after the other, each in C order. A single number, an array
    without axes, is a vector of one entry.

    Parameters
    ----------
    shapes : tuple of tuple of int
        The layers' shapes.
    dtype : str
        One of :data:`DTYPES`, for all layers.

    Raises
    ------
    ValueError
        There is no such dtype.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.dtype not in _POINT:
            raise ValueError(
                f"a model's dtype is {self.dtype!r}; allowed: {', '.join(DTYPES)}"
            )

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> Layout:
        """Layout of a list of arrays.

        Its dtype is the widest of theirs; float64 where one is of none of
        :data:`DTYPES`, say of integers. What :meth:`layers` made knows its own.
        """
        if isinstance(arrays, Layers):
            return arrays.layout
        names = {array.dtype.name for array in arrays}
        known = [name for name in DTYPES if name in names]
        dtype = known[0] if known and len(known) == len(names) else "float64"
        return cls(tuple(array.shape for array in arrays), dtype)

    @cached_property
    def size(self) -> int:
        """Number of parameters p."""
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of the point that stands for the model."""
        only = self.shapes[0] if len(self.shapes) == 1 else ()
        # arithmetic turns an array of shape () into a scalar, which nothing changes in
        # place; a vector of one entry stays one
        return only or (self.size,)

    # ------------------------------------------------------------------------- dtype

    @cached_property
    def point_dtype(self) -> np.dtype[Any]:
        """Of points and gradients in memory: float64, or float32."""
        return _POINT[self.dtype]

    @cached_property
    def wire_dtype(self) -> np.dtype[Any]:
        """Of a point's entries as they travel."""
        return _WIRE[self.dtype]

    def rounded(self, point: NDArray[Any]) -> FloatArray:
        """A point as a new C-contiguous array of numbers that the dtype can hold.

        Raises
        ------
        FloatingPointError
            An entry is too large for it.
        """
        with np.errstate(over="ignore"):
            made: FloatArray = np.array(point, dtype=self.point_dtype, order="C")
            if made.dtype != self.wire_dtype:
                made = self.from_wire(_narrowed(made, self.wire_dtype))
        if self.dtype != "float64" and not np.isfinite(made).all():
            raise FloatingPointError(
                f"the model has numbers too large for {self.dtype}"
            )
        return made

    def to_wire(self, point: NDArray[Any]) -> NDArray[Any]:
        """A point as it travels, rounded to the model's dtype; no copy if it is of it.

        What is too large for the dtype becomes infinite, and is refused on arrival.
        """
        if point.dtype == self.wire_dtype == self.point_dtype:
            return point
        with np.errstate(over="ignore"):
            made = np.asarray(point, dtype=self.point_dtype)
            return (
                made
                if made.dtype == self.wire_dtype
                else _narrowed(made, self.wire_dtype)
            )

    def from_wire(self, array: NDArray[Any]) -> FloatArray:
        """Inverse of :meth:`to_wire`; the result may be read-only.

        Raises
        ------
        ValueError
            The array has another dtype.
        """
        if array.dtype != self.wire_dtype:
            raise ValueError(
                f"an array of dtype {array.dtype} for a model of {self.dtype}, "
                f"expected {self.wire_dtype}"
            )
        if self.dtype == "bfloat16":
            bits = array.astype(np.uint32) << 16
            return cast(FloatArray, bits.view(np.float32))
        return cast(FloatArray, array.astype(self.point_dtype, copy=False))

    # --------------------------------------------------------------- points and layers

    def point(self, arrays: Sequence[NDArray[Any]]) -> FloatArray:
        """Join the layers into one point of ``point_dtype`` (no copy of a single)."""
        if tuple(array.shape for array in arrays) != self.shapes:
            raise ValueError(
                f"arrays have shapes {[array.shape for array in arrays]}, "
                f"expected {list(self.shapes)}"
            )
        dtype = self.point_dtype
        if len(arrays) == 1 and self.shapes[0]:
            return np.asarray(arrays[0], dtype=dtype)
        return np.concatenate(
            [np.asarray(array, dtype=dtype).reshape(-1) for array in arrays]
        )

    def layers(self, point: FloatArray) -> Layers:
        """Split a point into the layers, as views of it."""
        flat = point.reshape(-1)
        layers, start = Layers(self, point), 0
        for shape in self.shapes:
            stop = start + prod(shape)
            layers.append(flat[start:stop].reshape(shape))
            start = stop
        return layers

    def objective_point(self, point: FloatArray) -> FloatArray | list[FloatArray]:
        """Return what an objective is given: one array, or the list of the layers.

        In ``point_dtype``, also where the method keeps its points in float64.
        """
        if point.dtype != self.point_dtype:
            point = point.astype(self.point_dtype)
        if len(self.shapes) == 1:
            shape = self.shapes[0]
            return point if point.shape == shape else point.reshape(shape)
        return self.layers(point)

    def objective_gradient(self, gradient: Any) -> FloatArray:
        """Join an objective's gradient into the point's shape, in ``point_dtype``.

        Parameters
        ----------
        gradient : ndarray or list of ndarray
            One array in the shape that the model's only array has, or flat, of p
            entries; or a list of arrays in the layers' shapes. What has no axes may be
            a NumPy scalar.

        Raises
        ------
        TypeError
            If it is neither.
        ValueError
            If it has another shape: as many entries alone do not make a gradient, a
            transposed one would be read in the wrong order.
        """
        if (
            type(gradient) is np.ndarray
            and gradient.shape == self.point_shape
            and gradient.dtype == self.point_dtype
        ):
            return gradient
        if isinstance(gradient, list | tuple) and all(
            isinstance(part, np.ndarray | np.floating) for part in gradient
        ):
            return self.point(gradient)
        if not isinstance(gradient, np.ndarray | np.floating):
            raise TypeError(
                f"the objective's gradient is a {type(gradient).__name__}, expected "
                "an ndarray, or a list of them for a model of several arrays"
            )
        flat = (self.size,)
        own = self.shapes[0] if len(self.shapes) == 1 else flat
        if gradient.shape not in (own, flat):
            raise ValueError(
                f"the objective's gradient has shape {gradient.shape}, "
                f"expected {own}{f' or {flat}' if own != flat else ''}"
            )
        array = cast(FloatArray, np.asarray(gradient, dtype=self.point_dtype))
        return array.reshape(self.point_shape)

    # ---------------------------------------------------------------------- in messages

    def to_list(self) -> list[int]:
        """Return the shapes as one list of integers, for a ``ConfigRecord``."""
        numbers: list[int] = []
        for shape in self.shapes:
            numbers.extend((len(shape), *shape))
        return numbers

    @classmethod
    def from_list(cls, numbers: Sequence[int], dtype: str = "float64") -> Layout:
        """Inverse of :meth:`to_list`; ValueError if it is not a list of shapes."""
        shapes, start = [], 0
        while start < len(numbers):
            stop = start + 1 + numbers[start]
            shape = tuple(int(side) for side in numbers[start + 1 : stop])
            if numbers[start] < 0 or stop > len(numbers) or min(shape, default=0) < 0:
                raise ValueError(f"{list(numbers)} is not a list of shapes")
            shapes.append(shape)
            start = stop
        if not shapes:
            raise ValueError("a model needs at least one array")
        return cls(tuple(shapes), dtype)

    def entries(self) -> dict[str, Any]:
        """What a request says of it: ``model-shapes``, and ``model-dtype``.

        The dtype goes without saying where it is float64.
        """
        entries: dict[str, Any] = {"model-shapes": self.to_list()}
        if self.dtype != "float64":
            entries["model-dtype"] = self.dtype
        return entries

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Layout:
        """Inverse of :meth:`entries`; ValueError if they are malformed."""
        return cls.from_list(
            entries["model-shapes"], entries.get("model-dtype", "float64")
        )


class Layers(list[FloatArray]):
    """A model's layers, as a client's ``fit`` gets them, which know their layout.

    An array of float32 does not say whether the model is one of bfloat16.

    Attributes
    ----------
    layout : Layout
    whole : ndarray of shape ``layout.point_shape``
        The point that they are views of.
    """

    def __init__(self, layout: Layout, whole: FloatArray) -> None:
        super().__init__()
        self.layout, self.whole = layout, whole


def _narrowed(point: FloatArray, wire: np.dtype[Any]) -> NDArray[Any]:
    """Round a float32 array to half of its bits: to float16, or uint16 of bfloat16."""
    if wire.kind == "f":
        return point.astype(wire)
    bits = np.ascontiguousarray(point).view(np.uint32)
    # to the nearest, of two to the even one: what is cut off is below, at, or above
    # one half. NaN, whose bits may all be cut off, stays one
    upper = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    upper[np.isnan(point)] = 0x7FC0
    return upper.astype(wire)
