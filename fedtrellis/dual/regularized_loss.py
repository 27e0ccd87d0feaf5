"""The problem that HyFDCA solves, all in one place: primal, dual and optimum."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.dual.interior_point import interior_point
from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.weights import check_weights
from fedtrellis.extras import need
from fedtrellis.objectives.base import Objective
from fedtrellis.objectives.checks import (
    check_array,
    check_examples,
    check_number,
    check_point,
)
from fedtrellis.objectives.losses import DualLoss, SmoothedHinge, weighted
from fedtrellis.objectives.reference import unconstrained_minimum
from fedtrellis.wire.arrays import FloatArray

__all__ = ["OneAgainstRest", "Optimum", "RegularizedLoss", "central_optimum"]


# How far from its kinks a sample must be to count as known at first, and how often
# those that were not are added.
_NEAR = 1e-3
_ROUNDS = 25
# Systems of a higher order take minutes and gigabytes.
_LARGEST_SYSTEM = 12_000


class RegularizedLoss(Objective):
    """P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), and its dual D(α).

    D(α) = −(λ/2)‖(1/λN) Σ α_i x_i‖² − (1/N) Σ l*(−α_i) ≤ P(w) for any two points, with
    equality at the optima, where w = (1/λN) Σ α_i x_i.

    Parameters
    ----------
    features : array_like or scipy.sparse matrix of shape (N, p)
        x_i in its rows; dense, or sparse and kept as CSR.
    labels : array_like of shape (N,)
        y.
    loss : DualLoss
        l, one of :mod:`fedtrellis.objectives.losses`.
    regularization : float
        λ above 0.
    penalty : Penalty, optional
        g in the place of ½‖w‖²: P(w) = λ g(w) + …, and g* in D. There is no central
        solver for another one.
    weights : array_like of shape (N,), optional
        s_i from 0 on: the losses' mean is (1/S) Σ s_i l_i, S = Σ s_i.

    Raises
    ------
    ValueError
        Shapes disagree, an entry is not finite, a label does not suit the loss, a
        weight is negative or all are 0, or λ is not above 0.

    Notes
    -----
    HyFDCA, arXiv 2210.08106, section 3.
    """

    def __init__(
        self,
        features: Any,
        labels: ArrayLike,
        loss: DualLoss,
        regularization: float,
        penalty: Penalty | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        self.penalty = penalty or Penalty()
        self.features = check_examples("features", features)
        self.num_examples, columns = self.features.shape
        self.shape = (columns,)
        self.labels: FloatArray = check_array("labels", labels, 1, self.num_examples)
        loss.check_labels(self.labels)
        self.loss = loss
        #: N s_i/S, or None: what l_i counts.
        self.weights: FloatArray | None = None
        if weights is not None:
            s = np.asarray(weights, dtype=np.float64)
            check_weights("weights", s, self.num_examples)
            if not s.sum() > 0.0:
                raise ValueError("weights must not all be 0, nor missing")
            self.weights = s * (self.num_examples / s.sum())
        self.weighted = weighted(loss, self.weights)
        self.regularization = check_number(
            "regularization", regularization, positive=True
        )

    def scores(self, w: FloatArray) -> FloatArray:
        """Return z = Xw, of shape (N,)."""
        return np.asarray(self.features @ check_point(w, self.shape))

    def value(self, x: FloatArray) -> float:
        """Return P at a point of shape (p,)."""
        losses = self.weighted.value(self.scores(x), self.labels)
        return self.regularization * self.penalty.value(x) + float(losses.mean())

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return λ∇g(w) + (1/N) Xᵀl′(Xw), a subgradient of P."""
        slopes = self.weighted.slope(self.scores(x), self.labels)
        return np.asarray(
            self.regularization * self.penalty.gradient(x)
            + self.features.T @ slopes / self.num_examples
        )

    def dual_value(self, alpha: FloatArray) -> float:
        """Return D at dual variables of shape (N,); −inf outside its domain.

        With a free column as if v_m were 0.
        """
        v = self.primal_of(alpha)
        conjugates = self.weighted.conjugate(np.asarray(alpha, float), self.labels)
        g = self.penalty.conjugate(v)
        return -self.regularization * g - float(conjugates.mean())

    def primal_of(self, alpha: FloatArray) -> FloatArray:
        """Return v = (1/λN) Xᵀα, of shape (p,), which is w where g is ½‖w‖²."""
        point = check_point(alpha, (self.num_examples,))
        scale = self.regularization * self.num_examples
        return np.asarray((self.features.T @ point) / scale)

    def metrics(self, x: FloatArray) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` where all labels are −1 and +1.

        A score of 0 counts as −1. Of other labels ``{"explained": ...}``, which part of
        the loss of the best constant score is gone: R² of the squared loss, D² of the
        Poisson loss. Samples count alike there, whatever their weights.
        """
        if not (np.abs(self.labels) == 1.0).all():
            constant = self.loss.constant_score(self.labels)
            least = self.loss.value(np.full(self.num_examples, constant), self.labels)
            found = self.loss.value(self.scores(x), self.labels)
            whole = float(least.sum())
            return {"explained": 1.0 - float(found.sum()) / whole if whole else 0.0}
        predicted = self.scores(x) > 0.0
        return {"accuracy": float(np.mean(predicted == (self.labels > 0.0)))}


class OneAgainstRest(Objective):
    """P(W) = Σ_c P_c(w_c), W of shape (p, C), with P_c's labels +1 in class c, else −1.

    ``classes`` has each sample's, a number from 0 to C − 1, ``count`` is C, and the
    loss one of labels −1 and +1. ``weights`` of shape (C, N) are those in each class's
    problem; all else is as of :class:`RegularizedLoss`.
    """

    def __init__(
        self,
        features: Any,
        classes: ArrayLike,
        count: int,
        loss: DualLoss,
        regularization: float,
        penalty: Penalty | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        each: Any = [None] * count if weights is None else weights
        self.classes = np.asarray(classes, dtype=np.float64)
        self.parts = [
            RegularizedLoss(
                features,
                np.where(self.classes == c, 1.0, -1.0),
                loss,
                regularization,
                penalty,
                each[c],
            )
            for c in range(count)
        ]
        (p,) = self.parts[0].shape
        self.shape = (p, count)
        self.num_examples = self.parts[0].num_examples

    def value(self, x: FloatArray) -> float:
        """Return P at a point of shape (p, C)."""
        W = check_point(x, self.shape)
        return sum(one.value(W[:, c]) for c, one in enumerate(self.parts))

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the parts' subgradients beside each other."""
        W = check_point(x, self.shape)
        return np.stack(
            [one.gradient(W[:, c]) for c, one in enumerate(self.parts)], axis=1
        )

    def metrics(self, x: FloatArray) -> dict[str, float]:
        """Return ``{"accuracy": ...}``: how often the class of largest score is it."""
        scores = np.asarray(self.parts[0].features @ check_point(x, self.shape))
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == self.classes))}


@dataclass(frozen=True)
class Optimum:
    """A minimiser of P with its certificate.

    Attributes
    ----------
    value : float
        P(w): the minimum P* lies in [value − gap, value].
    gap : float
        P(w) − D(α), the duality gap, to rounding: 0 is not above some 1e-16.
    w : ndarray of shape (p,), or (p, C)
    alpha : ndarray of shape (N,), or (N, C)
    """

    value: float
    gap: float
    w: FloatArray
    alpha: FloatArray


class _Search:
    """Keeps the best primal and the best dual point seen, whatever found them."""

    def __init__(self, problem: RegularizedLoss, tolerance: float) -> None:
        self.problem, self.tolerance = problem, tolerance
        self.value, self.dual = math.inf, -math.inf
        self.w = np.zeros(problem.shape)
        self.alpha = np.zeros(problem.num_examples)
        self.try_dual(problem.weighted.feasible(self.alpha, problem.labels))

    @property
    def gap(self) -> float:
        # Rounding may put D above P by 1e-16.
        return max(self.value - self.dual, 0.0)

    @property
    def goal(self) -> float:
        return self.tolerance * self.value

    @property
    def done(self) -> bool:
        return self.gap <= self.goal

    def try_primal(self, w: FloatArray) -> bool:
        """See whether w is better, or the dual point that suits its scores."""
        z = self.problem.scores(w)
        return self._see(w, self.problem.weighted.dual_point(z, self.problem.labels))

    def try_dual(self, alpha: FloatArray) -> bool:
        """See whether α is better, or its w."""
        return self._see(self.problem.primal_of(alpha), alpha)

    def _see(self, w: FloatArray, alpha: FloatArray) -> bool:
        value, dual = self.problem.value(w), self.problem.dual_value(alpha)
        if value < self.value:
            self.value, self.w = value, w
        if dual > self.dual:
            self.dual, self.alpha = dual, alpha
        return self.done


def central_optimum(
    problem: RegularizedLoss | OneAgainstRest, tolerance: float = 1e-9
) -> Optimum:
    """Return P*, certified by the duality gap, with the points that attain it.

    scikit-learn's solver of the loss comes first: ``LinearSVC``,
    ``LogisticRegression``, ``Ridge`` or ``PoissonRegressor``, without an intercept and
    with C = 1/(λN). It returns w only, and stops somewhere near the optimum. Smooth
    losses go on with L-BFGS, where −u in ∂l(z) gives α. For the hinge losses α is known
    but for the samples at a kink of the loss, and these are found by an interior-point
    method.

    Parameters
    ----------
    problem : RegularizedLoss or OneAgainstRest
        Of the latter each class by itself.
    tolerance : float, default 1e-9
        The gap to reach, relative to P(w).

    Raises
    ------
    RuntimeError
        The gap was not reached; the message has the one that was.
    ValueError
        The penalty is another one than ½‖w‖².
    """
    if isinstance(problem, OneAgainstRest):
        each = [central_optimum(one, tolerance) for one in problem.parts]
        return Optimum(
            sum(one.value for one in each),
            sum(one.gap for one in each),
            np.stack([one.w for one in each], axis=1),
            np.stack([one.alpha for one in each], axis=1),
        )
    if not problem.penalty.plain:
        raise ValueError(f"there is no central solver for {problem.penalty}")
    check_number("tolerance", tolerance, positive=True)
    search = _Search(problem, tolerance)
    if not search.done:
        search.try_primal(_by_scikit_learn(problem))
    if problem.loss.name != "hinge" and not search.done:
        # ‖∇P‖²/2λ bounds the gap at α = u
        norm = math.sqrt(2.0 * problem.regularization * search.goal)
        found = unconstrained_minimum(
            problem, search.w, tolerance=0.1 * norm / math.sqrt(len(search.w))
        )
        search.try_primal(found.point)
    if problem.loss.name in ("hinge", "smoothed-hinge") and not search.done:
        _finish_hinge(problem, search)
    if not search.done:
        raise RuntimeError(
            f"the duality gap of the {problem.loss.name} problem with "
            f"{problem.shape[0]} features and {problem.num_examples} examples is "
            f"{search.gap:.3g} and not below {search.goal:.3g}"
        )
    return Optimum(search.value, search.gap, search.w, search.alpha)


def _by_scikit_learn(problem: RegularizedLoss) -> FloatArray:
    """Return w by the solver that scikit-learn has for the loss."""
    need("sklearn", "the optimum by a central solver", "sklearn")
    # half a second that a run without it need not spend
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
    from sklearn.svm import LinearSVC

    examples, columns = problem.features.shape
    scale = problem.regularization * examples
    name = problem.loss.name
    model: Any
    # in Newton's steps matrices of order p are factorised
    newton = {
        "solver": "newton-cholesky" if columns <= min(examples, 2048) else "lbfgs",
        **{"fit_intercept": False, "tol": 1e-10, "max_iter": 1000},
    }
    if name == "squared":
        model = Ridge(alpha=scale, fit_intercept=False, tol=1e-12)
    elif name == "poisson":
        model = PoissonRegressor(alpha=problem.regularization, **newton)
    elif len(np.unique(problem.labels)) < 2:
        return np.zeros(columns)  # the classifiers refuse one class
    elif name == "logistic":
        model = LogisticRegression(C=1.0 / scale, **newton)
    else:
        model = LinearSVC(
            loss="hinge",
            C=1.0 / scale,
            fit_intercept=False,
            tol=1e-6,
            max_iter=2000,
            random_state=0,
        )
    features = problem.features
    if not isinstance(features, np.ndarray) and features.nnz <= np.iinfo(np.int32).max:
        # liblinear asks for 32-bit indices
        indices = features.indices.astype(np.int32), features.indptr.astype(np.int32)
        features = type(features)((features.data, *indices), shape=features.shape)
    with warnings.catch_warnings():
        # How far it came is measured by the gap.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, problem.labels, problem.weights)
    return np.asarray(model.coef_, dtype=np.float64).ravel()


def _finish_hinge(problem: RegularizedLoss, search: _Search) -> None:
    """Solve for the samples near a kink, until those far from one stay there."""
    loss, labels, features = problem.loss, problem.labels, problem.features
    # α = y s β with β in [0, 1]
    s = problem.weights if problem.weights is not None else np.ones(len(labels))
    size = labels * s
    curvature = loss.smoothing if isinstance(loss, SmoothedHinge) else 0.0
    scale = problem.regularization * problem.num_examples
    margins = labels * problem.scores(search.w)
    # β = 1 below the kinks and 0 above them; in between it is open.
    opened = (margins > 1.0 - curvature - _NEAR) & (margins < 1.0 + _NEAR) & (s > 0.0)
    for _ in range(_ROUNDS):
        count = int(opened.sum())
        if min(count, problem.shape[0]) > _LARGEST_SYSTEM:
            return
        beta = (margins < 1.0 - 0.5 * curvature).astype(np.float64)
        beta[opened] = 0.0
        base = np.asarray(features.T @ (size * beta))
        part = features[opened]
        part = part * size[opened, None]

        def done(inner: FloatArray) -> bool:
            beta[opened] = np.clip(inner, 0.0, 1.0)  # noqa: B023
            return search.try_dual(size * beta)  # noqa: B023

        if count:
            own = s[opened]
            interior_point(part, base, scale, curvature * own, own, done)
        else:
            search.try_dual(size * beta)
        if search.done:
            return
        # those that turn out to be on the other side
        new = labels * problem.scores(problem.primal_of(size * beta))
        low, high = 1.0 - curvature, 1.0
        wrong = (~opened) & (s > 0.0) & np.where(beta == 1.0, new > low, new < high)
        if not wrong.any():
            return
        opened |= wrong
        margins = np.where(opened, margins, np.where(beta == 1.0, -np.inf, np.inf))
