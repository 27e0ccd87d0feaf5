"""The job on Flower: fedtrellis' FedAvgGD and Flower's FedAvg, here and on Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from clients import FedAvgGDClient
from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD

from ..processes import cpu_seconds
from ..report import quiet
from ..traffic import flower_client, partition
from .job import CLASSES, LOCAL_STEPS, STEP_SIZE, Job, Run, layers, model_of, timed

__all__ = [
    "batched",
    "batched_encoded",
    "encoded",
    "fedavg",
    "fedavg_ray",
    "one_by_one",
    "ray",
    "torch_batched",
    "torch_one_by_one",
]

Objectives = Callable[[], list[Any]]


# --------------------------------------------------------------------------- clients


def _logistic(job: Job) -> list[Any]:
    return [
        MultinomialLogistic(A, y, CLASSES)
        for A, y in zip(job.features, job.labels, strict=True)
    ]


def _torch(job: Job) -> list[Any]:
    import torch

    from fedtrellis.objectives.torch_objective import TorchObjective

    torch.set_num_threads(1)
    net = torch.nn.Linear(job.features.shape[2], CLASSES)
    return [
        TorchObjective(net, torch.nn.CrossEntropyLoss(), (A.astype(np.float32), y))
        for A, y in zip(job.features, job.labels, strict=True)
    ]


@lru_cache(maxsize=1)
def _logistic_of(path: str) -> list[Any]:
    """The objectives, once in each of Ray's processes."""
    return _logistic(Job.load(path))


def _fedtrellis_app(objectives: Objectives) -> ClientApp:
    return client_app(lambda c: FedAvgGDClient(c, objectives()[partition(c)]))


def _fedavg_app(objectives: Objectives) -> ClientApp:
    app = flower_client(objectives, LOCAL_STEPS, STEP_SIZE)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        who = MetricRecord({"partition-id": partition(context)})
        return Message(RecordDict({"who": who}), reply_to=message)

    return app


# ------------------------------------------------------------------------ strategies


class Dealt(FedAvgGD):
    """fedtrellis' FedAvg, asking the clients that it is told to ask.

    Attributes
    ----------
    cohorts : list of list of str
        Clients, round by round.
    """

    cohorts: Sequence[list[str]] = ()

    def sample(self, server_round: int) -> list[str]:
        """A round's clients."""
        return self.cohorts[server_round - 1]


def _fedavg_gd(job: Job) -> FedAvgGD:
    dealt = Dealt(
        local_steps=LOCAL_STEPS, step_size=STEP_SIZE, step_schedule="constant"
    )
    dealt.cohorts = [[str(client) for client in cohort] for cohort in job.cohorts]
    return dealt


class DealtFedAvg(FedAvg):
    """Flower's FedAvg, asking the nodes that it is told to ask.

    Parameters
    ----------
    cohorts : list of list of int
        Node ids, round by round.
    """

    def __init__(self, cohorts: list[list[int]]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._cohorts = cohorts

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flower's own, but for the sampling."""
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        ids = self._cohorts[server_round - 1]
        return [Message(content, dst_node_id=id, message_type="train") for id in ids]


def _query(grid: Grid) -> Iterable[Message]:
    """Ask all nodes, so that each of Ray's processes imports the app."""
    return grid.send_and_receive(
        [
            Message(RecordDict(), dst_node_id=id, message_type="query")
            for id in grid.get_node_ids()
        ]
    )


def _dealt_fedavg(job: Job, grid: Grid) -> DealtFedAvg:
    ids = {}  # by partition, as the nodes themselves say
    for reply in _query(grid):
        who = reply.content["who"]
        assert isinstance(who, MetricRecord)
        ids[who["partition-id"]] = reply.metadata.src_node_id
    return DealtFedAvg([[ids[int(c)] for c in cohort] for cohort in job.cohorts])


def _start(strategy: Strategy, grid: Grid, start: ArrayRecord, job: Job) -> list[Any]:
    result = strategy.start(grid, start, num_rounds=job.rounds)
    return result.arrays.to_numpy_ndarrays()


# -------------------------------------------------------------------- in this process


def _on_local_grid(
    job: Job, *, make: Callable[[Job], list[Any]], torch: bool = False, **options: Any
) -> Callable[[], Run]:
    quiet()
    start = [job.start]
    if torch:  # PyTorch's linear layer: two arrays of float32
        start = [part.astype(np.float32) for part in layers(job.start)]

    def run() -> Run:
        # of this run alone: what is kept of an objective is nothing of the last one's
        objectives = make(job)
        app = _fedtrellis_app(lambda: objectives)

        def play() -> Any:
            grid = LocalGrid(app, job.clients, **options)
            arrays = _start(_fedavg_gd(job), grid, ArrayRecord(start), job)
            return model_of(*arrays) if torch else arrays[0]

        return timed(play)

    return run


#: The messages as objects or bytes, client after client or a round's in one call.
one_by_one = partial(_on_local_grid, make=_logistic)
encoded = partial(_on_local_grid, make=_logistic, encode=True)
batched = partial(_on_local_grid, make=_logistic, batched=True)
batched_encoded = partial(_on_local_grid, make=_logistic, batched=True, encode=True)
torch_one_by_one = partial(_on_local_grid, make=_torch, torch=True)
torch_batched = partial(_on_local_grid, make=_torch, torch=True, batched=True)


def fedavg(job: Job) -> Callable[[], Run]:
    """Flower's FedAvg and a client as in its quickstarts, on ``LocalGrid``."""
    quiet()
    objectives = _logistic(job)
    app = _fedavg_app(lambda: objectives)

    def play() -> Any:
        grid = LocalGrid(app, job.clients)
        strategy = _dealt_fedavg(job, grid)
        return _start(strategy, grid, ArrayRecord([job.start]), job)[0]

    return lambda: timed(play)


# -------------------------------------------------------------------------- on Ray


def _cpu_seconds() -> float:
    """CPU time so far of all processes with this one's FLWR_HOME: Ray, its actors."""
    return cpu_seconds(Path(os.environ["FLWR_HOME"])) + time.process_time()


def _on_ray(
    job: Job, app: Callable[[Objectives], ClientApp], strategy_of: Callable[..., Any]
) -> Callable[[], Run]:
    quiet()
    path = str(Path(os.environ["FLWR_HOME"]) / "job.npz")
    job.save(Path(path))
    client = app(lambda: _logistic_of(path))

    def run() -> Run:
        runs: list[Run] = []
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            while len(list(grid.get_node_ids())) < job.clients:
                time.sleep(0.1)
            strategy = strategy_of(grid)
            wall, cpu = time.perf_counter(), _cpu_seconds()
            (model,) = _start(strategy, grid, ArrayRecord([job.start]), job)
            cpu, wall = _cpu_seconds() - cpu, time.perf_counter() - wall
            runs.append(Run(model, cpu, wall))

        cores = os.cpu_count() or 1
        run_simulation(
            server,
            client,
            job.clients,
            backend_config={
                "init_args": {"num_cpus": cores, "include_dashboard": False},
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            },
        )
        if not runs:
            raise RuntimeError("the simulation on Ray failed")
        return runs[0]

    return run


def ray(job: Job) -> Callable[[], Run]:
    """The same clients and strategy in Flower's simulation, one process a core."""

    def strategy_of(grid: Grid) -> FedAvgGD:
        _query(grid)
        return _fedavg_gd(job)

    return _on_ray(job, _fedtrellis_app, strategy_of)


def fedavg_ray(job: Job) -> Callable[[], Run]:
    """Flower's FedAvg in Flower's simulation, one process a core."""
    return _on_ray(job, _fedavg_app, lambda grid: _dealt_fedavg(job, grid))
