"""Losses, each once: value, slope and curvature, and for dual ascent the conjugate.

Linear models add them up over a data matrix, and HyFDCA's clients ascend the dual
problem. The primal problem is P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), the dual one
D(α) = −(λ/2)‖(1/λN) Σ α_i x_i‖² − (1/N) Σ l*(−α_i), and w = (1/λN) Σ α_i x_i ties them
together: "HyFDCA", arXiv 2210.08106, section 3, after S. Shalev-Shwartz and T. Zhang,
"Stochastic dual coordinate ascent", 2013. Both of the paper's dual steps are here,
algorithm 3's and algorithm 5's, the latter with ‖x_i‖² in its quadratic term.

Arrays are float64 of shape (n,), one entry per sample; a number stands for n equal
entries. What methods return is documented once, in ScoreLoss and DualLoss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.objectives.base import Array, IntArray, check_array, check_number
from fedtrellis.settings import check_choice

# ruff: noqa: D102

_ROUNDING = 1e-12
# Newton's method needs about 5 + ln(q/λN) steps for the logistic loss, and about
# ln(q/λN) for Poisson's, before it is quadratic; this is for q/λN up to 1e30.
_NEWTON_STEPS = 80


class ScoreLoss(ABC):
    """A convex function l(z; y) of an example's score z, or scores, and its label y.

    Labels broadcast against the examples, the first axes of z; z stays as it is. Linear
    models take those with a second derivative by z, of least bound ``curvature``.
    """

    curvature: ClassVar[float]

    @abstractmethod
    def value(self, z: Array, y: Any) -> Array:
        """Return l(z; y) of every example."""

    @abstractmethod
    def slope(self, z: Array, y: Any, out: Array | None = None) -> Array:
        """Return the derivative of l by z; at a kink the subgradient of smaller size.

        ``out`` is memory of z's shape for the result, if wanted; z itself will do.
        """

    def curvature_along(self, z: Array, y: Any, change: Array) -> Array:
        """Return the second derivative of l(z + γ·change; y) by γ at γ = 0.

        One number an example, at least 0, for a change of z's shape.
        """
        raise NotImplementedError(f"{type(self).__name__} has no second derivative")

    def total(self, z: Array, y: Any) -> Any:
        """Return the sum of l over the first axis."""
        return self.value(z, y).sum(axis=0)


class DualLoss(ScoreLoss):
    """A loss l(z; y) of one score z = xᵀw, with its conjugate and dual steps.

    ``name`` is what settings call it, a key of :data:`LOSSES`. With the ``labels``
    ``"signs"`` these are −1 and +1, and yα lies in [0, 1] for every dual variable α;
    with ``"real"`` both are any numbers; with ``"counts"`` labels are any numbers from
    0 on, and α ≤ y. ``smoothing`` is g of l*(−α) = (g/2)α² − yα, which most of them
    have in the domain.
    """

    name: ClassVar[str]
    labels: ClassVar[str]
    smoothing: float = 0.0

    def check_labels(self, y: ArrayLike) -> None:
        """Raise a ValueError of one line if labels do not suit the loss."""
        labels = check_array("labels", y, 1)
        right, allowed = {
            "signs": (np.abs(labels) == 1.0, "-1 or +1"),
            "real": (np.full(len(labels), True), "finite"),
            "counts": (labels >= 0.0, "finite and at least 0"),
        }[self.labels]
        if not right.all():
            k = int(np.argmin(right))
            wanted = f"the labels of the {self.name} loss must be {allowed}"
            raise ValueError(f"label {k} is not allowed: {wanted}")  # which is private

    def _conjugate(self, alpha: Array, y: Array) -> Array:
        """l*(−α) for α in its domain."""
        return np.asarray(alpha * (0.5 * self.smoothing * alpha - y))

    def coordinate_step(
        self, alpha: Array, z: Array, q: ArrayLike, y: Array, scale: float
    ) -> Array:
        """Return the Δ that maximises −l*(−(α + Δ)) − zΔ − (q/(2·scale))Δ².

        Moving α_i alone by it, from within the conjugate's domain, maximises D if
        z = x_iᵀw, q = ‖x_i‖² and scale = λN > 0. With q = 1 it is the paper's practical
        step, algorithm 5. q is of shape (n,) or (), at least 0; where it is 0 (x_i = 0)
        the score does not change with α.
        """
        slope = y - z - self.smoothing * alpha
        curvature = np.asarray(q, dtype=np.float64) / scale + self.smoothing
        # The hinge of x_i = 0 is linear in α, up to the domain's end: 0/0 is no move.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope == 0.0, 0.0, slope / curvature)
        return self.feasible(alpha + step, y) - alpha

    def feasible(self, alpha: Array, y: Array) -> Array:
        """Return the nearest dual variables in the conjugate's domain."""
        if self.labels == "signs":
            return np.asarray(y * np.clip(y * alpha, 0.0, 1.0))
        highest: Any = y if self.labels == "counts" else np.inf
        return np.asarray(np.minimum(np.asarray(alpha, np.float64), highest))

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """Return l*(−α) of every sample, +inf where −α is outside its domain.

        An α outside it by no more than 1e-12, relative to the larger of 1 and |y|,
        counts as rounded.
        """
        inside = self.feasible(alpha, y)
        near = np.abs(alpha - inside) <= _ROUNDING * np.maximum(1.0, np.abs(y))
        return np.where(near, self._conjugate(inside, y), np.inf)

    def dual_curvature(self, y: Array) -> Array:
        """Return about l*″ where the model is right: the unit of α's proximal term."""
        return np.ones_like(y)

    def constant_score(self, y: Array) -> float:
        """Return the score, one for all samples, of the least loss; of numbers only."""
        with np.errstate(divide="ignore"):
            return float(np.log(np.mean(y)) if self.labels == "counts" else np.mean(y))

    def dual_point(self, z: Array, y: Array) -> Array:
        """Return u with −u in ∂l(z): the dual variable that suits a score.

        l(z) + l*(−u) = −uz. At a kink u is the subgradient of the smaller size.
        """
        # 0 − s instead of −s: no zero gets a sign
        return np.asarray(0.0 - self.slope(z, y))

    def theoretical_step(
        self,
        alpha: Array,
        z: Array,
        y: Array,
        weight: float,
        gamma: float,
        regularization: float,
    ) -> Array:
        """Return s c (u − α) for the best s in [0, 1], the paper's algorithm 3.

        s maximises −l*(−(α + s c γ (u − α))) − s c γ z (u − α)
        − (γ²/2λ)(s c (u − α))², with u = :meth:`dual_point`. The last term has 1 for
        ‖x_i‖²: on longer rows the step may be too long. Nothing moves where u = α.

        α lies in the conjugate's domain; c, the ``weight`` (c_k), and γ (γ_t) are in
        (0, 1], and λ, the ``regularization``, is above 0. The algorithm prints u in
        ∂l(z) where its proof has −u.
        """
        # In terms of Δ = s c γ (u − α) this is the coordinate step with q = 1 and
        # scale = λ, held between 0 and c γ (u − α): the function is concave.
        longest = weight * gamma * (self.dual_point(z, y) - alpha)
        step = self.coordinate_step(alpha, z, 1.0, y, regularization)
        step = np.clip(step, np.minimum(longest, 0.0), np.maximum(longest, 0.0))
        return np.asarray(step / gamma)


@dataclass(frozen=True)
class Hinge(DualLoss):
    """The hinge loss max(0, 1 − yz) of the support vector machine; l*(−α) = −yα."""

    name: ClassVar[str] = "hinge"
    labels = "signs"

    def value(self, z: Array, y: Array) -> Array:
        return np.maximum(0.0, 1.0 - y * z)

    def slope(self, z: Array, y: Array, out: Array | None = None) -> Array:
        return np.where(y * z < 1.0, -y, 0.0)


@dataclass(frozen=True)
class SmoothedHinge(DualLoss):
    """The hinge loss with its kink rounded off by a parabola.

    0 for yz ≥ 1, 1 − yz − g/2 for yz ≤ 1 − g, (1 − yz)²/(2g) in between;
    l*(−α) = (g/2)α² − yα. g is the ``smoothing``, finite and above 0, else it is a
    ValueError; the hinge loss is the limit 0.
    """

    smoothing: float = 1.0

    name: ClassVar[str] = "smoothed-hinge"
    labels = "signs"

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, positive=True)

    def value(self, z: Array, y: Array) -> Array:
        margin = np.maximum(0.0, 1.0 - y * z)
        bent = np.minimum(margin, self.smoothing)
        # m²/2g up to g, m − g/2 beyond
        return np.asarray(bent * (margin - 0.5 * bent) / self.smoothing)

    def slope(self, z: Array, y: Array, out: Array | None = None) -> Array:
        return np.asarray(-y * np.clip((1.0 - y * z) / self.smoothing, 0.0, 1.0))


@dataclass(frozen=True)
class Squared(DualLoss):
    """Half the squared error, ½(z − y)², of any real labels; l*(−α) = α²/2 − αy."""

    name: ClassVar[str] = "squared"
    labels: ClassVar[str] = "real"
    smoothing = curvature = 1.0

    def value(self, z: Array, y: Array) -> Array:
        return np.asarray(0.5 * (z - y) ** 2)

    def total(self, z: Array, y: Array) -> Any:
        residuals = z - y
        # one pass over memory, without an array of squares
        return 0.5 * np.einsum("k...,k...->...", residuals, residuals)

    slope: ClassVar[Any] = np.subtract  # z − y

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:
        return np.square(change)


@dataclass(frozen=True)
class LogisticLoss(DualLoss):
    """The logistic loss ln(1 + e^(−yz)).

    l*(−α) = β ln β + (1 − β) ln(1 − β) with β = yα.
    """

    name: ClassVar[str] = "logistic"
    labels = "signs"
    curvature: ClassVar[float] = 0.25

    def value(self, z: Array, y: Array) -> Array:
        exponents = np.asarray(-y * z)
        return np.asarray(np.logaddexp(0.0, exponents, out=exponents))

    def slope(self, z: Array, y: Array, out: Array | None = None) -> Array:
        # −y / (1 + e^(yz)), in one array
        slopes = np.asarray(np.multiply(z, -y, out=out))
        scipy.special.expit(slopes, out=slopes)
        return np.asarray(np.multiply(slopes, -y, out=slopes))

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:
        # σ(z) σ(−z) change², alike for either label as y² = 1
        spread = scipy.special.expit(z) * scipy.special.expit(-z)
        return np.asarray(spread * np.square(change))

    def _conjugate(self, alpha: Array, y: Array) -> Array:
        beta = y * alpha
        return np.asarray(-scipy.special.entr(beta) - scipy.special.entr(1.0 - beta))

    def coordinate_step(
        self, alpha: Array, z: Array, q: ArrayLike, y: Array, scale: float
    ) -> Array:
        # The derivative vanishes at β = σ(θ) with h(θ) = θ + cσ(θ) + yz − cyα = 0 for
        # c = q/scale. In θ nothing overflows, and β near 0 keeps its digits.
        c = np.asarray(q, dtype=np.float64) / scale
        offset = y * z - c * (y * alpha)
        # h rises, convex below 0 and concave above. So Newton's method from 0 stays on
        # one side and goes to the zero step by step, without a safeguard; the bracket
        # catches rounding.
        lowest, highest = -offset - c, -offset

        def newton(theta: Array) -> Array:
            share = scipy.special.expit(theta)
            slope = 1.0 + c * share * scipy.special.expit(-theta)
            return np.asarray((theta + c * share + offset) / slope)

        start = np.clip(np.zeros_like(offset), lowest, highest)
        theta = _zero(start, newton, lowest, highest)
        return np.asarray(y * scipy.special.expit(theta) - alpha)


@dataclass(frozen=True)
class Poisson(DualLoss):
    """Half the Poisson deviance, e^z − yz + y ln y − y, of labels y ≥ 0.

    e^z is the mean that is predicted; the loss is 0 where e^z = y.
    l*(−α) = m ln m − m − (y ln y − y) with m = y − α ≥ 0; at the optimum m is the mean
    that is predicted. α is at most y, and has no lower bound.
    """

    name: ClassVar[str] = "poisson"
    labels: ClassVar[str] = "counts"

    def value(self, z: Array, y: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(z) - y * z + _entropy(y))

    def slope(self, z: Array, y: Array, out: Array | None = None) -> Array:
        with np.errstate(over="ignore"):
            means = np.exp(z, out=out)
        return np.asarray(np.subtract(means, y, out=out))

    def dual_curvature(self, y: Array) -> Array:
        """Return 1/max(y, 1): l*″ is 1/m."""
        return np.asarray(1.0 / np.maximum(y, 1.0))

    def _conjugate(self, alpha: Array, y: Array) -> Array:
        return np.asarray(_entropy(y - alpha) - _entropy(y))

    def coordinate_step(
        self, alpha: Array, z: Array, q: ArrayLike, y: Array, scale: float
    ) -> Array:
        # The derivative ln m − z − c(y − m − α), c = q/scale, vanishes at m = e^θ with
        # h(θ) = θ + c e^θ − r = 0, r = z + c(y − α). h rises and is convex: from above
        # its zero Newton's method comes down to it without a safeguard.
        c = np.asarray(q, dtype=np.float64) / scale
        right = np.asarray(z + c * (y - alpha), dtype=np.float64)
        theta = right.copy()  # h ≥ 0 here, as c e^θ ≥ 0
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            # where the zero is above 0, c e^θ ≤ r
            lower = np.log(right / c)
        theta = np.where(right > c, np.fmin(theta, lower), np.minimum(theta, 0.0))
        theta = np.where(c > 0.0, theta, right)

        def newton(theta: Array) -> Array:
            bent = c * np.exp(theta)
            step = (theta + bent - right) / (1.0 + bent)
            return np.where(np.isfinite(step), step, 0.0)

        with np.errstate(over="ignore"):
            return np.asarray(y - np.exp(_zero(theta, newton)) - alpha)


def _zero(theta: Array, newton: Any, lowest: Any = None, highest: Any = None) -> Array:
    """The zeros that Newton's method finds from θ on, held between bounds."""
    for _ in range(_NEWTON_STEPS):
        step = newton(theta)
        theta = np.clip(theta - step, lowest, highest)
        if not np.any(np.abs(step) > 1e-15 * (1.0 + np.abs(theta))):
            break
    return theta


def _entropy(means: Array) -> Array:
    """M ln m − m, and 0 at m = 0."""
    return np.asarray(scipy.special.xlogy(means, means) - means)


@dataclass(frozen=True)
class CrossEntropy(ScoreLoss):
    """The cross-entropy ln Σ_c exp(z_c) − z_y of a softmax, y from 0 to classes − 1.

    Scores have shape (..., classes) and labels one that broadcasts against (...).
    Their Hessian is at most ½ (I − 11ᵀ/classes): D. Böhning, "Multinomial logistic
    regression algorithm", 1992.
    """

    curvature: ClassVar[float] = 0.5

    def value(self, z: Array, y: IntArray) -> Array:
        # With the largest score taken off, the exponentials lie in (0, 1].
        shifted = z - z.max(axis=-1, keepdims=True)
        chosen = shifted[_chosen(shifted, y)]
        sums = np.exp(shifted, out=shifted).sum(axis=-1)
        return np.asarray(np.log(sums) - chosen)

    def slope(self, z: Array, y: IntArray, out: Array | None = None) -> Array:
        # softmax(z) − e_y
        slopes = softmax(z, out)
        slopes[_chosen(slopes, y)] -= 1.0
        return slopes

    def curvature_along(self, z: Array, y: IntArray, change: Array) -> Array:
        # changeᵀ (diag(q) − qqᵀ) change with q = softmax(z), which is the variance of
        # the change under q: Σ_c q_c (change_c − mean)² does not cancel
        shares = softmax(z)
        means = np.einsum("...c,...c->...", shares, change)
        return np.asarray(
            np.einsum("...c,...c->...", shares, np.square(change - means[..., None]))
        )


def softmax(z: Array, out: Array | None = None) -> Array:
    """Return exp(z_c) / Σ_c exp(z_c), no exponential of which overflows."""
    largest = np.maximum.reduce(z, axis=-1, keepdims=True)
    shares: Array = np.subtract(z, largest, out=out)
    np.exp(shares, out=shares)
    shares /= np.add.reduce(shares, axis=-1, keepdims=True)
    return shares


def _chosen(z: Array, y: IntArray) -> tuple[IntArray, ...]:
    """Return the indices of the score of each example's own class."""
    if z.ndim == 2:  # ogrid takes ten times as long
        return np.arange(len(z)), y
    return *np.ogrid[tuple(map(slice, z.shape[:-1]))], y


@dataclass(frozen=True)
class WeightedLoss:
    """s l(z; y), with a weight s ≥ 0 for each sample, and its conjugate s l*(−α/s).

    What :class:`DualLoss` has for dual ascent, for α = s β with β in the domain of l;
    the ``weights`` s have the samples' shape. One of weight 0 has α = 0.
    """

    loss: DualLoss
    weights: Array

    @cached_property
    def _divisor(self) -> Array:
        return np.where(self.weights > 0.0, self.weights, 1.0)

    def _beta(self, alpha: Array) -> Array:
        # β = α/s
        return np.asarray(np.where(self.weights > 0.0, alpha / self._divisor, 0.0))

    def _times(self, each: Array) -> Array:
        # 0 where s = 0, even of what is not finite
        return np.asarray(np.where(self.weights > 0.0, self.weights * each, 0.0))

    def value(self, z: Array, y: Array) -> Array:
        return self._times(self.loss.value(z, y))

    def slope(self, z: Array, y: Array) -> Array:
        return self._times(self.loss.slope(z, y))

    def conjugate(self, alpha: Array, y: Array) -> Array:
        # s l*(−β); of weight 0 only α = 0 is in the domain
        inside = self._times(self.loss.conjugate(self._beta(alpha), y))
        return np.where((self.weights > 0.0) | (alpha == 0.0), inside, np.inf)

    def feasible(self, alpha: Array, y: Array) -> Array:
        return self._times(self.loss.feasible(self._beta(alpha), y))

    def dual_point(self, z: Array, y: Array) -> Array:
        return self._times(self.loss.dual_point(z, y))

    def dual_curvature(self, y: Array) -> Array:
        return np.asarray(self.loss.dual_curvature(y) / self._divisor)

    def coordinate_step(
        self, alpha: Array, z: Array, q: ArrayLike, y: Array, scale: float
    ) -> Array:
        # with Δ = s δ it is s (−l*(−(β + δ)) − zδ − (sq/(2·scale))δ²)
        q = self._divisor * np.asarray(q, dtype=np.float64)
        step = self.loss.coordinate_step(self._beta(alpha), z, q, y, scale)
        return self._times(step)


def weighted(loss: DualLoss, weights: Array | None) -> DualLoss | WeightedLoss:
    """Return s l, or l itself where samples have no weights."""
    return loss if weights is None else WeightedLoss(loss, weights)


#: Every loss of one score by its name.
LOSSES: dict[str, type[DualLoss]] = {
    loss.name: loss for loss in (Hinge, SmoothedHinge, LogisticLoss, Squared, Poisson)
}


def make_loss(name: str, smoothing: float = 1.0) -> DualLoss:
    """Make a loss from its name, a key of :data:`LOSSES`.

    ``smoothing`` is g of the smoothed hinge; the others have no use for it. A
    SettingsError: there is no such loss. A ValueError: g is not finite and above 0.
    """
    kind = LOSSES[check_choice("loss", name, LOSSES)]
    return SmoothedHinge(smoothing) if kind is SmoothedHinge else kind()
