"""Runs whose rounds are timed, alike for every strategy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from clients import FedFWClient
from fedtrellis.domains import Domain, L1Ball
from fedtrellis.objectives import LeastSquares, Objective
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid

__all__ = [
    "Problem",
    "TimedGrid",
    "array_of",
    "bytes_per_node",
    "fedfw_app",
    "least_squares",
    "quiet",
    "seconds_per_round",
    "synthetic",
    "timed_run",
]


def quiet() -> None:
    """Silence Flower below warnings; its FedAvg logs a dozen lines a round."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Problem:
    """Objectives f_i of the nodes, kept in this process, and a set."""

    objectives: list[Objective]
    domain: Domain

    @property
    def nodes(self) -> int:
        """Number of nodes n."""
        return len(self.objectives)

    @property
    def start(self) -> FloatArray:
        """Where every run starts."""
        return np.zeros(self.objectives[0].shape)

    def initial_arrays(self) -> ArrayRecord:
        """The start, as a strategy takes it."""
        return ArrayRecord([self.start])


def synthetic(
    columns: int, rows: int, nodes: int
) -> list[tuple[FloatArray, FloatArray]]:
    """Make every node's A_i, Gaussian with ``rows`` rows, and b_i = A_i x*."""
    rng = np.random.default_rng(0)
    solution = np.zeros(columns)
    count = min(20, columns)
    support = rng.choice(columns, count, replace=False)
    solution[support] = rng.standard_normal(count) / count
    matrices = [rng.standard_normal((rows, columns)) for _ in range(nodes)]
    return [(A, A @ solution) for A in matrices]


def least_squares(
    matrices: Sequence[tuple[FloatArray, FloatArray]], radius: float
) -> Problem:
    """f_i(x) = ‖A_i x − b_i‖² over an ℓ1 ball; the matrices are not copied."""
    objectives: list[Objective] = [LeastSquares(A, b) for A, b in matrices]
    return Problem(objectives, L1Ball(radius))


def fedfw_app(problem: Problem) -> ClientApp:
    """FedFW's clients, with their objectives at hand."""

    def client_fn(context: Context) -> FedFWClient:
        index = int(context.node_config["partition-id"])
        return FedFWClient(context, problem.objectives[index], problem.domain)

    return client_app(client_fn)


class TimedGrid(LocalGrid):
    """A grid that notes when each wave of training begins.

    From one wave's beginning to the next one's is a round: the clients, the answers,
    the aggregation and the next requests, whatever strategy it is.
    """

    def __init__(self, app: ClientApp, num_nodes: int, **options: Any) -> None:
        super().__init__(app, num_nodes, **options)
        self.times: list[float] = []
        self.traffic: list[tuple[int, int]] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note the time, and what has gone down and up so far."""
        messages = list(messages)
        if any(m.metadata.message_type.startswith("train") for m in messages):
            self.times.append(time.perf_counter())
            self.traffic.append((self.bytes_down, self.bytes_up))
        return super().push_messages(messages)


def timed_run(
    make_strategy: Callable[[], Strategy],
    app: ClientApp,
    problem: Problem,
    rounds: int,
    *,
    encode: bool = False,
    warm_up: int = 2,
) -> TimedGrid:
    """Run ``rounds`` rounds beyond the warm-up, on a new grid that holds their times.

    The grid's ``times`` and ``traffic`` start after the warm-up.
    """
    grid = TimedGrid(app, problem.nodes, encode=encode)
    # one more round, whose beginning ends the last that counts
    total = warm_up + rounds + 1
    make_strategy().start(grid, problem.initial_arrays(), num_rounds=total)
    assert len(grid.times) == total
    del grid.times[:warm_up], grid.traffic[:warm_up]
    return grid


def seconds_per_round(grid: TimedGrid) -> float:
    """Mean seconds of a round."""
    return (grid.times[-1] - grid.times[0]) / (len(grid.times) - 1)


def bytes_per_node(grid: TimedGrid) -> tuple[int, int]:
    """Bytes down to and up from a node in a round, on average."""
    count = (len(grid.traffic) - 1) * len(grid.get_node_ids())
    (down, up), (first_down, first_up) = grid.traffic[-1], grid.traffic[0]
    return round((down - first_down) / count), round((up - first_up) / count)


def array_of(record: ArrayRecord) -> FloatArray:
    """The one array of a model."""
    (array,) = record.values()
    assert isinstance(array, Array)
    return np.asarray(array.numpy(), dtype=np.float64)
