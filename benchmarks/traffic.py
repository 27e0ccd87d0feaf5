"""Bytes per node and round on encoded Messages: ``python -m benchmarks.traffic``.

A model of p parameters, 10 nodes, everybody in every round, f_i(x) = ½‖x − c_i‖². The
figures are those of round 5, when everything is running, and hold for every later one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table

from clients import FedFWClient, ProjectedFedAvgClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import (
    BirkhoffPolytope,
    Domain,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
)
from fedtrellis.random import generator
from fedtrellis.server.callbacks import format_bytes
from strategies import FedFW, ProjectedFedAvg

from .fedavg import make_fedavg

NODES, ROUNDS = 10, 5

CASES: list[tuple[Domain, tuple[int, ...]]] = [
    (L1Ball(10.0), (1_000_000,)),
    (KSupportBall(10, 10.0), (1_000_000,)),
    (NuclearNormBall(10.0), (1000, 1000)),
    (BirkhoffPolytope(), (300, 300)),
    (LInfBall(1.0), (1_000_000,)),
    (L2Ball(10.0), (1_000_000,)),
]


class Distance:
    """f_i(x) = ½‖x − c_i‖² with a c_i of the client's own."""

    num_examples = 1

    def __init__(self, index: int, shape: tuple[int, ...]) -> None:
        self.centre = generator(0, "centre", index).normal(size=shape)

    def gradient(self, x: Any) -> Any:
        """X − c_i."""
        return x - self.centre


def flower_fedavg(objectives: Sequence[Any]) -> tuple[FedAvg, ClientApp]:
    """Flower's own FedAvg; a client takes a gradient step, in the model's dtype."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = objectives[int(context.node_config["partition-id"])]
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        (x,) = arrays.to_numpy_ndarrays()
        x = x - 0.1 * np.asarray(objective.gradient(x), dtype=x.dtype)
        metrics = MetricRecord({"num-examples": objective.num_examples})
        content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
        return Message(content, reply_to=message)

    return make_fedavg(), app


def measure(method: str, domain: Domain, shape: tuple[int, ...]) -> tuple[float, float]:
    """Bytes (up, down) of one node in the last round."""
    objectives = [Distance(index, shape) for index in range(NODES)]

    def client_fn(context: Context) -> Any:
        objective = objectives[int(context.node_config["partition-id"])]
        if method == "fedfw":
            return FedFWClient(context, objective, domain)
        return ProjectedFedAvgClient(context, objective)

    strategy: FedFW | ProjectedFedAvg
    if method == "fedfw":
        strategy = FedFW(domain, variant="plain")
    else:
        strategy = ProjectedFedAvg(domain, local_steps=1)
    grid = LocalGrid(client_app(client_fn), NODES, encode=True)
    start = ArrayRecord([domain.centre(shape)])
    strategy.start(grid, start, num_rounds=ROUNDS)
    assert grid.bytes_up == sum(record.bytes_up for record in strategy.history)
    last = strategy.history[-1]
    return last.bytes_up / NODES, last.bytes_down / NODES


def main() -> None:
    """Measure and print."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    table = Table("set", "shape", "FedFW up", "FedFW down", "dense up", "dense down")
    for column in table.columns:
        column.no_wrap = True
    for domain, shape in CASES:
        sparse = measure("fedfw", domain, shape)
        # any set would do: the model travels dense, and a ball's projection is quick
        dense = measure("dense", L2Ball(10.0), shape)
        cells = [format_bytes(count) for count in (*sparse, *dense)]
        table.add_row(repr(domain), " × ".join(map(str, shape)), *cells)
    console = Console()
    if not console.is_terminal:  # a file has room
        console.width = 120
    console.print(table)


if __name__ == "__main__":
    main()
