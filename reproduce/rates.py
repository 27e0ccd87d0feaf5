"""How fast something falls, as a power of the rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtrellis import LocalGrid
from fedtrellis.app import Experiment

__all__ = ["batched", "late_slope", "slope"]


def batched(experiment: Experiment) -> LocalGrid:
    """All clients as one stack, to the same numbers."""
    return experiment.grid(batched=True)


def slope(rounds: Sequence[int], residuals: Sequence[float]) -> float:
    """Exponent of a power law over the last two decades of rounds."""
    t, r = np.array(rounds, dtype=float), np.array(residuals)
    late = (t >= t[-1] / 100) & (t > 0) & (r > 0)
    if late.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(t[late]), np.log(r[late]), 1)[0])


def late_slope(rounds: Sequence[int], residuals: Sequence[float]) -> float:
    """Exponent over the last decade: what comes before is the start's."""
    late = [k for k, t in enumerate(rounds) if t >= rounds[-1] / 10]
    return slope([rounds[k] for k in late], [residuals[k] for k in late])
