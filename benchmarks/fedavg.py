"""FedFW against Flower's own FedAvg, on the same grid, data and objectives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import sim
from strategies import FedFW

from .report import Aim, Comparison, Spread, ratios
from .runs import (
    Problem,
    bytes_per_node,
    fedfw_app,
    least_squares,
    seconds_per_round,
    synthetic,
    timed_run,
)

__all__ = ["FULL", "QUICK", "Case", "compare"]

_NODES, _PENALTY = 10, 1e-3


@dataclass(frozen=True)
class Case:
    """A problem, and how long it is measured: ``runs`` runs of ``rounds`` rounds."""

    name: str
    problem: Callable[[], Problem]
    runs: int
    rounds: int


def of_task(task: str) -> Problem:
    """One of the app's tasks, with its default settings."""
    setup = sim.app.experiment(sim.app.default_config() | {"task": task}, _NODES)
    objectives = [setup.task.client_objective(index) for index in range(_NODES)]
    return Problem(objectives, setup.domain)


def large() -> Problem:
    """LASSO with p = 100 000 and 20 rows a client."""
    return least_squares(synthetic(100_000, 20, _NODES), radius=1.0)


_DIGITS, _LASSO, _LARGE = "digits, p = 650", "LASSO, p = 400", "LASSO, p = 100,000"
QUICK = [
    Case(_DIGITS, lambda: of_task("digits"), 5, 20),
    Case(_LASSO, lambda: of_task("lasso"), 5, 20),
    Case(_LARGE, large, 3, 5),
]
FULL = [
    Case(_DIGITS, lambda: of_task("digits"), 11, 60),
    Case(_LASSO, lambda: of_task("lasso"), 11, 60),
    Case(_LARGE, large, 7, 20),
]


def fedavg_app(problem: Problem) -> ClientApp:
    """A client as Flower's quickstarts write it: one gradient step a round."""
    app = ClientApp()
    # the same step for everybody, small enough for the steepest objective
    step = 1.0 / max(objective.lipschitz() for objective in problem.objectives)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = problem.objectives[int(context.node_config["partition-id"])]
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        (x,) = arrays.to_numpy_ndarrays()
        x = x - step * objective.gradient(np.asarray(x, dtype=np.float64))
        metrics = MetricRecord({"num-examples": objective.num_examples})
        content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def make_fedavg() -> FedAvg:
    """Flower's FedAvg with training only, without its warning that this is so."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    finally:
        logger.setLevel(level)


def _measure(case: Case, result: Comparison) -> None:
    problem = case.problem()

    def make_fedfw() -> FedFW:
        return FedFW(problem.domain, penalty=_PENALTY, variant="plain")

    sides = [(make_fedfw, fedfw_app(problem)), (make_fedavg, fedavg_app(problem))]
    for encode in (False, True):
        seconds: list[list[float]] = [[], []]
        traffic = [(0, 0), (0, 0)]
        for run in range(case.runs):
            # who goes first changes from run to run
            for side in (0, 1) if run % 2 else (1, 0):
                strategy, app = sides[side]
                grid = timed_run(strategy, app, problem, case.rounds, encode=encode)
                seconds[side].append(seconds_per_round(grid))
                traffic[side] = bytes_per_node(grid)
        fedfw, fedavg = (Spread(tuple(values), "ms") for values in seconds)
        ratio = ratios(fedfw, fedavg)
        result.rows.append(
            {
                "problem": case.name,
                "messages": "as bytes" if encode else "as objects",
                "runs": f"{case.runs} of {case.rounds}",
                "FedFW": fedfw,
                "FedAvg": fedavg,
                "FedFW / FedAvg": ratio,
            }
        )
        if encode:
            for side, name in enumerate(("FedFW", "FedAvg")):
                down, up = traffic[side]
                result.rows[-1][f"{name} bytes down, up"] = f"{down:,}, {up:,}"
        result.aims.append(
            Aim(
                f"{case.name}, messages {result.rows[-1]['messages']}: no slower",
                f"{ratio.median:.2f} times FedAvg's round",
                ratio.median <= 1.0,
            )
        )


def compare(cases: Sequence[Case]) -> Comparison:
    """FedFW and FedAvg on ``LocalGrid``, two rows a case."""
    result = Comparison(
        "fedavg",
        "FedFW against Flower's FedAvg on LocalGrid: seconds per round",
        f"{_NODES} nodes, all of them in every round, the same objectives in memory; "
        "FedAvg's client takes one gradient step. Runs in turns, two rounds of each "
        "left out; median (min – max) of the runs' means. Bytes are those of a node in "
        "a round, as encoded by Flower.",
    )
    for case in cases:
        _measure(case, result)
    return result
