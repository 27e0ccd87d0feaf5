"""Scaling of features, dense or CSR, and a constant one more."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray


def divide(matrix: Any, lengths: NDArray[np.float64], axis: int) -> Any:
    """Divide rows (axis 0) or columns (axis 1) by lengths, in place; 0/0 is 0."""
    factors = 1.0 / np.where(lengths > 0.0, lengths, 1.0)
    if isinstance(matrix, np.ndarray):
        matrix *= factors[:, None] if axis == 0 else factors
    elif axis == 0:
        matrix.data *= np.repeat(factors, np.diff(matrix.indptr))
    else:
        matrix.data *= factors[matrix.indices]
    return matrix


def norms(matrix: Any, axis: int) -> NDArray[np.float64]:
    """Return the Euclidean norms of rows (axis 0) or columns (axis 1)."""
    if isinstance(matrix, np.ndarray):
        squares = np.einsum("ij,ij->i" if axis == 0 else "ij,ij->j", matrix, matrix)
    else:
        squares = np.asarray(matrix.multiply(matrix).sum(axis=1 - axis)).ravel()
    return np.asarray(np.sqrt(squares))


def scaled(train: Any, test: Any, scaling: str) -> tuple[Any, Any]:
    """Scale training and test features in place, as measured on the former.

    ``scaling`` is "none", "unit-rows", "unit-columns" or, of dense features alone,
    "standard": zero mean and unit variance.
    """
    if scaling == "unit-rows":
        return divide(train, norms(train, 0), 0), divide(test, norms(test, 0), 0)
    if scaling == "standard":
        # a constant feature becomes exactly 0 and stays it
        constant = train.max(axis=0) == train.min(axis=0)
        means = np.where(constant, train[0], train.mean(axis=0))
        train -= means
        test -= means
    if scaling in ("standard", "unit-columns"):
        lengths = norms(train, 1)
        if scaling == "standard":
            lengths = lengths / np.sqrt(len(train))
        divide(train, lengths, 1)
        divide(test, lengths, 1)
    return train, test


def with_constant(matrix: Any, value: float = 1.0) -> Any:
    """Append a constant feature."""
    column = np.full((matrix.shape[0], 1), value)
    if isinstance(matrix, np.ndarray):
        return np.hstack([matrix, column])
    sparse = scipy.sparse.csr_array(column)
    return scipy.sparse.csr_array(scipy.sparse.hstack([matrix, sparse], format="csr"))
