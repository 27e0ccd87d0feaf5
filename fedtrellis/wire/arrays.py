"""NumPy arrays to Flower's ``Array`` and back, and models of several layers as one.

Flower's own conversion goes through ``numpy.save`` and ``numpy.load``; these functions
write and read the same bytes (a ``.npy`` file, so either side may be plain Flower)
without their overhead, and refuse what is malformed before anything is allocated.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

__all__ = [
    "FloatArray",
    "Layout",
    "array_record",
    "contents",
    "decode",
    "encode",
    "filled",
    "record_arrays",
]

FloatArray = NDArray[np.float64]

_NUMPY_STYPE = "numpy.ndarray"
_ALLOWED_KINDS = "fiub"
_MAX_HEADER = 4096


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The ``.npy`` header of a C-contiguous array."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    elif version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    else:
        raise ValueError(f"array header has version {version}; allowed: 1.0, 2.0")
    shape, fortran_order, dtype = read(stream)
    return shape, fortran_order, dtype


def encode(array: NDArray[Any]) -> Array:
    """Make a Flower ``Array`` of an ndarray, copying its data once.

    Parameters
    ----------
    array : ndarray
        Of a float, integer or boolean dtype, of any shape.
    """
    array = np.asarray(array, order="C")
    if array.dtype.kind not in _ALLOWED_KINDS:
        raise ValueError(
            f"an array of dtype {array.dtype} cannot travel; "
            "allowed: float, integer and boolean arrays"
        )
    header = _header(array.dtype.str, array.shape)
    # a reshape to one axis lets even empty and 0-dimensional arrays be viewed as bytes
    body = array.reshape(-1).data.cast("B") if array.size else b""
    made = Array.__new__(Array)
    # the fields of the dataclass, without the constructor's guessing at its arguments
    made.__dict__.update(
        dtype=_dtype_name(array.dtype),
        shape=array.shape,
        stype=_NUMPY_STYPE,
        data=b"".join((header, body)),
    )
    return made


def decode(array: Array) -> NDArray[Any]:
    """Read a Flower ``Array`` as a read-only ndarray, without copying its data.

    Raises
    ------
    ValueError
        If the bytes are not an array of a float, integer or boolean dtype, or their
        number does not fit the shape: a header cannot make this function allocate.
    """
    if array.stype != _NUMPY_STYPE:
        raise ValueError(f"array has serialisation {array.stype!r}, not numpy.ndarray")
    data = array.data
    size = 10 + int.from_bytes(data[8:10], "little")
    if data[6:8] == b"\x02\x00":
        size = 12 + int.from_bytes(data[8:12], "little")
    if size > min(len(data), _MAX_HEADER):
        raise ValueError("array is cut off inside its header")
    try:
        shape, fortran_order, dtype = _parse_header(data[:size])
    except Exception as error:
        raise ValueError(f"array header cannot be read: {error}") from None
    if dtype.hasobject or dtype.kind not in _ALLOWED_KINDS:
        raise ValueError(f"array has dtype {dtype}; allowed: float, integer, boolean")
    if any(side < 0 for side in shape):
        raise ValueError(f"array has shape {shape}: a side is negative")
    if prod(shape) * dtype.itemsize != len(data) - size:
        raise ValueError(
            f"array of shape {shape} and dtype {dtype} has {len(data) - size} bytes"
        )
    flat = np.frombuffer(data, dtype=dtype, offset=size)
    return flat.reshape(shape, order="F" if fortran_order else "C")


_PLAIN = frozenset((bool, int, float, str, bytes, list))
T = TypeVar("T", ArrayRecord, ConfigRecord, RecordDict)


def filled(record: T, items: Mapping[str, Any]) -> T:
    """Put items into a new record at once.

    Flower checks each item's type as it is set, which takes a fifth of a round trip in
    this process; this is for items that we have just made. Whatever is not plainly
    right, and a Flower whose records are built differently, goes the ordinary way.
    """
    data = record.__dict__.get("_data")
    if isinstance(data, dict) and (
        not isinstance(record, ConfigRecord)
        or _PLAIN.issuperset(map(type, items.values()))
    ):
        data.update(items)
    else:
        for name, item in items.items():
            record[name] = item
    return record


def contents(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record's items, not to be changed; looking at the record itself is slow."""
    data = getattr(record, "_data", None)
    return data if isinstance(data, dict) else dict(record)


# An array costs about 350 bytes on the wire beside its data (its names, the hashes of
# its objects, headers), so small ones travel as one.
_JOINED = "joined"
_JOINED_MAX_BYTES = 65_536
_DTYPES = (
    *(np.dtype(name) for name in ("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4")),
    *(np.dtype(name) for name in ("<u8", "<i8", "<f2", "<f4", "<f8")),
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def join_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """Write several small arrays into one array of bytes.

    A byte for their number; for each its dtype, its number of axes and its sides; then
    the data of all, in C order.
    """
    head, bodies = bytearray([len(arrays)]), []
    for array in arrays:
        head += bytes((_DTYPE_CODES[array.dtype], array.ndim))
        for side in array.shape:
            head += side.to_bytes(4, "little")
        bodies.append(array.tobytes())
    return np.frombuffer(b"".join((head, *bodies)), dtype=np.uint8)


def split_arrays(joined: NDArray[Any]) -> list[NDArray[Any]]:
    """Inverse of :func:`join_arrays`; ValueError if the bytes are malformed."""
    if joined.dtype != np.uint8 or joined.ndim != 1 or not joined.size:
        raise ValueError("joined arrays have to be a vector of bytes")
    data = joined.tobytes()
    heads, position = [], 1
    for _ in range(data[0]):
        if position + 2 > len(data) or data[position] >= len(_DTYPES):
            raise ValueError("joined arrays are cut off or have an unknown dtype")
        dtype, ndim = _DTYPES[data[position]], data[position + 1]
        position += 2
        if position + 4 * ndim > len(data):
            raise ValueError("joined arrays are cut off inside a shape")
        shape = np.frombuffer(data, dtype="<u4", count=ndim, offset=position)
        position += 4 * ndim
        heads.append((dtype, tuple(shape.tolist())))
    arrays = []
    for dtype, sides in heads:
        end = position + prod(sides) * dtype.itemsize
        if end > len(data):
            raise ValueError("joined arrays are cut off inside their data")
        # the slice makes it aligned
        arrays.append(np.frombuffer(data[position:end], dtype=dtype).reshape(sides))
        position = end
    if position != len(data):
        raise ValueError(f"joined arrays have {len(data) - position} bytes too many")
    return arrays


def array_record(arrays: Sequence[NDArray[Any]], join: bool = False) -> ArrayRecord:
    """Make an ``ArrayRecord`` with the keys Flower gives a list: "0", "1", ...

    Parameters
    ----------
    arrays : sequence of ndarray
    join : bool
        Whether several small arrays may travel as one, under the key "joined". For
        our own messages; what others read keeps an array an array.
    """
    record = ArrayRecord()
    if (
        join
        and 1 < len(arrays) < 256
        and sum(array.nbytes for array in arrays) <= _JOINED_MAX_BYTES
        and all(array.dtype in _DTYPE_CODES and array.ndim < 256 for array in arrays)
    ):
        record[_JOINED] = encode(join_arrays(arrays))
        return record
    return filled(record, {str(i): encode(array) for i, array in enumerate(arrays)})


def record_arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    """Read every array of a record, in order, as read-only ndarrays."""
    arrays = contents(record)
    if len(arrays) == 1 and _JOINED in arrays:
        return split_arrays(decode(arrays[_JOINED]))
    return [decode(array) for array in arrays.values()]


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
    """

    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> Layout:
        """Layout of a list of arrays."""
        return cls(tuple(array.shape for array in arrays))

    @property
    def size(self) -> int:
        """Number of parameters p."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of the point that stands for the model."""
        only = self.shapes[0] if len(self.shapes) == 1 else ()
        # arithmetic turns an array of shape () into a scalar, which nothing changes in
        # place; a vector of one entry stays one
        return only or (self.size,)

    def point(self, arrays: Sequence[NDArray[Any]]) -> FloatArray:
        """Join the layers into one float64 point (no copy if there is only one)."""
        if tuple(array.shape for array in arrays) != self.shapes:
            raise ValueError(
                f"arrays have shapes {[array.shape for array in arrays]}, "
                f"expected {list(self.shapes)}"
            )
        if len(arrays) == 1 and self.shapes[0]:
            return np.asarray(arrays[0], dtype=np.float64)
        return np.concatenate(
            [np.asarray(array, dtype=np.float64).reshape(-1) for array in arrays]
        )

    def layers(self, point: FloatArray) -> list[FloatArray]:
        """Split a point into the layers, as views of it."""
        flat = point.reshape(-1)
        layers, start = [], 0
        for shape in self.shapes:
            stop = start + prod(shape)
            layers.append(flat[start:stop].reshape(shape))
            start = stop
        return layers

    def objective_point(self, point: FloatArray) -> FloatArray | list[FloatArray]:
        """Return what an objective is given: one array, or the list of the layers."""
        if len(self.shapes) == 1:
            return point.reshape(self.shapes[0])
        return self.layers(point)

    def objective_gradient(self, gradient: Any) -> FloatArray:
        """Join an objective's gradient into the point's shape.

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
        array = cast(FloatArray, np.asarray(gradient, dtype=np.float64))
        return array.reshape(self.point_shape)

    def to_list(self) -> list[int]:
        """Return the shapes as one list of integers, for a ``ConfigRecord``."""
        numbers: list[int] = []
        for shape in self.shapes:
            numbers.extend((len(shape), *shape))
        return numbers

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> Layout:
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
        return cls(tuple(shapes))
