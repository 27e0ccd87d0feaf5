"""Clients that lie within the rules of the wire: proportion, weights, names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from fedtrellis import LocalGrid, StatefulClient, TrimmedMean, client_app
from fedtrellis.server.callbacks import Call
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import NodeContext
from strategies import FedAvgGD
from tests.harness import Array, contexts, refused
from tests.strategies.methods import METHODS

SECRET = 0.123456789


class Says(StatefulClient):
    """Answers what the test says for its number; its state is nobody else's."""

    answers: ClassVar[dict[int, Any]] = {}
    examples: ClassVar[dict[int, Any]] = {}
    losses: ClassVar[dict[int, float]] = {}

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        declared = self.examples.get(int(self.client_id))
        return {} if declared is None else {"num-examples": declared}

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        self.state["x"] = np.full(3, SECRET)
        (model,) = parameters
        return [model + self.answers.get(int(self.client_id), 1.0)], 0, {}

    def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
        # what client 4 says of its examples grows
        grown = (1 + config["server-round"]) ** 9 if self.client_id == "4" else 1
        return self.losses.get(int(self.client_id), 1.0), 10 * grown, {}


class Mean(FedAvgGD):
    """Its clients have a state that is given back."""

    stateful = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step_size = 0.1

    def client_state(self, client: str) -> dict[str, FloatArray]:
        return {"x": np.full(3, SECRET)}


def start(
    strategy: Mean,
    nodes: int = 4,
    rounds: int = 2,
    grid: Any = None,
    model: float = 0.0,
    **said: Any,
) -> Array:
    client = type("Client", (Says,), said)
    grid = LocalGrid(client_app(client), nodes) if grid is None else grid
    result = strategy.start(grid, ArrayRecord([np.full(3, model)]), num_rounds=rounds)
    return np.asarray(result.arrays.to_numpy_ndarrays()[0])


def reasons(strategy: Mean) -> list[tuple[str, str]]:
    return [pair for record in strategy.history for pair in record.rejected]


def test_an_answer_out_of_proportion_is_refused_and_named() -> None:
    strategy = Mean()
    assert start(strategy, answers={2: 1e9}).tolist() == [2.0] * 3
    assert [who for who, _ in reasons(strategy)] == ["2", "2"]
    assert "beyond answer-bound = 1e+09; local steps" in reasons(strategy)[0][1]
    # of max(1, the model's norm): from 0, answers of norm 2 pass and of 2.1 do not
    two, more = 2.0 / np.sqrt(3.0), 2.1 / np.sqrt(3.0)
    strategy = Mean(answer_bound=2.0)
    start(strategy, rounds=1, answers={0: two, 1: more, 2: -two, 3: -more})
    assert [who for who, _ in reasons(strategy)] == ["1", "3"]
    strategy = Mean(answer_bound=2.0)
    start(strategy, nodes=3, rounds=1, model=4.0, answers={0: 3.9})
    assert reasons(strategy) == []


def test_a_rule_is_for_methods_that_average() -> None:
    for method in METHODS.values():
        if "median" not in method.rules:
            make = partial(method.make, aggregation="median")
            refused("'median' does not apply", make)
    refused("fraction = 0.5 must be greater", lambda: TrimmedMean(fraction=0.5))
    few = partial(start, Mean(aggregation="median"), nodes=2)
    refused("needs at least 3 clients; there are 2", few)


def test_two_answers_leave_the_model_where_it_is() -> None:
    """Of two, one may be a liar's; their clients are told that nothing was used."""
    strategy = Mean(aggregation="median", sampling="fixed", participation=0.5)
    with pytest.raises(RuntimeError, match="needs at least 3 answers in a round"):
        start(strategy, nodes=4, rounds=9)
    assert not strategy.broadcast.model.any()
    assert all(record.used == 0 for record in strategy.history)
    clients = strategy.conversation.clients.values()
    assert all(client.used_round == 0 for client in clients)


LIE: dict[str, Any] = {"losses": {0: -1e50, 1: 2.0, 2: 3.0}}


@pytest.mark.parametrize(
    ("options", "said", "loss", "examples"),
    [
        # (30 · 1 + 70 · 11) / 100, as declared before round 1, though all say 10 now
        (
            {},
            {"examples": {0: 10, 1: 10, 2: 10, 3: 70}, "losses": {3: 11.0}},
            *(8.0, 100),
        ),
        # what was not declared is what the first evaluation says, whatever comes later
        ({}, {"losses": {4: 6.0}, "nodes": 5}, 2.0, 50),
        # one client decides the mean, but no median
        ({}, LIE, -2.5e49, 40),
        ({"aggregation": "median"}, LIE, 1.5, 40),
        (
            {"evaluation_weights": "equal"},
            {"examples": {0: 10**12, 1: 0}, "losses": {0: 4.0, 1: 99.0}},
            *(2.0, 10**12 + 20),
        ),
    ],
)
def test_evaluated_weights(options: Any, said: Any, loss: float, examples: int) -> None:
    strategy = Mean(client_evaluate_every=1, **options)
    start(strategy, **said)
    expected = {"loss": pytest.approx(loss), "num-examples": examples}
    assert [r.client_evaluation for r in strategy.history] == [expected] * 3


@pytest.mark.parametrize("examples", [-1, 2**60, "many"])
def test_a_node_that_declares_nonsense_is_left_out(examples: Any) -> None:
    strategy = Mean()
    start(strategy, examples={1: examples})
    assert strategy.clients == ["0", "2", "3"]
    assert f"declares {examples!r} examples" in reasons(strategy)[0][1]


class Keyed(LocalGrid):
    """Nodes with keys, as a SuperLink lists them, that can go and come."""

    def __init__(self, nodes: int, name: str = "") -> None:
        super().__init__(client_app(Says), nodes)
        self.keys = {
            node: (b"key %d" % k, name and f"{name} {k}")
            for k, node in enumerate(self._contexts)
        }
        self.sent: list[Message] = []

    def _strikes(self, message: Message) -> set[str]:
        self.sent.append(message)
        return super()._strikes(message)

    def get_nodes(self) -> Iterable[Any]:
        infos = list(super().get_nodes())
        for info in infos:
            key, name = self.keys[info.node_id]
            info.public_key = key
            if name:
                info.name = name
        return infos

    def join(self, node: int, key: tuple[bytes, str]) -> None:
        """Another node that claims to be client 0."""
        config: Any = {"partition-id": 0, "num-partitions": 3}
        self._contexts[node] = NodeContext(1, node, config, RecordDict(), {})
        self.keys[node] = key

    def to(self, node: int) -> list[Message]:
        return [m for m in self.sent if m.metadata.dst_node_id == node]


INTRUDER = b"another key", "own"
BOUND = "client-id = '0' is bound to the key of another node"


@pytest.mark.parametrize(
    ("setting", "name", "key", "kept_out"),
    [
        ("bound", "", INTRUDER, True),
        (None, "clinic", INTRUDER, True),
        (None, "", INTRUDER, False),
        ("free", "clinic", INTRUDER, False),
        # the same key may come back on another node
        ("bound", "clinic", None, False),
    ],
)
def test_a_name_belongs_to_the_key_that_first_answered_for_it(
    setting: Any, name: str, key: Any, kept_out: bool
) -> None:
    """After round 2 node 0 is gone, and another claims to be it."""
    grid = Keyed(3, name)

    def swap(record: Any) -> None:
        if record.round == 2:
            gone = contexts(grid)[0].node_id
            del grid._contexts[gone]
            grid.join(77, key or grid.keys[gone])

    strategy = Mean(client_keys=setting, callbacks=[Call(swap)])
    start(strategy, rounds=5, grid=grid)
    assert [r.used for r in strategy.history] == [3, 3, *[3 - kept_out] * 3]
    if not kept_out:  # it has no state any more, and is given what it had
        assert any("restore" in message.content for message in grid.to(77))
        return
    # it was asked who it is, once, and sent nothing else, least of all the state
    (told,) = grid.to(77)
    assert told.metadata.message_type == "query.hello"
    assert not dict(told.content)
    there = [pair for pair in reasons(strategy) if "77" in pair[0]]
    assert there == [("on node 77", BOUND)]


def test_a_checkpoint_knows_whose_the_names_are(tmp_path: Path) -> None:
    """An intruder that is there first when the run goes on is refused all the same."""
    path = tmp_path / "checkpoint.npz"
    grid = Keyed(3, "clinic")
    start(Mean(checkpoint=path, checkpoint_every=1), rounds=2, grid=grid)
    own = contexts(grid)[0].node_id
    for context in grid._contexts.values():
        context.state = RecordDict()

    grid.join(1, INTRUDER)
    again = Mean(resume=path)
    start(again, rounds=4, grid=grid)
    assert again.refused == [("on node 1", BOUND)]
    assert [record.used for record in again.history[2:]] == [3, 3]
    assert [m.metadata.message_type for m in grid.to(1)] == ["query.hello"]
    # alone, it does not let the run begin
    del grid._contexts[own]
    with pytest.raises(SettingsError, match="number of clients is 3, this run's is 2"):
        start(Mean(resume=path), rounds=4, grid=grid)
