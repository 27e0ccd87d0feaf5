"""The server's side of corrective steps: z, ρ and residuals; λ_0 of other variants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Form, Iterate
from fedtrellis.domains.base import Domain, FloatArray
from fedtrellis.wire.arrays import join_arrays, split_arrays

__all__ = ["Balance", "Consensus", "automatic_penalty"]

# Answers a client, on average, for which residuals have to stay small: z hardly moves
# where few answer, and the x_i can be close together on their way.
_CALM_ANSWERS = 2

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
_STILL_SINGLE = 1e-6
# Changes after which ρ only rises where F is not convex; windows in which z has to come
# nearer to standing still, or ρ rises by a factor.
_SETTLED, _PATIENCE, _RISE = 10, 10, 2.0


@dataclass(eq=False)
class Consensus:
    """Every client's x_i and y_i as the server replays them, and the z they agree on.

    After a round's answers, each made at the z and ρ that its client was sent::

        y_i ← y_i + ρ (x_i − z)           of those who answered
        x̄  = (1/n) Σ x_i
        z  ← (1/n) Σ (x_i + y_i / ρ)      x̄ without a ρ, where all y_i are 0

    ``domain`` is D, ``forms`` those of the clients' iterates, by name, and ``start`` a
    point of D where they begin. ``balance`` finds ρ. ``tolerance`` is what bounds both
    residuals over the largest ‖x_i‖ in the end, and the certificate. ``average`` is a
    robust average of vectors around a centre, in place of the means.

    Attributes
    ----------
    iterates, points, duals, certificates : dict
        By client x_i in its form and as an array, y_i, and (φ_i, γ_i) if it sent them.
    model, penalty
        x̄; and ρ, None until the first answers settle it.
    primal, dual, gap : float
        √((1/n) Σ ‖x_i − x̄‖²), ‖z − z before‖, and Σ φ_i less :meth:`certify`'s bound.
    """

    domain: Domain
    forms: Mapping[str, Form]
    start: FloatArray
    balance: Balance
    tolerance: float
    average: Callable[..., FloatArray] | None = None

    def __post_init__(self) -> None:
        start, forms = self.start, self.forms.items()
        self.model = start
        self.iterates = {name: form.start_at(start) for name, form in forms}
        self.points = dict.fromkeys(self.forms, start)
        self.duals = {name: np.zeros(start.shape) for name in self.forms}
        self.certificates: dict[str, tuple[float, float]] = {}
        self.primal = self.dual = self.gap = math.inf
        self._small, self._scale = False, 0.0
        # answers in a row after which both residuals were small
        self._calm = 0

    @property
    def penalty(self) -> float | None:  # noqa: D102
        return self.balance.penalty

    def take(
        self, client: str, iterate: Iterate, z: FloatArray, penalty: float | None
    ) -> None:
        """Replay an answer that was made at this z and ρ."""
        self.iterates[client] = iterate
        x = self.points[client] = iterate.dense()
        if penalty is not None:
            # y_i ← y_i + ρ (x_i − z)
            self.duals[client] = self.duals[client] + penalty * (x - z)

    def advance(self, members: Sequence[str], z: FloatArray) -> FloatArray:
        """Find x̄ of the clients that are a part of F; return the z after this one."""
        rho = self.penalty
        points = [self.points[name] for name in members]
        duals = [self.duals[name] for name in members]
        # x̄ = (1/n) Σ x_i;  z ← (1/n) Σ (x_i + y_i / ρ)
        following: FloatArray = np.mean(points, axis=0)
        self.model = following
        if self.average is not None:
            # whoever stays away from z counts no more here than there
            self.model = self.domain.project(self.average(points, z))
            wanted = points if rho is None else points + np.divide(duals, rho)
            following = self.average(wanted, z)
        elif rho is not None:
            following = self.model + np.mean(duals, axis=0) / rho
        squares = [np.vdot(x - self.model, x - self.model) for x in points]
        self.primal = float(np.sqrt(np.mean(squares)))
        self.dual = float(np.linalg.norm(following - z))
        size = max(float(np.linalg.norm(x)) for x in points)
        self._small = max(self.primal, self.dual) <= self.tolerance * size
        return following

    def settle(
        self,
        curvatures: Mapping[str, float | None],
        z: FloatArray,
        paced_by: Sequence[str] = (),
    ) -> None:
        """Find ρ for the next round, by what each answer had and z as it is sent.

        ``paced_by`` are clients whose answers :class:`Balance` counts m by.
        """
        every, known = list(self.duals.values()), curvatures.values()
        if self.penalty is None:
            self.balance.begin([one or 0.0 for one in known], every, z)
        else:
            self.balance.observe([*curvatures], every, z, paced_by)
        self._calm = self._calm + len(known) if self._small else 0

    def certify(self, members: Sequence[str]) -> dict[str, float]:
        """A lower bound of F*, for convex f_i, once everybody has answered.

        F* ≥ Σ φ_i − Σ γ_i + Σ ⟨y_i, x_i⟩ − max over v in D of ⟨Σ y_i, v⟩, with
        φ_i = f_i(x_i) / n and γ_i the Frank-Wolfe gap of f_i/n + ⟨y_i, ·⟩ at x_i.
        """
        if min(len(self.certificates), len(members)) < len(self.forms):
            self.gap = math.inf
            return {}
        pairs = [self.certificates[name] for name in self.forms]
        losses, gaps = (sum(numbers) for numbers in zip(*pairs, strict=True))
        duals = self.duals.items()
        products = sum(float(np.vdot(y, self.points[name])) for name, y in duals)
        total = np.sum([*self.duals.values()], axis=0)
        # max over v in D of ⟨Σ y_i, v⟩ is the gap of −Σ y_i at 0
        most = self.domain.gap(-total, np.zeros_like(total))
        self.gap = gaps - products + most
        self._scale = max(self._scale, abs(losses))
        return {"lower-bound": losses - self.gap, "certificate": self.gap}

    def converged(self, certified: bool) -> bool:
        """Whether residuals stay small, and the certificate if there has to be one."""
        if not self.tolerance or self._calm < _CALM_ANSWERS * len(self.forms):
            return False
        return not certified or self.gap <= self.tolerance * self._scale

    def packed(self, client: str) -> NDArray[Any] | None:
        """x_i as a client takes it back; None before its first step."""
        if self.points[client] is self.start:
            return None
        return join_arrays(self.iterates[client].arrays())

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs."""
        arrays: dict[str, NDArray[Any]] = {
            "start": self.start,
            "model": self.model,
            "scale": np.array(self._scale),
            "calm": np.array(self._calm),
            **self.balance.state([*self.forms]),
        }
        for name in self.forms:
            if (packed := self.packed(name)) is not None:
                arrays[f"{name}/x"] = packed
            arrays[f"{name}/y"] = self.duals[name]
            if name in self.certificates:
                arrays[f"{name}/certificate"] = np.array(self.certificates[name])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.start, self.model = np.array(state["start"]), np.array(state["model"])
        self._scale, self._calm = float(state["scale"]), int(state["calm"])
        self.balance.load_state(state, [*self.forms])
        for name, form in self.forms.items():
            self.duals[name] = np.array(state[f"{name}/y"])
            self.points[name] = self.start
            self.iterates[name] = form.start_at(self.start)
            if f"{name}/x" in state:
                packed = split_arrays(np.asarray(state[f"{name}/x"]))
                iterate = form.unpack(packed, self.start.shape)
                self.iterates[name], self.points[name] = iterate, iterate.dense()
            if f"{name}/certificate" in state:
                loss, gap = state[f"{name}/certificate"].tolist()
                self.certificates[name] = loss, gap


class Balance:
    """The weight ρ of the consensus penalty, the same for all clients; None at first.

    Over a window of rounds the duals and z travel; where both have come as far in
    units of their own, ρ is right::

        q = ‖Y − Y'‖ / (ρ √n ‖z − z'‖),  Y all y_i, Y' and z' where the window began
        ρ ← ρ · clip(q, 1/c, c)  at the m-th change,
        c = min(10, exp(20 / m^1.25));   from m = 11 on nothing changes while
        q is between 1/3 and 3

    Where answers come late, fast clients end many windows while a slow one answers
    once, and ρ must not be held before the slow ones have shown what it does to them:
    m grows by one only once each of them has answered twice since it last did, as it
    does where everybody answers in every round.

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
        # answers by client since m last grew
        self._counts = Counter[str]()
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

    def observe(
        self,
        answered: Sequence[str],
        duals: Sequence[FloatArray],
        z: FloatArray,
        paced_by: Sequence[str] = (),
    ) -> None:
        """Take a round's answers into account; change ρ where a window ends.

        The y_i of all clients and z are those after the round; they are not copied.
        m grows with every change, or only once each of ``paced_by`` has answered twice
        since it last grew.
        """
        if self.fixed is not None or self.penalty is None:
            return
        if not self._duals:
            # it was fixed before the checkpoint that this run goes on from
            self._mark(duals, z)
            return
        self._answers += len(answered)
        self._counts.update(answered)
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
            # the slowest has answered as often as on average within a window
            fewest = min((self._counts[name] for name in paced_by), default=_ANSWERS)
            if not self._changes or fewest >= _ANSWERS:
                self._changes += 1
                self._counts.clear()
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
        counts = self._changes, self._answers, self._patience
        answers = [self._counts[name] for name in clients]
        return {
            "balance": np.array([penalty, self._least, *counts, *answers]),
            "balance/z": self._z,
            **{f"{name}/balance/y": y for name, y in marks},
        }

    def load_state(
        self, state: Mapping[str, FloatArray], clients: Sequence[str]
    ) -> None:
        """Inverse of :meth:`state`; a fixed ρ stays what it is."""
        penalty, self._least, *counts = state["balance"].tolist()
        answers = dict(zip(clients, map(int, counts[3:]), strict=True))
        marked = [f"{name}/balance/y" for name in clients]
        if marked[0] in state:
            duals = [np.array(state[key]) for key in marked]
            self._mark(duals, np.array(state["balance/z"]))
        self._changes, self._answers, self._patience = map(int, counts[:3])
        self._counts = Counter(answers)
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
