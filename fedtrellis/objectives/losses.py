"""The losses themselves, each once: of margins, of residuals, of several scores."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.objectives.checks import Array, IntArray, check_number
from fedtrellis.objectives.loss_base import Loss, ScoreLoss
from fedtrellis.objectives.poisson import Poisson
from fedtrellis.settings import check_choice

__all__ = [
    "LOSSES",
    "CrossEntropy",
    "Hinge",
    "Logistic",
    "Loss",
    "Poisson",
    "ScoreLoss",
    "SmoothedHinge",
    "Squared",
    "make_loss",
]

# How far rounding may have carried yα out of [0, 1] without the conjugate being +inf.
_ROUNDING = 1e-12
# Newton's method for the logistic loss needs about 5 + ln(q/λN) steps; this is for q/λN
# up to 1e30.
_NEWTON_STEPS = 80


class _QuadraticConjugate(Loss):
    """A loss with l*(−α) = (c/2)α² − yα for yα in [0, 1], or for all α."""

    @property
    @abstractmethod
    def _conjugate_curvature(self) -> float:
        """c, the second derivative of the conjugate."""

    @property
    def curvature(self) -> float:
        """1/c."""
        c = self._conjugate_curvature
        return 1.0 / c if c else math.inf

    def conjugate(self, alpha: Array, y: Array) -> Array:
        inside = self.feasible(alpha, y)
        value = inside * (0.5 * self._conjugate_curvature * inside - y)
        return np.where(np.abs(alpha - inside) <= _ROUNDING, value, np.inf)

    def coordinate_step(
        self,
        alpha: Array,
        z: Array,
        q: ArrayLike,
        y: Array,
        scale: float,
    ) -> Array:
        slope = y - z - self._conjugate_curvature * alpha
        curvature = np.asarray(q, dtype=np.float64) / scale + self._conjugate_curvature
        # The hinge of x_i = 0 is linear in α, up to the domain's end: 0/0 is no move.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope == 0.0, 0.0, slope / curvature)
        return self.feasible(alpha + step, y) - alpha


class _SignLoss(Loss):
    """A loss of labels −1 and +1, whose dual variables have yα in [0, 1]."""

    labels: ClassVar[str] = "signs"

    def feasible(self, alpha: Array, y: Array) -> Array:
        return np.asarray(y * np.clip(y * alpha, 0.0, 1.0))


@dataclass(frozen=True)
class Hinge(_SignLoss, _QuadraticConjugate):
    """The hinge loss max(0, 1 − yz) of the support vector machine; l*(−α) = −yα."""

    name: ClassVar[str] = "hinge"
    _conjugate_curvature: ClassVar[float] = 0.0

    def value(self, z: Array, y: Array) -> Array:  # noqa: D102
        return np.maximum(0.0, 1.0 - y * z)

    def slope(  # noqa: D102
        self, z: Array, y: Array, out: Array | None = None
    ) -> Array:
        return np.where(y * z < 1.0, -y, 0.0)

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:  # noqa: D102
        return np.zeros_like(change)


@dataclass(frozen=True)
class SmoothedHinge(_SignLoss, _QuadraticConjugate):
    """The hinge loss with its kink rounded off by a parabola.

    0 for yz ≥ 1, 1 − yz − g/2 for yz ≤ 1 − g, (1 − yz)²/(2g) in between;
    l*(−α) = (g/2)α² − yα.

    Parameters
    ----------
    smoothing : float, default 1.0
        g above 0; the hinge loss is the limit 0.

    Raises
    ------
    ValueError
        The smoothing is not a finite number above 0.
    """

    smoothing: float = 1.0

    name: ClassVar[str] = "smoothed-hinge"

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, positive=True)

    @property
    def _conjugate_curvature(self) -> float:
        return self.smoothing

    def value(self, z: Array, y: Array) -> Array:  # noqa: D102
        margin = np.maximum(0.0, 1.0 - y * z)
        bent = np.minimum(margin, self.smoothing)
        # m²/2g up to g, m − g/2 beyond
        return np.asarray(bent * (margin - 0.5 * bent) / self.smoothing)

    def slope(  # noqa: D102
        self, z: Array, y: Array, out: Array | None = None
    ) -> Array:
        return np.asarray(-y * np.clip((1.0 - y * z) / self.smoothing, 0.0, 1.0))

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:  # noqa: D102
        # change²/g between 1 − g and 1, where the parabola is
        margin = 1.0 - y * z
        bent = (margin > 0.0) & (margin < self.smoothing)
        return np.where(bent, np.square(change) / self.smoothing, 0.0)


@dataclass(frozen=True)
class Squared(_QuadraticConjugate):
    """Half the squared error, ½(z − y)², of any real labels; l*(−α) = α²/2 − αy."""

    name: ClassVar[str] = "squared"
    labels: ClassVar[str] = "real"
    _conjugate_curvature: ClassVar[float] = 1.0

    def value(self, z: Array, y: Array) -> Array:  # noqa: D102
        return np.asarray(0.5 * (z - y) ** 2)

    def total(self, z: Array, y: Array) -> Any:  # noqa: D102
        residuals = z - y
        # one pass over memory, without an array of squares
        return 0.5 * np.einsum("k...,k...->...", residuals, residuals)

    def slope(  # noqa: D102
        self, z: Array, y: Array, out: Array | None = None
    ) -> Array:
        return np.asarray(np.subtract(z, y, out=out))

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:  # noqa: D102
        return np.square(change)

    def constant_score(self, y: Array) -> float:  # noqa: D102
        return float(np.mean(y))

    def feasible(self, alpha: Array, y: Array) -> Array:  # noqa: D102
        return np.array(alpha, dtype=np.float64)


@dataclass(frozen=True)
class Logistic(_SignLoss):
    """The logistic loss ln(1 + e^(−yz)).

    l*(−α) = β ln β + (1 − β) ln(1 − β) with β = yα.
    """

    name: ClassVar[str] = "logistic"
    curvature: ClassVar[float] = 0.25

    def value(self, z: Array, y: Array) -> Array:  # noqa: D102
        exponents = np.asarray(-y * z)
        return np.asarray(np.logaddexp(0.0, exponents, out=exponents))

    def slope(  # noqa: D102
        self, z: Array, y: Array, out: Array | None = None
    ) -> Array:
        # −y / (1 + e^(yz)), in one array
        slopes = np.asarray(np.multiply(z, -y, out=out))
        scipy.special.expit(slopes, out=slopes)
        return np.asarray(np.multiply(slopes, -y, out=slopes))

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:  # noqa: D102
        # σ(z) σ(−z) change², alike for either label as y² = 1
        spread = scipy.special.expit(z) * scipy.special.expit(-z)
        return np.asarray(spread * np.square(change))

    def conjugate(self, alpha: Array, y: Array) -> Array:  # noqa: D102
        inside = y * self.feasible(alpha, y)
        value = -scipy.special.entr(inside) - scipy.special.entr(1.0 - inside)
        return np.where(np.abs(y * alpha - inside) <= _ROUNDING, value, np.inf)

    def coordinate_step(  # noqa: D102
        self,
        alpha: Array,
        z: Array,
        q: ArrayLike,
        y: Array,
        scale: float,
    ) -> Array:
        # The derivative vanishes at β = σ(θ) with h(θ) = θ + cσ(θ) + yz − cyα = 0 for
        # c = q/scale. In θ nothing overflows, and β near 0 keeps its digits.
        c = np.asarray(q, dtype=np.float64) / scale
        offset = y * z - c * (y * alpha)
        # h rises, convex below 0 and concave above. So Newton's method from 0 stays on
        # one side and goes to the zero step by step, without a safeguard; the bracket
        # catches rounding.
        lowest, highest = -offset - c, -offset
        theta = np.clip(np.zeros_like(offset), lowest, highest)
        for _ in range(_NEWTON_STEPS):
            share = scipy.special.expit(theta)
            slope = 1.0 + c * share * scipy.special.expit(-theta)
            step = (theta + c * share + offset) / slope
            theta = np.clip(theta - step, lowest, highest)
            if not np.any(np.abs(step) > 1e-15 * (1.0 + np.abs(theta))):
                break
        return np.asarray(y * scipy.special.expit(theta) - alpha)


@dataclass(frozen=True)
class CrossEntropy(ScoreLoss):
    """The cross-entropy ln Σ_c exp(z_c) − z_y of a softmax, y from 0 to classes − 1.

    Scores have shape (..., classes) and labels one that broadcasts against (...).
    Their Hessian is at most ½ (I − 11ᵀ/classes): D. Böhning, "Multinomial logistic
    regression algorithm", 1992.
    """

    curvature: ClassVar[float] = 0.5

    def value(self, z: Array, y: IntArray) -> Array:  # noqa: D102
        # With the largest score taken off, the exponentials lie in (0, 1].
        shifted = z - z.max(axis=-1, keepdims=True)
        chosen = shifted[_chosen(shifted, y)]
        sums = np.exp(shifted, out=shifted).sum(axis=-1)
        return np.asarray(np.log(sums) - chosen)

    def slope(  # noqa: D102
        self, z: Array, y: IntArray, out: Array | None = None
    ) -> Array:
        # softmax(z) − e_y
        slopes = self.softmax(z, out)
        slopes[_chosen(slopes, y)] -= 1.0
        return slopes

    def softmax(self, z: Array, out: Array | None = None) -> Array:
        """Return exp(z_c) / Σ_c exp(z_c), no exponential of which overflows."""
        largest = np.maximum.reduce(z, axis=-1, keepdims=True)
        shares: Array = np.subtract(z, largest, out=out)
        np.exp(shares, out=shares)
        shares /= np.add.reduce(shares, axis=-1, keepdims=True)
        return shares

    def curvature_along(  # noqa: D102
        self, z: Array, y: IntArray, change: Array
    ) -> Array:
        # changeᵀ (diag(q) − qqᵀ) change with q = softmax(z), which is the variance of
        # the change under q: Σ_c q_c (change_c − mean)² does not cancel
        shares = np.exp(z - z.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        means = np.einsum("...c,...c->...", shares, change)
        return np.asarray(
            np.einsum("...c,...c->...", shares, np.square(change - means[..., None]))
        )

    def total_and_slope(self, z: Array, y: IntArray) -> tuple[Any, Array]:  # noqa: D102
        values, slopes = self.value_and_slope(z, y)
        return values.sum(axis=0), slopes

    def value_and_slope(self, z: Array, y: IntArray) -> tuple[Array, Array]:
        """Return both at the price of one, the slope in the memory of z."""
        z -= z.max(axis=-1, keepdims=True)
        entries = _chosen(z, y)
        chosen = z[entries]
        np.exp(z, out=z)
        sums = z.sum(axis=-1, keepdims=True)
        values = np.log(sums[..., 0]) - chosen
        z /= sums
        z[entries] -= 1.0
        return values, z


def _chosen(z: Array, y: IntArray) -> tuple[IntArray, ...]:
    """Return the indices of the score of each example's own class."""
    axes = z.shape[:-1]
    if len(axes) == 1:
        return np.arange(axes[0]), y
    return *(
        np.arange(n).reshape(-1, *[1] * (len(axes) - 1 - i)) for i, n in enumerate(axes)
    ), y


#: Every loss of one score by its name.
LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (Hinge, SmoothedHinge, Logistic, Squared, Poisson)
}


def make_loss(name: str, smoothing: float = 1.0) -> Loss:
    """Make a loss from its name.

    Parameters
    ----------
    name : str
        A key of :data:`LOSSES`.
    smoothing : float, default 1.0
        g of the smoothed hinge; the others have no use for it.

    Raises
    ------
    SettingsError
        There is no such loss.
    ValueError
        The smoothing is not a finite number above 0.
    """
    kind: Any = LOSSES[check_choice("loss", name, LOSSES)]
    if kind is SmoothedHinge:
        return SmoothedHinge(smoothing)
    loss: Loss = kind()
    return loss
