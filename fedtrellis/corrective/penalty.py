"""ρ of the corrective variant, found from what is replayed; λ_0 of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedtrellis.domains.base import FloatArray

__all__ = ["Balance", "automatic_penalty"]

# What stands before G/D in an automatic λ_0. A λ_t that does not grow wants more, and
# FedFW+ less whatever the schedule is: what it adds up is what counts there.
_MULTIPLES = {"convex": 0.7, "nonconvex": 1.4, "stochastic": 0.35, "constant": 7.0}
_AUGMENTED = 0.12

# A window ends when every client has answered so often, on average.
_ANSWERS = 2
# The m-th change is by a factor of at most exp(20 / m^1.25), and never above 10. What
# changes less and less, Σ |log changes| < ∞, in the end is a fixed ρ, which converges.
_MOST, _RATE, _DECAY = 10.0, 20.0, 1.25
# After so many changes ρ only follows a q that is so many times off: what is near the
# solution moves along flat directions alone, and a ρ for these would stir up the rest.
_DEAD_AFTER, _DEAD = 10, 3.0
# Way of the multipliers and of z, relative to z, below which ρ stays.
_STILL = 1e-7
# The same where z is float32, whose rounding alone moves it by 6e-8 of each entry.
_STILL_SINGLE = 1e-5
# Changes after which ρ only rises where F is not convex; windows in which z has to come
# nearer to standing still, or ρ rises by a factor.
_SETTLED, _PATIENCE, _RISE = 10, 10, 2.0


class Balance:
    """The weight ρ of the consensus penalty, the same for all clients; None at first.

    Over a window of rounds the duals and z travel; where both have come as far in
    units of their own, ρ is right::

        q = ‖Y − Y'‖ / (ρ √n ‖z − z'‖),  Y all y_i, Y' and z' where the window began
        ρ ← ρ · clip(q, 1/c, c)  at the m-th change,
        c = min(10, exp(20 / m^1.25));   from m = 11 on nothing changes while
        q is between 1/3 and 3

    The idea is residual balancing's (He, Yang and Wang, J. Optimization Theory and
    Applications 2000), with a dead zone that comes later, and with the step that the
    measurement itself suggests. The rule is ours.

    Parameters
    ----------
    fixed : float or None
        ρ for good; None: found by itself.
    convex : bool
        Whether ρ may go up and down for good. Otherwise, after ten changes, it only
        rises, by two wherever z has not come nearer to standing still in ten windows: F
        has to bend upward with it wherever the clients still move.
    robust : bool
        Whether ‖Y − Y'‖² is n times the median of the ‖y_i − y_i'‖² instead of their
        sum, in which one client could have any ρ.
    """

    def __init__(
        self, fixed: float | None, convex: bool = True, robust: bool = False
    ) -> None:
        self.fixed, self._convex, self._robust = fixed, convex, robust
        self.penalty = fixed
        self._changes = self._answers = self._patience = 0
        self._least = math.inf
        self._duals: list[FloatArray] = []
        self._z: FloatArray = np.empty(0)

    def begin(
        self, curvatures: Sequence[float], duals: Sequence[FloatArray], z: FloatArray
    ) -> None:
        """Start from the curvatures that the first answers brought, if any is known.

        In the first round ρ is 0: every client goes its own way, and says how (1/n) f_i
        bends on it. The median of that is ρ for the second: one client among several
        cannot choose it alone.
        """
        known = [curvature for curvature in curvatures if curvature > 0.0]
        if known:
            self.penalty = float(np.median(known))
            self._mark(duals, z)

    def observe(self, answers: int, duals: Sequence[FloatArray], z: FloatArray) -> None:
        """Take a round of so many answers into account; change ρ where a window ends.

        The y_i of all clients and z are those after the round; they are not copied.
        """
        if self.fixed is not None or self.penalty is None:
            return
        if not self._duals:
            # it was fixed before the checkpoint that this run goes on from
            self._mark(duals, z)
            return
        self._answers += answers
        if self._answers < _ANSWERS * len(duals):
            return
        squares = [
            float(np.vdot(y - before, y - before))
            for y, before in zip(duals, self._duals, strict=True)
        ]
        # q = ‖Y − Y'‖ / (ρ √n ‖z − z'‖)
        scale = self.penalty * math.sqrt(len(duals))
        total = sum(squares)
        if self._robust:
            total = len(squares) * float(np.median(squares))
        ways = math.sqrt(total), scale * float(np.linalg.norm(z.reshape(-1) - self._z))
        # what has hardly moved is at the limit, where rounding is all that moves it
        still = (_STILL if z.itemsize == 8 else _STILL_SINGLE) * scale
        if min(ways) > 0.0 and max(ways) > still * float(np.linalg.norm(z)):
            self._changes += 1
            most = min(_MOST, math.exp(_RATE / self._changes**_DECAY))
            ratio = ways[0] / ways[1]
            if self._changes > _DEAD_AFTER and 1.0 / _DEAD < ratio < _DEAD:
                ratio = 1.0
            if not self._convex and self._changes > _SETTLED:
                ratio = max(ratio, self._stalled(ways[1] / scale))
            # ρ ← ρ · clip(q, 1/c, c)
            self.penalty *= min(max(ratio, 1.0 / most), most)
        self._mark(duals, z)

    def _stalled(self, way: float) -> float:
        """What ρ rises by: z goes round where the f_i bend down more than ρ up."""
        self._patience += 1
        if way < self._least / _RISE:
            self._least, self._patience = way, 0
        if self._patience < _PATIENCE:
            return 1.0
        self._least, self._patience = way, 0
        return _RISE

    def _mark(self, duals: Sequence[FloatArray], z: FloatArray) -> None:
        # flat: a checkpoint takes entries that were empty at first, not other axes
        self._duals, self._z, self._answers = list(duals), z.reshape(-1), 0

    def state(self, clients: Sequence[str]) -> dict[str, FloatArray]:
        """What a checkpoint needs."""
        penalty = math.nan if self.penalty is None else self.penalty
        marks = zip(clients, self._duals, strict=False)  # none before there is a ρ
        return {
            "balance": np.array(
                [penalty, self._changes, self._answers, self._patience, self._least]
            ),
            "balance/z": self._z,
            **{f"{name}/balance/y": y for name, y in marks},
        }

    def load_state(
        self, state: Mapping[str, FloatArray], clients: Sequence[str]
    ) -> None:
        """Inverse of :meth:`state`; a fixed ρ stays what it is."""
        penalty, *counts, self._least = state["balance"].tolist()
        marked = [f"{name}/balance/y" for name in clients]
        if marked[0] in state:
            duals = [np.array(state[key]) for key in marked]
            self._mark(duals, np.array(state["balance/z"]))
        self._changes, self._answers, self._patience = map(int, counts)
        if self.fixed is None:
            self.penalty = None if math.isnan(penalty) else penalty


def automatic_penalty(
    gradient_norm: float, diameter: float, schedule: str, augmented: bool
) -> float:
    """Return λ_0 where nobody has chosen one, a multiple of G/D.

    G is the size of the clients' ‖(1/n) ∇f_i(x¹)‖ and D > 0 the set's diameter: G/D
    has the unit that λ_0 (x_i − x̄) needs beside (1/n) ∇f_i. The multiples are ours,
    found on some problems and tried on others.
    ``augmented`` is for FedFW+, which adds λ_0 (x_i − x̄) up.
    """
    multiple = _AUGMENTED if augmented else _MULTIPLES[schedule]
    return multiple * gradient_norm / diameter
