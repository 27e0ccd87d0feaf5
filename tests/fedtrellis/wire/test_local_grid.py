"""The grid in this process: the same messages, and faults that do what they say."""

from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from fedtrellis import (
    LocalGrid,
    RoundStrategy,
    SettingsError,
    StatefulClient,
    client_app,
)
from fedtrellis.server.conversation import Answer
from fedtrellis.wire.arrays import Layout, decode
from fedtrellis.wire.flower_internals import through_bytes
from fedtrellis.wire.local_grid import FAULTS

Arrays = list[NDArray[Any]]
Config = dict[str, Any]
Point = NDArray[np.float64]


# ------------------------------------------------- one node that counts its messages


def counting_app() -> ClientApp:
    """Answers with how many messages its state has seen; keeps no other record."""
    app = ClientApp()

    def count(message: Message, context: Context) -> Message:
        if "count" not in context.state:
            context.state["count"] = ConfigRecord({"n": 0})
        record = cast(ConfigRecord, context.state["count"])
        record["n"] = cast(int, record["n"]) + 1  # in place
        content = RecordDict(
            {
                "status": ConfigRecord({"n": record["n"], "server-round": 1}),
                "arrays": ArrayRecord([np.arange(5.0), np.arange(4, dtype=np.uint8)]),
            }
        )
        return Message(content, reply_to=message)

    app.train()(count)
    app.evaluate()(count)
    app.query("hello")(count)
    return app


def send(grid: LocalGrid, kind: str = "train") -> list[Message]:
    (node_id,) = grid.get_node_ids()
    message = Message(RecordDict(), node_id, kind)
    return grid.pull_messages(grid.push_messages([message]))


def seen(grid: LocalGrid) -> int:
    (context,) = grid._contexts.values()
    record = cast(ConfigRecord, context.state.get("count", ConfigRecord({"n": 0})))
    return cast(int, record["n"])


def told(reply: Message) -> int:
    return cast(int, cast(ConfigRecord, reply.content["status"])["n"])


#: By fault: what three messages are answered with (``told``, or an error), one list a
#: wave, and how many the node's state has seen after each.
FATES: dict[str, tuple[list[list[Any]], list[int]]] = {
    "none": ([[1], [2], [3]], [1, 2, 3]),
    "request_loss": ([[], [], []], [0, 0, 0]),
    "wipe": ([[1], [1], [1]], [1, 1, 1]),
    "crash": ([["error"], ["error"], ["error"]], [1, 2, 3]),
    "state_loss": ([[1], [1], [1]], [0, 0, 0]),
    "reply_loss": ([[], [], []], [1, 2, 3]),
    "late_reply": ([[], [1], [2]], [1, 2, 3]),
    "duplicate": ([[1, 1], [2, 2], [3, 3]], [1, 2, 3]),
}


@pytest.mark.parametrize("fault", FATES)
def test_a_fault_does_what_it_says(fault: str) -> None:
    chances: Any = {fault: 1.0} if fault in FAULTS else {}
    grid = LocalGrid(counting_app(), 1, **chances)
    for number, (expected, state) in enumerate(zip(*FATES[fault], strict=True), 1):
        replies = send(grid)
        assert [
            "error" if reply.has_error() else told(reply) for reply in replies
        ] == expected
        assert seen(grid) == state
        for reply in replies:
            late = fault == "late_reply"
            assert int(reply.metadata.reply_to_message_id) == number - late
            if reply.has_error():
                assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                assert "injected" in str(reply.error.reason)
        assert grid.fault_counts.get(fault, 0) == number * (fault in FAULTS)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_garbage_always_has_something_wrong(kind: str) -> None:
    grid = LocalGrid(counting_app(), 1, garbage=1.0)
    kinds = set()
    for number in range(1, 41):
        (reply,) = send(grid, kind)
        assert reply.has_content()
        if len(reply.content) == 0:
            kinds.add("empty")
            continue
        status = cast(ConfigRecord, reply.content["status"])
        arrays = cast(ArrayRecord, reply.content["arrays"])
        values = [decode(array) for array in arrays.values()]
        if status["server-round"] != 1:
            kinds.add("round")
        elif np.isnan(values[0]).all():
            kinds.add("nan")
            assert values[1].size == 3
        else:
            kinds.add("cut")
            assert [v.size for v in values] == [4, 3]
        assert seen(grid) == number  # the node itself is well
    assert kinds == {"empty", "round", "nan", "cut"}


def test_garbage_of_a_reply_without_arrays_or_status_is_garbage_too() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"status": ConfigRecord({"a": 1})})
        if context.node_config["record"] == "arrays":
            content = RecordDict({"arrays": ArrayRecord([np.arange(3.0)])})
        return Message(content, reply_to=message)

    for record in ("arrays", "status"):
        grid = LocalGrid(app, 1, node_configs=[{"record": record}], garbage=1.0)
        for _ in range(20):
            (reply,) = send(grid)
            changed = cast(dict[str, Any], reply.content)
            if record == "status":
                assert changed != {"status": {"a": 1}}
            else:
                arrays = changed.get("arrays", {})
                assert not any(
                    np.array_equal(decode(a), np.arange(3.0)) for a in arrays.values()
                )


def test_faults_strike_about_as_often_as_asked() -> None:
    chances = dict(zip(FAULTS, np.linspace(0.1, 0.8, len(FAULTS)), strict=True))
    grid = LocalGrid(counting_app(), 1, **cast(Any, chances))
    for _ in range(400):
        send(grid)
    for fault, chance in chances.items():
        # five standard deviations
        spread = 5 * np.sqrt(400 * chance * (1 - chance))
        assert abs(grid.fault_counts[fault] - 400 * chance) < spread


def test_faults_depend_on_the_seed_and_spare_introductions() -> None:
    def struck(seed: int) -> list[bool]:
        grid = LocalGrid(counting_app(), 1, seed=seed, request_loss=0.5)
        return [bool(send(grid)) for _ in range(60)]

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)
    grid = LocalGrid(counting_app(), 1, request_loss=1.0, garbage=1.0)
    (reply,) = send(grid, "query.hello")
    assert told(reply) == 1
    assert grid.fault_counts["request_loss"] == 0


def test_a_client_that_raises_answers_with_an_error() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise ZeroDivisionError("no data")

    (reply,) = send(LocalGrid(app, 1))
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "ZeroDivisionError: no data" in str(reply.error.reason)


def test_a_message_to_no_node_comes_back_as_an_error() -> None:
    grid = LocalGrid(counting_app(), 1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), 3, "train")])
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE


def test_replies_wait_until_they_are_asked_for() -> None:
    grid = LocalGrid(counting_app(), 2)
    ids = grid.push_messages(
        [Message(RecordDict(), node_id, "train") for node_id in grid.get_node_ids()]
    )
    assert not grid.settled(ids)
    (first,) = grid.pull_messages(ids[:1])
    assert first.metadata.reply_to_message_id == ids[0]
    assert grid.settled(ids[:1])
    assert not grid.settled(ids)
    assert len(grid.pull_messages(ids)) == 1
    assert grid.settled(ids)


def test_nodes_have_flowers_node_config_and_what_is_added() -> None:
    grid = LocalGrid(
        counting_app(),
        3,
        run_config={"lr": 0.5},
        node_configs=[{}, {"client-id": "clinic"}, {"partition-id": 9}],
    )
    configs = [dict(context.node_config) for context in grid._contexts.values()]
    assert configs == [
        {"partition-id": 0, "num-partitions": 3},
        {"partition-id": 1, "num-partitions": 3, "client-id": "clinic"},
        {"partition-id": 9, "num-partitions": 3},
    ]
    assert all(c.run_config == {"lr": 0.5} for c in grid._contexts.values())
    ids = grid.get_node_ids()
    assert len(set(ids)) == 3
    assert [info.node_id for info in grid.get_nodes()] == ids
    assert LocalGrid(counting_app(), 3, seed=1).get_node_ids() != ids


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_nodes": 0}, "num_nodes = 0 must be at least 1"),
        ({"node_configs": [{}]}, "node_configs has 1 entries for 2 nodes"),
        ({"reply_los": 0.1}, "'reply_los' is no fault; allowed: request_loss"),
        ({"reply_loss": 1.5}, "reply_loss = 1.5 must be at least 0 and at most 1"),
        ({"wipe": -0.1}, "wipe = -0.1"),
        ({"wipe": float("nan")}, "wipe = nan"),
    ],
)
def test_wrong_arguments_are_named(options: Config, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        LocalGrid(counting_app(), **{"num_nodes": 2, **options})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_encoded_message_is_equal_to_what_it_was() -> None:
    LocalGrid(counting_app(), 1)
    arrays = ArrayRecord([np.arange(5.0), np.zeros((0, 2)), np.array(1)])
    config = ConfigRecord({"a": 1, "b": [0.5], "c": "ä", "d": b"\x00", "e": True})
    message = Message(RecordDict({"x": arrays, "c": config}), 7, "train", group_id="3")
    message.metadata.__dict__["_message_id"] = "1-9"
    decoded, size = through_bytes(message)
    assert decoded is not message
    assert decoded.metadata == message.metadata
    assert decoded.content == message.content
    assert decoded.content["x"] is not arrays
    assert size > sum(len(array.data) for array in arrays.values())


# -------------------------------------------------------------------------- whole runs


class MeanClient(StatefulClient):
    """x_i ← ½ (x_i + x̄) + i; the method's own state, and dense answers."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        x = 0.5 * (self.state["x"] + parameters[0]) + int(self.client_id)
        self.state["x"] = x
        return [x], 1, {"mean": float(x.mean())}


class Mean(RoundStrategy):
    def setup(self, point: Point, layout: Layout) -> None:
        self.x = {name: point.copy() for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {}

    def check(self, answer: Answer) -> Point:
        if len(answer.arrays) != 1 or answer.arrays[0].shape != self.x["0"].shape:
            raise ValueError("wrong arrays")
        return answer.arrays[0]

    def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
        self.x.update(answers)
        self.broadcast.replace(np.mean(list(self.x.values()), axis=0))
        return {}

    def client_state(self, client: str) -> dict[str, Point]:
        return {"x": self.x[client]}


FAULTY: Config = {"request_loss": 0.1, "wipe": 0.1, "crash": 0.1, "state_loss": 0.1,
          "late_reply": 0.1, "garbage": 0.1, "duplicate": 0.1}  # fmt: skip


def run(encode: bool, faults: Config) -> tuple[Mean, bytes, LocalGrid]:
    grid = LocalGrid(client_app(MeanClient), 4, encode=encode, **faults)
    start = np.random.default_rng(0).standard_normal(300)
    strategy = Mean(participation=0.7, seed=3)
    result = strategy.start(grid, ArrayRecord([start]), 30)
    return strategy, result.arrays["0"].data, grid


@pytest.mark.parametrize("faults", [{}, FAULTY], ids=["well", "faulty"])
def test_messages_as_bytes_give_the_same_run_bit_for_bit(
    faults: Config,
) -> None:
    plain, model, _ = run(False, faults)
    encoded, same_model, _ = run(True, faults)
    assert model == same_model

    def story(strategy: Mean) -> list[Any]:
        return [(r.sampled, r.used, r.rejected) for r in strategy.history]

    assert story(plain) == story(encoded)
    assert [(r.bytes_up, r.bytes_down) for r in plain.history] == [
        (r.bytes_up, r.bytes_down) for r in encoded.history
    ]


def test_the_historys_bytes_are_those_that_went_over_the_grid() -> None:
    strategy, _, grid = run(True, {})
    assert sum(r.bytes_up for r in strategy.history) == grid.bytes_up
    assert sum(r.bytes_down for r in strategy.history) == grid.bytes_down
    assert run(False, {})[2].bytes_up == 0


def test_requests_that_are_lost_count_as_sent_by_the_server() -> None:
    # the history has what the server sent and got; the grid what the nodes got and sent
    strategy, _, grid = run(True, {"request_loss": 0.3})
    assert sum(r.bytes_up for r in strategy.history) == grid.bytes_up
    assert sum(r.bytes_down for r in strategy.history) > grid.bytes_down


def test_states_can_be_taken_and_put_back() -> None:
    first = LocalGrid(counting_app(), 2, seed=0, request_loss=0.5)
    for _ in range(10):
        first.send_and_receive(
            [Message(RecordDict(), n, "train") for n in first.get_node_ids()]
        )
    states = first.client_states()
    second = LocalGrid(counting_app(), 3, seed=0, request_loss=0.5)
    second.load_client_states(states)

    def counts(grid: LocalGrid) -> list[Any]:
        return [
            cast(Any, context.state)["count"]["n"] if "count" in context.state else None
            for context in grid._contexts.values()
        ]

    assert counts(second)[:2] == counts(first)
    assert counts(second)[2] is None
    assert all(isinstance(data, bytes) for data in states.values())
    # and what is to come strikes as it would have
    third = LocalGrid(counting_app(), 2, seed=0, request_loss=0.5)
    third.load_client_states(states)
    for grid in (first, third):
        for _ in range(10):
            grid.send_and_receive(
                [Message(RecordDict(), n, "train") for n in grid.get_node_ids()]
            )
    assert counts(third) == counts(first)
