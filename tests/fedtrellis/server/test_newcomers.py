"""Nodes that connect one by one before the start, later ones, and some that go."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients import FedAvgGDClient, FedGiAClient
from fedtrellis import Private, RoundStrategy
from fedtrellis.app.experiment import CheckNodes
from fedtrellis.objectives import LeastSquares
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire import exchange
from strategies import FedAvgGD, FedGiA
from tests.fedtrellis.server.steps import Remote
from tests.harness import Array, grid_of, play

NODES = 6
#: ‖x − c‖², c the node's number.
LOSSES = [LeastSquares(np.eye(2), np.full(2, float(c))) for c in range(NODES)]


class Arriving(Remote):
    """Nodes that connect one after the other.

    One more each time that the nodes were asked for so often (``looks``); ``first`` of
    them are there at once, and no more than ``most`` will ever come.
    """

    def __init__(
        self, client: Any = FedAvgGDClient, looks: int = 3, first: int = 2
    ) -> None:
        super().__init__(grid_of(client, LOSSES))
        self.looks, self.first, self.most, self.looked = looks, first, NODES, 0

    def get_node_ids(self) -> Iterable[int]:
        self.looked += 1
        there = min(self.first + self.looked // self.looks, self.most)
        return self.inner.get_node_ids()[:there]


def start(strategy: RoundStrategy, grid: Any, rounds: int = 1) -> None:
    strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=rounds)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_STILL", 0.3)
    monkeypatch.setattr(exchange, "_LONGEST_WAIT", 0.01)


def test_a_federation_takes_part_as_a_whole_from_round_1(logged: list[str]) -> None:
    strategy = FedAvgGD(step_size=0.1, min_nodes=3)
    start(strategy, Arriving(), rounds=2)
    assert [record.used for record in strategy.history if record.round] == [NODES] * 2
    assert "The run goes with 6 nodes: the whole federation" in logged
    # of a larger federation those go that came
    grid, strategy = Arriving(), FedAvgGD(step_size=0.1)
    grid.most = 4
    start(strategy, grid)
    assert strategy.num_clients == 4
    why = "no other one has connected for 0.3 s"
    assert f"The run goes with 4 nodes: {why}" in logged


def test_nobody_waits_for_nodes_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(*_: Any) -> bool:
        raise AssertionError("waited")

    monkeypatch.setattr("time.sleep", still)
    # the data of a run config is dealt among the nodes of the start
    strategy = FedAvgGD(step_size=0.1, callbacks=[CheckNodes()])
    start(strategy, grid_of(FedAvgGDClient, LOSSES))
    assert "dealt" in strategy.conversation.refuse({})


def joining(strategy: Any, client: Any, after: int, rounds: int) -> list[Array]:
    """The model after each round of a run in which node 5 comes after so many."""
    grid: Any = Arriving(client, looks=10**9, first=NODES - 1)

    def come(record: RoundRecord) -> None:
        if record.round == after:
            grid.first = NODES

    strategy.options.callbacks = [*strategy.callbacks, Call(come)]
    return play(strategy, grid, np.zeros(2), rounds).models


def test_a_newcomer_takes_part_where_the_server_keeps_nothing_of_a_client(
    logged: list[str],
) -> None:
    strategy = FedAvgGD(local_steps=1, step_size=0.25, step_schedule="constant")
    models = joining(strategy, FedAvgGDClient, after=2, rounds=3)
    assert strategy.num_clients == NODES
    assert [r.used for r in strategy.history if r.round] == [5, 5, 6]
    assert "client 5 came after the start and takes part" in logged
    # x ← x − γ · 2 (x − the mean of the numbers there), by hand
    x = 0.0
    for model, mean in zip(models, (2.0, 2.0, 2.5), strict=True):
        x = x - 0.25 * 2 * (x - mean)
        assert model == pytest.approx([x, x], rel=1e-14)


class Leaving(Remote):
    """Nodes that all go after round 2, until they have been looked for so often."""

    def __init__(self, looks: int) -> None:
        super().__init__(grid_of(FedAvgGDClient, LOSSES))
        self.looks, self.gone = looks, False

    def leave(self, record: RoundRecord) -> None:
        self.gone = self.gone or record.round == 2

    def get_node_ids(self) -> Iterable[int]:
        self.looks -= self.gone
        self.gone = self.gone and self.looks > 0
        return [] if self.gone else self.inner.get_node_ids()

    def push_messages(self, messages: Any) -> Iterable[str]:
        sent = [] if self.gone else self.inner.push_messages(messages)
        return list(sent) or [""] * len(messages)


def test_a_run_without_answers_waits_for_those_who_are_away(logged: list[str]) -> None:
    line = "waiting for client 0, 1, 2, 3, 4 and 1 more to return, 1 s"
    never = pytest.raises(RuntimeError, match="no usable answer in 2 ")
    for looks, end, rest in ((20, nullcontext(), [6, 6]), (10**9, never, [0])):
        grid: Any = Leaving(looks)
        callbacks = [Call(grid.leave)]
        strategy = FedAvgGD(step_size=0.1, max_failed_rounds=2, callbacks=callbacks)
        with end:
            strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=5, timeout=1.0)
        used = [record.used for record in strategy.history if record.round]
        assert used == [6, 6, 0, *rest]
    assert logged.count(line) == 2
    # where a draw has hit only those who are away, the next may hit others
    half, grid = {"sampling": "fixed", "participation": 0.5}, Leaving(10**9)
    some: Any = {**half, "max_failed_rounds": 2, "callbacks": [Call(grid.leave)]}
    with pytest.raises(RuntimeError, match="no usable answer in 2 "):
        start(FedAvgGD(step_size=0.1, **some), grid, 5)
    assert sum(one.startswith("waiting for client") for one in logged) == 2


class Silent(FedAvgGDClient):
    """All but number 5 have examples."""

    def get_properties(self, config: Any) -> dict[str, Any]:
        return {"num-examples": 0} if self.client_id == "5" else {}


@pytest.mark.parametrize(
    ("strategy", "client", "why"),
    [
        (FedGiA(sigma=1.0), FedGiAClient, "clients are those of the start"),
        (
            FedAvgGD(step_size=0.1, aggregation=Private(noise_multiplier=1.0)),
            FedAvgGDClient,
            "aggregation is planned for the clients of the start",
        ),
        (
            FedAvgGD(step_size=0.1, client_weights="examples"),
            *(Silent, "client_weights = 'examples', and it declares none"),
        ),
    ],
)
def test_other_methods_say_why_a_newcomer_is_left_out(
    strategy: Any, client: Any, why: str, logged: list[str]
) -> None:
    joining(strategy, client, after=1, rounds=2)
    assert strategy.num_clients == NODES - 1
    (line,) = (line for line in logged if "client 5" in line)
    assert line.startswith("client 5 came after the start, left out: ")
    assert line.endswith(why)
