"""What a round costs as nodes and parameters grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedtrellis.domains import L1Ball
from fedtrellis.objectives import Objective
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedFW

from .report import Comparison, Row, Spread
from .runs import Problem, fedfw_app

__all__ = ["FULL", "QUICK", "Case", "compare", "local_round"]


@dataclass(frozen=True)
class Case:
    """A simulation on ``LocalGrid``: n nodes, p parameters, and how many rounds."""

    nodes: int
    parameters: int
    rounds: int = 3


QUICK = (Case(10, 1_000), Case(100, 1_000), Case(10, 100_000))
# a node's state is 24 bytes a parameter: n · p is what memory allows
FULL = (
    *(Case(n, 1_000) for n in (10, 100, 1_000, 10_000)),
    *(Case(n, 10_000) for n in (10, 100, 1_000, 10_000)),
    *(Case(n, 100_000) for n in (10, 100, 1_000)),
    *(Case(n, 1_000_000) for n in (10, 100)),
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


def compare(cases: Sequence[Case]) -> Comparison:
    """CPU seconds a round, a row a case."""
    return Comparison(
        "scale",
        "What a round of FedFW costs as nodes and parameters grow",
        "l1 ball, everybody in every round, the cheapest of losses, each node with an "
        "atom of its own: what is measured is client, server and grid. CPU seconds of "
        "the process, which has one thread. The fastest round, the first left out.",
        [_local(case) for case in cases],
    )
