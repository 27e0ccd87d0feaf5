"""Runs on networks: each step size of a grid once, then other seeds; kept in files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.arrays import record_arrays
from reproduce.provenance import origin

from ..report import Row, Spread
from .problems import CONTENDERS, NODES, Problem

__all__ = ["Curve", "Runs", "TimeUpError", "best_of", "run"]

_FOLDER = Path(__file__).parent / "runs"


def best_of(
    steps: Sequence[float], score: Callable[[float], Any], *, goes_on: bool = True
) -> float:
    """The step of a grid by factors of 2 with the least score.

    It goes on where the best is at an end. The first tried is in the middle, where a
    goal is reached soon, which may shorten the others.
    """
    own = list(steps)
    for step in sorted(own, key=lambda step: abs(step - own[len(own) // 2])):
        score(step)
    while True:
        best = min(own, key=score)
        if not goes_on or best not in (own[0], own[-1]):
            return best
        own = [own[0] / 2.0, *own] if best == own[0] else [*own, 2.0 * own[-1]]


@dataclass
class Curve(Callback):
    """Accuracy and the bytes so far, after every round.

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

    rounds: list[tuple[float, int]] = field(default_factory=list)
    goal: float = 2.0
    limit: int = 0
    bytes_up: int = 0
    _bytes: int = 0

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Note down a round."""
        self._bytes += record.bytes_up + record.bytes_down
        # a round whose answers were all dropped, for steps that diverged, has none
        if record.round and "accuracy" in record.metrics:
            self.rounds.append((record.metrics["accuracy"], self._bytes))
            self.bytes_up = round(record.bytes_up / NODES)
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether the goal or the limit has been met."""
        at_goal = bool(self.rounds) and self.rounds[-1][0] >= self.goal
        return at_goal or 0 < self.limit == len(self.rounds)

    @property
    def first(self) -> int | None:
        """The first round at the goal, from 1."""
        reached = (t for t, row in enumerate(self.rounds, 1) if row[0] >= self.goal)
        return next(reached, None)


def run(config: Mapping[str, Any], goal: float = 2.0, limit: int = 0) -> Curve | None:
    """One run, ended by a goal or a limit of :class:`Curve`; None where it diverged.

    Only the test examples are looked at. Images lie in the folder FEDTRELLIS_DATA.
    """
    config, dataset = dict(config), config["classification.dataset"]
    if dataset != "digits":
        folder = Path(os.environ["FEDTRELLIS_DATA"]) / dataset
        config["classification.path"] = str(folder)
    experiment = sim.app.experiment(config, NODES)
    curve = Curve([], goal, limit)

    def tested(_: int, arrays: ArrayRecord) -> MetricRecord:
        x = experiment.layout.point(record_arrays(arrays))
        return MetricRecord({**experiment.task.metrics(x)})

    try:
        experiment.start(experiment.strategy(callbacks=[curve]), evaluate_fn=tested)
    except (FloatingPointError, RuntimeError):
        return None
    whole = curve.ended or len(curve.rounds) == config["rounds"]
    return curve if whole else None


class TimeUpError(Exception):
    """The hours are spent."""


class Runs:
    """The runs of a problem; those of images in a file: what is there is not run again.

    Parameters
    ----------
    name : str
        Of the file.
    problem : Problem
    hours : float
        After so many no run begins.
    """

    def __init__(self, name: str, problem: Problem, hours: float) -> None:
        self.problem = problem
        # digits take seconds, and are not kept
        self._file = _FOLDER / f"{name}.jsonl" if problem.images else Path(os.devnull)
        self._end = time.monotonic() + 3600.0 * hours
        self._known: dict[str, Curve | None] = {}
        self.seconds = 0.0
        if self._file.exists():
            for line in self._file.read_text("utf-8").splitlines():
                self._add(json.loads(line))

    def _add(self, entry: Mapping[str, Any]) -> None:
        curve = None
        if entry["rounds"] is not None:
            rounds = [(accuracy, moved) for accuracy, moved in entry["rounds"]]
            curve = Curve(rounds, self.problem.goal, bytes_up=entry["bytes-up"])
        self._known[_key(entry["config"])] = curve
        self.seconds += entry["cpu-seconds"]

    def once(
        self, name: str, step: float, schedule: str, seed: int = 0, limit: int = 0
    ) -> Curve | None:
        """One run, from the file or anew; seed 0 is what is tuned on.

        It ends at the goal, or after ``limit`` rounds.
        """
        problem, tuning = self.problem, seed == 0
        own = problem.method(CONTENDERS[name], step, schedule, tuning=tuning)
        config = {**problem.config(seed, tuning=tuning), **own}
        if _key(config) not in self._known:
            if time.monotonic() > self._end:
                raise TimeUpError
            begun = time.process_time()
            curve = run(config, problem.goal, limit)
            seconds = round(time.process_time() - begun, 1)
            entry: dict[str, Any] = {"config": config, "cpu-seconds": seconds}
            entry |= {"rounds": None, **origin("python -m benchmarks.networks")}
            if curve is not None:
                entry["bytes-up"] = curve.bytes_up
                entry["rounds"] = [(round(a, 4), moved) for a, moved in curve.rounds]
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
            self._add(entry)
        return self._known[_key(config)]

    def tune(self, name: str) -> tuple[float, str]:
        """The step size and schedule that reach the goal first, or get nearest."""
        problem, contender = self.problem, CONTENDERS[name]
        first = problem.first.get(name, contender.first)
        fewest = problem.rounds

        @lru_cache(None)
        def score(step: float, schedule: str) -> tuple[float, float]:
            nonlocal fewest
            # after the rounds of the best so far it may end
            curve = self.once(name, step, schedule, limit=fewest)
            if curve is None:
                return float("inf"), float("inf")
            fewest = min(fewest, curve.first or problem.rounds)
            best = max(accuracy for accuracy, _ in curve.rounds[-5:])
            return curve.first or problem.rounds + 1.0, -best

        found = []
        steps = [first * 2.0**k for k in range(problem.sizes)]
        for schedule in contender.schedules[: problem.schedules]:
            by_step = _of(score, schedule)
            best = best_of(steps, by_step, goes_on=problem.sizes > 2)
            found.append((by_step(best), best, schedule))
        _, step, schedule = min(found)
        return step, schedule

    def measured(self, name: str) -> list[Curve | None]:
        """Tune a contender; its runs with the other seeds, None where one diverged."""
        chosen = self.tune(name)
        seeds = range(1, self.problem.seeds + 1)
        return [self.once(name, *chosen, seed) for seed in seeds]

    def row(self, name: str) -> Row:
        """A contender's row of the table."""
        step, schedule = self.tune(name)
        curves = self.measured(name)
        done = [curve for curve in curves if curve is not None]
        firsts = [(curve, t) for curve in done if (t := curve.first) is not None]
        row: Row = {"method": name, "step, schedule": f"{step:g}, {schedule}"}
        row["arrived"] = f"{len(firsts)} of {len(curves)}"
        if firsts:
            moved = [curve.rounds[t - 1][1] / 1e3 / NODES for curve, t in firsts]
            row["rounds"] = Spread(tuple(float(t) for _, t in firsts), "")
            row["kB of a client"] = Spread(tuple(moved), "")
        if done:
            up = median(curve.bytes_up for curve in done) / 1e3
            row["kB up a round"] = f"{up:.1f}"
        last = [curve.rounds[-1][0] for curve in done if not curve.ended]
        if last:
            row["last accuracy %"] = f"{100 * median(last):.1f}"
        return row


def _of(
    score: Callable[[float, str], Any], schedule: str
) -> Callable[[float], tuple[float, float]]:
    return lambda step: score(step, schedule)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
