"""What a message may say without being believed: a test for each way that was open."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis import LocalGrid, RoundRecord, StatefulClient, client_app
from fedtrellis.server.conversation import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.wire.arrays import Layout, array_record, encode
from fedtrellis.wire.broadcast import ModelBroadcast, ReceivedModel, Step, receive
from fedtrellis.wire.exchange import Traffic
from fedtrellis.wire.protocol import unpack_restore

Array = NDArray[np.float64]
SHAPE = (4,)


class Echo(StatefulClient):
    """Answers with its state x, to which it adds the step that it is told."""

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        x = self.state["x"] + config["step"] * np.ones(SHAPE)
        self.state["x"] = x
        return [x], 1, {}

    def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
        return 1.0, 1, {}


class Sums(RoundStrategy):
    def setup(self, point: Array, layout: Layout) -> None:
        self.x = {name: point.copy() for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {"step": 1.0}

    def check(self, answer: Answer) -> Any:
        if [array.shape for array in answer.arrays] != [SHAPE]:
            raise ValueError("the answer has another shape")
        return answer.arrays[0]

    def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
        self.x.update(answers)
        self.broadcast.replace(np.mean(list(self.x.values()), axis=0))
        return {}

    def client_state(self, client: str) -> dict[str, Array]:
        return {"x": self.x[client]}


class Spoils(LocalGrid):
    """The replies of the first node are changed on their way, by type of message."""

    spoil: Callable[[RecordDict], None]
    kind = "train"

    def _strikes(self, message: Message) -> set[str]:
        node = self._contexts[message.metadata.dst_node_id].node_config
        hit = message.metadata.message_type == self.kind and node["partition-id"] == 0
        return {"garbage"} if hit else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.spoil(reply.content)
        return reply


def run(
    spoil: Callable[[RecordDict], None], kind: str = "train", **options: Any
) -> Sums:
    grid = Spoils(client_app(Echo), 3)
    grid.spoil, grid.kind = spoil, kind
    strategy = Sums(**options)
    strategy.start(grid, ArrayRecord([np.zeros(SHAPE)]), num_rounds=2)
    return strategy


# ------------------------------------------------------------------------- the server


def put(record: str, key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        changed: Any = content[record]
        changed[key] = value

    return spoil


def replace(name: str, record: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content[name] = record

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (replace("status", ArrayRecord()), "'status' is a ArrayRecord"),
        (replace("arrays", ConfigRecord()), "'arrays' is a ConfigRecord"),
        (replace("metrics", ConfigRecord()), "'metrics' is a ConfigRecord"),
        (put("status", "in-sync", "yes"), "in-sync 'yes'"),
        (put("status", "model-version", 0.0), "model version 0.0"),
        (put("status", "numbers", "12345678"), "numbers are not numbers"),
        (put("status", "numbers", b"1234567"), "numbers are not numbers"),
        (put("arrays", "0", encode(np.full(SHAPE, 1e101))), "beyond ±1e.100"),
        (put("arrays", "0", encode(np.full(SHAPE, np.inf))), "not finite"),
        (put("arrays", "0", encode(np.full(SHAPE, np.nan, "f2"))), "not finite"),
    ],
)
def test_answers_are_dropped_with_a_reason(spoil: Any, reason: str) -> None:
    import re

    strategy = run(spoil)
    for record in strategy.history:
        assert record.used == 2
        ((name, why),) = record.rejected
        assert name == "0"
        assert re.search(reason, why)
    assert np.array_equal(strategy.x["0"], np.zeros(SHAPE))


def test_what_a_dropped_answer_says_of_the_model_is_not_believed() -> None:
    """Its client may have no model at all; it is sent all of it in the next round."""
    strategy = run(put("arrays", "0", encode(np.zeros(3))))
    assert strategy.conversation.client("0").version is None
    assert strategy.conversation.client("1").version is not None


def test_an_introduction_without_its_records_leaves_the_node_out() -> None:
    """It ended the run with a KeyError."""
    for spoil in (
        lambda content: content.pop("config"),
        lambda content: content.pop("status"),
        put("status", "client-id", 7),
        replace("config", ArrayRecord()),
    ):
        strategy = run(spoil, "query.hello")
        assert strategy.clients == ["1", "2"]
        reasons = [why for record in strategy.history for _, why in record.rejected]
        assert len(reasons) >= 1
        assert all("introduction" in why for why in reasons)


def test_a_reason_is_cut_before_it_is_kept() -> None:
    """A client's word of megabytes would be in the history of every round."""
    traffic = Traffic()
    traffic.reject("0", "x" * 10**6)
    assert len(traffic.rejected[0][1]) < 600
    strategy = run(put("status", "client-id", "y" * 10**5))
    assert all(len(why) < 600 for r in strategy.history for _, why in r.rejected)


@pytest.mark.parametrize("examples", [-5, -(2**63)])
def test_a_negative_number_of_examples_has_no_weight(examples: int) -> None:
    strategy = run(
        put("metrics", "num-examples", examples), "evaluate", client_evaluate_every=1
    )
    for record in strategy.history:
        assert record.client_evaluation == {"loss": 1.0, "num-examples": 2.0}


def test_a_metric_that_no_mean_could_hold_is_left_out() -> None:
    strategy = run(put("metrics", "loss", 1e308), "evaluate", client_evaluate_every=1)
    assert "loss" not in strategy.history[-1].client_evaluation


# ------------------------------------------------------------------------- the client


def started(**limits: Any) -> tuple[Any, Context, list[Message]]:
    """A node after a round, and the requests that it was sent."""
    requests: list[Message] = []

    class Keeps(LocalGrid):
        def _deliver(self, messages: Sequence[Message]) -> None:
            requests.extend(messages)
            super()._deliver(messages)

    app = client_app(Echo, **limits)
    grid = Keeps(app, 1)
    Sums().start(grid, ArrayRecord([np.zeros(SHAPE)]), num_rounds=2)
    (context,) = grid._contexts.values()
    return app, context, [m for m in requests if m.metadata.message_type == "train"]


def changed(message: Message, **config: Any) -> Message:
    numbers: Any = message.content["config"]
    content = RecordDict(dict(message.content))
    content["config"] = ConfigRecord(
        {**numbers, **{key.replace("_", "-"): value for key, value in config.items()}}
    )
    return Message(content, message.metadata.dst_node_id, "train")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_shapes": [1, 5]}, r"shapes \[\(5,\)\] of float64; in this session"),
        ({"local_steps": 1001}, "local-steps = 1001; this client takes"),
        ({"samples": -1}, "samples = -1; this client takes"),
        ({"batch_size": 2.0}, "batch-size = 2.0; this client takes"),
        (
            {"local_steps": 30, "samples": 40},
            "local-steps times samples = 1200; this client takes",
        ),
        ({"step_size": [0.1] * 1001}, "1001 numbers for step-size; this client takes"),
    ],
)
def test_requests_are_refused_with_a_reason_and_change_nothing(
    config: Any, reason: str
) -> None:
    app, context, requests = started(max_count=1000)
    before = {key: dict(record) for key, record in context.state.items()}
    with pytest.raises(ValueError, match=reason):
        app(changed(requests[-1], **config), context)
    assert {key: dict(record) for key, record in context.state.items()} == before


def test_what_is_missing_is_named() -> None:
    app, context, requests = started()
    message = changed(requests[-1])
    del message.content.config_records["config"]["step"]
    with pytest.raises(TypeError, match="config has no 'step': is Echo the client"):
        app(message, context)
    message = changed(requests[0], session="new")
    del message.content["restore"]
    message.content.config_records["config"].pop("restore-as-model", None)
    with pytest.raises(TypeError, match="the client's state has no 'x'"):
        app(message, context)


# What a header, or a list of shapes, declares is no reason to allocate.


def peak_of(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\w+"):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SPARSE = array_record([np.array([0], dtype="u1"), np.array([1.0])])


@pytest.mark.parametrize("shapes", [[1, 10**12], [2, 2**40, 2**40], [1, 10**8 + 1]])
def test_a_sparse_model_of_any_size_is_refused_unallocated(shapes: list[int]) -> None:
    config: dict[str, Any] = {
        "model-encoding": "sparse",
        "model-version": 1,
        "model-shapes": shapes,
    }
    assert peak_of(lambda: receive(SPARSE, config, None)) < 100_000
    steps = array_record([np.array([[0.0, 1.0, 0.0]])])
    config |= {"model-encoding": "steps", "model-base": 0}
    assert peak_of(lambda: receive(steps, config, None)) < 100_000


def test_the_limit_is_the_users() -> None:
    config: dict[str, Any] = {
        "model-encoding": "sparse",
        "model-version": 1,
        "model-shapes": [1, 1000],
    }
    assert receive(SPARSE, config, None, 1000).point.shape == (1000,)
    with pytest.raises(ValueError, match=r"1000 parameters; .* most 999 .client_app"):
        receive(SPARSE, config, None, 999)


def test_a_session_has_one_layout() -> None:
    stored = ReceivedModel(Layout((SHAPE,)), np.zeros(SHAPE), 0)
    arrays, config = ModelBroadcast(Layout(((5,),)), np.ones(5), 1).encode(None)
    with pytest.raises(ValueError, match="in this session it had"):
        receive(arrays, config, stored)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused(value: float) -> None:
    server = ModelBroadcast(Layout((SHAPE,)), np.array([0.0, value, 0.0, 0.0]), 1)
    arrays, config = server.encode(None)
    with pytest.raises(ValueError, match="not finite"):
        receive(arrays, config, None)


def test_restoring_does_not_multiply_the_model() -> None:
    size = 100_000
    model = ReceivedModel(Layout(((size,),)), np.zeros(size), 0)
    names = [f"s{i}" for i in range(1000)]
    tracemalloc.start()
    state = unpack_restore(ArrayRecord(), {"restore-as-model": names}, model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(state) == 1000
    assert peak < 4 * 8 * size
    record = ArrayRecord()
    for name in names:
        record[name + ".indices"] = SPARSE["0"]
        record[name + ".values"] = SPARSE["1"]
    assert peak_of(lambda: unpack_restore(record, {}, model)) < 200_000


def test_half_a_sparse_array_is_refused() -> None:
    model = ReceivedModel(Layout((SHAPE,)), np.zeros(SHAPE), 0)
    record = ArrayRecord()
    record["x.indices"] = SPARSE["0"]
    with pytest.raises(ValueError, match="values of 'x' are missing"):
        unpack_restore(record, {}, model)


def test_a_round_record_is_still_told() -> None:
    """Steps of the model still reach the clients: nothing honest is refused."""
    server = ModelBroadcast(Layout((SHAPE,)), np.zeros(SHAPE))
    server.advance(Step(0.0, 1.0, ()))
    arrays, config = server.encode(None)
    received = receive(arrays, config, None)
    assert np.array_equal(received.point, server.model)
    assert RoundRecord(round=1).rejected == []
