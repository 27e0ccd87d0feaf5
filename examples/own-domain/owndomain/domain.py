"""A new constraint set: the ball of the ordered weighted ℓ1 norm."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import SparseAtom

Array = NDArray[np.float64]


class OWLBall(Domain):
    """{x : Σ_i w_i |x|_[i] ≤ radius}, |x|_[1] ≥ |x|_[2] ≥ ... the sorted magnitudes.

    The largest magnitude pays the most, so that entries are driven to be 0 or *equal*:
    features that say the same get the same coefficient, where an ℓ1 ball picks one of
    them. Bogdan et al. 2015 (SLOPE); Zeng and Figueiredo 2014, arXiv 1409.4271, with
    the set's extreme points: for some k, k entries ± radius / (w_1 + ... + w_k).

    Parameters
    ----------
    weights : ndarray of shape (n,)
        w_1 ≥ w_2 ≥ ... ≥ w_n ≥ 0, w_1 > 0.
    radius : float
        Positive.
    """

    name: ClassVar[str] = "owl-ball"

    def __init__(self, weights: ArrayLike, radius: float) -> None:
        self.weights: Array = np.asarray(weights, dtype=np.float64)
        self.radius = float(radius)
        w = self.weights
        if w.ndim != 1 or w.size == 0 or not np.isfinite(w).all():
            raise ValueError(f"{self.name}: weights must be a finite vector")
        if (np.diff(w) > 0).any() or w[-1] < 0 or w[0] <= 0:
            raise ValueError(f"{self.name}: weights must not grow, nor be negative")
        if not 0.0 < self.radius < np.inf:
            raise ValueError(f"{self.name}: radius must be positive, got {radius!r}")
        # the magnitude of the k entries of an extreme point, for k = 1, ..., n
        self.levels: Array = self.radius / np.cumsum(w)

    def __repr__(self) -> str:
        return f"OWLBall(n={self.weights.size}, radius={self.radius:g})"

    def norm(self, point: ArrayLike) -> float:
        """Return Σ_i w_i |x|_[i]."""
        return float(self.weights @ np.sort(np.abs(np.ravel(point)))[::-1])

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return the extreme point s with the smallest ⟨gradient, s⟩.

        With k entries it is best on the k largest |g_j|, against their signs, and has
        ⟨g, s⟩ = −level_k (|g|_[1] + ... + |g|_[k]); so k is the best of n numbers.
        """
        g = self._input(gradient, "gradient")
        flat = g.ravel()
        order = np.argsort(-np.abs(flat), kind="stable")
        k = 1 + int(np.argmax(self.levels * np.cumsum(np.abs(flat[order]))))
        indices = np.sort(order[:k])
        values = -np.copysign(self.levels[k - 1], flat[indices])
        return SparseAtom(indices, values, g.shape)

    def project(self, point: ArrayLike) -> Array:
        """Return the nearest point: shrink by τ w, with τ found by bisection.

        The point that minimises ½‖s − x‖² + τ Σ w_i |s|_[i] has the sorted magnitudes
        max(0, y), y the nearest decreasing sequence to |x|_[·] − τ w.
        """
        x = self._input(point, "point")
        if self.norm(x) <= self.radius:
            return x.copy()
        magnitudes = np.abs(x.ravel())
        order = np.argsort(-magnitudes, kind="stable")

        def shrunk(tau: float) -> Array:
            y = magnitudes[order] - tau * self.weights
            result = np.empty(x.size)
            result[order] = np.maximum(isotonic_regression(y, increasing=False).x, 0.0)
            return np.copysign(result, x.ravel()).reshape(x.shape)

        # with τ = |x|_[1] / mean(w) the mean of what is left is not positive
        low, high = 0.0, float(magnitudes.max() / self.weights.mean())
        for _ in range(100):
            middle = 0.5 * (low + high)
            if self.norm(shrunk(middle)) > self.radius:
                low = middle
            else:
                high = middle
        return shrunk(high)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the norm is at most the radius, give or take."""
        x = self._finite(point)
        return x is not None and self.norm(x) <= self.radius * (1.0 + tolerance)

    def diameter(self, shape: tuple[int, ...]) -> float:
        """Return the distance of the two opposite extreme points that are longest."""
        self.check_shape(shape)
        k = np.arange(1, self.weights.size + 1)
        return float(2.0 * (np.sqrt(k) * self.levels).max())

    def centre(self, shape: tuple[int, ...]) -> Array:
        """Return the zero point."""
        self.check_shape(shape)
        return np.zeros(shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise a ValueError unless an array of this shape has n entries."""
        if int(np.prod(shape)) != self.weights.size:
            raise ValueError(
                f"{self.name} has points of {self.weights.size} entries, "
                f"not of shape {tuple(shape)}"
            )
