"""Symmetric matrices known by their products, and their largest eigenvalue."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedtrellis.objectives.checks import Array

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

#: A symmetric matrix, as an array or by its products.
Bound: TypeAlias = "Array | LinearOperator[Any]"

# Up to this order a matrix is formed and decomposed densely (32 MiB, seconds);
# above it only its products are used.
DENSE_ORDER = 2048

# Up to this order the largest eigenvalue comes from all of them (under a millisecond);
# above it from the Lanczos iteration, whose products are far cheaper.
DIRECT_ORDER = 64


def symmetric_operator(order: int, product: Any) -> LinearOperator[Any]:
    """Return a symmetric LinearOperator from its product with one vector."""
    from scipy.sparse.linalg import LinearOperator

    def matvec(vector: Array) -> Any:
        return product(vector.reshape(order))

    return LinearOperator((order, order), matvec, matvec, dtype=np.float64)


def diagonal_bound(diagonal: Array) -> Bound:
    """Return a diagonal matrix, dense where it has at most 2048 rows."""
    if len(diagonal) <= DENSE_ORDER:
        return np.diag(diagonal)
    return symmetric_operator(len(diagonal), lambda v: diagonal * v)


def largest_eigenvalue(matrix: Bound) -> float:
    """Return the largest eigenvalue of a symmetric matrix or operator.

    Its relative error is below 1e-12, unless other eigenvalues lie as close to it as
    1e-8: then it is at most 1e-10, and 1e-4 in cases where the order is above 2048.
    """
    order = int(matrix.shape[0])
    if order > DIRECT_ORDER:
        # A fixed start makes the answer the same in every process.
        start = np.random.default_rng(0).standard_normal(order)
        if not np.any(matrix @ start):
            return 0.0  # ARPACK refuses the zero matrix
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        operator: Any = matrix
        for tolerance in (1e-10,) if order <= DENSE_ORDER else (1e-10, 1e-7, 1e-4):
            # The tolerance is on ‖Hv − λv‖/λ, which bounds the error of λ; that is
            # about the square of it over the relative distance to the next one.
            with contextlib.suppress(ArpackNoConvergence):
                values = eigsh(
                    operator,
                    k=1,
                    which="LA",
                    v0=start,
                    tol=tolerance,
                    maxiter=300,
                    return_eigenvectors=False,
                )
                return float(values[0])
        if order > DENSE_ORDER:
            raise RuntimeError(
                f"the largest eigenvalue of a matrix of order {order} was not found"
            )
    dense = matrix if isinstance(matrix, np.ndarray) else matrix @ np.eye(order)
    return float(np.linalg.eigvalsh(dense)[-1])
