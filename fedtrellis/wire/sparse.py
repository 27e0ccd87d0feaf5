"""An array as its non-zero entries, where these are smaller."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ENVELOPE",
    "bits_of",
    "check_entries",
    "from_sparse_or_dense",
    "sparse_or_dense",
]

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
