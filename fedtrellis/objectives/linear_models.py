"""What linear models share: data checks and products.

Every check raises a one-line :class:`ValueError` that names the argument, what was
given and what is allowed.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

# Up to this order a matrix is formed and decomposed densely (32 MiB, seconds);
# above it only its products are used.
DENSE_ORDER = 2048
# Most columns of a factor that multiplies a dense A from the left, transposed.
NARROW = 128

# Up to this order the largest eigenvalue comes from all of them (under a millisecond);
# above it from the Lanczos iteration, whose products are far cheaper.
DIRECT_ORDER = 64


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


def check_array(name: str, value: ArrayLike, ndim: int) -> Array:
    """Return ``value`` as finite, C-contiguous float64, copied only if needed."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}; it must be real numbers")
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; it must have {ndim} axes")
    result = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(result).all():
        raise ValueError(f"{name} has NaN or infinite entries; all must be finite")
    return result


def _is_sparse(matrix: Any) -> bool:
    return not isinstance(matrix, np.ndarray) and bool(scipy.sparse.issparse(matrix))


def check_examples(name: str, value: Any) -> Any:
    """Return a data matrix (examples × features), dense or CSR, of finite float64."""
    matrix = value
    if not _is_sparse(value):
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


def check_targets(name: str, value: ArrayLike, count: int) -> Array:
    """Return a vector of ``count`` finite float64 numbers."""
    vector = check_array(name, value, 1)
    if len(vector) != count:
        raise ValueError(f"{name} has {len(vector)} entries; it must have {count}")
    return vector


def check_integers(name: str, value: ArrayLike, count: int, bound: int) -> IntArray:
    """Return a vector of ``count`` whole numbers in [0, ``bound``)."""
    given = check_targets(name, value, count)
    integers = given.astype(np.intp)
    wrong = (integers != given) | (integers < 0) | (integers >= bound)
    if wrong.any():
        raise ValueError(
            f"{name} has the entry {given[wrong][0]:g}; "
            f"entries must be whole numbers from 0 to {bound - 1}"
        )
    return integers


def check_point(x: ArrayLike, shape: tuple[int, ...], *, batch: bool = False) -> Array:
    """Return a point, or a batch of points on a leading axis, of the given shape."""
    point = np.asarray(x, dtype=np.float64)
    if point.shape[1 if batch else 0 :] != shape or point.ndim != len(shape) + batch:
        wanted = ("m", *shape) if batch else shape
        name = "points" if batch else "x"
        raise ValueError(f"{name} has shape {point.shape}; it must be {wanted}")
    return point


def draw_batch(
    rng: np.random.Generator, num_examples: int, batch_size: int
) -> IntArray | None:
    """Draw a mini-batch without replacement; None stands for all examples."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be at least 1")
    if batch_size >= num_examples:
        return None
    return rng.choice(num_examples, size=batch_size, replace=False, shuffle=False)


def inverse_fraction(rows: IntArray | None, num_examples: int) -> float:
    """Return num_examples / len(rows), what makes a mini-batch's sum unbiased."""
    return 1.0 if rows is None else num_examples / len(rows)


def largest_eigenvalue(matrix: Array | LinearOperator[Any]) -> float:
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


class DesignMatrix:
    """The d × p data matrix A of a linear model, dense or CSR, and its products.

    Parameters
    ----------
    matrix : ndarray or scipy.sparse.csr_array
        As returned by :func:`check_examples`.
    intercept : bool
        Whether A has one more column, of ones, which is never stored.
    """

    def __init__(self, matrix: Any, *, intercept: bool = False) -> None:
        self.matrix = matrix
        self.intercept = intercept
        self.shape: tuple[int, int] = (matrix.shape[0], matrix.shape[1] + intercept)

    def rows(self, rows: IntArray | None) -> DesignMatrix:
        """Return the rows named (a copy), or this very object for None."""
        if rows is None:
            return self
        return DesignMatrix(self.matrix[rows], intercept=self.intercept)

    def apply(self, x: Array) -> Array:
        """Return A x, for x of shape (p,) or (p, c)."""
        if not self.intercept:
            return self._product(x)
        scores = self._product(x[:-1])
        scores += x[-1]
        return scores

    def _product(self, x: Array) -> Array:
        """Return A x for the columns of A that are stored."""
        product: Array
        if self._goes_left(x):
            product = (np.ascontiguousarray(x.T) @ self.matrix.T).T
        else:
            product = self.matrix @ x
        return product

    def _goes_left(self, factor: Array) -> bool:
        """Whether (factorᵀ Aᵀ)ᵀ is faster: a BLAS likes a narrow factor on the left."""
        narrow = factor.ndim == 2 and factor.shape[1] <= NARROW
        return narrow and not _is_sparse(self.matrix)

    def adjoint(self, y: Array) -> Array:
        """Return Aᵀ y, for y of shape (d,) or (d, c)."""
        left = self._goes_left(y)
        product: Array = (y.T @ self.matrix).T if left else self.matrix.T @ y
        if not self.intercept:
            return product
        whole = np.empty((self.shape[1], *y.shape[1:]))
        whole[:-1] = product
        whole[-1] = y.sum(axis=0)
        return whole

    def gram(self) -> Array:
        """Return AᵀA, a dense p × p matrix."""
        product = self.matrix.T @ self.matrix
        gram: Array = product.toarray() if _is_sparse(product) else product
        if not self.intercept:
            return gram
        # [F 1]ᵀ[F 1] = [[FᵀF, Fᵀ1], [1ᵀF, d]]
        sums = np.asarray(self.matrix.sum(axis=0), dtype=np.float64).ravel()
        count = np.full((1, 1), float(self.shape[0]))
        return np.block([[gram, sums[:, None]], [sums[None], count]])

    @cached_property
    def largest_gram_eigenvalue(self) -> float:
        """The largest eigenvalue of AᵀA, which is that of AAᵀ."""
        examples, features = self.shape
        if features <= examples:
            return largest_eigenvalue(
                symmetric_operator(features, lambda v: self.adjoint(self.apply(v)))
            )
        return largest_eigenvalue(
            symmetric_operator(examples, lambda v: self.apply(self.adjoint(v)))
        )


def symmetric_operator(order: int, product: Any) -> LinearOperator[Any]:
    """Return a symmetric LinearOperator from its product with one vector."""

    def matvec(vector: Array) -> Array:
        result: Array = product(vector.reshape(order))
        return result

    from scipy.sparse.linalg import LinearOperator

    return LinearOperator(
        (order, order), matvec=matvec, rmatvec=matvec, dtype=np.float64
    )


class LinearModel(ABC):
    """What the linear models add to an objective.

    f(x) = weight · (factor · Σ_k ℓ(a_kᵀx, b_k) + (l2/2)‖x‖²), with ℓ″ ≤ curvature.
    """

    _curvature: float

    def __init__(
        self,
        design: DesignMatrix,
        shape: tuple[int, ...],
        factor: float,
        weight: float,
        l2: float,
    ) -> None:
        self._design = design
        self._factor = factor
        self.num_examples = design.shape[0]
        self.shape = shape
        self.weight = check_number("weight", weight, positive=True)
        self.l2 = check_number("l2", l2)

    @abstractmethod
    def _loss(self, scores: Array, rows: IntArray | None) -> Any:
        """Return Σ_k ℓ over the first axis of ``scores``, which is kept as it is."""

    @abstractmethod
    def _slope(self, scores: Array, rows: IntArray | None) -> Array:
        """Return ∂ℓ/∂score, in the memory of ``scores`` where possible."""

    def _penalty(self, flat: Array) -> Any:
        """Return ½ Σ_j x_j² over the last axis, what l2 is the factor of.

        Subclasses that override it keep its second derivative at most 1.
        """
        return 0.5 * np.einsum("...j,...j->...", flat, flat)

    def _penalty_slope(self, x: Array) -> Array:
        """Return the gradient of :meth:`_penalty`, of the shape of x; x is kept."""
        return x

    def _value_and_gradient(
        self, x: Array, rows: IntArray | None, *, value: bool, gradient: bool
    ) -> tuple[float, Array]:
        design = self._design.rows(rows)
        factor = self.weight * self._factor * inverse_fraction(rows, self.num_examples)
        scores = design.apply(x)
        total, result = 0.0, x
        if value:
            # weight (factor Σ ℓ(a_kᵀx, b_k) + (l2/2)‖x‖²)
            total = factor * float(self._loss(scores, rows))
            if self.l2:
                total += self.weight * self.l2 * float(self._penalty(x.ravel()))
        if gradient:
            # weight (factor Σ a_k ℓ′(a_kᵀx, b_k) + l2 x)
            result = design.adjoint(self._slope(scores, rows))
            if factor != 1.0:
                result *= factor
            if self.l2:
                result += (self.weight * self.l2) * self._penalty_slope(x)
        return total, result

    def _entries_per_point(self, rows: IntArray | None) -> int:
        examples = self.num_examples if rows is None else len(rows)
        return max(examples, self.shape[0]) * int(np.prod(self.shape[1:]))

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        design = self._design.rows(rows)
        factor = self.weight * self._factor * inverse_fraction(rows, self.num_examples)
        # (p, m) or (p, m·c): all the points in one matrix product
        columns = np.moveaxis(points, 0, 1).reshape(self.shape[0], -1)
        scores = design.apply(columns).reshape(-1, len(points), *self.shape[1:])
        losses: Array = factor * self._loss(scores, rows)
        if self.l2:
            flat = points.reshape(len(points), -1)
            losses += self.weight * self.l2 * self._penalty(flat)
        return losses

    def hessian_factor(self) -> tuple[Any, float, float]:
        """Return (A, s, c) with Θ = s AᵀA + c I, for solvers that exploit a wide A.

        Not for :class:`MultinomialLogistic`, whose Θ has another structure.
        """
        scale = self.weight * self._curvature * self._factor
        return self._design.matrix, scale, self.weight * self.l2

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return Θ = weight (curvature · factor · AᵀA + l2 I).

        The curvature bounds ℓ″: 2 for (z − b)², 1/4 for the logistic loss.

        Returns
        -------
        ndarray of shape (p, p), or a LinearOperator where p > 2048.
        """
        _, scale, shift = self.hessian_factor()
        design, order = self._design, self._design.shape[1]
        if order > DENSE_ORDER:
            return symmetric_operator(
                order, lambda v: scale * design.adjoint(design.apply(v)) + shift * v
            )
        bound = scale * design.gram()
        bound[np.diag_indices(order)] += shift
        return bound

    @cached_property
    def _lipschitz(self) -> float:
        scale = self._curvature * self._factor
        return self.weight * (scale * self._design.largest_gram_eigenvalue + self.l2)

    def lipschitz(self) -> float:
        """Return λ_max(Θ), computed once."""
        return self._lipschitz
