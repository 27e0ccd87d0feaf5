"""Rows from sums at weights that the attacker chooses: thresholds along a curve.

On the half circle w(φ) = R (cos φ · d + sin φ · e) every sample's label changes sides
once. With R as large as the clients allow, a sample's dual point is one of two numbers
but for a narrow band, so between two angles the sum changes by the rows of the samples
that changed sides, and if the angles are close by one row. Against clients that answer
with a random part of the way, α_i + r_i (u_i − α_i), the attacker lets the newest
proposal be α, until all samples have settled, and takes the next step then: what moves
is the sample that has just changed sides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .truth import Array

__all__ = ["Isolated", "Query", "ask", "rows_at_thresholds"]

#: Yields (w, accept): the next question, and whether clients first take what they
#: answered last for their α. Is sent the sum V at w.
Query = Generator[tuple[Array, bool], Array, None]

# No more of the same question than this, and the shortest step, in angles.
_MOST, _SHORTEST = 40, 1e-9
_LONGER, _SHORTER = 1.5, 0.3
# Answers after which samples have all but settled.
_SETTLING = 4


@dataclass
class Isolated:
    """What an attack claims, and after how many answers.

    Attributes
    ----------
    claims : list of ndarray of shape (p,)
    answers : list of int
        How many answers had been had when each claim was made.
    asked : int
        All answers so far.
    """

    claims: list[Array] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    asked: int = 0

    def claim(self, row: Array) -> None:
        """Add a claim."""
        self.claims.append(row)
        self.answers.append(self.asked)

    def rows(self, p: int) -> Array:
        """All claims, shape (k, p)."""
        return np.array(self.claims).reshape(-1, p)


def rows_at_thresholds(
    found: Isolated,
    p: int,
    samples: int,
    norm: float,
    *,
    settled: float = 1e-3,
    noise: float = 1e-9,
    repeat: int = 1,
    seed: int = 0,
) -> Query:
    """Move along half circles and claim what the sum changes by.

    Parameters
    ----------
    found : Isolated
        Takes the claims.
    p, samples : int
        Features, and N, for the first step: the attacker knows both.
    norm : float
        R, the largest ‖w‖ that clients answer at.
    settled : float
        A change below this share of the largest one yet is that of samples that are
        still on their way.
    noise : float
        The same of changes that are none.
    repeat : int
        Answers that are averaged at each angle, where clients add noise.
    seed : int
        Of the half circles.

    Yields
    ------
    (ndarray of shape (p,), bool)
        See :data:`Query`. It never ends: it is asked as long as there are answers.
    """
    rng = np.random.default_rng(seed)
    while True:
        d, e = np.linalg.qr(rng.standard_normal((p, 2)))[0].T
        walk = _Walk(found, norm * d, norm * e)
        walk.noise, walk.settled, walk.repeat = noise, settled, repeat
        if repeat > 1:
            yield from walk.averaged(np.pi / (2 * samples))
        else:
            yield from walk.go(np.pi / (2 * samples))


class _Walk:
    """One half circle."""

    noise: float
    settled: float
    repeat: int

    def __init__(self, found: Isolated, d: Array, e: Array) -> None:
        self.found, self.d, self.e = found, d, e
        self.largest = 0.0

    def at(self, angle: float) -> Array:
        """W at an angle."""
        return np.asarray(np.cos(angle) * self.d + np.sin(angle) * self.e)

    def one(self, angle: float, accept: bool) -> Generator[Any, Array, Array]:
        """The answer at an angle."""
        V = yield self.at(angle), accept
        self.found.asked += 1
        return V

    def rest(self, angle: float, V: Array) -> Generator[Any, Array, Array]:
        """Let α follow at one angle until nothing moves; returns V at α."""
        for _ in range(_MOST):
            new = yield from self.one(angle, True)
            size = float(np.linalg.norm(new - V))
            V = new
            if size <= max(self.settled * self.largest, self.noise):
                break
        return V

    def go(self, step: float) -> Query:
        """From 0 to π without noise."""
        angle = 0.0
        V = yield from self.one(angle, False)
        self.largest = 1e-3 * float(np.linalg.norm(V))
        V = yield from self.rest(angle, V)
        accept, self.largest = True, 0.0
        while angle < np.pi:
            # from one α as often as it takes: whoever is not settled is in all of them
            new = yield from self.one(angle + step, accept)
            accept, change = False, new - V
            size = float(np.linalg.norm(change))
            if size <= max(3.0 * self.settled * self.largest, self.noise):
                angle, step = angle + step, _LONGER * step
                continue
            again = yield from self.one(angle + step, False)
            alone = _parallel(change, again - V)
            if float(np.linalg.norm(again - new)) <= self.noise * size:
                # it always answers alike: is all of the change in one half?
                middle = yield from self.one(angle + 0.5 * step, False)
                halves = np.linalg.norm(middle - V), np.linalg.norm(middle - new)
                alone = float(min(halves)) <= self.noise * size
            if alone or step < _SHORTEST:
                self.found.claim(change)
                self.largest = max(self.largest, size)
                angle += step
                V, accept = (yield from self.rest(angle, again)), True
            else:
                step *= _SHORTER

    def averaged(self, step: float) -> Query:
        """From 0 to π with means of several answers, of which each step is claimed."""
        angle, before = 0.0, None
        while angle < np.pi:
            total = []
            for i in range(self.repeat + _SETTLING):
                V = yield from self.one(angle, True)
                if i >= _SETTLING:
                    total.append(V)
            mean = np.mean(total, axis=0)
            if before is not None:
                self.found.claim(mean - before)
            before, angle = mean, angle + step


def _parallel(one: Array, other: Array) -> bool:
    """Whether two changes have one direction."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return bool(abs(float(one @ other)) > (1.0 - 1e-6) * lengths)


def ask(query: Query, answer: Callable[[Array, bool], Array], answers: int) -> None:
    """Put an attack's questions to somebody who answers only so often.

    Parameters
    ----------
    query : generator
    answer : callable
        Takes (w, accept), see :data:`Query`.
    answers : int
        How many are granted.
    """
    question = next(query)
    for _ in range(answers):
        question = query.send(answer(*question))
    query.close()
