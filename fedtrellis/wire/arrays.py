"""A model's layout, and NumPy arrays to Flower's ``Array`` and back.

Flower's own conversion goes through ``numpy.save`` and ``numpy.load``; these functions
write and read the same bytes (a ``.npy`` file, so either side may be plain Flower)
without their overhead, and refuse what is malformed before anything is allocated.

A model is computed with, kept and sent in one dtype, float64 or float32. Server and
clients have the same numbers, because a model is rounded when it is set.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal, cast, get_args

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedtrellis.wire.flower_internals import filled

#: Points of a model. Their dtype is that of the model, mostly float64.
FloatArray = NDArray[np.float64]

#: What a model may be made of, the widest first.
DType = Literal["float64", "float32"]
DTYPES: tuple[DType, ...] = get_args(DType)


@dataclass(frozen=True)
class Layout:
    """The shapes of a model's arrays, and the one array that stands for them all.

    A model of one array is optimised in that array's shape (a matrix stays a matrix,
    for the nuclear-norm ball); one of several layers as the vector of all their
    entries, one layer after the other, each in C order. A single number, an array
    without axes, is a vector of one entry.

    ``shapes`` are the layers', ``dtype`` is one of :data:`DTYPES` for all of them, or
    else a ValueError.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(
                f"a model's dtype is {self.dtype!r}; allowed: {', '.join(DTYPES)}"
            )

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> Layout:
        """Layout of arrays: of the widest dtype; float64 where one is of integers."""
        if isinstance(arrays, Layers):
            return arrays.layout
        narrow = {array.dtype.name for array in arrays} <= {"float32", "float16"}
        dtype = "float32" if narrow else "float64"
        return cls(tuple(array.shape for array in arrays), dtype)

    @cached_property
    def size(self) -> int:
        """Number of parameters p."""
        return sum(map(prod, self.shapes))

    @cached_property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of the point that stands for the model."""
        only = self.shapes[0] if len(self.shapes) == 1 else ()
        return only or (self.size,)  # of shape () arithmetic would make a scalar

    @cached_property
    def point_dtype(self) -> np.dtype[Any]:
        """Of points and gradients, in memory and as they travel."""
        return np.dtype(self.dtype)

    def rounded(self, point: NDArray[Any]) -> FloatArray:
        """A point as a new C-contiguous array of numbers that the dtype can hold.

        FloatingPointError: an entry is too large for it.
        """
        with np.errstate(over="ignore"):
            made = np.array(point, dtype=self.point_dtype, order="C")
        if self.dtype != "float64" and not np.isfinite(made).all():
            raise FloatingPointError(
                f"the model has numbers too large for {self.dtype}"
            )
        return made

    def to_wire(self, point: NDArray[Any]) -> NDArray[Any]:
        """A point as it travels, rounded to the model's dtype; no copy if it is of it.

        What is too large for the dtype becomes infinite, and is refused on arrival.
        """
        with np.errstate(over="ignore"):
            return point.astype(self.point_dtype, copy=False)

    def from_wire(self, array: NDArray[Any]) -> FloatArray:
        """What arrived, maybe read-only; ValueError: it is of another dtype."""
        if array.dtype != self.point_dtype:
            raise ValueError(
                f"an array of dtype {array.dtype} for a model of {self.dtype}"
            )
        return array

    def point(self, arrays: Sequence[NDArray[Any]]) -> FloatArray:
        """Join the layers into one point of ``point_dtype`` (no copy of a single)."""
        shapes = [array.shape for array in arrays]
        if tuple(shapes) != self.shapes:
            expected = list(self.shapes)
            raise ValueError(f"arrays have shapes {shapes}, expected {expected}")
        dtype = self.point_dtype
        made = [np.asarray(array, dtype=dtype) for array in arrays]
        if len(made) == 1 and self.shapes[0]:
            return made[0]
        return np.concatenate([array.reshape(-1) for array in made])

    def layers(self, point: FloatArray) -> Layers:
        """Split a point into the layers, as views of it."""
        flat = point.reshape(-1)
        layers, start = Layers(), 0
        layers.layout, layers.whole = self, point
        for shape in self.shapes:
            stop = start + prod(shape)
            layers.append(flat[start:stop].reshape(shape))
            start = stop
        return layers

    def objective_point(self, point: FloatArray) -> FloatArray | list[FloatArray]:
        """What an objective is given, in ``point_dtype``: one array, or the layers."""
        if point.dtype != self.point_dtype:
            point = point.astype(self.point_dtype)
        return (
            point.reshape(*self.shapes) if len(self.shapes) == 1 else self.layers(point)
        )

    def objective_gradient(self, gradient: Any) -> FloatArray:
        """Join an objective's gradient into the point's shape, in ``point_dtype``.

        It is one array in the shape of the model's only array, or flat, of p entries;
        or a list of arrays in the layers' shapes (TypeError: neither). What has no axes
        may be a NumPy scalar. ValueError: it has another shape, in which as many
        entries would be read in the wrong order.
        """
        shape, dtype = self.point_shape, self.point_dtype
        if (
            type(gradient) is np.ndarray
            and gradient.shape == shape
            and gradient.dtype == dtype
        ):
            return gradient
        parts = gradient if isinstance(gradient, list | tuple) else (gradient,)
        if not all(isinstance(part, np.ndarray | np.floating) for part in parts):
            raise TypeError(
                f"the objective's gradient is a {type(gradient).__name__}, expected "
                "an ndarray, or a list of them for a model of several arrays"
            )
        if parts is gradient:
            return self.point(parts)
        flat = (self.size,)
        only = self.shapes[0] if len(self.shapes) == 1 else flat
        if gradient.shape not in (only, flat):
            allowed = only if only == flat else f"{only} or {flat}"
            has = f"the objective's gradient has shape {gradient.shape}"
            raise ValueError(f"{has}, expected {allowed}")
        return cast(FloatArray, np.asarray(gradient, dtype=dtype).reshape(shape))

    def to_list(self) -> list[int]:
        """The shapes as one list of integers, before each the number of its axes."""
        return [side for shape in self.shapes for side in (len(shape), *shape)]

    @staticmethod
    @lru_cache(maxsize=64)
    def from_list(*numbers: int, dtype: str = "float64") -> Layout:
        """Inverse of :meth:`to_list`."""
        shapes, start = [], 0
        while start < len(numbers):
            stop = start + 1 + numbers[start]
            shapes.append(numbers[start + 1 : stop])
            start = stop
        return Layout(tuple(shapes), dtype)

    def entries(self) -> dict[str, Any]:
        """What a request says of it; that it is float64 goes without saying."""
        dtype = {"model-dtype": self.dtype} if self.dtype != "float64" else {}
        return {"model-shapes": self.to_list(), **dtype}


class Layers(list[FloatArray]):
    """A model's layers, which know the point that they are views of."""

    layout: Layout
    #: The point that they are views of, of shape ``layout.point_shape``.
    whole: FloatArray


# ---------------------------------------------------------------- arrays that travel

_NUMPY_STYPE = "numpy.ndarray"
_ALLOWED_KINDS = "fiub"
_MAX_HEADER = 4096


@lru_cache(maxsize=4096)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, str]:
    """The ``.npy`` header of a C-contiguous array, and the dtype's name."""
    if dtype.kind not in _ALLOWED_KINDS:
        raise ValueError(
            f"an array of dtype {dtype} cannot travel; allowed: float, integer, boolean"
        )
    buffer = io.BytesIO()
    head = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, head)
    return buffer.getvalue(), str(dtype)


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    """The shape, dtype and order of an array; ValueError if they are not allowed."""
    try:
        stream = io.BytesIO(header)
        # later versions are for headers of more than 64 KiB, which are refused
        np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:
        raise ValueError(f"array header cannot be read: {error}") from None
    if dtype.hasobject or dtype.kind not in _ALLOWED_KINDS:
        raise ValueError(f"array has dtype {dtype}; allowed: float, integer, boolean")
    if min(shape, default=0) < 0:
        raise ValueError(f"array has shape {shape}: a side is negative")
    return shape, dtype, "F" if fortran_order else "C"


def encode(array: NDArray[Any]) -> Array:
    """Make a Flower ``Array`` of an ndarray of numbers, copying its data once."""
    array = np.asarray(array, order="C")
    header, dtype = _header(array.dtype, array.shape)
    # a reshape to one axis lets even empty and 0-dimensional arrays be viewed as bytes
    body = array.reshape(-1).data.cast("B") if array.size else b""
    made, data = Array.__new__(Array), b"".join((header, body))
    # the fields of the dataclass, without the constructor's guessing at its arguments
    vars(made).update(dtype=dtype, shape=array.shape, stype=_NUMPY_STYPE, data=data)
    return made


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """What :func:`encode` takes, read-only: a copy, where anybody could change it."""
    if type(array) is np.ndarray and array.dtype.kind in _ALLOWED_KINDS:
        flags = array.flags
        if flags.owndata and flags.c_contiguous and not flags.writeable:
            return array
    made = np.array(array, order="C")
    _header(made.dtype, made.shape)  # ValueError: of its dtype none travel
    made.setflags(write=False)
    return made


def decode(array: Array) -> NDArray[Any]:
    """Read a Flower ``Array`` as a read-only ndarray, without copying its data.

    ValueError: the bytes are no array of a float, integer or boolean dtype, or their
    number does not fit the shape, so that a header cannot make this function allocate.
    """
    if array.stype != _NUMPY_STYPE:
        raise ValueError(f"array has serialisation {array.stype!r}, not numpy.ndarray")
    data = array.data
    size = 10 + int.from_bytes(data[8:10], "little")
    if size > min(len(data), _MAX_HEADER):
        raise ValueError("array is cut off inside its header")
    shape, dtype, order = _parse_header(data[:size])
    if prod(shape) * dtype.itemsize != len(data) - size:
        raise ValueError(
            f"array of shape {shape} and dtype {dtype} has {len(data) - size} bytes"
        )
    flat = np.frombuffer(data, dtype=dtype, offset=size)
    return flat.reshape(shape, order=cast(Any, order))


# An array costs about 350 bytes beside its data, so small ones travel as one.
JOINED = "joined"
_JOINED_MAX_BYTES = 65_536
_DTYPES = (
    *(np.dtype(name) for name in ("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4")),
    *(np.dtype(name) for name in ("<u8", "<i8", "<f2", "<f4", "<f8")),
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def join_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """Write several small arrays into one array of bytes.

    A byte for their number, of 255 or more two after a 255; for each its dtype, its
    number of axes and its sides; then the data of all, in C order.
    """
    few, bodies = len(arrays) < 255, list[bytes]()
    head = bytearray([len(arrays)] if few else [255, *divmod(len(arrays), 256)])
    for array in arrays:
        head += bytes((_DTYPE_CODES[array.dtype], array.ndim))
        head += np.array(array.shape, dtype="<u4").tobytes()
        bodies.append(array.tobytes())
    return np.frombuffer(b"".join((head, *bodies)), dtype=np.uint8)


def split_arrays(joined: NDArray[Any]) -> list[NDArray[Any]]:
    """Inverse of :func:`join_arrays`; ValueError if the bytes are malformed."""
    if joined.dtype != np.uint8 or joined.ndim != 1 or not joined.size:
        raise ValueError("joined arrays have to be a vector of bytes")
    data = joined.tobytes()
    heads, arrays = [], []
    try:
        few = data[0] < 255
        position = 1 if few else 3
        for _ in range(data[0] if few else 256 * data[1] + data[2]):
            dtype, ndim = _DTYPES[data[position]], data[position + 1]
            sides = np.frombuffer(data, "<u4", ndim, position + 2).tolist()
            position += 2 + 4 * ndim
            heads.append((dtype, sides))
        for dtype, sides in heads:
            end = position + prod(sides) * dtype.itemsize
            # the slice makes it aligned
            arrays.append(np.frombuffer(data[position:end], dtype).reshape(sides))
            position = end
    except (IndexError, ValueError) as error:
        raise ValueError(f"joined arrays are malformed: {error}") from None
    if position != len(data):
        raise ValueError(f"joined arrays have {len(data) - position} bytes too many")
    return arrays


def array_record(arrays: Sequence[NDArray[Any]], join: bool = False) -> ArrayRecord:
    """Make an ``ArrayRecord`` with the keys Flower gives a list: "0", "1", ...

    With ``join``, for messages of our own, several small arrays may travel as one.
    """
    if join and 1 < len(arrays) < 255:
        small = sum([array.nbytes for array in arrays]) <= _JOINED_MAX_BYTES
        if small and _DTYPE_CODES.keys() >= {array.dtype for array in arrays}:
            return filled(ArrayRecord(), {JOINED: encode(join_arrays(arrays))})
    return filled(ArrayRecord(), {str(i): encode(a) for i, a in enumerate(arrays)})


def record_arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    """Read every array of a record, in order, as read-only ndarrays."""
    if len(record) == 1 and JOINED in record:
        return split_arrays(decode(record[JOINED]))
    return list(map(decode, record.values()))


#: What an array costs on the wire beside its data: names, hashes, the .npy header.
ENVELOPE = 400


def bits_of(flat: NDArray[Any]) -> NDArray[Any]:
    """The bits of a contiguous array's numbers, as unsigned integers."""
    return flat.view(f"u{flat.itemsize}")


def sparse_or_dense(point: NDArray[Any]) -> list[NDArray[Any]]:
    """The smaller of [indices, values] of the non-zeros and [the array itself]."""
    flat = point.reshape(-1)
    bits = bits_of(flat)  # −0.0 is no zero here: it arrives as what it was
    index_dtype = np.min_scalar_type(max(flat.size - 1, 0))
    count = np.count_nonzero(bits)
    if count * (index_dtype.itemsize + flat.itemsize) + ENVELOPE >= flat.nbytes:
        return [point]
    indices = np.flatnonzero(bits)
    return [indices.astype(index_dtype), flat[indices]]


def from_sparse_or_dense(
    arrays: Sequence[NDArray[Any]], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Inverse of :func:`sparse_or_dense`; the result may be a read-only view."""
    if len(arrays) == 1:
        return arrays[0].reshape(shape)
    if len(arrays) != 2:
        raise ValueError(f"a sparse array has 2 arrays, not {len(arrays)}")
    indices, values = arrays
    if indices.shape != values.shape or indices.dtype.kind != "u" or indices.ndim != 1:
        raise ValueError("indices and values of a sparse array do not fit together")
    point = np.zeros(shape, values.dtype)
    if indices.size and int(indices.max()) >= point.size:
        raise ValueError(f"an index lies outside an array of {point.size} entries")
    point.reshape(-1)[indices] = values
    return point
