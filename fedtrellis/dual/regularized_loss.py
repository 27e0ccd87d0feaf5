"""The problem that HyFDCA solves, all in one place: primal, dual and optimum."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.weights import check_weights
from fedtrellis.objectives.base import (
    Objective,
    check_array,
    check_examples,
    check_number,
    check_point,
)
from fedtrellis.objectives.losses import DualLoss, weighted
from fedtrellis.objectives.reference import unconstrained_minimum
from fedtrellis.settings import need
from fedtrellis.wire.arrays import FloatArray

# How far from its kinks a sample must be to count as known at first, and how often
# those that were not are added.
_NEAR = 1e-3
_ROUNDS = 25
# Systems of a higher order take minutes and gigabytes.
_LARGEST_SYSTEM = 12_000


class RegularizedLoss(Objective):
    """P(w) = λ g(w) + (1/N) Σ l(x_iᵀw; y_i), and its dual D(α); g is ½‖w‖² or another.

    D(α) = −λ g*((1/λN) Σ α_i x_i) − (1/N) Σ l*(−α_i) ≤ P(w) for any two points, with
    equality at the optima, where w = (1/λN) Σ α_i x_i if g is ½‖w‖².

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
        g; there is no central solver for another one than ½‖w‖².
    weights : array_like of shape (N,), optional
        s_i from 0 on: the losses' mean is (1/S) Σ s_i l_i, S = Σ s_i.

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
        """Return ``{"accuracy": ...}`` where all labels are −1 and +1; 0 counts as −1.

        Of other labels ``{"explained": ...}``, which part of the loss of the best
        constant score is gone: R² of the squared loss, D² of the Poisson loss. Samples
        count alike, whatever their weights.
        """
        scores, y = self.scores(x), self.labels
        if (np.abs(y) == 1.0).all():
            return {"accuracy": float(np.mean((scores > 0.0) == (y > 0.0)))}
        constant = np.full(len(y), self.loss.constant_score(y))
        whole = float(self.loss.value(constant, y).sum())
        left = float(self.loss.value(scores, y).sum())
        return {"explained": 1.0 - left / whole if whole else 0.0}


class OneAgainstRest(Objective):
    """P(W) = Σ_c P_c(w_c), W of shape (p, C), with P_c's labels +1 in class c, else −1.

    ``parts`` are the P_c, of the same samples, and ``classes`` has each sample's class,
    a number from 0 to C − 1.
    """

    def __init__(self, parts: Sequence[RegularizedLoss], classes: FloatArray) -> None:
        self.parts, self.classes = parts, classes
        self.shape = (*parts[0].shape, len(parts))
        self.num_examples = parts[0].num_examples

    def value(self, x: FloatArray) -> float:
        """Return P at a point of shape (p, C)."""
        columns = check_point(x, self.shape).T
        return sum(one.value(w) for one, w in zip(self.parts, columns, strict=True))

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the parts' subgradients beside each other."""
        columns = zip(self.parts, check_point(x, self.shape).T, strict=True)
        return np.stack([one.gradient(w) for one, w in columns], axis=1)

    def metrics(self, x: FloatArray) -> dict[str, float]:
        """Return ``{"accuracy": ...}``: how often the class of largest score is it."""
        scores = np.asarray(self.parts[0].features @ check_point(x, self.shape))
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == self.classes))}


@dataclass(frozen=True)
class Optimum:
    """A minimiser of P with its certificate.

    The minimum P* lies in [value − gap, value], with ``value`` P(w) and ``gap``
    P(w) − D(α), to rounding: 0 is not above some 1e-16. w has shape (p,), or (p, C), α
    (N,), or (N, C).
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
        self.offer(alpha=problem.weighted.feasible(self.alpha, problem.labels))

    def offer(
        self, w: FloatArray | None = None, alpha: FloatArray | None = None
    ) -> bool:
        """See whether a point is better, or the one that suits it; whether it will do.

        Of w that is the α of its scores, of α its w.
        """
        problem = self.problem
        if w is not None:
            alpha = problem.weighted.dual_point(problem.scores(w), problem.labels)
        assert alpha is not None
        w = problem.primal_of(alpha) if w is None else w
        value, dual = problem.value(w), problem.dual_value(alpha)
        if value < self.value:
            self.value, self.w = value, w
        if dual > self.dual:
            self.dual, self.alpha = dual, alpha
        return self.done

    @property
    def gap(self) -> float:
        # Rounding may put D above P by 1e-16.
        return max(self.value - self.dual, 0.0)

    @property
    def done(self) -> bool:
        return self.gap <= self.tolerance * self.value


def central_optimum(
    problem: RegularizedLoss | OneAgainstRest, tolerance: float = 1e-9
) -> Optimum:
    """Return P*, certified by the duality gap, with the points that attain it.

    scikit-learn's solver of the loss comes first, without an intercept and with
    C = 1/(λN); it returns w only, and stops somewhere near the optimum. Smooth losses
    go on with L-BFGS, where −u in ∂l(z) gives α. For the hinge loss α is known but for
    the samples at its kink, and these are found by an interior-point method. Of several
    classes each is solved by itself.

    ``tolerance`` is the gap to reach, relative to P(w). A RuntimeError says which gap
    was reached where it was not; a ValueError: the penalty is another one than ½‖w‖².
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
        search.offer(_by_scikit_learn(problem))
    if problem.loss.name != "hinge" and not search.done:
        # ‖∇P‖²/2λ bounds the gap at α = u
        norm = math.sqrt(2.0 * problem.regularization * tolerance * search.value)
        found = unconstrained_minimum(
            problem, search.w, tolerance=0.1 * norm / math.sqrt(len(search.w))
        )
        search.offer(found.point)
    if problem.loss.name == "hinge" and not search.done:
        _finish_hinge(problem, search)
    if not search.done:
        raise RuntimeError(
            f"the duality gap of the {problem.loss.name} problem with "
            f"{problem.shape[0]} features and {problem.num_examples} examples is "
            f"{search.gap:.3g} and not below {tolerance * search.value:.3g}"
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
    if problem.loss.labels == "signs" and len(np.unique(problem.labels)) < 2:
        return np.zeros(columns)  # the classifiers refuse one class
    # in Newton's steps matrices of order p are factorised
    solver = "newton-cholesky" if columns <= min(examples, 2048) else "lbfgs"
    newton = {"solver": solver, "fit_intercept": False, "tol": 1e-10, "max_iter": 1000}
    steps = {"tol": 1e-6, "max_iter": 20_000, "random_state": 0, "fit_intercept": False}
    model: Any = {
        "squared": lambda: Ridge(alpha=scale, fit_intercept=False, tol=1e-12),
        "poisson": lambda: PoissonRegressor(alpha=problem.regularization, **newton),
        "logistic": lambda: LogisticRegression(C=1.0 / scale, **newton),
    }.get(name, lambda: LinearSVC(loss="hinge", C=1.0 / scale, **steps))()
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
    labels, features = problem.labels, problem.features
    # α = y s β with β in [0, 1]
    s = problem.weights if problem.weights is not None else np.ones(len(labels))
    size = labels * s
    scale = problem.regularization * problem.num_examples
    margins = labels * problem.scores(search.w)
    # β = 1 below the kink and 0 above it; in between it is open.
    opened = (np.abs(margins - 1.0) < _NEAR) & (s > 0.0)
    for _ in range(_ROUNDS):
        count = int(opened.sum())
        if count > _LARGEST_SYSTEM:
            return
        beta = (margins < 1.0).astype(np.float64)
        beta[opened] = 0.0
        base = np.asarray(features.T @ (size * beta))
        part = features[opened]
        part = part * size[opened, None]

        def done(inner: FloatArray) -> bool:
            beta[opened] = np.clip(inner, 0.0, 1.0)  # noqa: B023
            return search.offer(alpha=size * beta)  # noqa: B023

        if count:
            interior_point(part, base, scale, s[opened], done)
        else:
            search.offer(alpha=size * beta)
        if search.done:
            return
        # those that turn out to be on the other side
        new = labels * problem.scores(problem.primal_of(size * beta))
        wrong = (~opened) & (s > 0.0) & np.where(beta == 1.0, new > 1.0, new < 1.0)
        if not wrong.any():
            return
        opened |= wrong
        margins = np.where(opened, margins, np.where(beta == 1.0, -np.inf, np.inf))


# --------------------------------------------------------------- the hinge loss's dual

_STEPS = 100
# How far towards the boundary a step may go.
_BACK_OFF = 0.995


def interior_point(
    matrix: Any,
    base: FloatArray,
    scale: float,
    linear: FloatArray,
    done: Callable[[FloatArray], bool],
) -> None:
    """Solve the hinge loss's dual by Mehrotra's predictor-corrector method.

    With A the rows y_i x_i and β = yα it is the quadratic programme

        minimise (1/2s)‖Aᵀβ + a‖² − Σ b_i β_i  over 0 ≤ β_i ≤ 1,

    s = λN, b = 1, a what samples contribute whose β is already known. A sample of
    weight s_i has s_i times its row and b_i. ``matrix`` is A, dense or CSR, of shape
    (n, p), ``base`` a, ``scale`` s, ``linear`` b; matrices of order n must fit in
    memory. ``done`` is shown β after every step, and says whether it will do. Rounding
    ends the search where nothing does.

    S. Mehrotra, "On the implementation of a primal-dual interior point method", 1992.
    """
    count, gram = matrix.shape[0], matrix @ matrix.T
    gram = (gram if isinstance(gram, np.ndarray) else gram.toarray()) / scale
    beta, low, high = np.full(count, 0.5), np.ones(count), np.ones(count)
    for _ in range(_STEPS):
        room = 1.0 - beta
        # A w − b = low − high at the solution: the multipliers of the bounds
        residual = matrix @ ((matrix.T @ beta + base) / scale) - linear - low + high
        mean = float(low @ beta + high @ room) / (2 * count)
        try:
            system = gram + np.diag(low / beta + high / room)
            factor = scipy.linalg.cho_factor(system, overwrite_a=True)
        except (np.linalg.LinAlgError, ValueError):
            return
        # predictor: straight at the solution; the mean after it says how much to
        # centre the corrector
        here = factor, residual, beta, low, high
        d_beta, d_low, d_high, step = _direction(*here, -low, -high)
        ahead = (low + step * d_low) @ (beta + step * d_beta)
        ahead += (high + step * d_high) @ (room - step * d_beta)
        centre = mean * (float(ahead) / (2 * count * mean)) ** 3
        d_beta, d_low, d_high, step = _direction(
            *here,
            (centre - d_low * d_beta) / beta - low,
            (centre + d_high * d_beta) / room - high,
        )
        step *= _BACK_OFF
        if not step > 1e-10:
            return
        beta = beta + step * d_beta
        low, high = low + step * d_low, high + step * d_high
        if done(beta) or not (beta.min() > 0.0 and beta.max() < 1.0):
            return


def _direction(
    factor: tuple[FloatArray, bool],
    residual: FloatArray,
    beta: FloatArray,
    low: FloatArray,
    high: FloatArray,
    for_low: FloatArray,
    for_high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return Newton's step of β, low and high, and how much of it there is room for."""
    room = 1.0 - beta
    d_beta = scipy.linalg.cho_solve(factor, -residual + for_low - for_high)
    d_low = for_low - low * d_beta / beta
    d_high = for_high + high * d_beta / room
    longest = 1.0
    for values, change in (
        *((beta, d_beta), (room, -d_beta)),
        *((low, d_low), (high, d_high)),
    ):
        falling = change < 0.0
        if falling.any():
            longest = min(longest, float(np.min(-values[falling] / change[falling])))
    return d_beta, d_low, d_high, longest
