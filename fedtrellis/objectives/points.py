"""Points of models of several arrays: a list of them, or one flat array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fedtrellis.objectives.checks import FLOAT64, Array

__all__ = ["FLOATS", "Point", "PointForms"]

Point = Array | Sequence[Array]

#: The dtypes that points keep.
FLOATS = (np.dtype(np.float32), FLOAT64)


class PointForms:
    """A list of arrays, one flat array, or a single array in its own shape."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = list(shapes)
        self.sizes = [prod(shape) for shape in shapes]
        self.flat = (sum(self.sizes),)

    def layers(self, x: Point, batch: tuple[int, ...] = ()) -> list[Array]:
        """Return a point, or a batch of them, as arrays of float32 or float64."""
        wanted = [(*batch, *s) for s in self.shapes] if batch else self.shapes
        if isinstance(x, np.ndarray):
            array, flat = _floats(x), (*batch, *self.flat)
            if len(wanted) == 1 and array.shape == wanted[0]:
                return [array]
            if array.shape != flat:
                raise ValueError(f"x has shape {array.shape}; it must be {flat}")
            return self.split(array)
        # a call for what is as it should be would be dear for a small model
        parts = [
            p if type(p) is np.ndarray and p.dtype in FLOATS else _floats(np.asarray(p))
            for p in x
        ]
        given = [part.shape for part in parts]
        if given != wanted:
            raise ValueError(f"x has shapes {given}; they must be {wanted}")
        if len({part.dtype for part in parts}) > 1:
            parts = [np.asarray(part, dtype=np.float64) for part in parts]
        return parts

    def vector(self, x: Point, batch: tuple[int, ...] = ()) -> Array:
        """Return a point, or a batch of them, as a new array of shape (*batch, p)."""
        parts = [
            layer.reshape((*batch, size))
            for layer, size in zip(self.layers(x, batch), self.sizes, strict=True)
        ]
        return np.concatenate(parts, axis=-1)

    def count(self, points: Point) -> tuple[int]:
        """Return the number of points on the leading axis, as a batch's shape."""
        first = points if isinstance(points, np.ndarray) else next(iter(points), ())
        return (np.shape(first)[0],)

    def like(self, x: Point, layers: list[Array]) -> Any:
        """Return layers in the form that the point x has."""
        if not isinstance(x, np.ndarray):
            return layers
        if len(layers) == 1:
            return layers[0].reshape(x.shape)
        return np.concatenate([layer.reshape(-1) for layer in layers])

    def split(self, array: Array) -> list[Array]:
        """Return the layers of flat points, the last axis of ``array``, as views."""
        layers, start, lead = [], 0, array.shape[:-1]
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            layers.append(array[..., start : start + size].reshape((*lead, *shape)))
            start += size
        return layers


def _floats(array: Any) -> Array:
    """Return an array as float32 if it has no more digits, else as float64."""
    half = array.dtype in (np.float16, np.float32)
    found: Array = array.astype(np.float32 if half else np.float64, copy=False)
    return found
