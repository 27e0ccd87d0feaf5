"""FedGiA's σ where nobody has set one, and the x at which gradients are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.admm.quasi_newton import QuasiNewton, Separable
from fedtrellis.objectives.base import Array

__all__ = ["AdaptedSigma", "common_scale"]

# F(x) − F* over F(x_0) − F* at a solution; a tolerance above 10⁻⁹ allows for more.
_SOLVED = 1e-6
# Rounds that an x is held for the clients that have not answered at it yet.
_HELD = 5
# Of rounds that miss somebody: the residual has grown if it is this times its lowest.
_GROWN = 100.0


def common_scale(diagonals: Sequence[Array], most: float = inf) -> Array:
    """S, of shape (p,) and above 0: the mean of diagonals above the H_i.

    An entry is at most ``most`` times the clients' median, so that one client alone
    cannot have any.
    """
    scale: Array = np.mean(diagonals, axis=0)
    if most < inf:
        bound = most * np.median(diagonals, axis=0)
        scale = np.where(bound > 0.0, np.minimum(scale, bound), scale)
    # a column of zeros everywhere has no curvature, and no gradient to step along
    scale[scale == 0.0] = scale.max()
    return scale


@dataclass(eq=False)
class AdaptedSigma:
    """σ = θS/m of m clients, and the next x: a quasi-Newton step's, where it is known.

    Once everybody has answered at x that is :meth:`step`'s. Else x is held a few rounds
    (``waits``); then the next is :meth:`averaged`.

    ``scale`` is S, float64 of shape (p,) and above 0; ``modulus`` is μ of F's strong
    convexity, 0 where nobody knows it; ``tolerance`` bounds ‖∇F‖²/p at a solution, and
    0 ends nothing; ``dtype`` is what x travels in.
    """

    scale: Array
    modulus: float
    h: Separable
    clients: int
    tolerance: float
    dtype: Any

    def __post_init__(self) -> None:
        self._search, clients = self._fresh_search(), self.clients
        # who has answered at this x, and for how many rounds each has been silent
        self.answered, self._silent = np.zeros(clients, dtype=bool), np.zeros(clients)
        self.residual = self._first_residual = self._lowest = self._last = inf
        #: Whether everybody's gradients at one point, without ADMM steps, fulfil the
        #: stop rule there; and whether everybody is to take the gradient branch.
        self.stopped, self.plainly = False, True
        # whether that was so ever since the x of now
        self._exact = True

    def _fresh_search(self) -> QuasiNewton:
        # what h has of a square is as good as a part of f
        rest = replace(self.h, l2=0.0)
        return QuasiNewton(self.scale + self.h.l2, rest, dtype=self.dtype)

    @property
    def growth(self) -> float:
        """θ, at first 1."""
        return self._search.growth

    @property
    def waits(self) -> bool:
        """Whether x is held for somebody."""
        return bool((~self.answered & (self._silent <= _HELD)).any())

    def note(self, answered: list[int], plain: bool) -> None:
        """Note who has answered a round, and whether its C was empty."""
        self.answered[answered] = True
        self._silent += 1
        self._silent[answered] = 0
        self._exact = self._exact and plain
        self.stopped = False

    def step(self, x: Array, mean: Array, last: bool) -> tuple[Array, dict[str, float]]:
        """The next x from everybody's answers at this one, and how good the best is.

        ``mean`` is that of the z_i; after the ``last`` round nobody is asked any more.
        """
        search = self._search
        # as z_i = x − ḡ_i/σ for i outside C:  ∇f(x) = mσ (x − (1/m) Σ z_i)
        gradient = search.growth * self.scale * (x - mean) + self.h.l2 * x
        is_best = search.observe(x, gradient)
        self.residual = search.residual()
        exact = self._exact and is_best
        quality: dict[str, float] = {}
        if exact:
            quality["gradient-norm"] = sqrt(self.residual)
            if self.modulus > 0.0:
                # F(x) − F* ≤ ‖∇F(x)‖²/(2μ)
                quality["suboptimality"] = self.residual / (2.0 * self.modulus)
        self._begin()
        self._lowest = self._last = inf
        # the stop rule is for gradients: once more, without ADMM steps
        small = self.tolerance > 0.0 and self.residual <= self.tolerance * x.size
        small = self.plainly = small and self.residual <= self._solved_below(x)
        self.stopped = small and exact
        if small:
            assert search.best is not None
            return search.best, quality
        return search.plain_step() if last else search.propose(is_best), quality

    def averaged(self, mean: Array, residual: float) -> tuple[Array, bool]:
        """(12), from whatever the clients sent last; safe by the ``residual`` alone.

        With it, whether all z_i begin anew, at x: what was sent was for another σ.
        """
        search = self._search
        self.residual = residual
        self._begin()
        if residual > _GROWN * self._lowest and residual > self._last:
            search.grow()
            self._lowest = self._last = inf
            if search.best is not None:
                return search.best, True
        elif isfinite(residual):
            self._lowest = min(self._lowest, residual)
            self._last = residual
        return self.h.prox(mean, search.growth * self.scale), False

    def go_back(self) -> Array | None:
        """The next x where nobody had a number to answer with: x was too far."""
        self.answered[:] = False
        return None if self._search.best is None else self._search.go_back()

    def _begin(self) -> None:
        if not isfinite(self._first_residual):
            self._first_residual = self.residual
        self.answered[:] = False
        self._exact = True

    def _solved_below(self, x: Array) -> float:
        """‖∇F(x)‖² where F(x) − F* ≤ 10⁻⁶ (F − F*), F at the start or at 0.

        ‖∇F(x)‖² ≥ 2μ (F(x) − F*); F(x_0) − F* ≥ ‖∇F(x_0)‖²/(2L), with L ≤ max S, and
        F(0) − F* ≥ (μ/2)‖x*‖², x* about x. Where nobody knows μ, it is L/100.
        """
        eps = float(np.finfo(self.dtype).eps)
        most = float(self.scale.max())
        mu = self.modulus or most / 100.0
        part = _SOLVED * max(1.0, self.tolerance / 1e-9)
        start = max(part * mu / most, (100.0 * eps) ** 2) * self._first_residual
        return max(start, part * (mu * float(np.linalg.norm(x))) ** 2)

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs."""
        flags = [self.stopped, self.plainly, self._exact]
        return {
            "first-residual": np.array(self._first_residual),
            "scale": self.scale,
            "modulus": np.array(self.modulus),
            "adapted": np.array([*flags, self._lowest, self._last, self.residual]),
            "heard": self.answered,
            "silent": self._silent,
            **{f"search/{name}": a for name, a in self._search.state().items()},
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.scale, self.modulus = state["scale"], float(state["modulus"])
        self._search = self._fresh_search()
        names = self._search.state()
        self._search.load_state({name: state[f"search/{name}"] for name in names})
        self._first_residual = float(state["first-residual"])
        *flags, self._lowest, self._last, self.residual = state["adapted"].tolist()
        self.stopped, self.plainly, self._exact = map(bool, flags)
        self.answered = state["heard"].astype(bool)
        self._silent = np.array(state["silent"], dtype=np.float64)
