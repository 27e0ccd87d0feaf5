r"""Penalties with a dual: elastic net, and a column whose weight is not penalised.

The primal problem is P(w) = λ g(w) + (1/N) Σ l_i(wᵀx_i) with

    g(w) = ((1 − ρ)/2)‖w‖² + ρ‖w‖₁,

without the weight w_m of a free column m, if there is one. With v = (1/λN) Σ α_i x_i
the dual one is D(α) = −λ g*(v) − (1/N) Σ l_i*(−α_i), and

    g*(v) = ‖S_ρ(v)‖²/(2(1 − ρ)),   w = ∇g*(v) = S_ρ(v)/(1 − ρ),

S_ρ the soft threshold (Shalev-Shwartz and Zhang, "Accelerated Proximal Stochastic Dual
Coordinate Ascent for Regularized Loss Minimization", ICML 2014). A free column adds the
constraint v_m = 0, whose multiplier is w_m. Clients send the same v_k as without: only
the server, which has their sum, takes the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtrellis.dual.simplices import maximise_over_simplices
from fedtrellis.wire.arrays import FloatArray

# Augmented Lagrangian of v_m = 0: its weight, against 1 of ½‖v‖², and how often the
# multiplier is renewed.
_WEIGHT = 100.0
_RENEWALS = 60
# Quadratic models of g* in a search, and halvings of a step between two of them.
_MODELS = 60
_HALVINGS = 50


@dataclass(frozen=True)
class Penalty:
    """Penalty g, and the search for the best mixture of dual points under it.

    ``l1_ratio`` is ρ in [0, 1), ``free`` the column m whose weight is not penalised;
    −1: none.
    """

    l1_ratio: float = 0.0
    free: int = -1

    @property
    def plain(self) -> bool:
        """Whether it is ½‖w‖² and no more."""
        return self.l1_ratio == 0.0 and self.free < 0

    def value(self, w: FloatArray) -> float:
        """Return g at w, of shape (p,)."""
        own, ρ = self._penalised(w), self.l1_ratio
        return 0.5 * (1.0 - ρ) * float(own @ own) + ρ * float(np.abs(own).sum())

    def gradient(self, w: FloatArray) -> FloatArray:
        """Return a subgradient of g at w, of shape (p,)."""
        own = self._penalised(w)
        return (1.0 - self.l1_ratio) * own + self.l1_ratio * np.sign(own)

    def conjugate(self, v: FloatArray) -> float:
        """Return g* at v, of shape (p,), as if v_m were 0."""
        own = self._threshold(v)
        return 0.5 * float(own @ own) / (1.0 - self.l1_ratio)

    def weights(self, v: FloatArray, multiplier: float = 0.0) -> FloatArray:
        """Return w, of shape (p,), that belongs to v; w_m is the multiplier."""
        w = self._threshold(v) / (1.0 - self.l1_ratio)
        if self.free >= 0:
            w[self.free] = multiplier
        return w

    def maximise(
        self,
        V: FloatArray,
        b: FloatArray,
        rest: FloatArray,
        regularization: float,
        theta: FloatArray,
        blocks: list[slice],
        multiplier: float,
        tolerance: float,
    ) -> float:
        """Maximise bᵀθ − λ g*(rest + Vᵀθ) over a product of simplices, in place.

        V has shape (n, p), b and θ (n,), ``rest``, what does not depend on θ, (p,);
        for the others see :func:`maximise_over_simplices`. Returns w_m, which the
        search starts from.
        """
        if self.free < 0:
            self._climb(V, b, rest, regularization, theta, blocks, 0.0, tolerance)
            return 0.0
        column = V[:, self.free]
        enough = 1e-15 * max(float(np.abs(column).max(initial=0.0)), 1e-300)
        before = np.inf
        for _ in range(_RENEWALS):
            found = V, b, rest, regularization, theta, blocks
            self._climb(*found, multiplier, tolerance)
            left = float(rest[self.free] + column @ theta)
            if abs(left) <= enough or abs(left) > 0.9 * before:
                break  # rounding is all that is left, or no better than before
            before = abs(left)
            # method of multipliers: w_m ← w_m + σ v_m
            multiplier += _WEIGHT * left
        return multiplier

    def _climb(
        self,
        V: FloatArray,
        b: FloatArray,
        rest: FloatArray,
        λ: float,
        theta: FloatArray,
        blocks: list[slice],
        multiplier: float,
        tolerance: float,
    ) -> None:
        """The same for one multiplier, by exact quadratic models of g*.

        g* is quadratic as long as no |v_j| passes ρ. So the maximum of its model is
        found exactly, and a step towards it that is the best one on the way; where the
        same |v_j| are above ρ there, it is the maximum itself.
        """
        ρ, m = self.l1_ratio, self.free
        for _ in range(_MODELS):
            v = rest + V.T @ theta
            signs = np.sign(v) if ρ else np.ones_like(v)
            active = np.abs(v) > ρ if ρ else np.ones(len(v), dtype=bool)
            if m >= 0:
                active[m] = False
            A = V[:, active]
            G = (A @ A.T) / (1.0 - ρ)
            linear = A @ (rest[active] - ρ * signs[active]) / (1.0 - ρ)
            if m >= 0:
                G += _WEIGHT * np.outer(V[:, m], V[:, m])
                linear = linear + V[:, m] * (multiplier + _WEIGHT * rest[m])
            target = theta.copy()
            maximise_over_simplices(λ * G, b - λ * linear, target, blocks, tolerance)
            if not ρ:
                theta[:] = target
                return
            step = target - theta
            u, rise = V.T @ step, float(b @ step)
            length = self._best_length(v, u, rise, λ, multiplier)
            theta += length * step
            after = rest + V.T @ theta
            same = (np.abs(after) > ρ) == (np.abs(v) > ρ)
            if m >= 0:
                same[m] = True
            small = float(np.abs(step).max(initial=0.0)) <= 1e-15
            if small or (length == 1.0 and same.all()):
                return

    def _best_length(
        self, v: FloatArray, u: FloatArray, rise: float, λ: float, multiplier: float
    ) -> float:
        """The γ in [0, 1] that is best on the way θ + γ step, v + γ u; by bisection."""

        def slope(γ: float) -> float:
            at = v + γ * u
            total = rise - λ * float(self._threshold(at) @ u) / (1.0 - self.l1_ratio)
            if self.free >= 0:
                pull = multiplier + _WEIGHT * at[self.free]
                total -= λ * float(pull * u[self.free])
            return total

        if slope(1.0) >= 0.0:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
        return 0.5 * (low + high)

    def _penalised(self, w: FloatArray) -> FloatArray:
        """A copy of w, 0 at the free column."""
        own = np.array(w, dtype=np.float64)
        if self.free >= 0:
            own[self.free] = 0.0
        return own

    def _threshold(self, v: FloatArray) -> FloatArray:
        """S_ρ(v), and 0 at the free column."""
        if self.l1_ratio:
            v = np.sign(v) * np.maximum(np.abs(v) - self.l1_ratio, 0.0)
        return self._penalised(v)
