"""Methods for networks on clients that differ: rounds and bytes to an accuracy.

Every method has the same budget: each step size of a grid, once, on one seed, with a
fifth of the training examples held out to choose by; the grid goes on where the best is
at its edge. What was chosen then runs with other seeds, and is measured on the test
examples. ``python -m benchmarks --only networks`` is for digits, ``python -m
benchmarks.networks`` for images by a small CNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from ..report import Comparison
from .problems import CONTENDERS, NODES, PROBLEMS, Problem
from .runs import Runs

__all__ = ["FULL", "QUICK", "compare"]

Case = tuple[Problem, tuple[str, ...]]
FULL: Case = PROBLEMS["digits"], tuple(CONTENDERS)
QUICK: Case = (
    replace(PROBLEMS["digits"], rounds=5, seeds=1, sizes=2),
    ("FedAvg", "fedlmo, corrected"),
)


def compare(case: Case) -> Iterator[Comparison]:
    """Tune and run contenders on digits."""
    problem, names = case
    runs = Runs("digits", problem, inf)
    yield Comparison(
        "networks",
        f"Digits, a perceptron of 64-100-100-10: until {problem.goal:.0%} of the tests "
        "are right",
        f"{NODES} clients of two classes each, 5 local steps on a fifth of their "
        f"examples, float32, at most {problem.rounds} rounds; median and extremes of "
        f"{problem.seeds} seeds that arrived. Tuned on one more seed and held-out "
        "training examples: 5 step sizes and 2 schedules each, more where the best was "
        "at an end. Bytes are both ways. Accuracy: median after the last round.",
        [runs.row(name) for name in names],
    )
