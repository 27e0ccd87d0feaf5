"""Who takes part: nodes that connect one by one before the start, and later ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid

from clients import (
    CompressedSGDClient,
    FedAvgGDClient,
    FedGiAClient,
    ScaffoldClient,
)
from fedtrellis import LocalGrid, Private, RoundStrategy, client_app
from fedtrellis.app.experiment import CheckNodes
from fedtrellis.objectives import LeastSquares
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire import exchange
from strategies import CompressedSGD, FedAvgGD, FedGiA, Scaffold
from tests.harness import number_of

NODES = 6
START = ArrayRecord([np.zeros(2)])


def loss_of(context: Context) -> LeastSquares:
    """‖x − c‖², c the node's number."""
    return LeastSquares(np.eye(2), np.full(2, float(number_of(context))))


def app_for(client: Any = FedAvgGDClient) -> Any:
    return client_app(lambda context: client(context, loss_of(context)))


class Arriving(Grid):
    """Nodes of a LocalGrid that connect one after the other, as on another machine.

    Parameters
    ----------
    inner : LocalGrid
    looks : int
        How often the nodes are asked for until one more is there.
    first, most : int
        Nodes that are there at once, and that will ever come.
    """

    def __init__(
        self, inner: LocalGrid, looks: int = 3, first: int = 2, most: int = NODES
    ) -> None:
        self.inner, self.looks, self.first, self.most = inner, looks, first, most
        self.looked = 0

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self.inner.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        self.looked += 1
        there = min(self.first + self.looked // self.looks, self.most)
        return self.inner.get_node_ids()[:there]

    def get_nodes(self) -> Any:
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_STILL", 0.3)
    monkeypatch.setattr(exchange, "_LONGEST_WAIT", 0.01)


def test_a_federation_takes_part_as_a_whole_from_round_1(logged: list[str]) -> None:
    grid = Arriving(LocalGrid(app_for(), NODES))
    strategy = FedAvgGD(step_size=0.1, min_nodes=3)
    strategy.start(grid, START, num_rounds=2)
    assert [record.used for record in strategy.history if record.round] == [NODES] * 2
    assert "The run goes with 6 nodes: the whole federation" in logged


def test_of_a_larger_federation_those_go_that_came(logged: list[str]) -> None:
    grid = Arriving(LocalGrid(app_for(), NODES), most=4)
    strategy = FedAvgGD(step_size=0.1)
    strategy.start(grid, START, num_rounds=1)
    assert strategy.num_clients == 4
    (line,) = (line for line in logged if "goes with" in line)
    assert line == "The run goes with 4 nodes: no other one has connected for 0.3 s"


def test_nobody_waits_for_nodes_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def still(*_: Any) -> bool:
        raise AssertionError("waited")

    monkeypatch.setattr(exchange, "_others_come", still)
    grid = LocalGrid(app_for(), NODES)
    FedAvgGD(step_size=0.1).start(grid, START, num_rounds=1)
    # too few of them are an error at once, not after the ten minutes
    with pytest.raises(TimeoutError, match="6 of 7 nodes connected"):
        FedAvgGD(step_size=0.1, min_nodes=7).start(grid, START, num_rounds=1)


def joining(
    strategy: RoundStrategy, client: Any, after: int, rounds: int
) -> dict[int, float]:
    """By round the model, in a run in which node 5 comes after so many rounds."""
    inner = LocalGrid(app_for(client), NODES)
    grid = Arriving(inner, looks=10**9, first=NODES - 1)
    models: dict[int, float] = {}

    def note(record: RoundRecord) -> None:
        models[record.round] = float(strategy.broadcast.model[0])
        if record.round == after:
            grid.first = NODES

    strategy.options.callbacks = [*strategy.callbacks, Call(note)]
    strategy.start(grid, START, num_rounds=rounds)
    return models


@pytest.mark.parametrize("kind", [FedAvgGD, CompressedSGD])
def test_a_newcomer_takes_part_where_the_server_keeps_nothing_of_a_client(
    kind: Any, logged: list[str]
) -> None:
    strategy = kind(local_steps=1, step_size=0.25, step_schedule="constant")
    client = CompressedSGDClient if kind is CompressedSGD else FedAvgGDClient
    models = joining(strategy, client, after=2, rounds=3)
    assert strategy.num_clients == NODES
    assert [r.used for r in strategy.history if r.round] == [5, 5, 6]
    assert "client 5 came after the start and takes part" in logged
    if kind is FedAvgGD:
        # x ← x − γ · 2 (x − the mean of the numbers there), by hand
        x = 0.0
        for t, numbers in ((1, range(5)), (2, range(5)), (3, range(6))):
            x = x - 0.25 * 2 * (x - float(np.mean(numbers)))
            assert models[t] == pytest.approx(x, rel=1e-14)


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (FedGiA, {"sigma": 1.0}, "the method's clients are those of the start"),
        (Scaffold, {}, "the method's clients are those of the start"),
        (
            FedAvgGD,
            {"step_size": 0.1, "aggregation": Private(noise_multiplier=1.0)},
            "aggregation is planned for the clients of the start",
        ),
    ],
)
def test_other_methods_say_why_a_newcomer_is_left_out(
    kind: Any, options: dict[str, Any], why: str, logged: list[str]
) -> None:
    client = {FedGiA: FedGiAClient, Scaffold: ScaffoldClient}.get(kind, FedAvgGDClient)
    strategy = kind(**options)
    joining(strategy, client, after=1, rounds=3)
    assert strategy.num_clients == NODES - 1
    assert f"client 5 came after the start, left out: {why}" in logged


def test_a_newcomer_without_examples_is_left_out_of_a_mean_by_examples(
    logged: list[str],
) -> None:
    class Silent(FedAvgGDClient):
        def __init__(self, context: Context, objective: Any) -> None:
            super().__init__(context, objective)
            self.number = number_of(context)

        def get_properties(self, config: Any) -> dict[str, Any]:
            return {"num-examples": 0} if self.number == 5 else {}

    strategy = FedAvgGD(step_size=0.1, client_weights="examples")
    joining(strategy, Silent, after=1, rounds=2)
    assert strategy.num_clients == NODES - 1
    assert any("it declares none" in line for line in logged)


def test_the_nodes_of_a_run_config_are_those_of_its_data() -> None:
    """Its data is dealt among the nodes of the start."""
    strategy = FedAvgGD(step_size=0.1, callbacks=[CheckNodes()])
    strategy.start(LocalGrid(app_for(), NODES), START, num_rounds=1)
    assert "dealt" in strategy.conversation.registry.refuse({})


def test_nodes_are_awaited_before_anything_is_computed() -> None:
    grid = Arriving(LocalGrid(app_for(), NODES))
    assert exchange.await_nodes(grid, 1, 5.0) == NODES
    with pytest.raises(TimeoutError, match="6 of 7"):
        exchange.await_nodes(grid, 7, 0.05)
