"""The Poisson loss of counts, with the logarithm as its link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.objectives.checks import Array
from fedtrellis.objectives.loss_base import Loss

__all__ = ["Poisson"]

# How far rounding may have carried α above y without the conjugate being +inf, against
# the larger of 1 and y.
_ROUNDING = 1e-12
# From above, Newton's method has about ln(q/λN) steps of 1 before it is quadratic.
_NEWTON_STEPS = 80


@dataclass(frozen=True)
class Poisson(Loss):
    """Half the Poisson deviance, e^z − yz + y ln y − y, of labels y ≥ 0.

    e^z is the mean that is predicted. The loss is 0 where e^z = y, and what it has
    beside e^z − yz does not depend on z. l*(−α) = m ln m − m − (y ln y − y) with
    m = y − α ≥ 0; at the optimum m is the mean that is predicted. α is at most y, and
    has no lower bound.
    """

    name: ClassVar[str] = "poisson"
    labels: ClassVar[str] = "counts"
    curvature: ClassVar[float] = np.inf

    def value(self, z: Array, y: Array) -> Array:  # noqa: D102
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(z) - y * z + _entropy(y))

    def slope(  # noqa: D102
        self, z: Array, y: Array, out: Array | None = None
    ) -> Array:
        with np.errstate(over="ignore"):
            means = np.exp(z, out=out)
        return np.asarray(np.subtract(means, y, out=out))

    def curvature_along(self, z: Array, y: Array, change: Array) -> Array:  # noqa: D102
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(z) * np.square(change))

    def dual_curvature(self, y: Array) -> Array:
        """Return 1/max(y, 1): l*″ is 1/m."""
        return np.asarray(1.0 / np.maximum(y, 1.0))

    def constant_score(self, y: Array) -> float:  # noqa: D102
        with np.errstate(divide="ignore"):
            return float(np.log(np.mean(y)))

    def feasible(self, alpha: Array, y: Array) -> Array:  # noqa: D102
        return np.minimum(np.asarray(alpha, dtype=np.float64), y)

    def conjugate(self, alpha: Array, y: Array) -> Array:  # noqa: D102
        means = np.asarray(y - alpha)
        value = _entropy(np.maximum(means, 0.0)) - _entropy(np.asarray(y))
        allowed = means >= -_ROUNDING * np.maximum(1.0, y)
        return np.where(allowed, value, np.inf)

    def coordinate_step(  # noqa: D102
        self,
        alpha: Array,
        z: Array,
        q: ArrayLike,
        y: Array,
        scale: float,
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
        for _ in range(_NEWTON_STEPS):
            with np.errstate(over="ignore"):
                bent = c * np.exp(theta)
            step = (theta + bent - right) / (1.0 + bent)
            step = np.where(np.isfinite(step), step, 0.0)
            theta = theta - step
            if not np.any(np.abs(step) > 1e-15 * (1.0 + np.abs(theta))):
                break
        with np.errstate(over="ignore"):
            return np.asarray(y - np.exp(theta) - alpha)


def _entropy(means: Array) -> Array:
    """M ln m − m, and 0 at m = 0."""
    return np.asarray(scipy.special.xlogy(means, means) - means)
