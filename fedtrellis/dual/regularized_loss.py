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
from fedtrellis.dual.weights import check_weights, normalised, weight_totals
from fedtrellis.extras import need
from fedtrellis.objectives.base import Objective
from fedtrellis.objectives.checks import (
    check_examples,
    check_number,
    check_point,
    check_targets,
)
from fedtrellis.objectives.losses import DualLoss, SmoothedHinge, weighted
from fedtrellis.objectives.reference import unconstrained_minimum
from fedtrellis.wire.arrays import FloatArray

__all__ = ["Optimum", "RegularizedLoss", "central_optimum"]


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
        self.labels: FloatArray = check_targets("labels", labels, self.num_examples)
        loss.check_labels(self.labels)
        self.loss = loss
        #: N s_i/S, or None: what l_i counts.
        self.weights: FloatArray | None = None
        if weights is not None:
            self.weights = _of_mean_one(np.asarray(weights, float), self.labels)
        self.weighted = weighted(loss, self.weights)
        self.regularization = check_number(
            "regularization", regularization, positive=True
        )

    def scores(self, w: FloatArray) -> FloatArray:
        """Return z = Xw, of shape (N,)."""
        return np.asarray(self.features @ check_point(w, self.shape))

    def value(self, x: FloatArray) -> float:
        """Return P at a point of shape (p,)."""
        return self._value(check_point(x, self.shape), self.scores(x))

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return λ∇g(w) + (1/N) Xᵀl′(Xw), a subgradient of P."""
        return self._gradient(check_point(x, self.shape), self.scores(x))

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

    def _value(self, w: FloatArray, scores: FloatArray) -> float:
        losses = self.weighted.value(scores, self.labels)
        return self.regularization * self.penalty.value(w) + float(losses.mean())

    def _gradient(self, w: FloatArray, scores: FloatArray) -> FloatArray:
        slopes = self.weighted.slope(scores, self.labels)
        return np.asarray(
            self.regularization * self.penalty.gradient(w)
            + self.features.T @ slopes / self.num_examples
        )


def _of_mean_one(weights: FloatArray, labels: FloatArray) -> FloatArray:
    """N s_i/S of all samples."""
    N = len(labels)
    check_weights("weights", weights, N)
    totals = weight_totals(weights, labels, 1, "")
    if not totals[0] > 0.0:
        raise ValueError("weights must not all be 0, nor missing")
    found: FloatArray = normalised(weights, labels, 1, "", totals, N)[0]
    return found


@dataclass(frozen=True)
class Optimum:
    """A minimiser of P with its certificate.

    Attributes
    ----------
    value : float
        P(w): the minimum P* lies in [value − gap, value].
    gap : float
        P(w) − D(α), the duality gap, to rounding: 0 is not above some 1e-16.
    w : ndarray of shape (p,)
    alpha : ndarray of shape (N,)
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
        problem = self.problem
        self._see(w, problem.value(w))
        alpha = problem.weighted.dual_point(problem.scores(w), problem.labels)
        self._see_dual(alpha, problem.dual_value(alpha))
        return self.done

    def try_dual(self, alpha: FloatArray) -> bool:
        """See whether α is better, or its w."""
        self._see_dual(alpha, self.problem.dual_value(alpha))
        w = self.problem.primal_of(alpha)
        self._see(w, self.problem.value(w))
        return self.done

    def _see(self, w: FloatArray, value: float) -> None:
        if value < self.value:
            self.value, self.w = value, w

    def _see_dual(self, alpha: FloatArray, value: float) -> None:
        if value > self.dual:
            self.dual, self.alpha = value, alpha


def central_optimum(problem: RegularizedLoss, tolerance: float = 1e-9) -> Optimum:
    """Return P*, certified by the duality gap, with the points that attain it.

    scikit-learn's solver of the loss comes first: ``LinearSVC``,
    ``LogisticRegression``, ``Ridge`` or ``PoissonRegressor``, without an intercept and
    with C = 1/(λN). It returns w only, and stops somewhere near the optimum. Smooth
    losses go on with L-BFGS, where −u in ∂l(z) gives α. For the hinge losses α is known
    but for the samples at a kink of the loss, and these are found by an interior-point
    method.

    Parameters
    ----------
    problem : RegularizedLoss
    tolerance : float, default 1e-9
        The gap to reach, relative to P(w).

    Raises
    ------
    RuntimeError
        The gap was not reached; the message has the one that was.
    ValueError
        The penalty is another one than ½‖w‖².
    """
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
    if name == "squared":
        model = Ridge(alpha=scale, fit_intercept=False, tol=1e-12)
    elif name == "poisson":
        solver = "newton-cholesky" if columns <= min(examples, 2048) else "lbfgs"
        model = PoissonRegressor(
            alpha=problem.regularization,
            fit_intercept=False,
            solver=solver,
            tol=1e-10,
            max_iter=1000,
        )
    elif len(np.unique(problem.labels)) < 2:
        return np.zeros(columns)  # the classifiers refuse one class
    elif name == "logistic":
        solver = "newton-cholesky" if columns <= min(examples, 2048) else "lbfgs"
        model = LogisticRegression(
            C=1.0 / scale, fit_intercept=False, solver=solver, tol=1e-10, max_iter=1000
        )
    else:
        model = LinearSVC(
            loss="hinge",
            C=1.0 / scale,
            fit_intercept=False,
            tol=1e-6,
            max_iter=2000,
            random_state=0,
        )
    with warnings.catch_warnings():
        # How far it came is measured by the gap.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(
            _with_short_indices(problem.features), problem.labels, problem.weights
        )
    return np.asarray(model.coef_, dtype=np.float64).ravel()


def _with_short_indices(features: Any) -> Any:
    """Return a CSR matrix with the 32-bit indices that liblinear asks for."""
    if isinstance(features, np.ndarray) or features.nnz > np.iinfo(np.int32).max:
        return features
    indices, starts = (a.astype(np.int32) for a in (features.indices, features.indptr))
    return type(features)((features.data, indices, starts), shape=features.shape)


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
