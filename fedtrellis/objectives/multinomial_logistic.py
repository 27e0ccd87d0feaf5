"""Logistic regression with several classes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives import losses
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_examples,
    check_integers,
    check_point,
)
from fedtrellis.objectives.design_matrix import DesignMatrix
from fedtrellis.objectives.linear_models import LinearModel
from fedtrellis.objectives.symmetric import DENSE_ORDER, symmetric_operator

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["MultinomialLogistic"]


# Entries of unit vectors that are kept beside the data, 512 KiB.
_MOST_KEPT = 2**16


class MultinomialLogistic(LinearModel):
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
        l2: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        matrix = check_examples("features", features)
        if int(classes) != classes or classes < 2:
            raise ValueError(f"classes is {classes!r}; it must be a whole number >= 2")
        design = DesignMatrix(matrix, intercept=bool(intercept))
        examples = matrix.shape[0]
        shape = (design.shape[1], int(classes))
        super().__init__(
            design,
            losses.CrossEntropy(),
            check_integers("labels", labels, examples, int(classes)),
            shape,
            factor=1.0 / examples,
            weight=weight,
            l2=l2,
        )

    @cached_property
    def _unit_vectors(self) -> Array | None:
        """The unit vector of each example's class, in columns, where these are few."""
        if self.num_examples * self.shape[1] > _MOST_KEPT:
            return None
        every = np.eye(self.shape[1], dtype=self.dtype)
        own: Array = every.take(self._labels, axis=1)
        return own

    def _slopes(self, scores: Array, rows: IntArray | None) -> Array:
        if rows is not None or self._unit_vectors is None:
            return super()._slopes(scores, rows)
        # softmax(z) − e_y: taking a matrix off is quicker than finding its entries
        shares = cast(losses.CrossEntropy, self._pointwise).softmax(scores, scores)
        shares -= self._unit_vectors.T
        return shares

    def hessian_factor(self) -> tuple[Any, float, float]:
        """Not available: Θ is a Kronecker product, see :meth:`hessian_bound`."""
        raise NotImplementedError("MultinomialLogistic has no hessian_factor")

    def hessian_bound(self) -> Array | LinearOperator[Any]:
        """Return Böhning's Θ, dense where it has at most 2048 rows."""
        design, (rows, classes) = (self._exact or self)._design, self.shape
        scale = self.weight * self._pointwise.curvature * self._factor
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
            design = design.like(features, "features")
        return np.asarray(np.argmax(design.apply(x), axis=1), dtype=np.intp)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == self._labels))}
