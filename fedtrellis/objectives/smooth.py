"""Objectives: the smooth function a client holds, with its gradients and bounds.

The methods need only what :class:`Objective` declares; a user's own loss is a subclass
with ``shape``, ``num_examples``, ``value`` and ``gradient``. A point x is one float64
array of the objective's ``shape``. For PyTorch modules see
:class:`fedtrellis.objectives.torch_objective.TorchObjective`.

Data given as C-contiguous float64 (or float64 CSR) is not copied: do not change it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

from fedtrellis.objectives.linear_models import (
    DENSE_ORDER,
    Array,
    DesignMatrix,
    IntArray,
    LinearModel,
    check_array,
    check_examples,
    check_integers,
    check_number,
    check_point,
    check_targets,
    draw_batch,
    inverse_fraction,
    largest_eigenvalue,
    symmetric_operator,
)

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = [
    "LeastSquares",
    "Logistic",
    "MatrixCompletion",
    "MultinomialLogistic",
    "Objective",
    "QuadraticAssignment",
]

# values(points) works through a batch of points in slices whose intermediate arrays
# have at most this many entries (64 MiB).
_SLICE_ENTRIES = 2**23


class Objective(ABC):
    """A smooth function of one float64 array, usually a mean over examples.

    Attributes
    ----------
    shape : tuple of int
        The shape of a point x.
    num_examples : int
        How many examples the function is made of.
    """

    shape: tuple[int, ...]
    num_examples: int

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return f(x)."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return ∇f(x), of the shape of x."""

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and ∇f(x), at less than the price of both where possible."""
        return self.value(x), self.gradient(x)

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int
    ) -> Array:
        """Return an unbiased estimate of ∇f(x) from a mini-batch.

        Parameters
        ----------
        x : ndarray
            The point.
        rng : numpy.random.Generator
            Draws the batch, without replacement; the only source of randomness.
        batch_size : int
            Examples in the batch, at least 1; ``num_examples`` or more gives ∇f(x).
        """
        raise NotImplementedError(f"{type(self).__name__} has no stochastic_gradient")

    def values(
        self,
        points: Array,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of a batch of points, the leading axis of ``points``.

        Parameters
        ----------
        points : ndarray of shape (m, *shape)
        rng : numpy.random.Generator, optional
            Draws the mini-batch; not used without ``batch_size``.
        batch_size : int, optional
            Estimate all m values from one mini-batch that they share, ξ in F(x, ξ).

        Returns
        -------
        ndarray of shape (m,)
        """
        if batch_size is not None:
            raise NotImplementedError(f"{type(self).__name__} has no mini-batch values")
        return np.array([self.value(x) for x in points], dtype=np.float64)

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return a symmetric Θ with f(x) ≤ f(z) + ⟨∇f(z), x − z⟩ + ½‖x − z‖²_Θ.

        Returns
        -------
        ndarray of shape (p, p) or scipy.sparse.linalg.LinearOperator
            p is the number of entries of x, which counts in C order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no hessian_bound")

    def lipschitz(self) -> float:
        """Return the largest eigenvalue of Θ, a Lipschitz constant of ∇f."""
        return largest_eigenvalue(self.hessian_bound())

    def metrics(self, x: Array) -> dict[str, float]:
        """Return what else is worth reporting at x, such as the accuracy."""
        return {}


class _FiniteSum(Objective):
    """A weighted sum over examples, whose parts can be evaluated on some of them.

    Subclasses evaluate on ``rows``: the indices of a mini-batch, scaled by
    num_examples / len(rows) so that the expectation is the whole sum, or None for all.
    """

    @abstractmethod
    def _value_and_gradient(
        self, x: Array, rows: IntArray | None, *, value: bool, gradient: bool
    ) -> tuple[float, Array]: ...

    @abstractmethod
    def _values(self, points: Array, rows: IntArray | None) -> Array: ...

    @abstractmethod
    def _entries_per_point(self, rows: IntArray | None) -> int:
        """The entries of the largest intermediate array that a point takes."""

    def value(self, x: Array) -> float:
        point = check_point(x, self.shape)
        return self._value_and_gradient(point, None, value=True, gradient=False)[0]

    def gradient(self, x: Array) -> Array:
        point = check_point(x, self.shape)
        return self._value_and_gradient(point, None, value=False, gradient=True)[1]

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        point = check_point(x, self.shape)
        return self._value_and_gradient(point, None, value=True, gradient=True)

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int
    ) -> Array:
        point = check_point(x, self.shape)
        rows = draw_batch(rng, self.num_examples, batch_size)
        return self._value_and_gradient(point, rows, value=False, gradient=True)[1]

    def values(
        self,
        points: Array,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        points = check_point(points, self.shape, batch=True)
        rows = None
        if batch_size is not None:
            if rng is None:
                raise ValueError("rng is None; batch_size needs a random generator")
            rows = draw_batch(rng, self.num_examples, batch_size)
        result = np.zeros(len(points))
        step = max(1, _SLICE_ENTRIES // self._entries_per_point(rows))
        for start in range(0, len(points), step):
            part = slice(start, start + step)
            result[part] = self._values(points[part], rows)
        return result


class LeastSquares(LinearModel, _FiniteSum):
    """Linear least squares.

    ``scale="sum"``: f(x) = weight · (‖Ax − b‖² + (l2/2)‖x‖²);
    ``scale="half-mean"``: f(x) = weight · ((1/2d)‖Ax − b‖² + (l2/2)‖x‖²).

    Parameters
    ----------
    A : array_like or scipy.sparse matrix of shape (d, p)
        Dense, or sparse and kept as CSR.
    b : array_like of shape (d,)
    weight : float, default 1.0
        A positive factor on the whole function.
    scale : {"sum", "half-mean"}
    l2 : float, default 0.0

    Raises
    ------
    ValueError
        If shapes disagree, an entry is not finite or a parameter is not allowed.

    Notes
    -----
    "sum" with weight n is the LASSO of the FedFW workshop paper (2022); "half-mean" is
    example V.1 of FedGiA, arXiv 2205.01438, with Θ = AᵀA/d.
    """

    _curvature = 2.0

    def __init__(
        self,
        A: Any,
        b: ArrayLike,
        *,
        weight: float = 1.0,
        scale: str = "sum",
        l2: float = 0.0,
    ) -> None:
        matrix = check_examples("A", A)
        if scale not in ("sum", "half-mean"):
            raise ValueError(f"scale is {scale!r}; allowed: 'sum', 'half-mean'")
        examples, features = matrix.shape
        factor = 1.0 if scale == "sum" else 0.5 / examples
        super().__init__(DesignMatrix(matrix), (features,), factor, weight, l2)
        self._targets = check_targets("b", b, examples)

    def _residuals(self, scores: Array, rows: IntArray | None, out: Any) -> Array:
        targets = self._targets if rows is None else self._targets[rows]
        column = targets.reshape(-1, *[1] * (scores.ndim - 1))
        residuals: Array = np.subtract(scores, column, out=out)
        return residuals

    def _loss(self, scores: Array, rows: IntArray | None) -> Any:
        residuals = self._residuals(scores, rows, None)
        # Σ_k (a_kᵀx − b_k)²
        return np.einsum("k...,k...->...", residuals, residuals)

    def _slope(self, scores: Array, rows: IntArray | None) -> Array:
        residuals = self._residuals(scores, rows, scores)
        residuals *= 2.0
        return residuals


class Logistic(LinearModel, _FiniteSum):
    """Binary logistic regression, labels in {0, 1}.

    f(x) = weight · ((1/d) Σ_k [ln(1 + exp(a_kᵀx)) − b_k a_kᵀx] + (l2/2)‖x‖²),
    with Θ = weight · ((1/4d) AᵀA + l2 I). No score overflows.

    Parameters
    ----------
    A : array_like or scipy.sparse matrix of shape (d, p)
        Dense, or sparse and kept as CSR.
    b : array_like of shape (d,)
        Labels, 0 or 1.
    l2 : float, default 0.0
        μ of the paper.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If shapes disagree, an entry is not finite, a label is neither 0 nor 1, or a
        parameter is not allowed.

    Notes
    -----
    Example V.2 of FedGiA, arXiv 2205.01438.
    """

    _curvature = 0.25

    def __init__(
        self, A: Any, b: ArrayLike, *, l2: float = 0.0, weight: float = 1.0
    ) -> None:
        matrix = check_examples("A", A)
        examples, features = matrix.shape
        super().__init__(DesignMatrix(matrix), (features,), 1.0 / examples, weight, l2)
        # ln(1 + e^z) − bz = ln(1 + e^{sz}) with s = 1 − 2b, which does not cancel.
        self._signs = 1.0 - 2.0 * check_integers("b", b, examples, 2)

    def _signed(self, scores: Array, rows: IntArray | None, out: Any) -> Array:
        signs = self._signs if rows is None else self._signs[rows]
        column = signs.reshape(-1, *[1] * (scores.ndim - 1))
        signed: Array = np.multiply(scores, column, out=out)
        return signed

    def _loss(self, scores: Array, rows: IntArray | None) -> Any:
        signed = self._signed(scores, rows, None)
        # Σ_k ln(1 + exp(s_k a_kᵀx))
        return np.logaddexp(0.0, signed, out=signed).sum(axis=0)

    def _slope(self, scores: Array, rows: IntArray | None) -> Array:
        signed = self._signed(scores, rows, scores)
        # s / (1 + exp(−s z)), which is 1/(1 + e^{−z}) − b
        return self._signed(scipy.special.expit(signed, out=signed), rows, signed)

    def predict(self, x: Array, A: Any = None) -> IntArray:
        """Return the labels 1[a_kᵀx > 0] of the rows of A, by default its own."""
        x = check_point(x, self.shape)
        design = self._design if A is None else _other_design(A, self._design, "A")
        return (design.apply(x) > 0.0).astype(np.intp)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == (self._signs < 0)))}


class MultinomialLogistic(LinearModel, _FiniteSum):
    """Multi-class logistic regression: the mean cross-entropy of a linear softmax.

    f(W) = weight · ((1/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k] + (l2/2)‖W‖²), z = F W, and
    the last row of W the bias when ``intercept``; l2 includes the bias. Points have
    shape (q, classes), (q + 1, classes) with the intercept.

    Parameters
    ----------
    features : array_like or scipy.sparse matrix of shape (d, q)
        Dense, or sparse and kept as CSR.
    labels : array_like of shape (d,)
        Whole numbers in [0, classes).
    classes : int
        At least 2.
    intercept : bool, default True
    l2 : float, default 0.0
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If shapes disagree, an entry is not finite, or a label or parameter is not
        allowed.

    Notes
    -----
    Θ = weight · ((1/2d) [F 1]ᵀ[F 1] ⊗ (I − 11ᵀ/classes) + l2 I): D. Böhning,
    "Multinomial logistic regression algorithm", 1992.
    """

    _curvature = 0.5

    def __init__(
        self,
        features: Any,
        labels: ArrayLike,
        classes: int,
        *,
        intercept: bool = True,
        l2: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        matrix = check_examples("features", features)
        if int(classes) != classes or classes < 2:
            raise ValueError(f"classes is {classes!r}; it must be a whole number >= 2")
        design = DesignMatrix(matrix, intercept=bool(intercept))
        examples = matrix.shape[0]
        shape = (design.shape[1], int(classes))
        super().__init__(design, shape, 1.0 / examples, weight, l2)
        self._labels = check_integers("labels", labels, examples, int(classes))

    def _loss(self, scores: Array, rows: IntArray | None) -> Any:
        labels = self._labels if rows is None else self._labels[rows]
        # With the largest score taken off, the exponentials lie in (0, 1].
        shifted = scores - scores.max(axis=-1, keepdims=True)
        chosen = shifted[np.arange(len(labels)), ..., labels]
        # Σ_k [ln Σ_c exp(z_kc) − z_k,y_k]
        sums = np.exp(shifted, out=shifted).sum(axis=-1)
        return (np.log(sums) - chosen).sum(axis=0)

    def _slope(self, scores: Array, rows: IntArray | None) -> Array:
        labels = self._labels if rows is None else self._labels[rows]
        # softmax(z_k) − e_{y_k}
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        scores[np.arange(len(labels)), labels] -= 1.0
        return scores

    def hessian_factor(self) -> tuple[Any, float, float]:
        """Not available: Θ is a Kronecker product, see :meth:`hessian_bound`."""
        raise NotImplementedError("MultinomialLogistic has no hessian_factor")

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return Böhning's Θ, dense where it has at most 2048 rows."""
        design, (rows, classes) = self._design, self.shape
        scale = self.weight * self._curvature * self._factor
        shift = self.weight * self.l2
        if rows * classes <= DENSE_ORDER:
            centring = np.eye(classes) - 1.0 / classes
            bound = np.asarray(scale * np.kron(design.gram(), centring))
            bound[np.diag_indices(rows * classes)] += shift
            return bound

        def product(v: Array) -> Array:
            matrix = v.reshape(rows, classes)
            centred = matrix - matrix.mean(axis=1, keepdims=True)
            result = scale * design.adjoint(design.apply(centred)) + shift * matrix
            return result.ravel()

        return symmetric_operator(rows * classes, product)

    def predict(self, x: Array, features: Any = None) -> IntArray:
        """Return the class of the largest score of each row, by default its own."""
        x = check_point(x, self.shape)
        design = self._design
        if features is not None:
            design = _other_design(features, design, "features")
        return np.asarray(np.argmax(design.apply(x), axis=1), dtype=np.intp)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == self._labels))}


def _other_design(matrix: Any, design: DesignMatrix, name: str) -> DesignMatrix:
    """Return other data for the model of ``design``."""
    other = DesignMatrix(check_examples(name, matrix), intercept=design.intercept)
    if other.shape[1] != design.shape[1]:
        raise ValueError(
            f"{name} has shape {other.matrix.shape}; "
            f"it must have {design.matrix.shape[1]} columns"
        )
    return other


class MatrixCompletion(_FiniteSum):
    """Mean squared error over the observed entries of a matrix.

    f(X) = (weight/d) Σ_k (X[rows_k, columns_k] − ratings_k)²; weight d gives the sum.
    An entry that is observed twice counts twice.

    Parameters
    ----------
    rows, columns : array_like of shape (d,)
        Whole numbers in [0, m) and [0, n).
    ratings : array_like of shape (d,)
    shape : tuple of int
        (m, n), the shape of X.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If lengths disagree, an index is out of range, or an entry is not finite.
    """

    def __init__(
        self,
        rows: ArrayLike,
        columns: ArrayLike,
        ratings: ArrayLike,
        shape: tuple[int, int],
        *,
        weight: float = 1.0,
    ) -> None:
        if len(shape) != 2 or any(int(n) != n or n < 1 for n in shape):
            raise ValueError(f"shape is {shape!r}; it must be two positive integers")
        self.shape = (int(shape[0]), int(shape[1]))
        self._ratings = check_array("ratings", ratings, 1)
        self.num_examples = count = len(self._ratings)
        if count == 0:
            raise ValueError("ratings is empty; it must have at least one entry")
        row = check_integers("rows", rows, count, self.shape[0])
        column = check_integers("columns", columns, count, self.shape[1])
        self.weight = check_number("weight", weight, positive=True)
        self._flat = row * self.shape[1] + column
        # Each entry once, in C order: the CSR pattern of every gradient.
        self._entries, self._entry_of = np.unique(self._flat, return_inverse=True)
        self._counts = np.bincount(self._entry_of)

    def _residuals(self, x: Array, rows: IntArray | None) -> Array:
        flat = self._flat if rows is None else self._flat[rows]
        ratings = self._ratings if rows is None else self._ratings[rows]
        residuals: Array = x.reshape(*x.shape[:-2], -1)[..., flat] - ratings
        return residuals

    def _scale(self, rows: IntArray | None) -> float:
        return (
            self.weight / self.num_examples * inverse_fraction(rows, self.num_examples)
        )

    def _entry_gradient(self, residuals: Array, rows: IntArray | None) -> Array:
        entry_of = self._entry_of if rows is None else self._entry_of[rows]
        # (2 weight/d) Σ of the residuals that fall on the same entry
        sums = np.bincount(entry_of, residuals, minlength=len(self._entries))
        return np.asarray(2.0 * self._scale(rows) * sums)

    def _value_and_gradient(
        self, x: Array, rows: IntArray | None, *, value: bool, gradient: bool
    ) -> tuple[float, Array]:
        residuals = self._residuals(x, rows)
        total, result = 0.0, x
        if value:
            total = self._scale(rows) * float(residuals @ residuals)
        if gradient:
            result = np.zeros(self.shape)
            result.reshape(-1)[self._entries] = self._entry_gradient(residuals, rows)
        return total, result

    def _entries_per_point(self, rows: IntArray | None) -> int:
        return self.num_examples if rows is None else len(rows)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        residuals = self._residuals(points, rows)
        squares: Array = np.einsum("mk,mk->m", residuals, residuals)
        return self._scale(rows) * squares

    def sparse_gradient(self, x: Array) -> scipy.sparse.csr_matrix:
        """Return ∇f(x) as a CSR matrix with one stored value per observed entry."""
        x = check_point(x, self.shape)
        data = self._entry_gradient(self._residuals(x, None), None)
        m, n = self.shape
        rows, columns = np.divmod(self._entries, n)
        starts = np.searchsorted(rows, np.arange(m + 1))
        return scipy.sparse.csr_matrix((data, columns, starts), shape=(m, n))

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return ∇²f = (2 weight/d) diag(how often each entry is observed)."""
        diagonal = np.zeros(self.shape[0] * self.shape[1])
        diagonal[self._entries] = 2.0 * self._scale(None) * self._counts
        if len(diagonal) <= DENSE_ORDER:
            return np.diag(diagonal)
        return symmetric_operator(len(diagonal), lambda v: diagonal * v)

    def lipschitz(self) -> float:
        """Return (2 weight/d) times the most observations of one entry."""
        return 2.0 * self._scale(None) * float(self._counts.max())

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"rmse": ...}``, the root mean squared error."""
        residuals = self._residuals(check_point(x, self.shape), None)
        return {"rmse": float(np.sqrt(np.mean(residuals**2)))}


class QuadraticAssignment(_FiniteSum):
    """The quadratic assignment cost, or the part of it on some entries of A.

    f(X) = weight · Σ over (i, j) in E of A_ij (X B Xᵀ)_ij. With E all entries this is
    trace(A X Bᵀ Xᵀ), and Σ_ij A_ij B_{p(i), p(j)} where X is the permutation matrix
    with X[i, p(i)] = 1, for A and B symmetric or not. The parts on a partition of the
    entries add up to the whole. f is not convex in general.

    Parameters
    ----------
    A, B : array_like of shape (n, n)
        Flows and distances.
    rows : array_like of int, optional
        E is these rows of A.
    mask : array_like of bool of shape (n, n), optional
        E is where the mask is true; not together with ``rows``. The examples that a
        mini-batch samples are the entries of E.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If A and B are not square of one order, E is empty, or a row is out of range or
        named twice.

    Notes
    -----
    Hessian bound: ‖∇f(X) − ∇f(Z)‖ ≤ 2 weight ‖A_E‖₂ ‖B‖₂ ‖X − Z‖, so Θ is that times I
    (the Hessian itself is indefinite). The relaxation to the Birkhoff polytope is
    figure 1d of the FedFW workshop paper (2022).
    """

    def __init__(
        self,
        A: ArrayLike,
        B: ArrayLike,
        *,
        rows: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        weight: float = 1.0,
    ) -> None:
        flows, self._distances = check_array("A", A, 2), check_array("B", B, 2)
        order = len(flows)
        if flows.shape != (order, order) or order == 0:
            raise ValueError(f"A has shape {flows.shape}; it must be square, not empty")
        if self._distances.shape != flows.shape:
            shape = self._distances.shape
            raise ValueError(f"B has shape {shape}; A's is {flows.shape}")
        if rows is not None and mask is not None:
            raise ValueError("rows and mask are both given; only one of them may be")
        chosen: NDArray[np.bool_] = np.ones(flows.shape, dtype=np.bool_)
        if mask is not None:
            chosen = np.asarray(mask)
            if chosen.dtype != np.bool_ or chosen.shape != flows.shape:
                raise ValueError(
                    f"mask has dtype {chosen.dtype} and shape {chosen.shape}; "
                    f"it must be bool of shape {flows.shape}"
                )
        elif rows is not None:
            given = np.asarray(rows)
            indices = check_integers("rows", given, given.size, order)
            if len(np.unique(indices)) != len(indices):
                raise ValueError("rows names a row twice; each may be named once")
            chosen[:] = False
            chosen[indices] = True
        if not chosen.any():
            name = "mask" if rows is None else "rows"
            raise ValueError(f"{name} selects nothing; at least one entry is needed")
        self.shape = flows.shape
        self.weight = check_number("weight", weight, positive=True)
        self._flows = np.where(chosen, flows, 0.0)
        self._entries = np.flatnonzero(chosen)
        self.num_examples = len(self._entries)

    def _part(self, rows: IntArray | None) -> Array:
        """Return weight · A on the entries sampled, 0 elsewhere."""
        if rows is None:
            return self.weight * self._flows
        part = np.zeros(self.shape)
        entries = self._entries[rows]
        scale = self.weight * inverse_fraction(rows, self.num_examples)
        part.flat[entries] = scale * self._flows.flat[entries]
        return part

    def _value_and_gradient(
        self, x: Array, rows: IntArray | None, *, value: bool, gradient: bool
    ) -> tuple[float, Array]:
        flows, distances = self._part(rows), self._distances
        flows_right = flows @ (x @ distances.T)
        total, result = 0.0, x
        if value:
            # trace(A X Bᵀ Xᵀ) = ⟨A X Bᵀ, X⟩
            total = float(np.vdot(flows_right, x))
        if gradient:
            # A X Bᵀ + Aᵀ X B
            result = flows_right + flows.T @ (x @ distances)
        return total, result

    def _entries_per_point(self, rows: IntArray | None) -> int:
        return self.shape[0] ** 2

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        products = self._part(rows) @ (points @ self._distances.T)
        costs: Array = np.einsum("mij,mij->m", products, points)
        return costs

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return 2 weight ‖A_E‖₂ ‖B‖₂ · I."""
        order, bound = self.shape[0] ** 2, self.lipschitz()
        if order <= DENSE_ORDER:
            return bound * np.eye(order)
        return symmetric_operator(order, lambda v: bound * v)

    @cached_property
    def _lipschitz(self) -> float:
        flows, distances = self._flows, self._distances
        norms = np.linalg.norm(flows, 2) * np.linalg.norm(distances, 2)
        return 2.0 * self.weight * float(norms)

    def lipschitz(self) -> float:
        """Return 2 weight ‖A_E‖₂ ‖B‖₂, computed once."""
        return self._lipschitz
