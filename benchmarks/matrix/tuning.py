"""One setting of each method, chosen with the same budget on a seed of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .methods import RATIO
from .runs import TARGETS, Trace

__all__ = ["MORE", "TUNING_SEED", "VALUES", "Choice", "choose", "score"]

#: No result has this seed.
TUNING_SEED = 1000
#: Values of the first grid, and of its extension where the best is at an end.
VALUES, MORE = 5, 2

Score = tuple[float, float]


def score(trace: Trace) -> Score:
    """How good a run was, less is better: gradients to the last target, the gap."""
    last = TARGETS[-1]
    if last in trace.hits:
        return trace.hits[last].gradients, trace.gap
    return math.inf, trace.gap if math.isfinite(trace.gap) else math.inf


@dataclass(frozen=True)
class Choice:
    """What was tried, in order, and what was chosen."""

    tried: tuple[tuple[float, Score], ...]
    value: float

    @property
    def inside(self) -> bool:
        """Whether a smaller and a larger value were tried."""
        values = [value for value, _ in self.tried]
        return min(values) < self.value < max(values)

    def record(self) -> dict[str, Any]:
        """As plain data; None stands for what was not reached."""

        def plain(number: float) -> float | None:
            return number if math.isfinite(number) else None

        return {
            "seed": TUNING_SEED,
            "chosen": self.value,
            "inside": self.inside,
            "tried": [
                {"value": value, "gradients": plain(first), "gap": plain(gap)}
                for value, (first, gap) in self.tried
            ],
        }


def choose(
    run: Callable[[float], Trace], centre: float, values: int = VALUES
) -> Choice:
    """Try a geometric grid, and once more beyond an end that is best.

    Parameters
    ----------
    run : callable
        From a value to a run on the tuning seed; a :class:`~.runs.Trace` knows of the
        training loss only.
    centre : float
        The middle of the grid.
    values : int
        Odd: how many it has.
    """
    tried: dict[float, Score] = {}

    def attempt(power: int) -> None:
        value = float(f"{centre * RATIO**power:.3g}")
        tried[value] = score(run(value))

    half = values // 2
    for power in range(-half, half + 1):
        attempt(power)
    best = min(tried, key=lambda value: tried[value])
    if best in (min(tried), max(tried)):
        sign = -1 if best == min(tried) else 1
        for step in range(1, MORE + 1):
            attempt(sign * (half + step))
        best = min(tried, key=lambda value: tried[value])
    return Choice(tuple(sorted(tried.items())), best)
