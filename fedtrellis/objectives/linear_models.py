"""Linear models: a data matrix, a loss of its scores and a quadratic regulariser.

Data given as C-contiguous float64 (or float64 CSR) is not copied: do not change it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, DTypeLike

from fedtrellis.objectives import base, losses
from fedtrellis.objectives.base import Array, Bound, FiniteSum, IntArray

# Most columns of a factor that multiplies a dense A from the left, transposed.
_NARROW = 128
# Gathering a column of a dense A costs about as much as multiplying by this many.
_GATHERED = 32
# Entries of the data of a stack of small models: 16 MiB.
_LARGEST = 2**21
# Rows of a stack, those that fill it up among them, for each of the data.
_MOST_FILLED = 2.0
# Σ s² and Σ s⁻² of sums s of exponentials up to this: none of them is near 0 or ∞, in
# float32 too.
_CALM = 1e36


class DesignMatrix:
    """The d × p data matrix A of a linear model, dense or CSR, and its products.

    With ``intercept`` A has one more column, of ones, which is never stored.
    """

    def __init__(self, matrix: Any, *, intercept: bool = False) -> None:
        self.matrix, self._is_dense = matrix, not base.is_sparse(matrix)
        self.intercept = intercept
        self.shape: tuple[int, int] = (matrix.shape[0], matrix.shape[1] + intercept)

    def rows(self, chosen: IntArray) -> DesignMatrix:
        """Return some of the examples."""
        return DesignMatrix(self.matrix[chosen], intercept=self.intercept)

    def _goes_left(self, factor: Array) -> bool:
        """Whether (factorᵀ Aᵀ)ᵀ is faster: a BLAS likes a narrow factor on the left."""
        return factor.ndim == 2 and self._is_dense and factor.shape[1] <= _NARROW

    def apply(self, x: Array) -> Array:
        """Return A x, for x of shape (p,) or (p, c)."""
        stored = x[:-1] if self.intercept else x
        scores: Array
        if self._goes_left(x):
            # for small arrays dot takes two thirds of what @ does
            scores = np.ascontiguousarray(stored.T).dot(self.matrix.T).T
        else:
            scores = self.matrix @ stored
        if self.intercept:
            scores += x[-1]
        return scores

    def apply_to_few(self, x: Array) -> Array:
        """Return A x, by the columns of a dense A that an x of few entries needs."""
        needed = np.flatnonzero(x if x.ndim == 1 else x.any(axis=1))
        columns = self.matrix.shape[1]
        if not self._is_dense or _GATHERED * len(needed) > columns:
            return self.apply(x)
        stored = needed[needed < columns]
        scores: Array = self.matrix[:, stored] @ x[stored]
        if len(stored) < len(needed):
            scores += x[-1]
        return scores

    def adjoint(self, y: Array) -> Array:
        """Return Aᵀ y, for y of shape (d,) or (d, c)."""
        left = self._goes_left(y)
        product: Array = y.T.dot(self.matrix).T if left else self.matrix.T @ y
        if not self.intercept:
            return product
        whole = np.empty((self.shape[1], *y.shape[1:]), product.dtype)
        whole[:-1] = product
        whole[-1] = np.add.reduce(y, axis=0)
        return whole

    def gram(self) -> Array:
        """Return AᵀA, a dense p × p matrix."""
        product = self.matrix.T @ self.matrix
        gram: Array = product.toarray() if base.is_sparse(product) else product
        if not self.intercept:
            return gram
        # [F 1]ᵀ[F 1] = [[FᵀF, Fᵀ1], [1ᵀF, d]]
        sums = np.asarray(self.matrix.sum(axis=0), dtype=np.float64).ravel()
        return np.block(
            [[gram, sums[:, None]], [sums[None], np.full((1, 1), 1.0 * self.shape[0])]]
        )

    @cached_property
    def stored(self) -> Any:
        """A whole, with the column of ones."""
        if not self.intercept:
            return self.matrix
        ones = np.ones((self.shape[0], 1), self.matrix.dtype)
        if self._is_dense:
            return np.hstack([self.matrix, ones])
        parts = [self.matrix, scipy.sparse.csr_array(ones)]
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr"))

    @cached_property
    def largest_gram_eigenvalue(self) -> float:
        """The largest eigenvalue of AᵀA, which is that of AAᵀ."""
        ways: list[Any] = [self.apply, self.adjoint]
        first, second = ways if self.shape[1] <= self.shape[0] else ways[::-1]
        gram = base.symmetric_operator(min(self.shape), lambda v: second(first(v)))
        return base.largest_eigenvalue(gram)


class LinearModel(FiniteSum):
    """f(x) = weight · (factor · Σ_k l(a_kᵀx; y_k) + (l2/2)‖x‖²), for a loss l.

    The a_k are the rows of the data, the labels y_k are as the loss wants them, and x
    has the shape (p,), or (p, c) for a loss of c scores. With ``free_intercept`` the
    design has an intercept, and the penalty leaves the last row of x alone.
    """

    def __init__(
        self,
        design: DesignMatrix,
        loss: losses.ScoreLoss,
        labels: Any,
        *scores: int,
        weight: float,
        l2: float,
        factor: float | None = None,
        free_intercept: bool = False,
    ) -> None:
        self._design, self._labels, self._loss = design, labels, loss
        # which rows of x are penalised
        self._held = slice(-1 if free_intercept else None)
        self.num_examples, columns = design.shape
        self._factor = 1.0 / self.num_examples if factor is None else factor
        self.shape = (columns, *scores)
        self._weigh(weight, l2)
        # f in float64, where this is f in float32
        self._exact: Self | None = None

    def of_dtype(self, dtype: DTypeLike) -> Self:
        """Return f with its data in float32: half the memory to go through a gradient.

        Values of many points, whose differences need the digits, and Θ remain those of
        float64.
        """
        if np.dtype(dtype) == self.dtype:
            return self
        made = copy.copy(self)
        vars(made).pop("stacks_as", None)
        made.dtype, made._exact = np.dtype(dtype), self
        data, intercept = self._design.matrix.astype(dtype), self._design.intercept
        made._design = DesignMatrix(data, intercept=intercept)
        if self._labels.dtype.kind == "f":
            made._labels = self._labels.astype(made.dtype)
        return made

    @cached_property
    def stacks_as(self) -> tuple[Any, ...] | None:
        """What models of a class have in common that can be stacked; None: sparse."""
        design = self._design
        if base.is_sparse(design.matrix):
            return None
        kind = self.shape, self._loss, design.intercept, design.matrix.dtype
        return *kind, self._held.stop

    @staticmethod
    def stack(models: Sequence[LinearModel]) -> StackedLinear | None:
        """Return the models as one; None where it would not save time.

        A subclass whose gradient is another, or depends on more, overrides it.
        """
        sizes, kind = [model.num_examples for model in models], models[0].stacks_as
        padded = len(models) * max(sizes)
        small = padded * models[0].shape[0] <= _LARGEST
        if kind is None or not small or padded > _MOST_FILLED * sum(sizes):
            return None
        alike = all(model.stacks_as == kind for model in models)
        return StackedLinear(models) if alike else None

    def _part(self, rows: IntArray | None) -> tuple[DesignMatrix, Any, float]:
        """Return data and labels of some examples, and the factor of their losses."""
        factor = self.weight * self._factor
        if rows is None:
            return self._design, self._labels, factor
        factor *= self._inverse(rows)
        return self._design.rows(rows), self._labels[rows], factor

    def _penalty(self, flat: Array) -> Any:
        """Return ½ Σ_j x_j² over the last axis; its second derivative is at most 1."""
        return 0.5 * np.einsum("...j,...j->...", flat, flat)

    def _penalty_slope(self, x: Array) -> Array:
        """Return the gradient of the penalty, of the shape of x; x is kept."""
        return x

    def _penalty_curvature(self, x: Array, direction: Array) -> float:
        """Return the second derivative of the penalty along a direction."""
        return float(np.vdot(direction, direction))

    def _value(self, x: Array) -> float:
        # weight (factor Σ l(a_kᵀx; y_k) + (l2/2)‖x‖²)
        losses_sum = self._loss.total(self._design.apply(x), self._labels)
        total = self.weight * self._factor * float(losses_sum)
        if self.l2:
            held = x[self._held].ravel()
            total += self.weight * self.l2 * float(self._penalty(held))
        return total

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        # weight (factor Σ a_k l′(a_kᵀx; y_k) + l2 x)
        design, labels, factor = self._part(rows)
        scores = design.apply(x)
        result = design.adjoint(self._loss.slope(scores, labels, scores))
        if factor != 1.0:
            result *= factor
        if self.l2:
            held = self._held
            result[held] += (self.weight * self.l2) * self._penalty_slope(x[held])
        return result

    def curvature(self, x: Array, direction: Array) -> float:
        """Return dᵀ∇²f(x)d, from A d and, where it depends on x, the scores A x."""
        x, direction = self._point(x), self._point(direction, "direction")
        changes = self._design.apply_to_few(direction)
        # no matter which scores where the loss is quadratic
        scores = changes if self.quadratic else self._design.apply(x)
        # weight (factor Σ l″(a_kᵀx; y_k) (a_kᵀd)² + l2 ‖d‖²)
        bends = self._loss.curvature_along(scores, self._labels, changes)
        result = self._factor * float(bends.sum())
        if self.l2:
            held = self._held
            result += self.l2 * self._penalty_curvature(x[held], direction[held])
        return self.weight * result

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        design, labels, factor = (self._exact or self)._part(rows)
        # (p, m) or (p, m·c): all the points in one matrix product
        columns = np.moveaxis(points, 0, 1).reshape(self.shape[0], -1)
        scores = design.apply(columns).reshape(-1, len(points), *self.shape[1:])
        # the examples' labels, alike for all the points
        losses: Array = factor * self._loss.total(scores, labels[:, None])
        if self.l2:
            flat = points[:, self._held].reshape(len(points), -1)
            losses += self.weight * self.l2 * self._penalty(flat)
        return losses

    def hessian_factor(self) -> tuple[Any, float, float]:
        """Return (A, s, c) with Θ = s AᵀA + c I, for solvers that exploit a wide A.

        With an intercept A has the column of ones, and c I counts it, too: that is a
        little above Θ. NotImplementedError: x is a matrix, and Θ has another structure.
        """
        if len(self.shape) > 1:
            raise NotImplementedError(f"{type(self).__name__} has no hessian_factor")
        scale = self.weight * self._loss.curvature * self._factor
        matrix = (self._exact or self)._design.stored
        return matrix, scale, self.weight * self.l2

    def hessian_bound(self) -> Bound:
        """Return Θ = weight (curvature · factor · AᵀA + l2 I), with l″ ≤ curvature.

        For c scores it has AᵀA ⊗ (I − 11ᵀ/c). A LinearOperator if it has more than 2048
        rows.
        """
        design, order = (self._exact or self)._design, math.prod(self.shape)
        scale = self.weight * self._loss.curvature * self._factor
        if order > base.DENSE_ORDER:
            operator: Bound = self._bound_operator()
            return operator
        gram: Any = design.gram()
        if len(self.shape) == 2:
            gram = np.kron(gram, np.eye(self.shape[1]) - 1.0 / self.shape[1])
        bound: Array = scale * gram
        bound[np.diag_indices(order)] += self._shifts()
        return bound

    def _bound_operator(self) -> Any:
        design = (self._exact or self)._design
        scale = self.weight * self._loss.curvature * self._factor

        def product(v: Array) -> Array:
            x = v.reshape(self.shape)
            if len(self.shape) == 2:
                x = x - x.mean(axis=1, keepdims=True)
            bent = scale * design.adjoint(design.apply(x)).ravel()
            return np.asarray(bent + self._shifts() * v)

        return base.symmetric_operator(math.prod(self.shape), product)

    def _shifts(self) -> Any:
        """Return the penalty's part of Θ's diagonal, by x's entries."""
        shift = self.weight * self.l2
        if self._held.stop is None:
            return shift
        shifts = np.zeros(self.shape)
        shifts[self._held] = shift
        return shifts.ravel()

    def lipschitz(self) -> float:
        """Return λ_max(Θ); what it takes is computed once."""
        if self._held.stop is not None:
            return self._largest_bound
        scale = self._loss.curvature * self._factor
        largest = (self._exact or self)._design.largest_gram_eigenvalue
        return self.weight * (scale * largest + self.l2)

    @cached_property
    def _largest_bound(self) -> float:
        return base.largest_eigenvalue(self._bound_operator())

    def strong_convexity(self) -> float:
        """Return a μ with ∇²f ⪰ μI everywhere: weight · l2, 0 with a free intercept."""
        return self.weight * self.l2 if self._held.stop is None else 0.0


class LeastSquares(LinearModel):
    """Linear least squares.

    ``scale="sum"``: f(x) = weight · (‖Ax − b‖² + (l2/2)‖x‖²);
    ``scale="half-mean"``: f(x) = weight · ((1/2d)‖Ax − b‖² + (l2/2)‖x‖²).

    A, of shape (d, p), is dense, or sparse and kept as CSR; b has shape (d,); the
    ``weight`` is a positive factor on the whole function. A ValueError: shapes
    disagree, an entry is not finite or a parameter is not allowed.

    "sum" with weight n is the LASSO of the FedFW workshop paper (2022); "half-mean" is
    example V.1 of FedGiA, arXiv 2205.01438, with Θ = AᵀA/d.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import LeastSquares
    >>> f = LeastSquares(np.eye(2), np.array([1.0, 2.0]))
    >>> x = np.zeros(2)
    >>> round(f.value(x), 3)
    5.0
    >>> f.gradient(x).round(3)
    array([-2., -4.])
    """

    quadratic = True

    def __init__(
        self,
        A: Any,
        b: ArrayLike,
        *,
        weight: float = 1.0,
        scale: str = "sum",
        l2: float = 0.0,
    ) -> None:
        design = DesignMatrix(base.check_examples("A", A))
        b = base.check_array("b", b, 1, design.shape[0])
        if scale not in ("sum", "half-mean"):
            raise ValueError(f"scale is {scale!r}; allowed: 'sum', 'half-mean'")
        # the loss is half the square
        factor = 2.0 if scale == "sum" else None
        more: Any = {"factor": factor, "weight": weight, "l2": l2}
        super().__init__(design, losses.Squared(), b, **more)


class Logistic(LinearModel):
    """Binary logistic regression, labels in {0, 1}.

    f(x) = weight · ((1/d) Σ_k [ln(1 + exp(a_kᵀx)) − b_k a_kᵀx] + (l2/2)‖x‖²),
    with Θ = weight · ((1/4d) AᵀA + l2 I). No score overflows.

    A, of shape (d, p), is dense, or sparse and kept as CSR; the labels b have shape
    (d,); the ``weight`` is a positive factor on the whole function; with ``intercept``
    A has one more column, of ones, whose weight is not penalised. A ValueError: shapes
    disagree, an entry is not finite, a label is neither 0 nor 1, or a parameter is not
    allowed.

    Example V.2 of FedGiA, arXiv 2205.01438, where l2 is μ.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import Logistic
    >>> f = Logistic(np.eye(2), np.array([1, 0]))
    >>> x = np.zeros(2)
    >>> round(f.value(x), 3)
    0.693
    >>> f.gradient(x).round(3)
    array([-0.25,  0.25])
    """

    def __init__(
        self,
        A: Any,
        b: ArrayLike,
        *,
        l2: float = 0.0,
        weight: float = 1.0,
        intercept: bool = False,
    ) -> None:
        design = DesignMatrix(base.check_examples("A", A), intercept=intercept)
        # ln(1 + e^z) − bz = ln(1 + e^{−yz}) with y = 2b − 1, which does not cancel
        signs = 2.0 * base.check_integers("b", b, design.shape[0], 2) - 1.0
        loss = losses.LogisticLoss()
        more: Any = {"weight": weight, "l2": l2, "free_intercept": intercept}
        super().__init__(design, loss, signs, **more)

    def predict(self, x: Array) -> IntArray:
        """Return the labels 1[a_kᵀx > 0] of the rows of A."""
        return (self._design.apply(self._point(x)) > 0.0).astype(np.intp)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == (self._labels > 0)))}


class NonconvexLogistic(Logistic):
    """Binary logistic regression, labels in {0, 1}, not convex where l2 > 0.

    f(x) = weight · ((1/d) Σ_k [ln(1 + exp(a_kᵀx)) − b_k a_kᵀx]
    + (l2/2) Σ_j x_j²/(1 + x_j²)), with the Θ, parameters and errors of
    :class:`Logistic`.

    The third loss of the public MATLAB code of FedGiA's authors (arXiv 2205.01438),
    where μ is divided by the number d_i of the client's examples. The second derivative
    of x²/(2(1 + x²)) is (1 − 3x²)/(1 + x²)³, in [−1/4, 1], so that f is l2/4-weakly
    convex at worst.
    """

    def strong_convexity(self) -> float:
        """Return 0: the penalty bends downward far from 0."""
        return 0.0

    def _penalty(self, flat: Array) -> Any:
        # ½ Σ_j x_j²/(1 + x_j²), as ½ Σ_j 1/(1 + x_j⁻²) where x_j² would overflow
        with np.errstate(over="ignore", divide="ignore"):
            return 0.5 * (1.0 / (1.0 + 1.0 / np.square(flat))).sum(axis=-1)

    def _penalty_slope(self, x: Array) -> Array:
        # x_j/(1 + x_j²)²; the square of an entry beyond 1e154 is ∞, the slope 0
        with np.errstate(over="ignore"):
            slope: Array = x / np.square(1.0 + np.square(x))
        return slope

    def _penalty_curvature(self, x: Array, direction: Array) -> float:
        # Σ_j d_j² (1 − 3x_j²)/(1 + x_j²)³ = Σ_j d_j² s²(4s − 3) with s = 1/(1 + x_j²),
        # which is 0 where x_j² is ∞
        with np.errstate(over="ignore"):
            s = 1.0 / (1.0 + np.square(x))
        return float(np.vdot(np.square(direction), np.square(s) * (4.0 * s - 3.0)))


class MultinomialLogistic(LinearModel):
    """Multi-class logistic regression: the mean cross-entropy of a linear softmax.

    f(W) = weight · ((1/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k] + (l2/2)‖W‖²), z = F W, and
    the last row of W the bias when ``intercept``; l2 includes the bias, unless
    ``free_intercept``. Points have shape (q, classes), (q + 1, classes) with the
    intercept.

    ``features`` F, of shape (d, q), are dense, or sparse and kept as CSR; the d
    ``labels`` are whole numbers in [0, classes), of at least 2 ``classes``; the
    ``weight`` is a positive factor on the whole function. A ValueError: shapes
    disagree, an entry is not finite, or a label or parameter is not allowed.

    Θ = weight · ((1/2d) [F 1]ᵀ[F 1] ⊗ (I − 11ᵀ/classes) + l2 I): D. Böhning,
    "Multinomial logistic regression algorithm", 1992.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import MultinomialLogistic
    >>> f = MultinomialLogistic(np.eye(2), np.array([0, 1]), classes=2, intercept=False)
    >>> x = np.zeros((2, 2))
    >>> round(f.value(x), 3)
    0.693
    >>> f.gradient(x).round(3)
    array([[-0.25,  0.25],
           [ 0.25, -0.25]])
    """

    def __init__(
        self,
        features: Any,
        labels: ArrayLike,
        classes: int,
        *,
        intercept: bool = True,
        free_intercept: bool = False,
        l2: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        matrix = base.check_examples("features", features)
        design = DesignMatrix(matrix, intercept=bool(intercept))
        classes = base.check_count("classes", classes, 2)
        labels = base.check_integers("labels", labels, design.shape[0], classes)
        loss = losses.CrossEntropy()
        more: Any = {"weight": weight, "l2": l2, "free_intercept": free_intercept}
        super().__init__(design, loss, labels, classes, **more)

    def predict(self, x: Array) -> IntArray:
        """Return the class of the largest score of each row."""
        return np.asarray(self._design.apply(self._point(x)).argmax(axis=1), np.intp)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == self._labels))}


class StackedLinear:
    """Linear models of one loss, class and shape, on dense data.

    These are filled up with rows of zeros, which add nothing to a gradient Aᵀ s.
    """

    def __init__(self, models: Sequence[LinearModel]) -> None:
        first = models[0]
        sizes = [model.num_examples for model in models]
        self._models, self._shape, self._sizes = models, first.shape, sizes
        n, dtype = len(models), first._design.matrix.dtype
        self._features = np.zeros((n, max(sizes), first.shape[0]), dtype)
        self._labels = np.zeros((n, max(sizes)), first._labels.dtype)
        data, given = [m._design.matrix for m in models], first._design.matrix.shape[1]
        if min(sizes) == max(sizes):  # three calls instead of three a model
            np.stack(data, out=self._features[..., :given])
            self._features[..., given:] = 1.0
            np.stack([model._labels for model in models], out=self._labels)
        else:
            for i, d in enumerate(sizes):
                self._features[i, :d, :given] = data[i]
                self._features[i, :d, given:] = 1.0
                self._labels[i, :d] = models[i]._labels
        self.entries = self._features.size
        self._classes: Any = None
        if isinstance(first._loss, losses.CrossEntropy):
            # the unit vector of each class, and of each example's own
            self._classes = np.eye(first.shape[1], dtype=dtype)
            self._ones = np.ones((first.shape[1], 1), dtype)
            self._own = self._classes.take(self._labels, axis=0)
        self._axes = (n, *[1] * len(first.shape))

        def spread(numbers: list[float]) -> Any:
            # of each model for its gradient; one for all is quicker
            if numbers.count(numbers[0]) == n:
                return dtype.type(numbers[0])
            return np.array(numbers).reshape(self._axes).astype(dtype)

        self._factors = spread([m.weight * m._factor for m in models])
        self._shrinks = any(model.l2 for model in models)
        self._held = (slice(None), first._held)
        self._shrinking = spread([m.weight * m.l2 for m in models])

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        """∇f_i(x_i) of each, as :meth:`Stacked.gradients`."""
        if points.shape[1:] != self._shape:
            raise ValueError(f"points have shape {points.shape[1:]}, not {self._shape}")
        if rows is None:
            given = self._features, self._labels, self._factors
            return self._gradients(*given, points, None)
        sizes = self._sizes
        batches = [
            np.arange(size) if chosen is None else chosen
            for chosen, size in zip(rows, sizes, strict=True)
        ]
        which = np.zeros((len(sizes), max(map(len, batches))), np.intp)
        for place, batch in zip(which, batches, strict=True):
            place[: len(batch)] = batch
        model = np.arange(len(sizes))[:, None]
        features = self._features[model, which]
        for own, batch in zip(features, batches, strict=True):
            # where a mini-batch has fewer examples than another
            own[len(batch) :] = 0.0
        # d_i / b_i makes a mini-batch's sum unbiased
        inverse = [size / len(b) for size, b in zip(sizes, batches, strict=True)]
        factors = self._factors * np.reshape(inverse, self._axes)
        labels = self._labels[model, which]
        return self._gradients(features, labels, factors, points, rows)

    def _softmax(self, scores: Array) -> bool:
        """Replace scores z by softmax(z), unless exp(z) is too large or small."""
        np.exp(scores, out=scores)
        sums = scores @ self._ones
        flat = sums.reshape(-1)
        inverse = 1.0 / flat
        # NaN is not at most anything
        if not (flat.dot(flat) <= _CALM and inverse.dot(inverse) <= _CALM):
            return False
        scores /= sums
        return True

    def _slopes(self, features: Array, columns: Array, labels: Any, rows: Any) -> Array:
        """l′ of the scores a_kᵀx of all examples of all models."""
        scores = features @ columns
        if self._classes is not None:
            if scores.size and self._softmax(scores):
                # softmax(z) − e_y
                scores -= self._own if rows is None else self._classes[labels]
                return scores
            scores = features @ columns
        flat = scores.reshape(-1, *self._shape[1:])
        slopes: Array = self._models[0]._loss.slope(flat, labels.reshape(-1), flat)
        return slopes.reshape(scores.shape)

    def _gradients(
        self, features: Array, labels: Any, factors: Array, points: Array, rows: Any
    ) -> Array:
        vectors = len(self._shape) == 1
        columns = points[..., None] if vectors else points
        slopes = self._slopes(features, columns, labels, rows)
        # weight (factor Σ a_k l′(a_kᵀx; y_k) + l2 x)
        result: Array = features.transpose(0, 2, 1) @ slopes
        result = result.reshape(points.shape)
        result *= factors
        if self._shrinks:
            slope = self._models[0]._penalty_slope(points[self._held])
            result[self._held] += self._shrinking * slope
        return result.astype(points.dtype, copy=False)
