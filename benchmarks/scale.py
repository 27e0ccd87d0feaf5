"""What a round costs as nodes and parameters grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context

from clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import Objective
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedFW

from .report import Comparison, Row, Spread

__all__ = ["FULL", "QUICK", "Case", "compare", "fastest_round"]


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


def fastest_round(case: Case, **options: Any) -> tuple[float, RoundRecord, LocalGrid]:
    """The fastest round's CPU seconds, on a grid with such options; the last round."""
    p, domain = case.parameters, L1Ball(1.0)
    centre = np.random.default_rng(0).standard_normal(p)
    losses = [Favourite(centre, i % p) for i in range(case.nodes)]

    def client_fn(context: Context) -> FedFWClient:
        index = int(context.node_config["partition-id"])
        return FedFWClient(context, losses[index], domain)

    grid = LocalGrid(client_app(client_fn), case.nodes, **options)
    times: list[float] = []
    note = Call(lambda record: times.append(time.process_time()))
    strategy = FedFW(domain, penalty=1e-3, callbacks=[note], variant="plain")
    # the first round has the introductions, the initial model and its states
    start = ArrayRecord([np.zeros(p)])
    strategy.start(grid, start, num_rounds=case.rounds + 1)
    seconds = min(after - before for before, after in pairwise(times))
    return seconds, strategy.history[-1], grid


def _row(case: Case) -> Row:
    seconds, last, grid = fastest_round(case)
    row: Row = {
        "nodes": case.nodes,
        "p": f"{case.parameters:,}",
        "a round": Spread((seconds,), "ms"),
        "a node": Spread((seconds / case.nodes,), "ms"),
        "bytes down, a node": f"{last.bytes_down / case.nodes:,.0f}",
        "bytes up, a node": f"{last.bytes_up / case.nodes:,.0f}",
    }
    if case.nodes <= 10:
        size = sum(map(len, grid.client_states().values())) / case.nodes
        row["state of a node, bytes"] = f"{size:,.0f}"
    return row


def compare(cases: Sequence[Case]) -> list[Comparison]:
    """CPU seconds a round, a row a case."""
    return [
        Comparison(
            "one-process",
            "What a round of FedFW costs as nodes and parameters grow",
            "l1 ball, everybody in every round, the cheapest of losses, each node with "
            "an atom of its own: what is measured is client, server and grid. CPU "
            "seconds of the process, which has one thread. The fastest of three "
            "rounds, the first left out.",
            [_row(case) for case in cases],
        )
    ]
