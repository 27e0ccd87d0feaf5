"""Methods for networks on clients that differ: rounds, gradients and bytes to a goal.

A perceptron with two hidden layers of 100 on scikit-learn's digits, float32; 10 clients
of two classes each, 5 local steps of a fifth of their 143 examples. Every method has
the same budget: each step size of a grid with each of two schedules, once, on one seed,
with a fifth of the training examples held out to choose by; the grid goes on where the
best is at its edge. What was chosen then runs with other seeds, and is measured on the
test examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy

from .report import Comparison, Spread

__all__ = ["FULL", "QUICK", "Size", "compare"]

_GOAL = 0.95
_NODES = 10
_SHARED: dict[str, Any] = {
    "task": "classification",
    "classification.dataset": "digits",
    "classification.model": "dnn",
    "classification.partition": "labels",
    "classification.labels-per-client": 2,
    "dtype": "float32",
    "evaluate-gap": False,
}


@dataclass(frozen=True)
class Size:
    """How much is run.

    Parameters
    ----------
    rounds : int
        Of a run.
    seeds : int
        Of the runs that are measured, from 1; 0 is what is tuned on.
    sizes : int
        Step sizes of a grid, before it goes on.
    contenders : tuple of str
        Names of those that are measured.
    """

    rounds: int
    seeds: int
    sizes: int
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Contender:
    """A method, and where its grid begins: at ``first``, and on by factors of 2."""

    method: str
    first: float
    schedules: tuple[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, size: float, schedule: str, rounds: int) -> dict[str, Any]:
        """The run config."""
        own = {
            "local-steps": 5,
            "step-size": size,
            "step-schedule": schedule,
            **self.settings,
        }
        return {
            **_SHARED,
            "method": self.method,
            "rounds": rounds,
            **{f"{self.method}.{key}": value for key, value in own.items()},
        }


_SGD = ("constant", "inverse-sqrt")
_LMO = ("constant", "linear")
_BATCH: dict[str, Any] = {"batch-fraction": 0.2}
_ADAM: dict[str, Any] = {"optimizer": "adam", "server-step-size": 0.03}
_OURS: dict[str, Any] = {"batch-size": 29}
_CONTENDERS = {
    "FedAvg": Contender("local-sgd", 0.1, _SGD, _BATCH),
    "FedProx, μ = 0.01": Contender("fedprox", 0.1, _SGD, _BATCH),
    "FedAvg, server momentum 0.9": Contender("fedopt", 0.02, _SGD, _BATCH),
    "FedAdam, server step 0.03": Contender("fedopt", 0.05, _SGD, {**_BATCH, **_ADAM}),
    "SCAFFOLD": Contender("scaffold", 0.1, _SGD, _BATCH),
    "fedlmo, local": Contender("fedlmo", 0.01, _LMO, {**_OURS, "variant": "local"}),
    "fedlmo, corrected": Contender("fedlmo", 0.01, _LMO, _OURS),
    "fedlmo, server": Contender("fedlmo", 0.03, _LMO, {**_OURS, "variant": "server"}),
    **{
        f"fedlmo, ef21, {words}": Contender(
            "fedlmo", 0.03, _LMO, {**_OURS, "variant": "ef21", **more}
        )
        for words, more in (
            ("top 5 %", {}),
            ("rank 2", {"compressor": "rank", "rank": 2}),
            ("natural", {"compressor": "natural"}),
        )
    },
}

FULL = Size(60, 3, 5, tuple(_CONTENDERS))
QUICK = Size(5, 1, 2, ("FedAvg", "fedlmo, corrected"))


class _Curve(Callback):
    """Notes down accuracy, loss and the bytes so far, after every round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float, int]] = []
        self._bytes = 0

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Note down a round."""
        self._bytes += record.bytes_up + record.bytes_down
        found = record.metrics
        # a round whose answers were all dropped, for steps that diverged, has none
        if record.round and "accuracy" in found:
            self.rounds.append((found["accuracy"], found["loss"], self._bytes))
        return False

    def first(self) -> int | None:
        """The first round at the goal, from 1."""
        reached = (t for t, row in enumerate(self.rounds, 1) if row[0] >= _GOAL)
        return next(reached, None)


def _run(config: Mapping[str, Any], seed: int, held_out: float) -> _Curve | None:
    """One run; None where it diverged."""
    experiment = sim.app.experiment(
        {**config, "seed": seed, "classification.validation-fraction": held_out},
        _NODES,
    )
    curve = _Curve()
    try:
        experiment.start(experiment.strategy(callbacks=[curve]))
    except (FloatingPointError, RuntimeError):
        return None
    return curve if len(curve.rounds) == config["rounds"] else None


def _tuned(contender: Contender, size: Size) -> tuple[float, str]:
    """The step size and schedule that reach the goal first, or get nearest to it."""

    @lru_cache(None)
    def score(step: float, schedule: str) -> tuple[float, float]:
        curve = _run(contender.config(step, schedule, size.rounds), 0, 0.2)
        if curve is None:
            return float("inf"), float("inf")
        rounds = curve.first()
        best = max(row[0] for row in curve.rounds[-5:])
        return (size.rounds + 1.0 if rounds is None else rounds), -best

    steps = [contender.first * 2.0**k for k in range(size.sizes)]
    found: list[tuple[tuple[float, float], float, str]] = []
    for schedule in contender.schedules:
        own = list(steps)
        while True:
            best = min(own, key=lambda step: score(step, schedule))
            if size.sizes < 3 or best not in (own[0], own[-1]):
                break
            own = [own[0] / 2.0, *own] if best == own[0] else [*own, 2.0 * own[-1]]
        found.append((score(best, schedule), best, schedule))
    _, step, schedule = min(found)
    return step, schedule


def _row(name: str, size: Size) -> dict[str, Any]:
    contender = _CONTENDERS[name]
    step, schedule = _tuned(contender, size)
    config = contender.config(step, schedule, size.rounds)
    curves = [_run(config, seed, 0.0) for seed in range(1, size.seeds + 1)]
    done = [curve for curve in curves if curve is not None]
    firsts = [t for t in (curve.first() for curve in done) if t is not None]
    row: dict[str, Any] = {
        "method": name,
        "step, schedule": f"{step:g}, {schedule}",
        "arrived": f"{len(firsts)} of {size.seeds}",
    }
    if firsts:
        moved = [
            curve.rounds[t - 1][2]
            for curve, t in ((curve, curve.first()) for curve in done)
            if t is not None
        ]
        row["rounds"] = Spread(tuple(map(float, firsts)), "")
        row["gradients of a client"] = Spread(tuple(5.0 * t for t in firsts), "")
        row["kB of a client"] = Spread(tuple(b / 1e3 / _NODES for b in moved), "")
    if done:
        last = [curve.rounds[-1] for curve in done]
        row["accuracy %"] = f"{100 * median(r[0] for r in last):.1f}"
        row["loss"] = f"{median(r[1] for r in last):.3f}"
    return row


def compare(size: Size) -> Iterable[Comparison]:
    """Tune and run all contenders."""
    rows = [_row(name, size) for name in size.contenders]
    yield Comparison(
        "networks",
        f"Digits, a perceptron of 64-100-100-10: until {_GOAL:.0%} of the tests "
        "are right",
        f"{_NODES} clients of two classes each, 5 local steps on a fifth of their "
        f"examples, float32, at most {size.rounds} rounds; median and extremes of "
        f"{size.seeds} seeds that arrived. Tuned on one more seed and held-out training"
        " examples: 5 step sizes and 2 schedules each, more where the best was at an "
        "end. "
        "Bytes are both ways. Accuracy and loss: medians after the last round.",
        rows,
        [],
    )
