"""A new constraint set: few groups of entries, all entries of a group alike."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import SparseAtom

Array = NDArray[np.float64]


class GroupMaxBall(Domain):
    """{x : Σ over groups G of max_{j in G} |x_j| ≤ radius}, the ℓ1,∞ ball.

    A group pays for its largest entry only, so the others may as well be as large: few
    groups are chosen, and their entries are equal up to the sign (Turlach, Venables and
    Wright, Technometrics 2005; Quattoni, Carreras, Collins and Darrell, ICML 2009). The
    extreme points have ±radius in all of one group.

    Parameters
    ----------
    size : int
        Consecutive entries make groups of this size.
    radius : float
        Positive.
    """

    name: ClassVar[str] = "group-max-ball"

    def __init__(self, size: int, radius: float) -> None:
        self.size, self.radius = int(size), float(radius)
        if self.size < 1:
            raise ValueError(f"{self.name}: size must be at least 1, got {size!r}")
        if not 0.0 < self.radius < np.inf:
            raise ValueError(f"{self.name}: radius must be positive, got {radius!r}")

    def __repr__(self) -> str:
        return f"GroupMaxBall(size={self.size}, radius={self.radius:g})"

    def norm(self, point: ArrayLike) -> float:
        """Return Σ_G max |x_j|."""
        rows = np.abs(np.reshape(point, (-1, self.size)))
        return float(rows.max(axis=1).sum())

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return the extreme point s with the smallest ⟨gradient, s⟩.

        On a group G the best is −radius · sign(g_j), which has ⟨g, s⟩ = −radius ‖g_G‖₁.
        """
        g = self._input(gradient, "gradient")
        rows = g.reshape(-1, self.size)
        best = int(np.abs(rows).sum(axis=1).argmax())
        indices = best * self.size + np.arange(self.size)
        values = np.where(rows[best] > 0.0, -self.radius, self.radius)
        return SparseAtom(indices, values, g.shape)

    def project(self, point: ArrayLike) -> Array:
        """Return the nearest point: clip each group, by a τ found by bisection.

        The point that minimises ½‖s − x‖² + τ Σ_G max |s_j| has the entries of a group
        clipped at the level that takes τ off them in all.
        """
        x = self._input(point, "point")
        if self.norm(x) <= self.radius:
            return x.copy()
        rows = x.reshape(-1, self.size)
        magnitudes = np.abs(rows)
        # of each group, the k largest added up
        sums = np.cumsum(np.sort(magnitudes, axis=1)[:, ::-1], axis=1)

        def clipped(tau: float) -> Array:
            # Σ_j (|x_j| − level)₊ = τ  at  level = max over k of (sum_k − τ) / k
            levels = (sums - tau) / np.arange(1, self.size + 1)
            level = np.maximum(levels.max(axis=1, keepdims=True), 0.0)
            result: Array = np.copysign(np.minimum(magnitudes, level), rows)
            return result.reshape(x.shape)

        low, high = 0.0, float(sums[:, -1].max())  # all of the largest group
        for _ in range(100):
            middle = 0.5 * (low + high)
            if self.norm(clipped(middle)) > self.radius:
                low = middle
            else:
                high = middle
        return clipped(high)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the norm is at most the radius, give or take."""
        x = self._finite(point)
        return x is not None and self.norm(x) <= self.radius * (1.0 + tolerance)

    def diameter(self, shape: tuple[int, ...]) -> float:
        """Return the distance of two opposite extreme points."""
        self.check_shape(shape)
        return float(2.0 * self.radius * np.sqrt(self.size))

    def centre(self, shape: tuple[int, ...]) -> Array:
        """Return the zero point."""
        self.check_shape(shape)
        return np.zeros(shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise a ValueError unless an array of this shape is made of whole groups."""
        super().check_shape(shape)
        if int(np.prod(shape)) % self.size:
            raise ValueError(
                f"{self.name} has points of whole groups of {self.size} entries, "
                f"not of shape {tuple(shape)}"
            )
