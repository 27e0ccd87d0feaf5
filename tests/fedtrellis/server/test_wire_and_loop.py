"""The round loop and its wire, with a method small enough to replay by hand."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from fedtrellis import LocalGrid, client_app
from fedtrellis.server.callbacks import Call
from fedtrellis.server.conversation import mean_metrics, weighted_median
from fedtrellis.wire.exchange import Reason, Traffic, exchange
from fedtrellis.wire.protocol import NodeContext
from tests.fedtrellis.server.steps import (
    EVERY,
    SIZE,
    StepClient,
    Steps,
    at,
    expected,
    failing,
    grid_of,
    model_of,
    start,
    used_of,
)
from tests.harness import contexts, number_of, refused


def test_a_run_is_what_can_be_worked_out_by_hand() -> None:
    grid, strategy = grid_of(), Steps()
    result = start(strategy, grid)
    # (1 + 2 + 3 + 4) · (1 + 2 + 3) / 3
    assert model_of(result) == [20.0] * SIZE
    means = {t: m["mean"] for t, m in result.train_metrics_clientapp.items()}
    assert means == {1: 2.0, 2: 6.0, 3: 12.0, 4: 20.0}
    for record in strategy.history:
        assert record.sampled == record.used == 3
        assert not record.rejected
    assert strategy.history[0].bytes_down > strategy.history[1].bytes_down  # hello
    # a second start is a run of its own, whose clients begin anew
    first = strategy.conversation
    assert model_of(start(strategy, grid)) == [20.0] * SIZE
    assert strategy.conversation.session != first.session


Spoil = Callable[[RecordDict], None]


def status(key: str, value: Any) -> Spoil:
    return lambda content: cast(Any, content["status"]).update({key: value})


def arrays(*made: NDArray[Any]) -> Spoil:
    return lambda content: content.update(arrays=ArrayRecord(list(made)))


def without(name: str) -> Spoil:
    return lambda content: cast(Any, content).pop(name)


def cut_bytes(content: RecordDict) -> None:
    (array,) = cast(ArrayRecord, content["arrays"]).values()
    array.data = array.data[:-3]


def other_types(*names: str) -> Spoil:
    return lambda content: content.update({name: MetricRecord() for name in names})


ONES = np.ones(SIZE)
SPOILT: list[tuple[Spoil, str]] = [
    (status("client-id", "0"), "client-id '0', not '1'"),
    (status("session", "x"), "session 'x'"),
    (status("server-round", 99), "server-round 99, not "),
    (status("phase", "propose"), "phase 'propose', not None"),
    (status("model-version", 99), "model version 99"),
    (status("in-sync", "yes"), "in-sync 'yes'"),
    (status("numbers", b"1234567"), "multiple of element size"),
    (lambda content: cast(Any, content["status"]).pop("in-sync"), "in-sync"),
    (without("status"), "no status"),
    (without("arrays"), r"shapes \[\]"),
    (arrays((ONES * np.nan).astype("f2"), ONES), "not finite"),
    (arrays(ONES * -1e101), "beyond ±1e.100"),
    (arrays(ONES, np.array([0.0, np.inf, 0.0])), "not finite"),
    (arrays(np.ones(4), ONES), r"shapes \[\(4,\), \(3,\)\]"),
    (arrays(ONES), r"shapes \[\(3,\)\]"),
    (cut_bytes, "bytes"),
    (other_types("status", "arrays"), "'status' is a MetricRecord"),
    (other_types("arrays"), "'arrays' is a MetricRecord"),
]


def test_a_spoilt_answer_is_dropped_with_its_reason_and_the_rest_is_used(
    logged: list[str],
) -> None:
    """Client 1's in every second round; in between it is as it was before."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = cast(Message, call_next(message, context))
        turn = int(message.metadata.group_id)
        if number_of(context) == 1 and turn % 2:
            SPOILT[turn // 2][0](reply.content)
        return reply

    strategy, rounds = Steps(), 2 * len(SPOILT)
    result = start(strategy, grid_of(mod=mod), rounds)
    used = {t: (0, 2) if t % 2 else EVERY for t in range(1, rounds + 1)}
    assert model_of(result) == expected(used)
    for record in strategy.history:
        assert record.used == len(used[record.round])
        if record.round % 2:
            ((who, why),) = record.rejected
            assert who == "1"
            assert re.search(SPOILT[record.round // 2][1], why)
            # a reason is logged once a run
            assert logged.count(f"answer of client 1 dropped: {why}") == 1


def test_rounds_without_an_answer_end_the_run_with_the_last_reason() -> None:
    strategy = Steps(max_failed_rounds=3)
    mod = failing(dict.fromkeys((2, 3, 5, 6, 7, 8), EVERY))
    with pytest.raises(RuntimeError, match="no usable answer in 3 rounds") as caught:
        start(strategy, grid_of(mod=mod), rounds=20)
    assert "disk full in round 7" in str(caught.value)  # round 4 had started afresh
    assert used_of(strategy) == [3, 0, 0, 3, 0, 0, 0]
    # and so does a run that used no answer, however short
    with pytest.raises(RuntimeError, match="in all of the 1 rounds; the "):
        start(Steps(), grid_of(mod=failing({1: EVERY})), 1)


def test_rounds_that_ask_nobody_are_no_failures() -> None:
    strategy = Steps(participation=0.05, max_failed_rounds=1, seed=1)
    start(strategy, grid_of(2), rounds=60)
    sampled = [record.sampled for record in strategy.history]
    assert sampled.count(0) > 30
    assert max(sampled) > 0
    # not the first, which has the introductions
    empty = next(record for record in strategy.history[1:] if not record.sampled)
    assert (empty.used, empty.bytes_up, empty.bytes_down) == (0, 0, 0)


def test_a_client_that_can_never_be_restored_is_dropped() -> None:
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = cast(Message, call_next(message, context))
        if "in-sync" in reply.content["status"]:
            cast(ConfigRecord, reply.content["status"])["in-sync"] = False
        return reply

    with pytest.raises(RuntimeError, match="its state could not be restored"):
        start(Steps(max_failed_rounds=2), grid_of(1, mod))


def restart(grid: LocalGrid) -> None:
    """Client 1 comes back, on node 4711."""
    grid._contexts[4711] = NodeContext(1, 4711, {"partition-id": 1}, RecordDict(), {})


def test_two_nodes_of_one_identity_stop_the_run_at_once() -> None:
    configs = [{"client-id": "clinic"}, {}, {"client-id": "clinic"}]
    grid = LocalGrid(client_app(StepClient), 3, node_configs=configs)
    refused("client-id = 'clinic' is used by two", lambda: start(Steps(), grid))


@pytest.mark.parametrize("given_up", [2, 3])
def test_a_known_client_on_another_node_goes_on_where_it_was(given_up: int) -> None:
    """Where it is back before its old node is given up, it waits for that."""
    grid = grid_of()
    old = contexts(grid)[1].node_id
    moves = {given_up: lambda: grid._contexts.pop(old)}, {2: lambda: restart(grid)}
    strategy = Steps(callbacks=[at(move) for move in moves])
    assert model_of(start(strategy, grid)) == [20.0] * SIZE
    assert strategy.num_clients == 3
    assert strategy.conversation.clients["1"].node_id == 4711


@pytest.mark.parametrize(
    "spoil",
    [
        *(None, without("config"), without("status"), other_types("config")),
        status("client-id", 7),
    ],
)
def test_nodes_that_cannot_introduce_themselves_are_left_out(spoil: Any) -> None:
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = cast(Message, call_next(message, context))
        if message.metadata.message_type != "query.hello":
            return reply
        # what is no number of partitions keeps nobody out
        cast(ConfigRecord, reply.content["config"])["num-partitions"] = [3]
        if number_of(context) == 1:
            if spoil is None:
                raise FileNotFoundError("introduction without data")
            spoil(reply.content)
        return reply

    strategy = Steps()
    start(strategy, grid_of(mod=mod), rounds=2)
    assert strategy.clients == ["0", "2"]
    assert any("introduction" in why for _, why in strategy.history[0].rejected)


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_every_client_takes_part_as_often_as_asked(sampling: Any) -> None:
    def sampled(n: int, p: float, rounds: int) -> Counter[str]:
        strategy = Steps(participation=p, sampling=sampling)
        strategy.clients = [str(i) for i in range(n)]
        return Counter(name for t in range(rounds) for name in strategy.sample(t))

    # 600 ± 4.4 standard deviations of √(2000 · 0.3 · 0.7) = 20.5
    assert all(510 < count < 690 for count in sampled(10, 0.3, 2000).values())
    # fixed: p n of them, rounded up; 0.07 · 100 is 7.000000000000001
    for p, n, count in (0.07, 100, 7), (0.5, 5, 3), (0.01, 10, 1), (0.999, 10, 10):
        assert sampling == "bernoulli" or len(sampled(n, p, 1)) == count


@pytest.mark.parametrize("rounds", [7, 9])  # all of them, or stopped after 7
def test_the_server_evaluates_before_every_k_rounds_and_at_the_end(rounds: int) -> None:
    seen: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        (model,) = arrays.to_numpy_ndarrays()
        seen[server_round] = float(model[0])
        found = MetricRecord({"loss": 10.0 - server_round, "many": [1, 2]})
        return None if server_round == 3 else found

    strategy = Steps(evaluate_every=3, callbacks=[Call(lambda one: one.round == 7)])
    result = start(strategy, grid_of(), rounds, evaluate_fn=evaluate)
    assert seen == {0: 0.0, 3: 12.0, 6: 42.0, 7: 56.0}
    assert list(result.evaluate_metrics_serverapp) == [0, 6, 7]
    assert result.evaluate_metrics_serverapp[6]["many"] == [1, 2]
    evaluated = {r.round: r.evaluation for r in strategy.history if r.evaluation}
    assert evaluated == {t: {"loss": 10.0 - t} for t in (0, 6, 7)}


def test_metrics_in_the_mean_and_in_the_median() -> None:
    """A client without weight takes nothing away from the others."""
    told: list[dict[str, Any]] = [
        {"loss": 1.0, "num-examples": 30, "accuracy": 0.5},
        {"loss": 5.0, "num-examples": 10, "accuracy": 1.0},
        {"loss": 2.0, "num-examples": 40, "accuracy": "most"},
        *({"loss": 9.0, "num-examples": n} for n in (0, -5)),
    ]
    # half of the weight says 2 or more, and half 2 or less
    for options, loss in (({}, 2.0), ({"equal": True}, 8 / 3), ({"median": True}, 2.0)):
        found = dict(mean_metrics(told, **options) or {})
        assert found == {"loss": pytest.approx(loss), "num-examples": 80}
    # a number that no mean could hold is none
    far = {"loss": 1e308, "num-examples": 1}
    assert dict(mean_metrics([far, told[0]]) or {}) == {"num-examples": 31}
    # two halves that do not agree meet in the middle, as in the plain median
    assert weighted_median(np.array([7.0, 1.0, 3.0]), np.array([1.0, 1.0, 2.0])) == 3.0
    assert weighted_median(np.array([7.0, 1.0]), np.ones(2)) == 4.0


def test_a_wrong_model_or_number_of_rounds_stops_before_anything_is_sent() -> None:
    grid = grid_of()
    for model, rounds, why in (
        ([np.zeros(SIZE)], 0, "num_rounds = 0"),
        ([np.array([1.0, np.nan, 0.0])], 1, "not finite"),
        ([np.zeros(4)], 1, r"shape \(4,\)"),
        ([], 1, "initial_arrays must be"),
    ):
        with pytest.raises(ValueError, match=why):
            Steps().start(grid, ArrayRecord(model), rounds)
    assert not any(context.state for context in contexts(grid).values())


class Script:
    """A grid that answers what it is told: a list of replies for each pull."""

    def __init__(self, pulls: list[list[Message]], ids: list[str | None]) -> None:
        self.pulls, self.ids = pulls, ids
        self.asked: list[list[str]] = []

    def push_messages(self, messages: Any) -> list[str | None]:
        assert isinstance(messages, list)  # Flower's grid goes over them twice
        return self.ids

    def pull_messages(self, message_ids: Any) -> list[Message]:
        self.asked.append(list(message_ids))
        return self.pulls.pop(0) if self.pulls else []


def ask(dst: int) -> Message:
    grid_of(1)  # gives this process the place in a run messages need
    return Message(RecordDict({"c": ConfigRecord({"n": dst})}), dst, "train")


def reply(message_id: str, src: int, content: Any = None) -> Message:
    request = ask(src)
    request.metadata.__dict__["_message_id"] = message_id
    return Message(content or RecordDict(), reply_to=request)


def wave(
    script: Script, nodes: list[int], timeout: float = 5.0
) -> tuple[dict[int, Message | Reason], Traffic]:
    traffic = Traffic()
    requests = [ask(n) for n in nodes]
    return exchange(cast(Any, script), requests, timeout, traffic), traffic


def test_answers_and_errors_belong_to_the_request_that_they_name() -> None:
    a, b = reply("m1", 10), reply("m2", 20)
    stale = reply("m0", 10, RecordDict({"c": ConfigRecord({"big": b"0" * 9999})}))
    script = Script([[b, stale], [], [a, a]], ["m1", "m2"])
    result, traffic = wave(script, [10, 20])
    assert result == {10: a, 20: b}
    assert script.asked == [["m1", "m2"], ["m1"], ["m1"]]
    # those that nobody waits for are not counted
    assert 0 < traffic.up < 1000
    # nor are requests waited for that could not be sent
    for ids in (["m1", None], ["m1"]):
        result, _ = wave(Script([[a]], cast(Any, ids)), [10, 20])
        assert result == {10: a, 20: "the request could not be sent"}
    # Flower's own reply for a node that is gone comes from the SuperLink, and its word
    # for what it does not know any more has a type of Flower's
    gone = reply("m2", 1, Error(3, "Node Unavailable"))
    gone.metadata.__dict__["_message_type"] = "system"
    result, _ = wave(Script([[gone]], ["m1", "m2"]), [10, 20], timeout=0.05)
    assert result == {10: "no answer", 20: "error 3: Node Unavailable"}


@pytest.mark.parametrize(("seconds", "most"), [(1, 75), (6, 110), (600, 205)])
def test_a_long_wave_costs_few_requests(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    """Each request names all that are waited for, so their number must not grow so."""
    now, polls = [0.0], [0]

    def sleep(wait: float) -> None:
        # nobody waits for an answer that is there longer than this
        assert wait <= max(0.25, 0.06 * now[0])
        now[0] += wait

    class Slow(Script):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            polls[0] += 1
            return super().pull_messages(message_ids) if now[0] >= seconds else []

    monkeypatch.setattr("fedtrellis.wire.exchange.time.sleep", sleep)
    monkeypatch.setattr("fedtrellis.wire.exchange.time.monotonic", lambda: now[0])
    answer = reply("m1", 10)
    assert wave(Slow([[answer]], ["m1"]), [10], 1000.0)[0] == {10: answer}
    assert polls[0] <= most
    # and a wait ends when it has to
    began = now[0]
    assert wave(Slow([], ["m1"]), [10], 100.0)[0] == {10: "no answer"}
    assert 100.0 <= now[0] - began < 100.1
