"""FedFW where a run is cut in two, is driven by Flower's calls, or forgets d_i.

What all methods keep under faults stands in ``test_contracts.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.client import MethodClient
from strategies import FedFW, NaiveFrankWolfe
from tests.harness import contexts
from tests.strategies.methods import EVERYTHING, METHODS, P
from tests.strategies.soak_cases import distance, node_states

RADIUS = 2.5


def check_mean(strategy: Any) -> None:
    points = [strategy._client_iterate(name) for name in strategy.clients]
    assert distance(strategy.broadcast.model, np.mean(points, axis=0)) < 1e-9


def test_stochastic_with_everything() -> None:
    """What the server cannot give back (d_i) is lost, x_i is not."""
    method = METHODS["fedfw stochastic"]
    ran = method.play(method.grid(10, **EVERYTHING), 60, last_fault=59)
    check_mean(ran.strategy)
    assert ran.strategy.history[-1].used == 10
    states = node_states(ran.strategy, ran.grid)
    assert len(states) == 10
    for name, state in states.items():
        assert "y" not in state
        assert distance(state["x"], ran.strategy._client_iterate(name)) < 1e-9


@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_more_rounds_do_not_change_the_step_that_was_planned(
    method: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """η = (pT + 1)^(−2/3) with the T of the beginning, resumed once and again."""

    def start(rounds: int, **options: Any) -> float:
        def client(context: Context) -> MethodClient:
            objective = LeastSquares(np.eye(P), np.ones(P))
            domain = L1Ball(RADIUS)
            if method is FedFW:
                return FedFWClient(context, objective, domain)
            return NaiveFrankWolfeClient(context, objective, domain)

        options |= {"variant": "plain"} if method is FedFW else {}
        strategy = method(L1Ball(RADIUS), schedule="nonconvex", **options)
        grid = LocalGrid(client_app(client), 2)
        strategy.start(grid, ArrayRecord([np.zeros(P)]), rounds)
        assert len(strategy.history) == rounds
        half = strategy.half if method is FedFW else strategy
        return float(half._schedule.step(rounds))

    path = tmp_path / "checkpoint.npz"
    assert start(8, checkpoint=path) == 9.0 ** (-2 / 3)
    for rounds in (12, 20):
        caplog.clear()
        assert start(rounds, resume=path, checkpoint=path) == 9.0 ** (-2 / 3)
        assert "with T = 8," in caplog.text


def test_flowers_own_calls_restore_in_the_next_round() -> None:
    """configure_train and aggregate_train, one wave: a wiped node misses one round."""
    method = METHODS["fedfw augmented"]
    run = method.play(method.grid(3), 1)
    sets: list[list[int]] = [[0, 1, 2]]
    for t in range(2, 7):
        if t == 3:
            contexts(run.grid)[1].state = RecordDict()
        messages = run.strategy.configure_train(
            t, ArrayRecord(), ConfigRecord(), run.grid
        )
        replies = run.grid.send_and_receive(messages)
        arrays, _ = run.strategy.aggregate_train(t, replies)
        assert arrays is not None
        sets.append([int(name) for name in run.strategy.used])
    assert sets == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    check_mean(run.strategy)
    calm = method.play(method.grid(3), sets=sets)
    assert distance(arrays.to_numpy_ndarrays()[0], calm.model) < 1e-13


def test_a_checkpoint_of_many_clients_is_gone_through_once() -> None:
    method = METHODS["fedfw plain"]
    run = method.play(method.grid(5), 3)
    passes = [0]

    class Counting(dict[str, Any]):
        def items(self) -> Any:
            passes[0] += 1
            return super().items()

    run.strategy.load_state(Counting(run.strategy.state()))
    assert passes[0] == 1
    check_mean(run.strategy)
