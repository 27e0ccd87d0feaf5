"""A new loss: Huber's, for measurements some of which are wrong altogether."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Huber:
    """f(x) = (1/d) Σ_k h(⟨a_k, x⟩ − b_k), h(r) = r²/2 up to |r| = δ, then a line.

    Any object with ``num_examples``, ``value`` and ``gradient`` is an objective.

    Parameters
    ----------
    features : ndarray of shape (d, n)
        The rows a_k.
    targets : ndarray of shape (d,)
        The b_k.
    delta : float
        δ > 0.
    """

    def __init__(self, features: Array, targets: Array, delta: float = 1.0) -> None:
        self.features = features
        self.targets = targets
        self.delta = delta
        self.num_examples = len(targets)

    def value(self, x: Array) -> float:
        """Return f(x)."""
        r = np.abs(self.features @ x - self.targets)
        # r²/2 for r ≤ δ, δ (r − δ/2) beyond: both are m (r − m/2) with m = min(r, δ)
        m = np.minimum(r, self.delta)
        return float((m * (r - 0.5 * m)).mean())

    def gradient(self, x: Array) -> Array:
        """Return ∇f(x)."""
        slopes = np.clip(self.features @ x - self.targets, -self.delta, self.delta)
        gradient: Array = self.features.T @ slopes / self.num_examples
        return gradient

    def metrics(self, x: Array) -> dict[str, float]:
        """Return the share of the examples that count as outliers (optional)."""
        r = np.abs(self.features @ x - self.targets)
        return {"outliers": float((r > self.delta).mean())}
