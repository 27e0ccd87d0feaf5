"""NumPy arrays to Flower's ``Array`` and back.

Flower's own conversion goes through ``numpy.save`` and ``numpy.load``; these functions
write and read the same bytes (a ``.npy`` file, so either side may be plain Flower)
without their overhead, and refuse what is malformed before anything is allocated.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.layout import FloatArray, Layout

__all__ = [
    "ENVELOPE",
    "Described",
    "FloatArray",
    "Layout",
    "array_record",
    "bits_of",
    "check_entries",
    "contents",
    "decode",
    "encode",
    "filled",
    "from_sparse_or_dense",
    "one_array_of",
    "owned",
    "record_arrays",
    "sparse_or_dense",
]

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


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy of what :func:`encode` takes."""
    made = np.array(array, order="C")
    if made.dtype.kind not in _ALLOWED_KINDS:
        encode(made)  # which says so
    made.flags.writeable = False
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
T = TypeVar("T", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


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


#: Dtypes and shapes of arrays.
Described = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]


def _joins(described: Described) -> bool:
    """Whether arrays are so small, and of such kinds, that they travel as one."""
    return (
        1 < len(described) < 256
        and sum(prod(s) * d.itemsize for d, s in described) <= _JOINED_MAX_BYTES
        and all(d in _DTYPE_CODES and len(s) < 256 for d, s in described)
    )


@lru_cache(maxsize=1024)
def one_array_of(described: Described) -> tuple[str, str, tuple[int, ...], int] | None:
    """The only array that :func:`array_record` makes of joined arrays, before it does.

    Returns
    -------
    (str, str, tuple of int, int) or None
        Its key, dtype, shape and bytes with its header; None if there are several.
    """
    if len(described) == 1:
        key, (dtype, shape) = "0", described[0]
    elif _joins(described):
        heads = 1 + sum(2 + 4 * len(shape) for _, shape in described)
        size = heads + sum(prod(shape) * dtype.itemsize for dtype, shape in described)
        key, dtype, shape = _JOINED, np.dtype(np.uint8), (size,)
    else:
        return None
    length = len(_header(dtype.str, shape)) + prod(shape) * dtype.itemsize
    return key, _dtype_name(dtype), shape, length


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
    several = join and len(arrays) > 1
    if several and _joins(tuple((array.dtype, array.shape) for array in arrays)):
        record[_JOINED] = encode(join_arrays(arrays))
        return record
    return filled(record, {str(i): encode(array) for i, array in enumerate(arrays)})


def record_arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    """Read every array of a record, in order, as read-only ndarrays."""
    arrays = contents(record)
    if len(arrays) == 1 and _JOINED in arrays:
        return split_arrays(decode(arrays[_JOINED]))
    return [decode(array) for array in arrays.values()]


# ------------------------------------------------------------- sparse arrays

#: What an array costs on the wire beside its data: names, hashes, the .npy header.
ENVELOPE = 400


def bits_of(flat: NDArray[Any]) -> NDArray[Any]:
    """The bits of a contiguous array's numbers, as unsigned integers."""
    return flat.view(f"u{flat.itemsize}")


def sparse_or_dense(point: NDArray[Any]) -> list[NDArray[Any]]:
    """The smaller of [indices, values] of the non-zeros and [the array itself].

    Of any dtype that travels: see :meth:`~fedtrellis.wire.layout.Layout.to_wire`.
    """
    flat = point.reshape(-1)
    bits = bits_of(flat)  # −0.0 is no zero here: it arrives as what it was
    index_dtype = np.min_scalar_type(max(flat.size - 1, 0))
    count = np.count_nonzero(bits)
    if count * (index_dtype.itemsize + flat.itemsize) + ENVELOPE >= flat.nbytes:
        return [point]
    indices = np.flatnonzero(bits)
    return [indices.astype(index_dtype), flat[indices]]


def check_entries(indices: NDArray[Any], values: NDArray[Any], size: int) -> None:
    """Raise ValueError unless these are entries of an array of so many."""
    if indices.shape != values.shape or indices.dtype.kind != "u" or indices.ndim != 1:
        raise ValueError("indices and values of a sparse array do not fit together")
    if indices.size and int(indices.max()) >= size:
        raise ValueError(f"an index lies outside an array of {size} entries")


def from_sparse_or_dense(
    arrays: Sequence[NDArray[Any]], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Inverse of :func:`sparse_or_dense`; the result may be a read-only view."""
    if len(arrays) == 1:
        return arrays[0].reshape(shape)
    if len(arrays) != 2:
        raise ValueError(f"a sparse array has 2 arrays, not {len(arrays)}")
    indices, values = arrays
    check_entries(indices, values, prod(shape))
    point = np.zeros(shape, values.dtype)
    point.reshape(-1)[indices] = values
    return point
