"""FedFW on a CNN beside projected FedAvg and FedDR, every layer in an ℓ2 ball of 5.

MNIST by the small CNN, 10 clients of IID shares of 5 000 images, 5 local steps of 32
examples. Every method has twelve settings, of which one is chosen by a fifth of the
training examples, held out, as a mean of three seeds. It then runs with three others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median
from typing import Any

from ..report import Comparison, Row
from .problems import NODES, PROBLEMS, Problem
from .runs import Curve, run

__all__ = ["FULL", "QUICK", "Case", "compare"]


@dataclass(frozen=True)
class Case:
    """A problem, rounds of a run, seeds to choose by and others to measure with."""

    problem: Problem
    rounds: int
    tuning: tuple[int, ...]
    seeds: tuple[int, ...]


FULL = Case(replace(PROBLEMS["mnist-iid"], images=5000), 30, (0, 100, 101), (1, 2, 3))
QUICK = Case(PROBLEMS["digits"], 2, (0,), (1,))
_Grid = Mapping[str, tuple[float, ...]]
#: Method, the grid that is tuned over, and the rest of the settings.
_WAYS: tuple[tuple[str, _Grid, dict[str, Any]], ...] = (
    (
        "projected-fedavg",
        {"local-step-size": tuple(round(0.025 * 2 ** (k / 2), 3) for k in range(12))},
        {},
    ),
    (
        "feddr",
        {
            "local-step-size": (0.1, 0.2, 0.4, 0.8),
            "proximal-step": (10.0, 100.0, 1000.0),
        },
        {},
    ),
    (
        "fedfw",
        {"step-size": (0.01, 0.03, 0.06, 0.12), "averaging": (0.01, 0.03, 0.1)},
        {"variant": "stochastic", "schedule": "constant"},
    ),
)


def _run(case: Case, method: str, own: Mapping[str, Any], seed: int) -> Curve | None:
    own = {"local-steps": 5, "batch-size": 32, **own}
    return run(
        {
            **case.problem.config(seed, tuning=seed in case.tuning),
            "domain": "l2-ball",
            "radius": 5.0,
            "layers": "product",
            "rounds": case.rounds,
            "method": method,
            **{f"{method}.{key}": value for key, value in own.items()},
        }
    )


def _best(curve: Curve | None) -> float:
    return 0.0 if curve is None else 100 * max(a for a, _ in curve.rounds)


def _row(case: Case, method: str, grid: _Grid, more: dict[str, Any]) -> Row:
    tried = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    chosen = max(
        tried,
        key=lambda own: mean(
            _best(_run(case, method, more | own, seed)) for seed in case.tuning
        ),
    )
    found = [_run(case, method, more | chosen, seed) for seed in case.seeds]
    done = [curve for curve in found if curve is not None]
    last = [100 * curve.rounds[-1][0] for curve in done]
    moved = median(curve.rounds[-1][1] for curve in done)
    ends = [k for k, value in chosen.items() if value in (grid[k][0], grid[k][-1])]
    return {
        "method": method,
        "chosen of twelve": ", ".join(f"{k} {value:g}" for k, value in chosen.items()),
        "at an end": ", ".join(ends),
        f"accuracy % after {case.rounds} rounds": f"{median(last):.1f} "
        f"({min(last):.1f} – {max(last):.1f})",
        "MB both ways, one client": f"{moved / 1e6 / NODES:.1f}",
    }


def compare(case: Case) -> Iterator[Comparison]:
    """A row a method."""
    rows = [_row(case, *way) for way in _WAYS]
    title, _, about = (__doc__ or "").partition("\n\n")
    yield Comparison("constrained-cnn", title, about, rows)
