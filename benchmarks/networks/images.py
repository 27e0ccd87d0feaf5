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
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .comparison import CONTENDERS, Contender, Curve, Size, row_of, run, tuned

__all__ = ["PROBLEMS", "Problem", "Runs"]

_FOLDER = Path(__file__).parent / "runs"
# where a grid begins with images, if elsewhere: all of the digits' steps are too long
_FIRST = {"SCAFFOLD": 0.02}
# every contender: 4 step sizes of its first schedule, more where the best is at an end
_SIZE = Size(60, 3, 4, 1, tuple(CONTENDERS))


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
    more : mapping
        Of the run config.
    """

    dataset: str
    classes: int
    goal: float
    images: int
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


_CIFAR = {"classification.partial": True}
PROBLEMS = {
    "mnist-labels": Problem("mnist", 2, 0.9, 10_000),
    "mnist-iid": Problem("mnist", 0, 0.95, 10_000),
    "cifar10-labels": Problem("cifar10", 2, 0.35, 20_000, _CIFAR),
    "cifar10-iid": Problem("cifar10", 0, 0.45, 20_000, _CIFAR),
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
        self._known: dict[str, list[tuple[float, float, int]] | None] = {}
        self.seconds = 0.0
        if self._file.exists():
            for line in self._file.read_text("utf-8").splitlines():
                entry = json.loads(line)
                self._known[_key(entry["config"])] = entry["rounds"]
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
        own = contender.config(step, schedule, _SIZE.rounds, batch)
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
            curve = run(whole, problem.goal, limit)
            seconds = time.process_time() - begun
            rounds = None
            if curve is not None:
                rounds = [
                    (round(a, 4), float(f"{f:.4g}"), b) for a, f, b in curve.rounds
                ]
            entry = {"config": config, "cpu-seconds": round(seconds, 1)}
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry | {"rounds": rounds}) + "\n")
            self._known[key] = rounds
            self.seconds += seconds
        rounds = self._known[key]
        return (
            None
            if rounds is None
            else Curve([(a, f, b) for a, f, b in rounds], ended=True)
        )

    def row(self, name: str) -> dict[str, Any]:
        """Tune a contender and measure it; its row of the table."""
        contender, goal = CONTENDERS[name], self._problem.goal
        if name in _FIRST:
            contender = replace(contender, first=_FIRST[name])
        chosen = tuned(
            contender, _SIZE, goal, lambda a, b, c: self.once(contender, a, b, 0, c)
        )
        seeds = range(1, _SIZE.seeds + 1)
        curves = [self.once(contender, *chosen, seed) for seed in seeds]
        return row_of(name, chosen, curves, goal)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def main() -> None:
    """Run what the arguments ask for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(arguments.problem, arguments.hours)
    missing = []
    for name in arguments.only:
        try:
            row = runs.row(name)
        except TimeUpError:
            missing.append(name)
            continue
        print("| " + " | ".join(str(cell) for cell in row.values()) + " |", flush=True)
    print(f"{runs.seconds / 3600.0:.2f} hours of processor time")
    if missing:
        print("not measured: " + "; ".join(missing))


if __name__ == "__main__":
    main()
