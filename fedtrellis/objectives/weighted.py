"""A loss of samples that count more or less than others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives.checks import Array
from fedtrellis.objectives.loss_base import Loss

__all__ = ["WeightedLoss", "weighted"]


@dataclass(frozen=True)
class WeightedLoss:
    """s l(z; y), with a weight s ≥ 0 for each sample, and its conjugate s l*(−α/s).

    What :class:`~fedtrellis.objectives.losses.Loss` has for dual ascent, for α = s β
    with β in the domain of l. A sample of weight 0 has α = 0, and adds nothing.

    Parameters
    ----------
    loss : Loss
        l.
    weights : ndarray of float64
        s, of the samples' shape.
    """

    loss: Loss
    weights: Array
    _divisor: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        divisor = np.where(self.weights > 0.0, self.weights, 1.0)
        object.__setattr__(self, "_divisor", divisor)

    def _beta(self, alpha: Array) -> Array:
        # β = α/s
        return np.asarray(np.where(self.weights > 0.0, alpha / self._divisor, 0.0))

    def value(self, z: Array, y: Array) -> Array:
        """Return s l(z; y)."""
        return self._times(self.loss.value(z, y))

    def slope(self, z: Array, y: Array) -> Array:
        """Return the derivative by z, s l′(z; y)."""
        return self._times(self.loss.slope(z, y))

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """Return s l*(−α/s), +inf where −α/s is outside the domain."""
        inside = self._times(self.loss.conjugate(self._beta(alpha), y))
        # of weight 0 only α = 0 is in the domain
        return np.where((self.weights > 0.0) | (alpha == 0.0), inside, np.inf)

    def feasible(self, alpha: Array, y: Array) -> Array:
        """Return the nearest dual variables in the conjugate's domain."""
        return self._times(self.loss.feasible(self._beta(alpha), y))

    def dual_point(self, z: Array, y: Array) -> Array:
        """Return s u, with −u in ∂l(z)."""
        return self._times(self.loss.dual_point(z, y))

    def dual_curvature(self, y: Array) -> Array:
        """Return l*″/s, about; the unit that a proximal term of α is measured in."""
        return np.asarray(self.loss.dual_curvature(y) / self._divisor)

    def coordinate_step(
        self, alpha: Array, z: Array, q: ArrayLike, y: Array, scale: float
    ) -> Array:
        """Return the Δ that maximises −s l*(−(α + Δ)/s) − zΔ − (q/(2·scale))Δ²."""
        # with Δ = s δ it is s (−l*(−(β + δ)) − zδ − (sq/(2·scale))δ²)
        q = self._divisor * np.asarray(q, dtype=np.float64)
        step = self.loss.coordinate_step(self._beta(alpha), z, q, y, scale)
        return self._times(step)

    def _times(self, each: Array) -> Array:
        # 0 where s = 0, even of what is not finite
        return np.asarray(np.where(self.weights > 0.0, self.weights * each, 0.0))


def weighted(loss: Loss, weights: Array | None) -> Loss | WeightedLoss:
    """Return s l, or l itself where samples have no weights."""
    return loss if weights is None else WeightedLoss(loss, weights)
