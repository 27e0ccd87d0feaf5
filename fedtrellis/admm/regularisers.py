"""What FedGiA's server adds to the loss: elastic net and bounds, with their prox."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from fedtrellis.objectives.checks import Array

__all__ = ["Separable"]


@dataclass(frozen=True)
class Separable:
    """h(x) = l1 Σ_j |x_j| + (l2/2) Σ_j x_j², and ∞ where x_j is not in [lower, upper].

    Each entry of x counts by itself, so that a diagonal metric leaves the proximal
    operator a formula: N. Parikh, S. Boyd, "Proximal Algorithms", 2014, §6.

    Parameters
    ----------
    l1, l2 : float
        At least 0.
    lower, upper : float
        lower < upper; infinite for none.
    """

    l1: float = 0.0
    l2: float = 0.0
    lower: float = -inf
    upper: float = inf

    @property
    def smooth(self) -> bool:
        """Whether h is a quadratic."""
        return self.l1 == 0.0 and self.lower == -inf and self.upper == inf

    def __bool__(self) -> bool:
        """Whether h is anything but 0."""
        return not self.smooth or self.l2 > 0.0

    def value(self, x: Array) -> float:
        """Return h(x) of an x within the bounds."""
        total = 0.5 * self.l2 * float(np.vdot(x, x))
        return total + self.l1 * float(np.abs(x).sum())

    def prox(self, v: Array, weight: Array | float) -> Array:
        """Return argmin over x of h(x) + ½ Σ_j weight_j (x_j − v_j)², a new array.

        Parameters
        ----------
        v : ndarray of float64 of shape (p,)
        weight : float or ndarray of shape (p,)
            Above 0.
        """
        # soft-threshold weight·v by l1, divide by the curvature, clip:
        #     x = clip(sign(v) max(weight |v| − l1, 0)/(weight + l2), lower, upper)
        x: Array = np.sign(v) * np.maximum(weight * np.abs(v) - self.l1, 0.0)
        x /= weight + self.l2
        return np.clip(x, self.lower, self.upper, out=x)

    def slope(self, x: Array, gradient: Array) -> Array:
        """Return the shortest vector of gradient + ∂h(x); it is 0 at a minimum.

        Parameters
        ----------
        x : ndarray of float64 of shape (p,)
            Within the bounds.
        gradient : ndarray of shape (p,)
            That of the smooth part at x.
        """
        v: Array = gradient + self.l2 * x
        if self.l1:
            # ∂|x_j| = sign(x_j), and all of [−1, 1] where x_j = 0
            zero = np.sign(v) * np.maximum(np.abs(v) - self.l1, 0.0)
            v = np.where(x == 0.0, zero, v + self.l1 * np.sign(x))
        # at a bound the normal cone takes what points outwards
        v = np.where(x <= self.lower, np.minimum(v, 0.0), v)
        return np.where(x >= self.upper, np.maximum(v, 0.0), v)
