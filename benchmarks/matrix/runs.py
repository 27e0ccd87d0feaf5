"""One run, told as what it had cost when it came to each gap."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedtrellis.server.callbacks import EarlyStop
from fedtrellis.wire.arrays import record_arrays

from .methods import Method
from .problems import Problem, experiment, optimum

__all__ = ["TARGETS", "Cost", "Trace", "play"]

#: Relative gaps (F(x) − F*)/(F(x¹) − F*) that costs are noted at.
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
_METRIC = "relative-gap"


@dataclass(frozen=True)
class Cost:
    """What a run has taken so far.

    Attributes
    ----------
    rounds : int
    gradients : float
        Of a client.
    up, down : int
        Bytes of all clients' messages.
    seconds : float
        Of the processor: clients, messages and server, without the evaluation.
    """

    rounds: int
    gradients: float
    up: int
    down: int
    seconds: float


@dataclass(frozen=True)
class Trace:
    """A run: what it cost to come to each target, and where it ended.

    Attributes
    ----------
    hits : dict
        The cost at the first round with such a gap, by the targets reached.
    gap : float
        At the end; not finite: it diverged.
    end : Cost
    failed : str
        Why it ended before its budget, where that was an error.
    """

    hits: Mapping[float, Cost]
    gap: float
    end: Cost
    failed: str = ""

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "hits": {f"{target:g}": asdict(cost) for target, cost in self.hits.items()},
            "gap": self.gap if math.isfinite(self.gap) else None,
            "end": asdict(self.end),
            **({"failed": self.failed} if self.failed else {}),
        }


def play(
    problem: Problem,
    method: Method,
    settings: Mapping[str, Any],
    seed: int,
    budget: int | None = None,
) -> Trace:
    """Run a method until the smallest target is reached or the gradients are spent.

    F is the training loss; nothing else is evaluated, test data least of all.

    Parameters
    ----------
    problem : Problem
    method : Method
    settings : mapping
        The method's part of the run config.
    seed : int
        Of the data, the way they are dealt, and everything random in the method.
    budget : int, optional
        Gradients of a client, by default the problem's.
    """
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    best = optimum(problem, seed)
    scale = best.start - best.value
    work = method.cost(problem)
    rounds = max(1, int((budget or problem.budget) / work))
    # of the seed's own data; 0 where there is no ball
    weight = best.multiplier if method.penalised else 0.0
    if weight:
        settings = {**settings, method.penalised: weight}
    made = experiment(problem, seed, settings, rounds)
    seen: list[tuple[float, float]] = []
    clock = {"evaluations": 0.0}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        began = time.process_time()
        x = made.layout.objective_point(made.layout.point(record_arrays(arrays)))
        value = float(made.task.value(x))
        if weight:
            # the Lagrangian's gap, never below 0: ‖x‖₁ may exceed the radius on the way
            value += weight * (float(np.abs(np.asarray(x)).sum()) - best.radius)
        gap = (value - best.value) / scale
        seen.append((gap, began - clock["evaluations"]))
        clock["evaluations"] += time.process_time() - began
        return MetricRecord({_METRIC: gap})

    strategy = made.strategy(callbacks=[EarlyStop(_METRIC, TARGETS[-1])])
    grid = made.grid(batched=True)
    begin, failed = time.process_time(), ""
    try:
        made.start(strategy, grid, evaluate_fn=evaluate)
    except (RuntimeError, FloatingPointError) as error:  # nobody's answer is finite
        failed = str(error)
    up = np.cumsum([0, *(record.bytes_up for record in strategy.history)])
    down = np.cumsum([0, *(record.bytes_down for record in strategy.history)])
    offset = len(up) - len(strategy.history)
    first = strategy.history[0].round if strategy.history else 0

    def cost(number: int) -> Cost:
        place = min(number - first + offset, len(up) - 1)
        return Cost(
            number,
            number * work,
            int(up[place]),
            int(down[place]),
            round(seen[number][1] - begin, 4),
        )

    hits: dict[float, Cost] = {}
    for number, (gap, _) in enumerate(seen):
        for target in TARGETS:
            if target not in hits and gap <= target:
                hits[target] = cost(number)
    gap = math.inf if failed else seen[-1][0]
    return Trace(hits, gap, cost(len(seen) - 1), failed[:200])
