"""Hyper-parameters by a compass search on validation data, the same budget for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BUDGET", "SEEDS", "WIDER", "Search", "Space", "search"]

#: Candidates that every method may try, whatever the number of its settings.
BUDGET = 16
#: Candidates more, at most, where a choice is at the edge of what was tried.
WIDER = 8
#: Of the runs that hyper-parameters are chosen on; no seed of a result is near them.
SEEDS = (1000, 1001, 1002)

Point = tuple[float, ...]


@dataclass(frozen=True)
class Space:
    """Settings that are searched over powers of ten, and the exponents to begin at."""

    names: tuple[str, ...]
    start: Point

    def settings(self, point: Point) -> dict[str, float]:
        """Settings at a point of exponents."""
        values = (float(f"{10.0**exponent:.3g}") for exponent in point)
        return dict(zip(self.names, values, strict=True))


@dataclass
class Search:
    """A compass search (Kolda, Lewis and Torczon 2003) in the exponents.

    All neighbours of the best point at the present mesh are tried, first one power of
    ten away; the best of them is the next. Where none is better the mesh is halved,
    until the budget is spent or the mesh would be finer than ``finest``. So what is
    chosen lies inside of what was tried, not at its edge, unless the budget ended a
    walk (:attr:`inside`).

    Attributes
    ----------
    space : Space
    budget : int
    finest : float
    tried : dict
        Scores by points, in the order of trial; −∞ for a run that failed.
    mesh : float
    """

    space: Space
    budget: int = BUDGET
    finest: float = 1e-3
    tried: dict[Point, float] = field(default_factory=dict)
    mesh: float = 1.0

    @property
    def best(self) -> Point:
        """The first of the points with the highest score."""
        return max(self.tried, key=lambda point: self.tried[point])

    def _neighbours(self, mesh: float) -> list[Point]:
        best, found = self.best, []
        for k in range(len(best)):
            for sign in (-1.0, 1.0):
                moved = best[k] + sign * mesh
                found.append((*best[:k], moved, *best[k + 1 :]))
        return found

    def wanted(self) -> list[Point]:
        """The points to try next; none: the search is over."""
        if not self.tried:
            return [self.space.start]
        left = self.budget - len(self.tried)
        while left > 0 and self.mesh >= self.finest:
            new = [p for p in self._neighbours(self.mesh) if p not in self.tried]
            if new:
                return new[:left]
            self.mesh /= 2.0
        return []

    @property
    def inside(self) -> bool:
        """Whether something on both sides of the best was tried, in every setting."""
        best = self.best
        return all(
            any(point[k] < best[k] for point in self.tried)
            and any(point[k] > best[k] for point in self.tried)
            for k in range(len(best))
        )

    @property
    def chosen(self) -> dict[str, float]:
        """The settings at the best point."""
        return self.space.settings(self.best)

    def record(self) -> dict[str, Any]:
        """What the results keep: the choice, and everything that was tried."""
        return {
            "chosen": self.chosen,
            "inside": self.inside,
            "tried": [
                {
                    **self.space.settings(point),
                    "score": score if math.isfinite(score) else None,
                }
                for point, score in self.tried.items()
            ],
        }


def search(
    spaces: Mapping[Any, Space],
    budget: int,
    evaluate: Callable[[list[tuple[Any, dict[str, float]]]], list[list[float]]],
    wider: int = 0,
    rivals: Callable[[Any], Any] = lambda case: None,
    finest: float = Search.finest,
) -> dict[Any, Search]:
    """Search for several cases at once, each with a space and ``budget`` candidates.

    ``evaluate`` is from pairs of a case and settings to each one's scores, one a
    validation seed; their mean counts, and a NaN among them is a run that failed. At
    most ``wider`` candidates more, four at a time, has a case whose choice is at the
    edge, and so have its rivals, cases of which ``rivals`` says the same.
    """
    searches = {case: Search(space, budget, finest) for case, space in spaces.items()}
    while True:
        asked = [(case, p) for case, one in searches.items() for p in one.wanted()]
        if not asked:
            edges = {rivals(case) for case, one in searches.items() if not one.inside}
            more = [one for case, one in searches.items() if rivals(case) in edges]
            more = [one for one in more if one.budget < budget + wider]
            if not more:
                return searches
            for one in more:
                one.budget += 4
            continue
        scores = evaluate([(c, spaces[c].settings(point)) for c, point in asked])
        for (case, point), found in zip(asked, scores, strict=True):
            mean = float(np.mean(found))
            searches[case].tried[point] = mean if math.isfinite(mean) else -math.inf
