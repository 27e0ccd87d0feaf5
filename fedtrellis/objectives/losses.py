"""Convex losses of linear models with their conjugates, for dual coordinate ascent.

The primal problem is P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), the dual one
D(α) = −(λ/2)‖(1/λN) Σ α_i x_i‖² − (1/N) Σ l*(−α_i), and w = (1/λN) Σ α_i x_i ties them
together: "HyFDCA", arXiv 2210.08106, section 3, after S. Shalev-Shwartz and T. Zhang,
"Stochastic dual coordinate ascent", 2013. Both of the paper's dual steps are here,
algorithm 3's and algorithm 5's, the latter with ‖x_i‖² in its quadratic term.

Everything is computed for many samples at once: arrays are float64 of shape (n,), one
entry per sample, and a number stands for n equal entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

from fedtrellis.objectives.linear_models import check_number
from fedtrellis.settings import check_choice

__all__ = [
    "LOSSES",
    "Hinge",
    "Logistic",
    "Loss",
    "SmoothedHinge",
    "Squared",
    "make_loss",
]

FloatArray = NDArray[np.float64]

# How far rounding may have carried yα out of [0, 1] without the conjugate being +inf.
_ROUNDING = 1e-12
# Newton's method for the logistic loss needs about 5 + ln(q/λN) steps; this is for q/λN
# up to 1e30.
_NEWTON_STEPS = 80


class Loss(ABC):
    """A convex loss l(z; y) of the score z = xᵀw and a label y.

    Attributes
    ----------
    name : str
        What settings call it, a key of :data:`LOSSES`.
    labels : str
        ``"signs"``: labels are −1 and +1, and yα lies in [0, 1] for every dual variable
        α; ``"real"``: labels and α are any numbers.
    """

    name: ClassVar[str]
    labels: ClassVar[str]

    def check_labels(self, y: ArrayLike) -> None:
        """Find out whether labels suit the loss.

        Raises
        ------
        ValueError
            One does not, or they are no vector of numbers; in one line.
        """
        labels = np.asarray(y)
        if labels.ndim != 1 or labels.dtype.kind not in "biuf":
            raise ValueError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}; "
                "they must be a vector of real numbers"
            )
        if self.labels == "signs":
            wrong, allowed = np.abs(labels.astype(np.float64)) != 1.0, "-1 or +1"
        else:
            wrong, allowed = ~np.isfinite(labels.astype(np.float64)), "finite"
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"label {first} is {labels[first]:g}; the labels of the {self.name} "
                f"loss must be {allowed}"
            )

    # -- what a loss supplies

    @abstractmethod
    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """Return l(z; y) of every sample."""

    @abstractmethod
    def conjugate(self, alpha: FloatArray, y: FloatArray) -> FloatArray:
        """Return l*(−α) of every sample, +inf where −α is outside its domain.

        A yα outside [0, 1] by no more than 1e-12 counts as rounded and is clipped.
        """

    @abstractmethod
    def dual_point(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """Return u with −u in ∂l(z): the dual variable that suits a score.

        l(z) + l*(−u) = −uz. At a kink u is the subgradient of the smaller size.
        """

    @abstractmethod
    def coordinate_step(
        self,
        alpha: FloatArray,
        z: FloatArray,
        q: ArrayLike,
        y: FloatArray,
        scale: float,
    ) -> FloatArray:
        """Return the Δ that maximises −l*(−(α + Δ)) − zΔ − (q/(2·scale))Δ².

        Moving α_i alone by it maximises D if z = x_iᵀw, q = ‖x_i‖² and scale = λN.
        With q = 1 it is the paper's practical step, algorithm 5.

        Parameters
        ----------
        alpha : ndarray of shape (n,)
            Dual variables in the conjugate's domain.
        z : ndarray of shape (n,)
        q : array_like of shape (n,) or ()
            At least 0; where it is 0 (x_i = 0) the score does not change with α.
        y : ndarray of shape (n,)
        scale : float
            Above 0.
        """

    @abstractmethod
    def feasible(self, alpha: FloatArray, y: FloatArray) -> FloatArray:
        """Return the nearest dual variables in the conjugate's domain."""

    # -- what follows from it

    def theoretical_step(
        self,
        alpha: FloatArray,
        z: FloatArray,
        y: FloatArray,
        weight: float,
        gamma: float,
        regularization: float,
    ) -> FloatArray:
        """Return s c (u − α) for the best s in [0, 1], the paper's algorithm 3.

        s maximises −l*(−(α + s c γ (u − α))) − s c γ z (u − α)
        − (γ²/2λ)(s c (u − α))², with u = :meth:`dual_point`. The last term
        has 1 for ‖x_i‖²: on longer rows the step may be too long. Nothing moves where
        u = α.

        Parameters
        ----------
        alpha, z, y : ndarray of shape (n,)
            α in the conjugate's domain.
        weight : float
            c, the paper's c_k, above 0 and at most 1.
        gamma : float
            γ, the paper's γ_t, above 0 and at most 1.
        regularization : float
            λ above 0.

        Raises
        ------
        ValueError
            A number is outside what is allowed: beyond 1, α may leave the domain.

        Notes
        -----
        The algorithm prints u in ∂l(z) where its proof has −u; with the former a run
        never leaves 0.
        """
        for name, number in (("weight", weight), ("gamma", gamma)):
            if not 0.0 < number <= 1.0:
                raise ValueError(f"{name} is {number!r}; it must be in (0, 1]")
        check_number("regularization", regularization, positive=True)
        # In terms of Δ = s c γ (u − α) this is the coordinate step with q = 1 and
        # scale = λ, held between 0 and c γ (u − α): the function is concave.
        longest = weight * gamma * (self.dual_point(z, y) - alpha)
        step = self.coordinate_step(alpha, z, 1.0, y, regularization)
        step = np.clip(step, np.minimum(longest, 0.0), np.maximum(longest, 0.0))
        return np.asarray(step / gamma)


class _QuadraticConjugate(Loss):
    """A loss with l*(−α) = (c/2)α² − yα for yα in [0, 1], or for all α."""

    @property
    @abstractmethod
    def _curvature(self) -> float:
        """c, the second derivative of the conjugate; 1/c is that of the loss."""

    def conjugate(self, alpha: FloatArray, y: FloatArray) -> FloatArray:
        inside = self.feasible(alpha, y)
        value = inside * (0.5 * self._curvature * inside - y)
        return np.where(np.abs(alpha - inside) <= _ROUNDING, value, np.inf)

    def coordinate_step(
        self,
        alpha: FloatArray,
        z: FloatArray,
        q: ArrayLike,
        y: FloatArray,
        scale: float,
    ) -> FloatArray:
        slope = y - z - self._curvature * alpha
        curvature = np.asarray(q, dtype=np.float64) / scale + self._curvature
        # The hinge of x_i = 0 is linear in α, up to the domain's end: 0/0 is no move.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope == 0.0, 0.0, slope / curvature)
        return self.feasible(alpha + step, y) - alpha


class _SignLoss(Loss):
    """A loss of labels −1 and +1, whose dual variables have yα in [0, 1]."""

    labels: ClassVar[str] = "signs"

    def feasible(self, alpha: FloatArray, y: FloatArray) -> FloatArray:
        return np.asarray(y * np.clip(y * alpha, 0.0, 1.0))


@dataclass(frozen=True)
class Hinge(_SignLoss, _QuadraticConjugate):
    """The hinge loss max(0, 1 − yz) of the support vector machine; l*(−α) = −yα."""

    name: ClassVar[str] = "hinge"
    _curvature: ClassVar[float] = 0.0

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.maximum(0.0, 1.0 - y * z)

    def dual_point(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.where(y * z < 1.0, y, 0.0)


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
    def _curvature(self) -> float:
        return self.smoothing

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        margin = np.maximum(0.0, 1.0 - y * z)
        bent = np.minimum(margin, self.smoothing)
        # m²/2g up to g, m − g/2 beyond
        return np.asarray(bent * (margin - 0.5 * bent) / self.smoothing)

    def dual_point(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.asarray(y * np.clip((1.0 - y * z) / self.smoothing, 0.0, 1.0))


@dataclass(frozen=True)
class Squared(_QuadraticConjugate):
    """Half the squared error, ½(z − y)², of any real labels; l*(−α) = α²/2 − αy."""

    name: ClassVar[str] = "squared"
    labels: ClassVar[str] = "real"
    _curvature: ClassVar[float] = 1.0

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.asarray(0.5 * (z - y) ** 2)

    def dual_point(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.asarray(y - z)

    def feasible(self, alpha: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.array(alpha, dtype=np.float64)


@dataclass(frozen=True)
class Logistic(_SignLoss):
    """The logistic loss ln(1 + e^(−yz)).

    l*(−α) = β ln β + (1 − β) ln(1 − β) with β = yα.
    """

    name: ClassVar[str] = "logistic"

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.logaddexp(0.0, -y * z)

    def conjugate(self, alpha: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        inside = y * self.feasible(alpha, y)
        value = -scipy.special.entr(inside) - scipy.special.entr(1.0 - inside)
        return np.where(np.abs(y * alpha - inside) <= _ROUNDING, value, np.inf)

    def dual_point(self, z: FloatArray, y: FloatArray) -> FloatArray:  # noqa: D102
        return np.asarray(y * scipy.special.expit(-y * z))

    def coordinate_step(  # noqa: D102
        self,
        alpha: FloatArray,
        z: FloatArray,
        q: ArrayLike,
        y: FloatArray,
        scale: float,
    ) -> FloatArray:
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


#: Every loss by its name.
LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (Hinge, SmoothedHinge, Logistic, Squared)
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
