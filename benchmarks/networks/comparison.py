"""Methods for networks on clients that differ: rounds, gradients and bytes to a goal.

Ten clients, 5 local steps, float32. Every method has the same budget: each step size of
a grid with each of its schedules, once, on one seed, with a fifth of the training
examples held out to choose by; the grid goes on where the best is at its edge. What was
chosen then runs with other seeds, and is measured on the test examples.

- digits: a perceptron with two hidden layers of 100 on scikit-learn's digits, two
  classes a client, a fifth of its 143 examples in a mini-batch;
- the problems of :mod:`.images`, whose runs are kept in files, one a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.arrays import record_arrays

from ..report import Comparison, Spread

__all__ = [
    "BATCH",
    "CONTENDERS",
    "DIGITS",
    "FULL",
    "GOAL",
    "NODES",
    "QUICK",
    "Contender",
    "Curve",
    "Size",
    "compare",
    "row_of",
    "run",
    "tuned",
]

#: Clients of every problem.
NODES = 10
#: The accuracy that is to be reached on digits, and a mini-batch there.
GOAL = 0.95
BATCH = {"batch-fraction": 0.2, "batch-size": 29}
#: The run config of digits, but for the method and the seed.
DIGITS: dict[str, Any] = {
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
    schedules : int
        Of the two of a contender, how many are tried.
    contenders : tuple of str
        Names of those that are measured.
    """

    rounds: int
    seeds: int
    sizes: int
    schedules: int
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Contender:
    """A method, and where its grid begins: at ``first``, and on by factors of 2."""

    method: str
    first: float
    schedules: tuple[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: str = "step-size"

    def config(
        self, size: float, schedule: str, rounds: int, batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The settings of the method; ``batch`` has each name of a mini-batch's size.

        ``tuned`` is the setting that ``size`` is of.
        """
        batches = "batch-size" if self.method == "fedlmo" else "batch-fraction"
        own = {
            "local-steps": 5,
            "step-schedule": schedule,
            batches: batch[batches],
            **self.settings,
            self.tuned: size,
        }
        return {
            "method": self.method,
            "rounds": rounds,
            **{f"{self.method}.{key}": value for key, value in own.items()},
        }


_SGD = ("constant", "inverse-sqrt")
_LMO = ("constant", "linear")
_ADAM: dict[str, Any] = {"optimizer": "adam", "server-step-size": 0.03}
#: In the order in which they are measured.
CONTENDERS = {
    "FedAvg": Contender("local-sgd", 0.1, _SGD),
    "FedProx, μ = 0.01": Contender("fedprox", 0.1, _SGD),
    "FedAvg, server momentum 0.9": Contender("fedopt", 0.02, _SGD),
    "FedAdam, server step 0.03": Contender("fedopt", 0.05, _SGD, _ADAM),
    "SCAFFOLD": Contender("scaffold", 0.1, _SGD),
    "error feedback, top 5 %": Contender(
        "compressed-sgd", 0.02, _SGD, {"compressor": "top-k"}
    ),
    "QSGD, one level": Contender(
        "compressed-sgd", 0.02, _SGD, {"compressor": "qsgd", "levels": 1}
    ),
    "majority of signs": Contender(
        "compressed-sgd",
        5e-4,
        _SGD,
        {"compressor": "sign", "step-size": 0.05},
        "server-step-size",
    ),
    "fedlmo, local": Contender("fedlmo", 0.01, _LMO, {"variant": "local"}),
    "fedlmo, corrected": Contender("fedlmo", 0.01, _LMO, {"variant": "corrected"}),
    "fedlmo, averaged": Contender("fedlmo", 0.01, _LMO, {"variant": "averaged"}),
    "fedlmo, server": Contender("fedlmo", 0.03, _LMO, {"variant": "server"}),
    **{
        f"fedlmo, ef21, {words}": Contender(
            "fedlmo", 0.03, _LMO, {"variant": "ef21", **more}
        )
        for words, more in (
            ("top 5 %", {}),
            ("rank 2", {"compressor": "rank", "rank": 2}),
            ("natural", {"compressor": "natural"}),
        )
    },
}

FULL = Size(60, 3, 5, 2, tuple(CONTENDERS))
QUICK = Size(5, 1, 2, 2, ("FedAvg", "fedlmo, corrected"))


@dataclass
class Curve(Callback):
    """Accuracy, loss and the bytes so far, after every round.

    Parameters
    ----------
    rounds : list of tuple
    goal : float
        The run ends where the accuracy is there; above 1: it does not.
    limit : int
        The run ends after so many rounds; 0: it does not.
    bytes_up : int
        What a client sent in the last round, on average.
    """

    rounds: list[tuple[float, float, int]] = field(default_factory=list)
    goal: float = 2.0
    limit: int = 0
    bytes_up: int = 0
    _bytes: int = 0

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Note down a round."""
        self._bytes += record.bytes_up + record.bytes_down
        found = record.metrics
        # a round whose answers were all dropped, for steps that diverged, has none
        if record.round and "accuracy" in found:
            loss = found.get("loss", math.nan)
            self.rounds.append((found["accuracy"], loss, self._bytes))
            self.bytes_up = round(record.bytes_up / NODES)
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether the goal or the limit has been met."""
        at_goal = bool(self.rounds) and self.rounds[-1][0] >= self.goal
        return at_goal or 0 < self.limit == len(self.rounds)

    def first(self, goal: float) -> int | None:
        """The first round at the goal, from 1."""
        reached = (t for t, row in enumerate(self.rounds, 1) if row[0] >= goal)
        return next(reached, None)


def run(
    config: Mapping[str, Any], goal: float = 2.0, limit: int = 0, *, loss: bool = True
) -> Curve | None:
    """One run, ended by a goal or a limit of :class:`Curve`; None where it diverged.

    Without ``loss`` only the test examples are looked at, and the loss is NaN.
    """
    experiment = sim.app.experiment(config, NODES)
    curve = Curve([], goal, limit)

    def tested(_: int, arrays: ArrayRecord) -> MetricRecord:
        x = experiment.layout.point(record_arrays(arrays))
        return MetricRecord({**experiment.task.metrics(x)})

    try:
        experiment.start(
            experiment.strategy(callbacks=[curve]),
            evaluate_fn=None if loss else tested,
        )
    except (FloatingPointError, RuntimeError):
        return None
    whole = curve.ended or len(curve.rounds) == config["rounds"]
    return curve if whole else None


def tuned(
    contender: Contender,
    size: Size,
    goal: float,
    once: Callable[[float, str, int], Curve | None],
) -> tuple[float, str]:
    """The step size and schedule that reach the goal first, or get nearest to it.

    ``once`` makes the run with a step size and a schedule that is chosen by; after the
    rounds that it is given, those of the best so far, it may end.
    """
    fewest = size.rounds

    @lru_cache(None)
    def score(step: float, schedule: str) -> tuple[float, float]:
        nonlocal fewest
        curve = once(step, schedule, fewest)
        if curve is None:
            return float("inf"), float("inf")
        rounds = curve.first(goal)
        fewest = min(fewest, rounds or size.rounds)
        best = max(row[0] for row in curve.rounds[-5:])
        return (size.rounds + 1.0 if rounds is None else rounds), -best

    steps = [contender.first * 2.0**k for k in range(size.sizes)]
    found: list[tuple[tuple[float, float], float, str]] = []
    for schedule in contender.schedules[: size.schedules]:
        own = list(steps)
        # from the middle, where the goal is reached soon, which shortens the others
        for step in sorted(own, key=lambda step: abs(step - own[len(own) // 2])):
            score(step, schedule)
        while True:
            best = min(own, key=lambda step: score(step, schedule))
            if size.sizes < 3 or best not in (own[0], own[-1]):
                break
            own = [own[0] / 2.0, *own] if best == own[0] else [*own, 2.0 * own[-1]]
        found.append((score(best, schedule), best, schedule))
    _, step, schedule = min(found)
    return step, schedule


def row_of(
    name: str,
    chosen: tuple[float, str],
    curves: Sequence[Curve | None],
    goal: float,
) -> dict[str, Any]:
    """A contender's row of a table, from the runs of all seeds."""
    done = [curve for curve in curves if curve is not None]
    firsts = [(curve, t) for curve in done if (t := curve.first(goal)) is not None]
    row: dict[str, Any] = {
        "method": name,
        "step, schedule": f"{chosen[0]:g}, {chosen[1]}",
        "arrived": f"{len(firsts)} of {len(curves)}",
    }
    if firsts:
        moved = [curve.rounds[t - 1][2] for curve, t in firsts]
        rounds = [float(t) for _, t in firsts]
        row["rounds"] = Spread(tuple(rounds), "")
        row["gradients of a client"] = Spread(tuple(5.0 * t for t in rounds), "")
        row["kB of a client"] = Spread(tuple(b / 1e3 / NODES for b in moved), "")
    if firsts:
        up = [t * curve.bytes_up / 1e3 for curve, t in firsts]
        row["kB up"] = Spread(tuple(up), "")
    if done:
        row["kB up a round"] = f"{median(curve.bytes_up for curve in done) / 1e3:.1f}"
    last = [curve.rounds[-1] for curve in done if not curve.ended]
    if last:
        row["last accuracy %"] = f"{100 * median(r[0] for r in last):.1f}"
        if not math.isnan(last[0][1]):
            row["last loss"] = f"{median(r[1] for r in last):.3f}"
    return row


def _row(name: str, size: Size) -> dict[str, Any]:
    contender = CONTENDERS[name]

    def once(step: float, schedule: str, seed: int, part: float) -> Curve | None:
        own = contender.config(step, schedule, size.rounds, BATCH)
        more = {"seed": seed, "classification.validation-fraction": part}
        return run({**DIGITS, **own, **more})

    chosen = tuned(contender, size, GOAL, lambda a, b, _: once(a, b, 0, 0.2))
    curves = [once(*chosen, seed, 0.0) for seed in range(1, size.seeds + 1)]
    return row_of(name, chosen, curves, GOAL)


def compare(size: Size) -> Iterable[Comparison]:
    """Tune and run all contenders on digits."""
    rows = [_row(name, size) for name in size.contenders]
    yield Comparison(
        "networks",
        f"Digits, a perceptron of 64-100-100-10: until {GOAL:.0%} of the tests "
        "are right",
        f"{NODES} clients of two classes each, 5 local steps on a fifth of their "
        f"examples, float32, at most {size.rounds} rounds; median and extremes of "
        f"{size.seeds} seeds that arrived. Tuned on one more seed and held-out training"
        " examples: 5 step sizes and 2 schedules each, more where the best was at an "
        "end. "
        "Bytes are both ways. Accuracy and loss: medians after the last round.",
        rows,
        [],
    )
