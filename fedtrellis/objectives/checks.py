"""The types of objectives' arrays, and the checks of what a user gives.

Every check raises a one-line :class:`ValueError` that names the argument, what was
given and what is allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

FLOAT64 = np.dtype(np.float64)


def check_number(name: str, value: float, *, positive: bool = False) -> float:
    """Return a finite number that is at least 0, or above 0 for ``positive``."""
    allowed = "above 0" if positive else "at least 0"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} is {value!r}; it must be a finite number {allowed}")
    return number


def check_count(name: str, value: float, least: int, most: int | None = None) -> int:
    """Return a whole number from ``least`` on, up to ``most`` if there is one."""
    if int(value) != value or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; it must be a whole number {allowed}")
    return int(value)


def check_array(
    name: str, value: ArrayLike, ndim: int, count: int | None = None
) -> Array:
    """Return ``value`` as finite, C-contiguous float64, copied only if needed.

    With a ``count`` it has so many entries on its first axis.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}; it must be real numbers")
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; it must have {ndim} axes")
    result = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(result).all():
        raise ValueError(f"{name} has NaN or infinite entries; all must be finite")
    if count not in (None, len(result)):
        raise ValueError(f"{name} has {len(result)} entries; it must have {count}")
    return result


def is_sparse(matrix: Any) -> bool:
    """Whether it is a SciPy sparse matrix, for types that stay as they are."""
    return not isinstance(matrix, np.ndarray) and bool(scipy.sparse.issparse(matrix))


def check_examples(name: str, value: Any) -> Any:
    """Return a data matrix (examples × features), dense or CSR, of finite float64."""
    matrix = value
    if not is_sparse(value):
        matrix = check_array(name, value, 2)
    else:
        if value.ndim != 2 or np.dtype(value.dtype).kind not in "biuf":
            raise ValueError(
                f"{name} is sparse with shape {value.shape} and dtype {value.dtype}; "
                "it must be a matrix of real numbers"
            )
        matrix = scipy.sparse.csr_array(value, dtype=np.float64)
        check_array(f"{name}.data", matrix.data, 1)
    if 0 in matrix.shape:
        raise ValueError(
            f"{name} has shape {matrix.shape}; it must have at least one example (row) "
            "and one feature (column)"
        )
    return matrix


def check_integers(name: str, value: ArrayLike, count: int, bound: int) -> IntArray:
    """Return a vector of ``count`` whole numbers in [0, ``bound``)."""
    given = check_array(name, value, 1, count)
    integers = given.astype(np.intp)
    wrong = (integers != given) | (integers < 0) | (integers >= bound)
    if wrong.any():
        raise ValueError(
            f"{name} has the entry {given[wrong][0]:g}; "
            f"entries must be whole numbers from 0 to {bound - 1}"
        )
    return integers


def check_point(
    x: ArrayLike,
    shape: tuple[int, ...],
    *,
    batch: bool = False,
    name: str = "x",
    dtype: np.dtype[Any] = FLOAT64,
) -> Array:
    """Return a point, or a batch of points on a leading axis, of the given shape."""
    point = np.asarray(x, dtype=dtype)
    if point.shape[1 if batch else 0 :] != shape or point.ndim != len(shape) + batch:
        wanted = ("m", *shape) if batch else shape
        name = "points" if batch else name
        raise ValueError(f"{name} has shape {point.shape}; it must be {wanted}")
    return point
