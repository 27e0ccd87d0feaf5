"""One run, told as what it had cost when it came to each gap; and what to run with."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedtrellis.server.callbacks import EarlyStop
from fedtrellis.wire.arrays import record_arrays

from .methods import Method
from .problems import Problem, experiment, optimum

__all__ = [
    "MORE",
    "TARGETS",
    "TUNING_SEED",
    "VALUES",
    "Choice",
    "Cost",
    "Trace",
    "choose",
    "play",
]

#: Relative gaps (F(x) − F*)/(F(x¹) − F*) that costs are noted at.
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
_METRIC = "relative-gap"
#: No result has this seed.
TUNING_SEED = 1000
#: Values of the first grid, and of its extension where the best is at an end.
VALUES, MORE = 5, 2
#: From one value to the next.
RATIO = 4.0


@dataclass(frozen=True)
class Cost:
    """What a run has taken so far.

    ``gradients`` are those of a client, ``up`` and ``down`` the bytes of all clients'
    messages, ``seconds`` of the processor: clients, messages and server, without the
    evaluation.
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
            "gap": _plain(self.gap),
            "end": asdict(self.end),
            **({"failed": self.failed} if self.failed else {}),
        }

    @property
    def score(self) -> tuple[float, float]:
        """How good it was, less is better: gradients to the last target, the gap."""
        last = self.hits.get(TARGETS[-1])
        gap = self.gap if math.isfinite(self.gap) else math.inf
        return last.gradients if last else math.inf, gap


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None


def play(
    problem: Problem,
    method: Method,
    settings: Mapping[str, Any],
    seed: int,
    budget: int,
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
    budget : int
        Gradients of a client.
    """
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    best = optimum(problem, seed)
    spent = method.spent(problem, seed, budget)
    # of the seed's own data; 0 where there is no ball
    weight = best.multiplier if method.penalised else 0.0
    if weight:
        settings = {**settings, method.key(method.penalised): weight}
    gc.collect()  # the runs before are cycles, which hold their models
    made = experiment(problem, seed, settings, len(spent) - 1)
    seen: list[tuple[float, float]] = []
    evaluating = 0.0

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal evaluating
        began = time.process_time()
        x = made.layout.objective_point(made.layout.point(record_arrays(arrays)))
        value = float(made.task.value(x))
        if weight:
            # the Lagrangian's gap, never below 0: ‖x‖₁ may exceed the radius on the way
            value += weight * (float(np.abs(np.asarray(x)).sum()) - best.radius)
        gap = (value - best.value) / (best.start - best.value)
        seen.append((gap, began - evaluating))
        evaluating += time.process_time() - began
        return MetricRecord({_METRIC: gap})

    strategy = made.strategy(callbacks=[EarlyStop(_METRIC, TARGETS[-1])])
    begin, failed = time.process_time(), ""
    try:
        made.start(strategy, made.grid(batched=True), evaluate_fn=evaluate)
    except (RuntimeError, FloatingPointError) as error:  # nobody's answer is finite
        failed = str(error)
    up = np.cumsum([0, *(record.bytes_up for record in strategy.history)])
    down = np.cumsum([0, *(record.bytes_down for record in strategy.history)])
    first = strategy.history[0].round if strategy.history else 0

    def cost(number: int) -> Cost:
        place = min(number - first + 1, len(up) - 1) if strategy.history else 0
        seconds = round(seen[number][1] - begin, 4)
        return Cost(number, spent[number], int(up[place]), int(down[place]), seconds)

    hits: dict[float, Cost] = {}
    for number, (gap, _) in enumerate(seen):
        for target in TARGETS:
            if target not in hits and gap <= target:
                hits[target] = cost(number)
    gap = math.inf if failed else seen[-1][0]
    return Trace(hits, gap, cost(len(seen) - 1), failed[:200])


@dataclass(frozen=True)
class Choice:
    """What was tried, in order, with its scores, and what was chosen."""

    tried: tuple[tuple[float, tuple[float, float]], ...]
    value: float

    def record(self) -> dict[str, Any]:
        """As plain data; None stands for what was not reached."""
        values = [value for value, _ in self.tried]
        return {
            "seed": TUNING_SEED,
            "chosen": self.value,
            # a smaller and a larger value were tried
            "inside": min(values) < self.value < max(values),
            "tried": [
                {"value": value, "gradients": _plain(first), "gap": _plain(gap)}
                for value, (first, gap) in self.tried
            ],
        }


def choose(
    score: Callable[[float], tuple[float, float]], centre: float, values: int = VALUES
) -> Choice:
    """Try a geometric grid, and once more beyond an end that is best.

    Parameters
    ----------
    score : callable
        Of a run with a value on the tuning seed, by the training loss.
    centre : float
        The middle of the grid.
    values : int
        Odd: how many it has.
    """
    tried: dict[float, tuple[float, float]] = {}

    def best_after(powers: range) -> float:
        for power in powers:
            value = float(f"{centre * RATIO**power:.3g}")
            tried[value] = score(value)
        return min(tried, key=lambda value: tried[value])

    half = values // 2
    best = best_after(range(-half, half + 1))
    if best == min(tried):
        best = best_after(range(-half - 1, -half - 1 - MORE, -1))
    elif best == max(tried):
        best = best_after(range(half + 1, half + 1 + MORE))
    return Choice(tuple(sorted(tried.items())), best)
