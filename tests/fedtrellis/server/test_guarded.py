"""Clients that lie within the rules of the wire: proportion, weights, names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedtrellis import (
    Callback,
    LocalGrid,
    RoundRecord,
    StatefulClient,
    TrimmedMean,
    client_app,
)
from fedtrellis.domains import L1Ball
from fedtrellis.server.conversation import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.exchange import Key
from strategies import FedAvgGD, FedFW, HyFDCA, NaiveFrankWolfe
from tests.harness import Array, number_of

SECRET = 0.123456789


class Says(StatefulClient):
    """Answers what the test says for its number; its state is nobody else's."""

    answers: ClassVar[dict[int, Any]] = {}
    examples: ClassVar[dict[int, Any]] = {}
    losses: ClassVar[dict[int, float]] = {}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.number = number_of(context)

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        declared = self.examples.get(self.number)
        return {} if declared is None else {"num-examples": declared}

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        self.state["x"] = np.full(3, SECRET)
        (model,) = parameters
        return [model + self.answers.get(self.number, 1.0)], 0, {}

    def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
        loss = self.losses.get(self.number, 1.0)
        return loss, config.get(f"examples-of-{self.number}", 10), {}


class Mean(RoundStrategy):
    needs = "sum"

    def setup(self, point: FloatArray, layout: Layout) -> None:
        pass

    def state(self) -> dict[str, FloatArray]:
        return {}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {}

    def check(self, answer: Answer) -> Any:
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
        self.broadcast.replace(
            self.average(list(answers.values()), self.broadcast.model)
        )
        return {}

    def client_state(self, client: str) -> dict[str, FloatArray]:
        return {"x": np.full(3, SECRET)}


def start(
    strategy: Mean, nodes: int = 4, rounds: int = 2, grid: Any = None, **said: Any
) -> Array:
    client = type("Client", (Says,), said)
    grid = LocalGrid(client_app(client), nodes) if grid is None else grid
    result = strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=rounds)
    return np.asarray(result.arrays.to_numpy_ndarrays()[0])


def reasons(strategy: Mean) -> list[tuple[str, str]]:
    return [pair for record in strategy.history for pair in record.rejected]


# --------------------------------------------------------------------------- proportion


def test_an_answer_out_of_proportion_is_refused_and_named() -> None:
    strategy = Mean()
    assert start(strategy, answers={2: 1e9}).tolist() == [2.0] * 3
    assert [who for who, _ in reasons(strategy)] == ["2", "2"]
    assert "beyond answer-bound = 1e+09; local steps" in reasons(strategy)[0][1]


def test_the_bound_is_a_multiple_of_the_models_norm() -> None:
    """Of max(1, it): from 0, answers of norm 2 pass and of 2.1 do not; then of 8."""
    two, more = 2.0 / np.sqrt(3.0), 2.1 / np.sqrt(3.0)
    strategy = Mean(answer_bound=2.0)
    start(strategy, rounds=1, answers={0: two, 1: more, 2: -two, 3: -more})
    assert [who for who, _ in reasons(strategy)] == ["1", "3"]
    strategy = Mean(answer_bound=2.0)
    grid = LocalGrid(client_app(type("Client", (Says,), {"answers": {0: 3.9}})), 3)
    strategy.start(grid, ArrayRecord([np.full(3, 4.0)]), num_rounds=1)
    assert reasons(strategy) == []


# ---------------------------------------------------------------------- robust averages


def test_a_rule_is_for_methods_that_average() -> None:
    with pytest.raises(SettingsError, match="does not apply to naive-frank-wolfe"):
        NaiveFrankWolfe(L1Ball(1.0), aggregation="median")
    with pytest.raises(SettingsError, match="does not apply to hyfdca; allowed: mean"):
        HyFDCA("hinge", 0.1, aggregation="median")
    with pytest.raises(SettingsError, match="fedfw with variant = 'plain'; allowed: m"):
        FedFW(L1Ball(1.0), variant="plain", aggregation="median")
    with pytest.raises(SettingsError, match="fraction = 0.5 must be greater than 0"):
        TrimmedMean(fraction=0.5)
    with pytest.raises(SettingsError, match="aggregation = 'mediam' is not known .did"):
        FedAvgGD(aggregation="mediam")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="aggregation = 3 must be a text"):
        FedAvgGD(aggregation=3)  # type: ignore[arg-type]


def test_a_strategy_has_a_copy_of_its_own() -> None:
    rule = TrimmedMean(fraction=0.3)
    one, other = Mean(aggregation=rule), Mean(aggregation=rule)
    assert one.aggregator is not other.aggregator
    assert one._settings()["trimmed-mean fraction β"] == 0.3


def test_a_rule_needs_three_clients() -> None:
    with pytest.raises(SettingsError, match="needs at least 3 clients; there are 2"):
        start(Mean(aggregation="median"), nodes=2)


def test_two_answers_leave_the_model_where_it_is() -> None:
    """Of two, one may be a liar's; their clients are told that nothing was used."""
    strategy = Mean(aggregation="median", sampling="fixed", participation=0.5)
    with pytest.raises(RuntimeError, match="needs at least 3 answers in a round"):
        start(strategy, nodes=4, rounds=9)
    assert not strategy.broadcast.model.any()
    assert all(record.used == 0 for record in strategy.history)
    assert all(
        c.used_round == 0 for c in strategy.conversation.registry.clients.values()
    )


# ------------------------------------------------------------------------------ weights


def evaluated(strategy: Mean) -> list[dict[str, float]]:
    return [record.client_evaluation for record in strategy.history]


def test_an_evaluation_weighs_what_was_declared_before_round_1() -> None:
    strategy = Mean(client_evaluate_every=1)
    examples = dict.fromkeys(range(4), 10) | {3: 70}
    start(strategy, examples=examples, losses={3: 11.0})
    # (30 · 1 + 70 · 11) / 100, though all of them say 10 now
    assert evaluated(strategy) == [{"loss": 8.0, "num-examples": 100.0}] * 3


def test_what_was_not_declared_is_what_the_first_evaluation_says() -> None:
    class Grows(Says):
        losses: ClassVar[dict[int, float]] = {0: 5.0}

        def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
            loss, examples, more = super().evaluate(parameters, config)
            grown = (1 + config["server-round"]) ** 9 if self.number == 0 else 1
            return loss, examples * grown, more

    strategy = Mean(client_evaluate_every=1)
    start(strategy, grid=LocalGrid(client_app(Grows), 4))
    assert evaluated(strategy) == [{"loss": 2.0, "num-examples": 40.0}] * 3


def test_with_a_rule_no_single_evaluation_decides() -> None:
    said: dict[str, Any] = {"losses": {0: -1e50, 1: 2.0, 2: 3.0}}
    strategy = Mean(client_evaluate_every=1, aggregation="median")
    start(strategy, rounds=1, **said)
    assert evaluated(strategy) == [{"loss": 1.5, "num-examples": 40.0}] * 2
    strategy = Mean(client_evaluate_every=1)
    start(strategy, rounds=1, **said)
    assert evaluated(strategy)[0]["loss"] < -1e49


def test_evaluations_may_all_weigh_the_same() -> None:
    strategy = Mean(client_evaluate_every=1, evaluation_weights="equal")
    start(strategy, rounds=1, examples={0: 10**12, 1: 0}, losses={0: 4.0, 1: 99.0})
    assert evaluated(strategy)[0]["loss"] == 2.0


@pytest.mark.parametrize("examples", [-1, 2**60, 1.5, "many"])
def test_a_node_that_declares_nonsense_is_left_out(examples: Any) -> None:
    strategy = Mean()
    start(strategy, examples={1: examples})
    assert strategy.clients == ["0", "2", "3"]
    assert f"declares {examples!r} examples" in reasons(strategy)[0][1]


# -------------------------------------------------------------------------------- names


class Keyed(LocalGrid):
    """Nodes with keys, as a SuperLink lists them, that can go and come."""

    def __init__(self, nodes: int, name: str = "") -> None:
        super().__init__(client_app(Says), nodes)
        self.keys = {
            node: (b"key %d" % k, name and f"{name} {k}")
            for k, node in enumerate(self._contexts)
        }
        self.told: list[tuple[int, Message]] = []

    def get_nodes(self) -> Iterable[Any]:
        infos = list(super().get_nodes())
        for info in infos:
            key, name = self.keys[info.node_id]
            info.public_key = key
            if name:
                info.name = name
        return infos

    def _deliver(self, messages: Sequence[Message]) -> None:
        self.told += [(message.metadata.dst_node_id, message) for message in messages]
        super()._deliver(messages)

    def node(self, number: int) -> int:
        return next(n for n, c in self._contexts.items() if number_of(c) == number)

    def leave(self, number: int) -> None:
        del self._contexts[self.node(number)]

    def join(self, node: int, key: tuple[bytes, str], number: int) -> None:
        config = {"partition-id": number, "num-partitions": 3}
        self._contexts[node] = Context(1, node, config, RecordDict(), {})  # type: ignore[arg-type]
        self.keys[node] = key

    def kinds(self, node: int) -> list[str]:
        return [m.metadata.message_type for n, m in self.told if n == node]


class Swap(Callback):
    """After round 2 node 0 is gone, and another claims to be it."""

    def __init__(self, grid: Keyed, key: tuple[bytes, str]) -> None:
        self.grid, self.key = grid, key

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round == 2:
            self.grid.leave(0)
            self.grid.join(77, self.key, 0)


INTRUDER = b"another key"


def restored(grid: Keyed, node: int) -> bool:
    """Whether a node was sent a client's state."""
    return any("restore" in m.content for n, m in grid.told if n == node)


@pytest.mark.parametrize(
    ("setting", "name", "refused"),
    [
        ("bound", "", True),
        ("bound", "clinic", True),
        (None, "clinic", True),
        (None, "", False),
        ("free", "clinic", False),
    ],
)
def test_a_name_belongs_to_the_key_that_first_answered_for_it(
    setting: Any, name: str, refused: bool
) -> None:
    grid = Keyed(3, name)
    strategy = Mean(client_keys=setting, callbacks=[Swap(grid, (INTRUDER, "own"))])
    start(strategy, rounds=5, grid=grid)
    if not refused:
        assert restored(grid, 77)
        return
    # it was asked who it is, once, and sent nothing else, least of all the state
    assert grid.kinds(77) == ["query.hello"]
    (told,) = (message for node, message in grid.told if node == 77)
    assert not dict(told.content)
    assert [pair for pair in reasons(strategy) if "77" in pair[0]] == [
        ("on node 77", "client-id = '0' is bound to the key of another node")
    ]
    assert [record.used for record in strategy.history] == [3, 3, 2, 2, 2]


@pytest.mark.parametrize("name", ["", "clinic"])
def test_the_same_key_may_come_back_on_another_node(name: str) -> None:
    grid = Keyed(3, name)
    key = grid.keys[grid.node(0)]
    strategy = Mean(client_keys="bound", callbacks=[Swap(grid, key)])
    start(strategy, rounds=5, grid=grid)
    assert [record.used for record in strategy.history] == [3] * 5
    # it has no state any more, and is given what it had
    assert restored(grid, 77)


def test_a_checkpoint_knows_whose_the_names_are(tmp_path: Path) -> None:
    """An intruder that is there first when the run goes on is refused all the same."""
    path = tmp_path / "checkpoint.npz"
    grid = Keyed(3, "clinic")
    first = Mean(checkpoint=path, checkpoint_every=1)
    start(first, rounds=2, grid=grid)
    own = grid.keys[grid.node(0)]
    for context in grid._contexts.values():
        context.state = RecordDict()

    grid.join(1, (INTRUDER, "own"), 0)
    again = Mean(resume=path)
    start(again, rounds=4, grid=grid)
    assert again.refused == [
        ("on node 1", "client-id = '0' is bound to the key of another node")
    ]
    assert [record.used for record in again.history[2:]] == [3, 3]
    assert grid.kinds(1) == ["query.hello"]
    assert again.conversation.client("0").key == Key.of(
        next(n for n in grid.get_nodes() if n.public_key == own[0])
    )

    # alone, it does not let the run begin
    for node in [n for n, c in grid._contexts.items() if number_of(c) == 0 and n != 1]:
        del grid._contexts[node]
    with pytest.raises(SettingsError, match="number of clients is 3, this run's is 2"):
        start(Mean(resume=path), rounds=4, grid=grid)


def test_an_option_is_set_where_it_is_read() -> None:
    strategy = FedAvgGD(step_size=0.1, seed=1)
    strategy.seed = 2
    assert strategy.options.seed == strategy.seed == 2
    strategy.options.seed = 3
    assert strategy.seed == 3
