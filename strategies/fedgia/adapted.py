"""FedGiA without a σ to choose: a diagonal one, and steps that look where they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from logging import INFO
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.admm.quasi_newton import QuasiNewton
from fedtrellis.admm.regularisers import Separable
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

if TYPE_CHECKING:
    from .strategy import FedGiA

__all__ = ["MOST_CURVED", "AdaptedSigma"]

# With a robust average a bound is at most this times the clients' median: f is no more
# curved than their mean, and one that is far beyond the others is clipped anyway.
MOST_CURVED = 2.0
# Rounds that an x is held for the clients that have not answered at it yet.
_HELD = 5
# Of rounds that miss somebody: the residual has grown if it is this times its lowest.
_GROWN = 100.0


class AdaptedSigma:
    """The server's half of a run in which σ = θS/m.

    Parameters
    ----------
    strategy : FedGiA
        Whose clients, z_i and model these are.
    size : int
        p, the number of parameters.
    h : Separable
        What the server adds to f.

    Attributes
    ----------
    scale : ndarray of float64 of shape (p,)
        S, the mean of the diagonals that the clients say to be above their H_i.
    quality : dict
        How good the best x is known to be, if the last round has shown it.
    converged : bool
        Whether the gradients of everybody, at one point and without ADMM steps, fulfil
        the stop rule there.
    """

    def __init__(self, strategy: FedGiA, size: int, h: Separable) -> None:
        self._strategy = strategy
        self.scale = _mean_majoriser(strategy, size)
        # 16 bits of a z_i hide the gradient
        self._precise = strategy.broadcast.layout.dtype in ("float64", "float32")
        # what h has of a square is as good as a part of f
        self._h, self._square = h, h.l2
        self._search = self._fresh_search()
        m = strategy.num_clients
        self.converged = False
        self.quality: dict[str, float] = {}
        self._modulus = h.l2 + _mean_modulus(strategy)
        # whether everybody is to take the gradient branch, and whether that was so
        # ever since the x of now
        self._plainly, self._exact = True, True
        # who has answered at this x, and for how many rounds each has been silent
        self._heard = np.zeros(m, dtype=bool)
        self._silent = np.zeros(m)
        self._lowest = self._last = inf

    def _fresh_search(self) -> QuasiNewton:
        return QuasiNewton(
            self.scale + self._square,
            replace(self._h, l2=0.0),
            dtype=self._strategy.broadcast.layout.point_dtype,
        )

    @property
    def sigma(self) -> float:
        """θ/m, what S is multiplied by."""
        return self._search.growth / self._strategy.num_clients

    def without_admm(self, server_round: int) -> bool:
        """Whether C is empty in a round."""
        return self._plainly or server_round == self._strategy.num_rounds

    def hear(self, server_round: int, heard: list[int]) -> FloatArray | None:
        """Take in a round's answers; the next x, None where it stays.

        Parameters
        ----------
        server_round : int
        heard : list of int
            Numbers of the clients whose z_i came.
        """
        self._heard[heard] = True
        self._silent += 1
        self._silent[heard] = 0
        self._exact = self._exact and self.without_admm(server_round)
        self.converged, self.quality = False, {}
        if self._precise and not self._strategy.aggregator.robust:
            if self._heard.all():
                return self._step(server_round)
            if (~self._heard & (self._silent <= _HELD)).any():
                return None
        return self._average()

    def _step(self, server_round: int) -> FloatArray:
        """The next x from everybody's answers at this one."""
        strategy, search = self._strategy, self._search
        x = strategy.broadcast.model.astype(np.float64).reshape(-1)
        mean = strategy.mean_of_z().reshape(-1)
        # as z_i = x − ḡ_i/σ for i outside C:  ∇f(x) = mσ (x − (1/m) Σ z_i)
        gradient = search.growth * self.scale * (x - mean) + self._square * x
        is_best = search.hear(x, gradient)
        best = search.best
        assert best is not None
        self.residual = search.residual()
        bound = strategy.tolerance * x.size
        small = strategy.tolerance > 0.0 and self.residual <= bound
        exact, self._exact = self._exact, True
        if exact and is_best:
            self.quality = {"gradient-norm": sqrt(self.residual)}
            if self._modulus > 0.0:
                # F(x) − F* ≤ ‖∇F(x)‖²/(2μ)
                self.quality["suboptimality"] = self.residual / (2.0 * self._modulus)
        self._heard[:] = False
        self._lowest = self._last = inf
        self.converged = self._plainly = False
        if small:
            # the stop rule is for gradients: once more, without ADMM steps
            self.converged = exact and is_best
            self._plainly = True
            return best
        if server_round == strategy.num_rounds:
            return search.plain_step()
        return search.propose(is_best)

    residual = inf

    def _average(self) -> FloatArray:
        """(12), from whatever the clients sent last; safe by the residual alone."""
        strategy, search = self._strategy, self._search
        self._heard[:] = False
        self._exact = True
        self.residual = residual = strategy.residual_of_z()
        if residual > _GROWN * self._lowest and residual > self._last:
            search.grow()
            self._lowest = self._last = inf
            if search.best is not None:
                strategy.forget_z(search.best)
                return search.best
        elif isfinite(residual):
            self._lowest = min(self._lowest, residual)
            self._last = residual
        weight = search.growth * self.scale
        return self._h.prox(strategy.mean_of_z().reshape(-1), weight)

    def go_back(self) -> FloatArray | None:
        """The next x where nobody had a number to answer with: it was too far."""
        self._heard[:] = False
        return None if self._search.best is None else self._search.go_back()

    # -------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """S, and how far the search has come."""
        numbers = [
            self.converged,
            self._plainly,
            self._exact,
            self._lowest,
            self._last,
            self.residual,
        ]
        return {
            "scale": self.scale,
            "adapted": np.array(numbers, dtype=np.float64),
            "heard": self._heard,
            "silent": self._silent,
            **{f"search/{name}": a for name, a in self._search.state().items()},
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.scale = state["scale"]
        self._search = self._fresh_search()
        self._search.load_state(
            {
                name.removeprefix("search/"): array
                for name, array in state.items()
                if name.startswith("search/")
            }
        )
        converged, plainly, exact, lowest, last, residual = state["adapted"]
        self.converged, self._plainly = bool(converged), bool(plainly)
        self._exact = bool(exact)
        self._lowest, self._last = float(lowest), float(last)
        self.residual = float(residual)
        self._heard = state["heard"].astype(bool)
        self._silent = np.array(state["silent"], dtype=np.float64)


def _mean_modulus(strategy: FedGiA) -> float:
    """What the clients know of f's modulus of strong convexity; 0 if nothing."""
    moduli = []
    for name in strategy.clients:
        told = strategy.client_properties(name).get("strong-convexity", 0.0)
        moduli.append(told if isinstance(told, float) and 0.0 <= told < inf else 0.0)
    return float(np.mean(moduli))


def _mean_majoriser(strategy: FedGiA, size: int) -> FloatArray:
    """S, the mean of the diagonals that the clients say to be above their H_i."""
    diagonals, one = [], False
    for name in strategy.clients:
        bound = strategy.lipschitz_of(name)
        properties = strategy.client_properties(name)
        # a client of somebody else's may know r_i only
        told = properties.get("majoriser", np.float64(bound).tobytes())
        fits = isinstance(told, bytes) and len(told) in (8, 8 * size)
        diagonal = np.frombuffer(told, dtype="<f8") if fits else np.zeros(1)
        if not (diagonal.min() >= 0.0 and 0.0 < diagonal.max() < inf):
            raise SettingsError(
                f"client {name} gives no diagonal of {size} numbers above its "
                "Hessian; set sigma or sigma_scale"
            )
        diagonals.append(np.broadcast_to(diagonal, (size,)))
        one = one or bool(properties.get("one-sigma"))
    scale: FloatArray = np.mean(diagonals, axis=0)
    if strategy.aggregator.robust:
        # one client alone cannot have any σ
        most = MOST_CURVED * np.median(diagonals, axis=0)
        scale = np.where(most > 0.0, np.minimum(scale, most), scale)
    # a column of zeros everywhere has no curvature, and no gradient to step along
    scale[scale == 0.0] = scale.max()
    if one:  # a client's own solve knows multiples of the identity only
        scale[:] = scale.max()
    log(INFO, "sigma mσ from %.6g to %.6g, adapted", scale.min(), scale.max())
    return scale
