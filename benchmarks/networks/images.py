"""MNIST and CIFAR-10 by a small CNN, in a capped time that may be spent in pieces.

    FEDTRELLIS_DATA=/data python -m benchmarks.networks.images mnist-labels --hours 1

runs what is missing in ``runs/mnist-labels.jsonl``, a line a run, and prints the table
of what is there; ``--hours 0`` prints it alone. FEDTRELLIS_DATA has folders ``mnist``
and ``cifar10``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..report import Comparison
from .comparison import CONTENDERS, Contender, Curve, Size, row_of, run, tuned

__all__ = ["PROBLEMS", "Problem", "Runs"]

_FOLDER = Path(__file__).parent / "runs"
# where a grid begins with images, if elsewhere: all of the digits' steps are too long
_FIRST = {"SCAFFOLD": 0.02}
_FIRST_OF_COLOURS = {
    "FedAvg": 0.05,
    "FedAvg, server momentum 0.9": 0.01,
    "FedAdam, server step 0.03": 0.025,
    "fedlmo, corrected": 0.005,
    "fedlmo, averaged": 0.005,
}


@dataclass(frozen=True)
class Problem:
    """Images of 10 clients, of which few are tuned on and more measured with.

    Parameters
    ----------
    dataset : str
    classes : int
        That a client has; 0: examples are dealt IID.
    goal : float
        The accuracy that is to be reached.
    images : int
        For training, where methods are measured; 5 000 where they are tuned.
    rounds : int
        At most, of a run.
    sizes : int
        Step sizes of every contender's grid, with its first schedule; more where the
        best is at an end.
    seeds : int
        Of the runs that are measured, from 1.
    first : mapping
        Where the grid of a contender begins, if elsewhere.
    more : mapping
        Of the run config.
    """

    dataset: str
    classes: int
    goal: float
    images: int
    rounds: int = 60
    sizes: int = 4
    seeds: int = 3
    first: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def config(self, tuning: bool, seed: int) -> dict[str, Any]:
        """The run config but for the method and the data's folder."""
        dealt: dict[str, Any] = {"classification.partition": "iid"}
        if self.classes:
            dealt = {
                "classification.partition": "labels",
                "classification.labels-per-client": self.classes,
            }
        return {
            "task": "classification",
            "classification.dataset": self.dataset,
            "classification.model": "small-cnn",
            "classification.train-limit": 5000 if tuning else self.images,
            "classification.test-limit": 2000,
            "classification.validation-fraction": 0.2 if tuning else 0.0,
            "dtype": "float32",
            "evaluate-gap": False,
            "seed": seed,
            **dealt,
            **self.more,
        }

    def batch(self, tuning: bool) -> dict[str, Any]:
        """Mini-batches of 32 examples, as a number and as a part of a client's own."""
        own = (4000 if tuning else self.images) / 10
        return {"batch-size": 32, "batch-fraction": 32 / own}


_CIFAR: dict[str, Any] = {
    "rounds": 40,
    "sizes": 3,
    "first": _FIRST_OF_COLOURS,
    "more": {"classification.partial": True},
}
PROBLEMS = {
    "mnist-labels": Problem("mnist", 2, 0.9, 10_000, first=_FIRST),
    "mnist-iid": Problem("mnist", 0, 0.95, 10_000, sizes=3, first=_FIRST),
    "cifar10-labels": Problem("cifar10", 2, 0.25, 20_000, **_CIFAR),
    "cifar10-iid": Problem("cifar10", 0, 0.35, 20_000, **_CIFAR),
}


class TimeUpError(Exception):
    """The hours are spent."""


class Runs:
    """The runs of a problem, in a file: what is there is not run again.

    Parameters
    ----------
    name : str
        One of :data:`PROBLEMS`.
    hours : float
        After so many no run begins.
    """

    def __init__(self, name: str, hours: float) -> None:
        self._problem = PROBLEMS[name]
        self._file = _FOLDER / f"{name}.jsonl"
        self._end = time.monotonic() + 3600.0 * hours
        self._known: dict[str, Curve | None] = {}
        self.seconds = 0.0
        if self._file.exists():
            for line in self._file.read_text("utf-8").splitlines():
                entry = json.loads(line)
                self._known[_key(entry["config"])] = self._curve(entry)
                self.seconds += entry["cpu-seconds"]

    def once(
        self,
        contender: Contender,
        step: float,
        schedule: str,
        seed: int = 0,
        limit: int = 0,
    ) -> Curve | None:
        """One run, from the file or anew; seed 0 is what is tuned on.

        It ends at the goal, or after ``limit`` rounds.
        """
        problem, tuning = self._problem, seed == 0
        batch = problem.batch(tuning)
        own = contender.config(step, schedule, problem.rounds, batch)
        if contender.method == "fedlmo":
            # Scion's scale divides a kernel's step by its 25 pixels, and no bias's
            own["fedlmo.scaling"] = "muon"
        config = {**problem.config(tuning, seed), **own}
        key = _key(config)
        if key not in self._known:
            if time.monotonic() > self._end:
                raise TimeUpError
            begun = time.process_time()
            folder = Path(os.environ["FEDTRELLIS_DATA"]) / problem.dataset
            whole = {**config, "classification.path": str(folder)}
            curve = run(whole, problem.goal, limit, loss=False)
            seconds = time.process_time() - begun
            entry: dict[str, Any] = {
                "config": config,
                "cpu-seconds": round(seconds, 1),
                "rounds": None,
            }
            if curve is not None:
                entry["bytes-up"] = curve.bytes_up
                entry["rounds"] = [(round(a, 4), b) for a, _, b in curve.rounds]
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
            self._known[key] = self._curve(entry)
            self.seconds += seconds
        return self._known[key]

    def _curve(self, entry: Mapping[str, Any]) -> Curve | None:
        if entry["rounds"] is None:
            return None
        rounds = [(a, math.nan, b) for a, b in entry["rounds"]]
        return Curve(rounds, self._problem.goal, bytes_up=entry["bytes-up"])

    def tune(self, name: str) -> tuple[float, str]:
        """The step size and schedule of a contender, from the runs with seed 0."""
        problem, contender = self._problem, CONTENDERS[name]
        if name in problem.first:
            contender = replace(contender, first=problem.first[name])
        size = Size(problem.rounds, problem.seeds, problem.sizes, 1, (name,))

        def once(step: float, schedule: str, limit: int) -> Curve | None:
            return self.once(contender, step, schedule, 0, limit)

        return tuned(contender, size, problem.goal, once)

    def measured(self, name: str) -> list[Curve | None]:
        """Tune a contender; its runs with the other seeds, None where one diverged."""
        chosen = self.tune(name)
        seeds = range(1, self._problem.seeds + 1)
        return [self.once(CONTENDERS[name], *chosen, seed) for seed in seeds]

    def row(self, name: str, goal: float | None = None) -> dict[str, Any]:
        """A contender's row of the table; ``goal`` is another one than tuned for."""
        goal = self._problem.goal if goal is None else goal
        return row_of(name, self.tune(name), self.measured(name), goal)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def main() -> None:
    """Run what the arguments ask for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    words = "an accuracy below the problem's, which all is tuned for"
    parser.add_argument("--goal", type=float, help=words)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs, names = Runs(arguments.problem, arguments.hours), arguments.only
    try:
        # seed by seed, as reading the data of one takes as long as a run
        for name in names:
            runs.tune(name)
        for seed in range(1, PROBLEMS[arguments.problem].seeds + 1):
            for name in names:
                runs.once(CONTENDERS[name], *runs.tune(name), seed)
    except TimeUpError:
        pass
    rows, missing = [], []
    for name in names:
        try:
            rows.append(runs.row(name, arguments.goal))
        except TimeUpError:
            missing.append(name)
    print(Comparison("", "", "", rows).csv())
    print(f"{runs.seconds / 3600.0:.2f} hours of processor time")
    if missing:
        print("not measured: " + "; ".join(missing))


if __name__ == "__main__":
    main()
