"""Seconds a round under ``flwr run`` on Ray, beside Flower's own FedAvg."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import sim
from fedtrellis.objectives import LeastSquares

from .deployed import write_fedavg
from .ray import ROOT, RayRun, run_on_ray
from .report import Aim, Comparison, Row, Spread, ratios

__all__ = ["FULL", "QUICK", "Case", "compare", "every", "measure"]

_AIM = 1.3
#: Rows a client, and p: the gradient is cheap, what is measured is everything else.
_ROWS, _FEATURES = 5, 400
_TASK: dict[str, Any] = {
    "task": "linear-regression",
    "linear-regression.features": _FEATURES,
    "linear-regression.rows-min": _ROWS,
    "linear-regression.rows-max": _ROWS,
    "evaluate-every": 10**6,
    "checkpoint-every": 10**6,
    "picture": False,
}
# One gradient a client and round, as FedAvg has it. No client's step is longer than
# 1/r_i, so that no run diverges.
_METHODS: dict[str, dict[str, Any]] = {
    "FedAvgGD": {
        "method": "fedavg-gd",
        "fedavg-gd.local-steps": 1,
        "fedavg-gd.step-size": 1e-4,
        "fedavg-gd.step-schedule": "constant",
    },
    "FedFW": {"method": "fedfw", "fedfw.variant": "plain"},
    "FedGiA": {"method": "fedgia", "fedgia.tolerance": 0.0},
}


# Every method once, on a task that fits it, with steps that are short enough there.
_SPACES: dict[str, dict[str, Any]] = {
    "whole": _TASK,
    "domain": _TASK,
    "manifold": {"task": "kernel-pca"},
    "split": {
        "task": "hybrid-svm",
        "hybrid-svm.dataset": "breast-cancer",
        "hybrid-svm.partition": "horizontal",
    },
}
_STEPS: dict[str, dict[str, Any]] = {
    "compressed-sgd": {"compressed-sgd.step-size": 1e-5},
    "fedopt": {"fedopt.step-size": 1e-5},
    "scaffold": {"scaffold.step-size": 1e-4},
    "feddr": {"feddr.local-step-size": 1e-4},
    "projected-fedavg": {"projected-fedavg.local-step-size": 1e-4},
}


@dataclass(frozen=True)
class Case:
    """So many clients, all in every round; runs of so many rounds, in turns."""

    clients: int
    rounds: int
    runs: int


QUICK = (Case(10, 4, 1),)
FULL = (Case(100, 25, 3), Case(600, 4, 2), Case(1_000, 3, 2))


def _rows(clients: int) -> list[LeastSquares]:
    config = sim.app.default_config() | _TASK
    task = sim.app.experiment(config, clients).task
    found = [task.client_objective(index) for index in range(clients)]
    rows = [objective for objective in found if isinstance(objective, LeastSquares)]
    assert len(rows) == clients
    return rows


def _measure(case: Case, result: Comparison) -> None:
    runs: dict[str, list[RayRun]] = {"Flower's FedAvg": [], **{m: [] for m in _METHODS}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "fedavg"
        data = write_fedavg(folder, _rows(case.clients))
        flower = {"nodes": case.clients, "data": str(data), "step": 1e-9}
        for turn in range(case.runs):
            for side in list(runs)[:: -1 if turn % 2 else 1]:
                config: dict[str, Any] = {"rounds": case.rounds + 1}
                config |= {**_TASK, **_METHODS[side]} if side in _METHODS else flower
                app = ROOT if side in _METHODS else folder
                run = run_on_ray(
                    case.clients, config, timeout=1800, app=app, one_thread=False
                )
                runs[side].append(run)
    seconds = {
        side: Spread(tuple(median(run.round_seconds()) for run in there), "ms")
        for side, there in runs.items()
    }
    flower_seconds = seconds["Flower's FedAvg"]
    for side, there in runs.items():
        row: Row = {
            "clients": case.clients,
            "method": side,
            "a round": seconds[side],
            "CPU a round": Spread(tuple(run.cpu_seconds for run in there), "ms"),
            "the whole command": Spread(tuple(run.wall_seconds for run in there), "s"),
        }
        result.rows.append(row)
        if side not in _METHODS:
            continue
        row["times FedAvg"] = times = ratios(seconds[side], flower_seconds)
        result.aims.append(
            Aim(
                f"{side}, {case.clients} clients: at most {_AIM} times FedAvg's round",
                f"{times.median:.2f}",
                times.median <= _AIM,
            )
        )


def every(clients: int, rounds: int) -> Comparison:
    """A row a method."""
    result = Comparison(
        "ray, every method",
        f"`flwr run` on Ray: every method with {clients} clients, once",
        "A task that fits the method, all clients in every round, which methods use as "
        "they do by default; median seconds of the rounds after the first.",
    )
    for name, method in sim.app.registry.methods.items():
        task = _SPACES[method.strategy.space]
        config = {
            **task,
            **_STEPS.get(name, {}),
            "method": name,
            "rounds": rounds + 1,
            "evaluate-every": 10**6,
            "picture": False,
        }
        run = run_on_ray(clients, config, timeout=1800, one_thread=False)
        waves = max(line["round_trips"] for line in run.history[2:])
        result.rows.append(
            {
                "method": name,
                "task": task["task"],
                "a round": Spread((median(run.round_seconds()),), "ms"),
                "waves": waves,
                "CPU a round": Spread((run.cpu_seconds,), "ms"),
            }
        )
    return result


def compare(cases: Sequence[Case]) -> Comparison:
    """A row a method and number of clients."""
    result = Comparison(
        "ray",
        "`flwr run` on Ray against Flower's FedAvg: seconds a round",
        f"Least squares, {_ROWS} rows a client, p = {_FEATURES}, all clients in every "
        "round, one gradient each; no evaluation in between. A Ray of its own for each "
        "run, an actor a core, BLAS threads as a user has them. From one round's end "
        "to the next one's, round 1 left out: the median of a run's rounds, the median "
        "of runs in turns (min – max). CPU time is that of all processes.",
    )
    for case in cases:
        _measure(case, result)
    return result


def measure(cases: Sequence[Case], methods: bool) -> Iterator[Comparison]:
    """Rounds beside FedAvg's, and if asked every method with 100 clients."""
    yield compare(cases)
    if methods:
        yield every(100, 3)
