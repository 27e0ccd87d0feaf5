"""What a round costs as nodes and parameters grow: LocalGrid, and Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedtrellis.domains import L1Ball
from fedtrellis.objectives import Objective
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedFW

from .ray import run_on_ray
from .report import Comparison, Row, Spread
from .runs import Problem, fedfw_app

__all__ = ["FULL", "QUICK", "Case", "Cases", "RayCase", "compare", "local_round"]


@dataclass(frozen=True)
class Case:
    """A simulation on ``LocalGrid``: n nodes, p parameters, and how many rounds."""

    nodes: int
    parameters: int
    rounds: int = 3


@dataclass(frozen=True)
class RayCase:
    """A simulation on Ray of so many nodes and rounds."""

    nodes: int
    rounds: int


@dataclass(frozen=True)
class Cases:
    """What is measured on either grid."""

    local: tuple[Case, ...]
    ray: tuple[RayCase, ...]


QUICK = Cases((Case(10, 1_000), Case(100, 1_000), Case(10, 100_000)), ())
# a node's state is 24 bytes a parameter: n · p is what memory allows
FULL = Cases(
    (
        *(Case(n, 1_000) for n in (10, 100, 1_000, 10_000)),
        *(Case(n, 10_000) for n in (10, 100, 1_000, 10_000)),
        *(Case(n, 100_000) for n in (10, 100, 1_000)),
        *(Case(n, 1_000_000) for n in (10, 100)),
    ),
    (RayCase(10, 20), RayCase(100, 10), RayCase(1_000, 4)),
)


class Distance(Objective):
    """f(x) = ½‖x − c‖² − 10 x_j, as cheap as a gradient can be.

    All nodes share c, but not j, which is where a node's atoms are: no two are alike.
    """

    num_examples = 1

    def __init__(self, centre: Any, favourite: int) -> None:
        self._centre = centre
        self._favourite = favourite
        self.shape = centre.shape

    def value(self, x: Any) -> float:
        """Return f(x)."""
        distance = 0.5 * float(np.square(x - self._centre).sum())
        return distance - 10.0 * float(x[self._favourite])

    def gradient(self, x: Any) -> Any:
        """Return x − c − 10 e_j."""
        result = x - self._centre
        result[self._favourite] -= 10.0
        return result


def _timed(case: Case, **options: Any) -> tuple[float, FedFW, LocalGrid]:
    """The fastest round's CPU seconds, on a grid with such options."""
    centre = np.random.default_rng(0).standard_normal(case.parameters)
    p = case.parameters
    objectives: list[Objective] = [Distance(centre, i % p) for i in range(case.nodes)]
    problem = Problem(objectives, L1Ball(1.0))
    grid = LocalGrid(fedfw_app(problem), case.nodes, **options)
    times: list[float] = []

    def note(record: RoundRecord) -> None:
        times.append(time.process_time())

    strategy = FedFW(
        problem.domain, penalty=1e-3, callbacks=[Call(note)], variant="plain"
    )
    # the first round has the introductions, the initial model and its states
    strategy.start(grid, problem.initial_arrays(), num_rounds=case.rounds + 1)
    seconds = [after - before for before, after in pairwise(times)]
    return min(seconds), strategy, grid


def local_round(case: Case, **options: Any) -> float:
    """CPU seconds of the fastest round of a case, on a grid with such options."""
    return _timed(case, **options)[0]


def _local(case: Case) -> Row:
    seconds, strategy, grid = _timed(case)
    last = strategy.history[-1]
    row: Row = {
        "grid": "LocalGrid",
        "nodes": case.nodes,
        "p": f"{case.parameters:,}",
        "rounds": case.rounds,
        "a round": Spread((seconds,), "ms"),
        "a node": Spread((seconds / case.nodes,), "ms"),
        "bytes down, a node": f"{last.bytes_down / case.nodes:,.0f}",
        "bytes up, a node": f"{last.bytes_up / case.nodes:,.0f}",
    }
    if case.nodes <= 10:
        states = grid.client_states()
        size = sum(len(state) for state in states.values()) / case.nodes
        row["state of a node, bytes"] = f"{size:,.0f}"
    return row


def _ray(case: RayCase) -> Row:
    config = {
        "task": "lasso",
        "fedfw.variant": "plain",
        "rounds": case.rounds,
        "lasso.rows": max(200, case.nodes),
        "evaluate-every": 10**6,
        "checkpoint-every": 10**6,
    }
    run = run_on_ray(case.nodes, config, timeout=1800)
    lines = [line for line in run.history if line["round"] > 1]
    if any(line["used"] != case.nodes for line in lines):
        raise RuntimeError("answers were lost; the seconds would mean nothing")
    fastest = min(line["seconds"] for line in lines)
    return {
        "grid": "Ray",
        "nodes": case.nodes,
        "p": "400",
        "rounds": len(lines),
        "a round": Spread((fastest,), "ms"),
        "a node": Spread((fastest / case.nodes,), "ms"),
        "bytes down, a node": f"{lines[-1]['bytes_down'] / case.nodes:,.0f}",
        "bytes up, a node": f"{lines[-1]['bytes_up'] / case.nodes:,.0f}",
    }


def _rows(cases: Cases) -> Iterator[Row]:
    for case in cases.local:
        yield _local(case)
    for ray in cases.ray:
        yield _ray(ray)


def compare(cases: Cases) -> Comparison:
    """Seconds a round, a row a case."""
    return Comparison(
        "scale",
        "What a round of FedFW costs as nodes and parameters grow",
        "l1 ball, everybody in every round, the cheapest of losses, each node with an "
        "atom of its own: what is measured is client, server and grid. LocalGrid: CPU "
        "seconds of the process, which has one thread; Ray: wall seconds of `flwr run` "
        "with one client process a core, LASSO. The fastest round, the first left out.",
        list(_rows(cases)),
    )
