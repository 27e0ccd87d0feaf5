"""Seconds until ‖∇F(x)‖² ≤ n·10⁻⁹: FedGiA, FedAvg and LocalSGD on the same grid."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord

import sim
from clients import FedAvgGDClient, FedGiAClient, LocalSGDClient
from fedtrellis.domains import WholeSpace
from fedtrellis.objectives import Objective
from fedtrellis.objectives.reference import unconstrained_minimum
from fedtrellis.server.callbacks import Callback, EarlyStop
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD, FedGiA, LocalSGD

from .report import Aim, Comparison, Row, Spread, ratios
from .runs import Problem, array_of

__all__ = [
    "FULL",
    "QUICK",
    "Case",
    "Example",
    "breast_cancer",
    "compare",
    "methods",
    "run",
    "v1",
]

_METRIC = "squared-gradient-norm"
_FEDAVG, _LOCAL_SGD, _REFERENCE = "FedAvg", "LocalSGD", ("FedGiA_D", 5)
_LOCAL_STEPS = (1, 5, 10)

# How the local steps fall and where they start, by method and k_0.
Steps = dict[tuple[str, int], tuple[str, float]]


@dataclass(frozen=True)
class Example(Problem):
    """A problem with F and F*, and settings of the methods that suit it."""

    mean: Objective
    optimum: float
    sigma_scale: float
    steps: Steps

    @property
    def tolerance(self) -> float:
        """The stop rule's n · 10⁻⁹, (30) of arXiv 2205.01438."""
        return self.start.size * 1e-9


def v1(nodes: int = 64) -> Example:
    """Example V.1 of arXiv 2205.01438 with the paper's settings.

    But for FedAvg with k_0 = 1: a constant 0.25 makes it gradient descent at its best.
    """
    steps: Steps = {(_FEDAVG, k): ("log", 0.01) for k in _LOCAL_STEPS}
    steps[_FEDAVG, 1] = ("constant", 0.25)
    steps |= {(_LOCAL_SGD, k): ("log", 0.005) for k in _LOCAL_STEPS}
    return _example({"task": "linear-regression"}, nodes, steps, 0.15)


# The best of a from 0.03, 0.1, …, 10 and both schedules, for each k_0 on its own: in
# the fewest rounds at the tolerance, or else with the smallest ‖∇F‖² after 1000.
_TUNED: Steps = {
    (_FEDAVG, 1): ("constant", 10.0),
    (_FEDAVG, 5): ("log", 1.0),
    (_FEDAVG, 10): ("log", 1.0),
    (_LOCAL_SGD, 1): ("log", 3.0),
    (_LOCAL_SGD, 5): ("log", 1.0),
    (_LOCAL_SGD, 10): ("constant", 0.03),
}


def breast_cancer(nodes: int = 10) -> Example:
    """Logistic regression on scikit-learn's breast cancer data, all for training."""
    config = {"task": "logistic-regression", "logistic-regression.test-fraction": 0.0}
    # the paper's max{0.1, (8/n) ln d} is 1.6: rounds grow with t here
    return _example(config, nodes, _TUNED, 0.02)


def _example(config: dict[str, Any], nodes: int, steps: Steps, scale: float) -> Example:
    task = sim.app.experiment(sim.app.default_config() | config, nodes).task
    mean = task.objective()
    optimum = task.reference_optimum(WholeSpace())
    if optimum is None:
        optimum = unconstrained_minimum(mean, np.zeros(mean.shape)).value
    objectives = [task.client_objective(index) for index in range(nodes)]
    return Example(objectives, WholeSpace(), mean, optimum, scale, steps)


@dataclass(frozen=True)
class Case:
    """An example, and how long each method may take.

    Parameters
    ----------
    name : str
    example : callable
        Makes the example.
    rounds : int
        The most rounds a run may take.
    turns : int
        FedGiA's runs are that many, and those of others that arrive; every other run,
        which may be a hundred times as long, comes after one of these turns.
    """

    name: str
    example: Callable[[], Example]
    rounds: int
    turns: int


_V1 = "V.1 (64 clients, n = 100)"
_BREAST_CANCER = "breast cancer (10 clients, n = 30)"
QUICK = (Case(_V1, v1, 200, 3), Case(_BREAST_CANCER, breast_cancer, 200, 3))
FULL = (Case(_V1, v1, 1000, 6), Case(_BREAST_CANCER, breast_cancer, 1000, 6))


@dataclass(frozen=True)
class Method:
    """A method with its k_0; ``strategy`` takes what is left to say by name."""

    name: str
    local_steps: int
    strategy: Callable[..., LoopStrategy]
    client: Callable[[Context, Any], Any]

    @property
    def fedgia(self) -> bool:
        """Whether it is one of FedGiA's variants, whose runs are short."""
        return self.client is FedGiAClient


def methods(example: Example) -> Iterator[Method]:
    """FedGiA_G, FedGiA_D, FedAvg and LocalSGD, each with every k_0."""
    for name in ("FedGiA_G", "FedGiA_D"):
        for k in _LOCAL_STEPS:
            strategy = partial(
                FedGiA,
                sigma_scale=example.sigma_scale,
                local_steps=k,
                selected_fraction=0.5,
                hessian="gram" if name == "FedGiA_G" else "diagonal",
                tolerance=0.0,
            )
            yield Method(name, k, strategy, FedGiAClient)
    for name, kind, client in (
        (_FEDAVG, FedAvgGD, FedAvgGDClient),
        (_LOCAL_SGD, LocalSGD, LocalSGDClient),
    ):
        for k in _LOCAL_STEPS:
            schedule, size = example.steps[name, k]
            settings: dict[str, Any] = {
                "local_steps": k,
                "step_size": size,
                "step_schedule": schedule,
            }
            yield Method(name, k, partial(kind, **settings), client)


class _Clock(Callback):
    """Notes when a strategy has been introduced to its clients."""

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        self.ready = time.perf_counter()


@dataclass(frozen=True)
class Run:
    """How a run went: until when, whether it arrived, and how far above F* it ended."""

    rounds: int
    arrived: bool
    seconds: float
    excess: float


def run(example: Example, method: Method, rounds: int) -> Run:
    """One run from x = 0, with objectives that know no r_i and no factor yet."""
    objectives = copy.deepcopy(example.objectives)
    clock = _Clock()
    strategy = method.strategy(callbacks=[clock, EarlyStop(_METRIC, example.tolerance)])

    def client_fn(context: Context) -> Any:
        index = int(context.node_config["partition-id"])
        return method.client(context, objectives[index])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        x = array_of(arrays)
        value, gradient = example.mean.value(x), example.mean.gradient(x)
        return MetricRecord({"loss": value, _METRIC: float(gradient @ gradient)})

    grid = LocalGrid(client_app(client_fn), example.nodes)
    began = time.perf_counter()
    strategy.start(
        grid, example.initial_arrays(), num_rounds=rounds, evaluate_fn=evaluate
    )
    last = strategy.history[-1]
    return Run(
        last.round,
        last.evaluation[_METRIC] <= example.tolerance,
        # the introduction, in which clients compute r_i, and the rounds themselves
        clock.ready - began + sum(record.seconds for record in strategy.history),
        last.evaluation["loss"] - example.optimum,
    )


def _measure(case: Case, result: Comparison) -> None:
    example = case.example()
    sides = list(methods(example))
    others = [method for method in sides if not method.fedgia]
    runs: dict[tuple[str, int], list[Run]] = {}
    for turn in range(case.turns):
        for method in sides:
            before = runs.setdefault((method.name, method.local_steps), [])
            # those that arrive are short, and their seconds close enough to matter
            again = method.fedgia or any(run.arrived for run in before)
            if again or others.index(method) % case.turns == turn:
                before.append(run(example, method, case.rounds))
    reference = _seconds(runs[_REFERENCE])
    for method in sides:
        name, k = method.name, method.local_steps
        repeated = runs[name, k]
        seconds = _seconds(repeated)
        if len(seconds.values) == len(reference.values):
            ratio = ratios(seconds, reference)
        else:
            ratio = Spread((seconds.median / reference.median,), "x")
        row: Row = {"problem": case.name, "method": name, "k_0": k, "a": ""}
        if not method.fedgia:
            row["a"] = "{1:g}, {0}".format(*example.steps[name, k])
        last = repeated[-1]
        row["rounds"] = last.rounds if last.arrived else f"not in {case.rounds}"
        row["seconds"] = seconds
        row["/ FedGiA_D, k_0 = 5"] = ratio
        row["F − F*"] = f"{last.excess:.0e}"
        result.rows.append(row)
    _judge(case, runs, reference.median, result)


def _seconds(runs: Sequence[Run]) -> Spread:
    values = tuple(run.seconds for run in runs)
    return Spread(values, "ms" if max(values) < 1.0 else "s")


def _judge(
    case: Case,
    runs: dict[tuple[str, int], list[Run]],
    reference: float,
    result: Comparison,
) -> None:
    rivals = [key for key in runs if key[0] in (_FEDAVG, _LOCAL_SGD)]
    # of those that arrived, if any: the others' seconds are too few
    arrived = [key for key in rivals if runs[key][0].arrived]
    seconds, (name, k) = min(
        (_seconds(runs[key]).median, key) for key in (arrived or rivals)
    )
    how = "arrives in" if arrived else "has not arrived after"
    ahead = runs[_REFERENCE][0].arrived and seconds > reference
    result.aims.append(
        Aim(
            f"{case.name}: FedGiA_D, k_0 = 5, arrives before FedAvg and LocalSGD",
            f"{name}, k_0 = {k}, {how} {seconds / reference:.2f} times its seconds",
            ahead,
        )
    )


def compare(cases: Sequence[Case]) -> Comparison:
    """Rounds and seconds to the stop rule, a row for each method and k_0."""
    result = Comparison(
        "fedgia-stop",
        "FedGiA, FedAvg and LocalSGD on LocalGrid: time to ‖∇F(x)‖² ≤ n·1e-9",
        "Messages, clients one after the other, and server; r_i and factors are made "
        "anew in every run and count. The stop rule is evaluated on the server and "
        "does not count. s = 0.5; V.1 has the paper's t = 0.15 and steps a/log2(k+1) "
        "with its a, FedAvg with k_0 = 1 the best constant one. On breast cancer both "
        "are tuned: t is the task's 0.02; FedAvg and LocalSGD have, for each k_0 on "
        "its own, the best a of 0.03, 0.1, 0.3, …, 10, constant or a/log2(k+1). "
        "LocalSGD: mini-batches of 5 %. Median (min – max) of "
        f"{max(case.turns for case in cases)} runs of FedGiA, one of each of the "
        "others in between, or as many where they arrive.",
    )
    for case in cases:
        _measure(case, result)
    return result
