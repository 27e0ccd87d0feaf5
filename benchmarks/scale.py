"""What a round costs as nodes and parameters grow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import Objective
from fedtrellis.server.callbacks import Call
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedFW

from .report import Comparison, Row, Spread, in_turns, ratios
from .traffic import app_of

__all__ = ["FULL", "QUICK", "Case", "compare"]


@dataclass(frozen=True)
class Case:
    """A simulation on ``LocalGrid``: n nodes, p parameters, and how many rounds."""

    nodes: int
    parameters: int
    rounds: int = 3


QUICK = (Case(10, 1_000), Case(100, 1_000), Case(10, 100_000))
# a node's state is 24 bytes a parameter: n · p is what memory allows
_MOST_NODES = {10**3: 10_000, 10**4: 1_000, 10**5: 100, 10**6: 10, 10**7: 10}
FULL = tuple(
    Case(n, p)
    for p, most in _MOST_NODES.items()
    for n in (10, 100, 1_000, 10_000)
    if n <= most
)


class Favourite(Objective):
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


def _fastest_round(case: Case, row: Row, batched: bool) -> float:
    """The fastest round's CPU seconds; its bytes and states go into a row."""
    p, domain = case.parameters, L1Ball(1.0)
    centre = np.random.default_rng(0).standard_normal(p)
    losses = [Favourite(centre, i % p) for i in range(case.nodes)]

    app = app_of(FedFWClient, losses, domain)
    grid = LocalGrid(app, case.nodes, batched=batched)
    times: list[float] = []
    note = Call(lambda record: times.append(time.process_time()))
    strategy = FedFW(domain, penalty=1e-3, callbacks=[note], variant="plain")
    # the first round has the introductions, the initial model and its states
    start = ArrayRecord([np.zeros(p)])
    strategy.start(grid, start, num_rounds=case.rounds + 1)
    last = strategy.history[-1]
    row["bytes down, a node"] = f"{last.bytes_down / case.nodes:,.0f}"
    row["bytes up, a node"] = f"{last.bytes_up / case.nodes:,.0f}"
    if case.nodes <= 10:
        states = sum(map(len, grid.client_states().values()))
        row["state of a node, bytes"] = f"{states / case.nodes:,.0f}"
    return min(after - before for before, after in pairwise(times))


def _row(case: Case) -> Row:
    more: Row = {}
    sides = {
        name: partial(_fastest_round, case, more, batched)
        for name, batched in (("one by one", False), ("together", True))
    }
    found = in_turns(sides, 1)
    each = tuple(seconds / case.nodes for seconds in found["one by one"].values)
    row: Row = {"nodes": case.nodes, "p": f"{case.parameters:,}", **found}
    row["one by one / together"] = ratios(*found.values())
    return {**row, "a node, one by one": Spread(each, "ms"), **more}


def compare(cases: Sequence[Case]) -> Iterator[Comparison]:
    """CPU seconds a round, a row a case."""
    yield Comparison(
        "one-process",
        "What a round of FedFW costs as nodes and parameters grow",
        "l1 ball, everybody in every round, the cheapest of losses, each node with an "
        "atom of its own: what is measured is client, server and grid, clients one by "
        "one and together. CPU seconds of the process, which has one thread; the "
        "fastest of a run's rounds, the first left out.",
        [_row(case) for case in cases],
    )
