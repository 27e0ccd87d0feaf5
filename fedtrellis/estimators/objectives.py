"""The smooth functions of nodes behind the estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.objectives.checks import Array

__all__ = ["Distance", "SplitLasso"]


class Distance:
    """f(v) = ½‖v − s‖², whose gradient step of length 1 ends at s.

    Parameters
    ----------
    goal : ndarray of shape (q,)
        s.
    """

    num_examples = 1

    def __init__(self, goal: Array) -> None:
        self.goal = goal

    def gradient(self, x: Array) -> Array:
        """Return v − s."""
        return x - self.goal


class SplitLasso:
    """A node's share of an elastic net, as a smooth function of w's two signs.

    f(u, v) = (factor/2)‖(X − 1μᵀ)w − y‖² + Σ_j (l1/s_j)(u_j + v_j) + (l2/2)‖w‖² with
    w_j = (u_j − v_j)/s_j, a point being u and v one after the other. X is not centred
    itself, and may be sparse.

    Parameters
    ----------
    features : ndarray or CSR array of shape (n, p)
        X.
    targets : ndarray of shape (n,)
        y.
    centre, scale : ndarray of shape (p,)
        μ and s > 0.
    factor, l1, l2 : float
    weights : ndarray of shape (n,), optional
        What each row's square in the norm is multiplied by; 1 by default.
    """

    quadratic = True

    def __init__(
        self,
        features: Any,
        targets: Array,
        centre: Array,
        scale: Array,
        *,
        factor: float,
        l1: float,
        l2: float,
        weights: Array | None = None,
    ) -> None:
        self._s = weights
        self._X, self._y, self._centre, self._scale = features, targets, centre, scale
        self._factor, self._l1, self._l2 = factor, l1 / scale, l2
        self.num_examples = len(targets)

    def _weights(self, x: Array) -> Array:
        u, v = np.split(x, 2)
        return np.asarray((u - v) / self._scale)

    def _scores(self, w: Array) -> Array:
        # (X − 1μᵀ)w
        return np.asarray(self._X @ w - self._centre @ w)

    def _times(self, r: Array) -> Array:
        return r if self._s is None else self._s * r

    def value(self, x: Array) -> float:
        """Return f at a point of shape (2p,)."""
        w = self._weights(x)
        r = self._scores(w) - self._y
        u, v = np.split(x, 2)
        smooth = self._factor * float(r @ self._times(r)) + self._l2 * float(w @ w)
        smooth *= 0.5
        return smooth + float(self._l1 @ (u + v))

    def gradient(self, x: Array) -> Array:
        """Return ∇f, of shape (2p,)."""
        w = self._weights(x)
        r = self._times(self._scores(w) - self._y)
        # with respect to w: factor (X − 1μᵀ)ᵀr + l2 w
        g = self._factor * (self._X.T @ r - self._centre * r.sum()) + self._l2 * w
        g = g / self._scale
        return np.concatenate([self._l1 + g, self._l1 - g])

    def curvature(self, x: Array, direction: Array) -> float:
        """Return dᵀ∇²f d, the same at every x."""
        w = self._weights(direction)
        change = self._scores(w)
        bent = self._factor * float(change @ self._times(change))
        return bent + self._l2 * float(w @ w)
