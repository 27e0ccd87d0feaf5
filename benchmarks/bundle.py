"""What HyFDCA's bundle takes on the server, of memory and time."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from fedtrellis.dual.bundle import DualBundle, points_within
from strategies import HyFDCA

from .report import Comparison, Spread

__all__ = ["FULL", "QUICK", "Case", "compare"]


@dataclass(frozen=True)
class Case:
    """A bundle, and the limit that it is made under.

    Parameters
    ----------
    features, units : int
        With secure sums all groups are one unit.
    limit : int
        ``hyfdca.memory-limit``, in MiB.
    """

    features: int
    units: int
    limit: int


QUICK = (Case(2_000, 4, 1), Case(2_000, 4, 1024))
FULL = (
    Case(100_000, 1, 1024),
    Case(100_000, 20, 1024),
    Case(100_000, 20, 256),
    Case(100_000, 20, 100),
    Case(1_000_000, 1, 1024),
    Case(1_000_000, 1, 128),
)
# With so many units a bundle remembers less, whatever the limit.
_POINTS = 400


def compare(cases: tuple[Case, ...]) -> Comparison:
    """One row a case: held once it is full, and the most of a search."""
    result = Comparison(
        "bundle",
        "HyFDCA's bundle on the server",
        "Memory that Python and NumPy allocate, of random proposals, once as many are "
        "remembered as there is room for; the proposals themselves are not counted. "
        "The limit is hyfdca.memory-limit.",
    )
    for case in cases:
        wanted = min(HyFDCA().memory, max(3, _POINTS // case.units))
        memory = min(wanted, points_within(case.limit, case.features, case.units))
        held, peak, seconds = _measure(case, memory)
        result.rows.append(
            {
                "features": case.features,
                "units": case.units,
                "limit, MiB": case.limit,
                "proposals remembered": memory,
                "held, MiB": round(held / 2**20),
                "peak, MiB": round(peak / 2**20),
                "a search": Spread(tuple(seconds), "ms"),
            }
        )
    return result


def _measure(case: Case, memory: int) -> tuple[int, int, list[float]]:
    rng = np.random.default_rng(0)
    tracemalloc.start()
    try:
        bundle = DualBundle(case.features, case.units, 1e-3, memory)
        units, seconds, peak = list(range(case.units)), [], 0
        for turn in range(memory + 3):
            proposals = {
                unit: (rng.standard_normal((1, case.features)), rng.random(1))
                for unit in units
            }
            own = sum(V.nbytes for V, _ in proposals.values())
            tracemalloc.reset_peak()
            start = time.process_time()
            bundle.search(units, proposals)
            if turn >= memory:
                seconds.append(time.process_time() - start)
                peak = max(peak, tracemalloc.get_traced_memory()[1] - own)
        del proposals
        return tracemalloc.get_traced_memory()[0], peak, seconds
    finally:
        tracemalloc.stop()
