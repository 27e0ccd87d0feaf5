"""What a run converges to, and how fast, as a power of the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import sim
from fedtrellis import LocalGrid
from fedtrellis.app import Experiment
from fedtrellis.objectives.reference import certified_minimum

from .common import app_config

__all__ = ["NONCONVEX_LOGISTIC", "batched", "late_slope", "optimum"]

#: Logistic regression with a penalty that is not convex.
NONCONVEX_LOGISTIC: dict[str, Any] = {
    "task": "logistic-regression",
    "logistic-regression.dataset": "breast-cancer",
    "logistic-regression.regularizer": "nonconvex",
    "logistic-regression.l2": 0.1,
    "logistic-regression.partition": "labels",
}


def batched(experiment: Experiment) -> LocalGrid:
    """All clients as one stack, to the same numbers."""
    return experiment.grid(batched=True)


def optimum(
    config: Mapping[str, Any], nodes: int, tolerance: float, most: int = 20_000
) -> tuple[float, float]:
    """F*, and how far below it could be: known, or certified by a Frank-Wolfe gap."""
    setup = sim.app.experiment(app_config(config), nodes)
    task, domain = setup.task, setup.domain
    known = task.reference_optimum(domain)
    if known is not None:
        return float(known), 0.0
    found = certified_minimum(
        task.objective(),
        domain,
        task.initial_point()[0],
        tolerance=tolerance,
        max_iterations=most,
    )
    return found.value, found.gap


def late_slope(rounds: Sequence[int], residuals: Sequence[float]) -> float:
    """Exponent of a power law over the last decade; what is before is the start's."""
    t, r = np.array(rounds, dtype=float), np.array(residuals)
    late = (t >= t[-1] / 10) & (t > 0) & (r > 0)
    if late.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(t[late]), np.log(r[late]), 1)[0])
