"""The round loop and its wire, with a method small enough to replay by hand.

Client i keeps x_i (0 at first) and in round t takes the step x_i ← x_i + t (i + 1) of
which it sends both the step and x_i; the server keeps a copy of every x_i, and the
model is their mean. The copy and what the client sends must agree, whatever gets lost.
"""

import re
from collections.abc import Callable, Iterable, Mapping
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
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from numpy.typing import NDArray

import clients
from fedtrellis import (
    Callback,
    EarlyStop,
    LocalGrid,
    LoopStrategy,
    RoundRecord,
    RoundStrategy,
    SettingsError,
    StatefulClient,
    client_app,
)
from fedtrellis.server.conversation import Answer, mean_metrics, weighted_median
from fedtrellis.wire.arrays import Layout, encode
from fedtrellis.wire.exchange import Reason, Registry, Traffic, exchange

Arrays = list[NDArray[Any]]
Config = dict[str, Any]
Point = NDArray[np.float64]
Fit = tuple[Arrays, int, dict[str, Any]]

SIZE = 3


class StepClient(StatefulClient):
    def fit(self, parameters: Arrays, config: Config) -> Fit:
        step = np.full(SIZE, config["server-round"] * (int(self.client_id) + 1.0))
        self.state["x"] = self.state["x"] + step
        return [step, self.state["x"]], 1, {}

    def evaluate(
        self, parameters: Arrays, config: Config
    ) -> tuple[float, int, dict[str, Any]]:
        examples = int(self.client_id) + 1
        model = float(parameters[0][0])
        return float(examples), examples, {"model": model / examples}


class Steps(RoundStrategy):
    def setup(self, point: Point, layout: Layout) -> None:
        if not layout.point_shape == (SIZE,):
            raise ValueError(f"the model has shape {layout.point_shape}")
        self.x = {name: np.zeros(SIZE) for name in self.clients}
        self.order: list[list[str]] = []

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {"for": client}

    def check(self, answer: Answer) -> Point:
        if [array.shape for array in answer.arrays] != [(SIZE,), (SIZE,)]:
            raise ValueError(f"shapes {[array.shape for array in answer.arrays]}")
        step, x = answer.arrays
        # an AssertionError is no ValueError: it ends the run
        assert np.array_equal(x, self.x[answer.client] + step), answer.client
        return step

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        self.order.append(list(answers))
        for name, step in answers.items():
            self.x[name] = self.x[name] + step
        self.broadcast.replace(np.mean(list(self.x.values()), axis=0))
        return {"mean": float(self.broadcast.model[0])}

    def client_state(self, client: str) -> dict[str, Point]:
        return {"x": self.x[client]}


def app_with(mod: Any = None) -> ClientApp:
    return client_app(StepClient, mods=[mod] if mod else None)


def start(
    strategy: RoundStrategy, grid: LocalGrid, rounds: int = 5, **options: Any
) -> Result:
    model = ArrayRecord([np.zeros(SIZE)])
    return strategy.start(grid, model, rounds, **options)


def model_of(result: Result) -> list[float]:
    (array,) = result.arrays.to_numpy_ndarrays()
    return [float(x) for x in array]


def expected(used: Mapping[int, Iterable[int]], clients: int) -> list[float]:
    """The model when in round t the clients used[t] took part."""
    total = sum(t * (i + 1) for t, who in used.items() for i in who)
    return [total / clients] * SIZE


# ------------------------------------------------------------------- the plain case


def test_a_run_is_what_can_be_worked_out_by_hand() -> None:
    strategy = Steps()
    result = start(strategy, LocalGrid(app_with(), 3), rounds=4)
    # (1 + 2 + 3 + 4) · (1 + 2 + 3) / 3
    assert model_of(result) == [20.0] * SIZE
    means = {t: m["mean"] for t, m in result.train_metrics_clientapp.items()}
    assert means == {1: 2.0, 2: 6.0, 3: 12.0, 4: 20.0}
    assert [record.round for record in strategy.history] == [1, 2, 3, 4]
    assert all(r.sampled == r.used == 3 and not r.rejected for r in strategy.history)
    assert all(r.bytes_up > 0 and r.bytes_down > 0 for r in strategy.history)
    assert all(r.seconds > 0 for r in strategy.history)
    assert strategy.history[0].bytes_down > strategy.history[1].bytes_down  # hello


def test_answers_are_aggregated_in_the_order_of_identities() -> None:
    class Shuffled(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return super().pull_messages(message_ids)[::-1]

    strategy = Steps()
    start(strategy, Shuffled(app_with(), 12), rounds=2)
    assert strategy.order == [[str(i) for i in range(12)]] * 2


def test_what_the_strategy_and_the_user_say_reaches_the_client() -> None:
    seen: list[Config] = []

    class Curious(StepClient):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            seen.append(config)
            return super().fit(parameters, config)

    grid = LocalGrid(client_app(Curious), 2)
    config = ConfigRecord({"lr": 0.5, "for": "overridden"})
    start(Steps(), grid, rounds=1, train_config=config)
    assert {c["for"] for c in seen} == {"0", "1"}
    assert all((c["lr"], c["num-clients"]) == (0.5, 2) for c in seen)


def test_the_model_keeps_the_names_and_dtypes_of_its_arrays() -> None:
    class Doubling(RoundStrategy):
        stateful = False

        def setup(self, point: Point, layout: Layout) -> None: ...

        def instruction(self, server_round: int, client: str) -> dict[str, Any]:
            return {}

        def check(self, answer: Answer) -> Answer:
            return answer

        def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
            self.broadcast.replace(2.0 * self.broadcast.model)
            return {}

    class Silent(NumPyClient):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            return [], 1, {}

    arrays = {
        "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scale": np.array(0.5),
        "half": np.ones(2, dtype=np.float16),
    }
    record = ArrayRecord({name: encode(array) for name, array in arrays.items()})
    grid = LocalGrid(client_app(lambda context: Silent()), 2)
    shown: list[ArrayRecord] = []

    def evaluate(server_round: int, model: ArrayRecord) -> None:
        shown.append(model)

    result = Doubling().start(grid, record, 3, evaluate_fn=evaluate)
    # evaluate_fn too: a state_dict that goes in can be loaded from what comes out
    for factor, model in zip((1, 2, 4, 8, 8), (*shown, result.arrays), strict=True):
        assert list(model) == list(arrays)
        for name, array in arrays.items():
            back = model[name].numpy()
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert np.array_equal(back, factor * array)
    # what it was given stays
    assert np.array_equal(record["scale"].numpy(), np.array(0.5))


# ------------------------------------------------------------------- refused answers


def spoil_status(key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        cast(ConfigRecord, content["status"])[key] = value

    return spoil


def spoil_array(*arrays: NDArray[Any]) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord(list(arrays))

    return spoil


def remove(*names: str) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        for name in names:
            del content[name]

    return spoil


def cut_bytes(content: RecordDict) -> None:
    (array,) = cast(ArrayRecord, content["arrays"]).values()
    array.data = array.data[:-3]


def other_types(content: RecordDict) -> None:
    content["status"], content["arrays"] = ArrayRecord(), ConfigRecord({"0": 1})


def remove_in_sync(content: RecordDict) -> None:
    del cast(ConfigRecord, content["status"])["in-sync"]


ONES = np.ones(SIZE)
SPOILT: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "client-id": (spoil_status("client-id", "0"), "client-id '0', not '1'"),
    "session": (spoil_status("session", "x"), "session 'x'"),
    "round": (spoil_status("server-round", 3), "server-round 3, not 2"),
    "phase": (spoil_status("phase", "propose"), "phase 'propose', not None"),
    "version": (spoil_status("model-version", 9), "model version 9"),
    "in-sync": (remove_in_sync, "in-sync"),
    "status": (remove("status"), "no status"),
    "everything": (remove("status", "arrays", "metrics"), "no status"),
    "arrays": (remove("arrays"), "shapes []"),
    "nan": (spoil_array(ONES * np.nan, ONES), "not finite"),
    "inf": (spoil_array(ONES, np.array([0.0, np.inf, 0.0])), "not finite"),
    "shape": (spoil_array(np.ones(4), ONES), "shapes [(4,), (3,)]"),
    "count": (spoil_array(ONES), "shapes [(3,)]"),
    "cut": (cut_bytes, "bytes"),
    "types": (other_types, "."),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_answer_is_dropped_with_its_reason_and_the_rest_is_used(
    what: str, logged: list[str]
) -> None:
    spoil, reason = SPOILT[what]

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = cast(Message, call_next(message, context))
        name = context.node_config["partition-id"]
        if name == 1 and message.metadata.group_id == "2":
            spoil(reply.content)
        return reply

    strategy = Steps()
    result = start(strategy, LocalGrid(app_with(mod), 3), rounds=4)
    every = range(3)
    used = {1: every, 2: (0, 2), 3: every, 4: every}
    assert model_of(result) == pytest.approx(expected(used, 3), rel=1e-15)
    assert [record.used for record in strategy.history] == [3, 2, 3, 3]
    ((who, why),) = strategy.history[1].rejected
    assert who == "1"
    assert reason in why or re.search(reason, why)
    assert f"answer of client 1 dropped: {why}" in logged


def failing(rounds: set[int], nodes: set[int]) -> Any:
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        turn = message.metadata.group_id
        if int(turn) in rounds and context.node_config["partition-id"] in nodes:
            raise RuntimeError(f"disk full in round {turn}")
        return cast(Message, call_next(message, context))

    return mod


def test_an_error_is_dropped_with_what_the_client_said() -> None:
    strategy = Steps()
    result = start(strategy, LocalGrid(app_with(failing({2}, {0})), 3), rounds=3)
    assert model_of(result) == expected({1: range(3), 2: (1, 2), 3: range(3)}, 3)
    ((who, why),) = strategy.history[1].rejected
    assert who == "0"
    assert why.startswith("error ")
    assert "RuntimeError: disk full in round 2" in why


def test_a_round_without_answers_changes_nothing() -> None:
    models: list[bytes] = []

    class Watch(Callback):
        def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
            models.append(strategy.broadcast.model.tobytes())

    strategy = Steps(callbacks=[Watch()])
    result = start(strategy, LocalGrid(app_with(failing({3, 4}, {0, 1, 2})), 3), 6)
    assert models[1] == models[2] == models[3] != models[4]
    assert [record.used for record in strategy.history] == [3, 3, 0, 0, 3, 3]
    assert 3 not in result.train_metrics_clientapp
    every = dict.fromkeys((1, 2, 5, 6), range(3))
    assert model_of(result) == expected(every, 3)


def test_failed_rounds_in_a_row_end_the_run_with_the_last_reason() -> None:
    failed: list[BaseException] = []

    class Watch(Callback):
        def on_failure(self, strategy: LoopStrategy, error: BaseException) -> None:
            failed.append(error)

    bad = failing({2, 3, 5, 6, 7, 8}, {0, 1})
    strategy = Steps(max_failed_rounds=3, callbacks=[Watch()])
    with pytest.raises(RuntimeError, match="no usable answer in 3 rounds") as caught:
        start(strategy, LocalGrid(app_with(bad), 2), rounds=20)
    assert "disk full in round 7" in str(caught.value)  # round 4 had started afresh
    assert failed == [caught.value]


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_run_that_used_no_answer_is_an_error_however_short(rounds: int) -> None:
    ended: list[str] = []

    class Watch(Callback):
        def on_end(self, strategy: LoopStrategy, result: Result) -> None:
            ended.append("completed")

        def on_failure(self, strategy: LoopStrategy, error: BaseException) -> None:
            ended.append(str(error))

    bad = failing({1, 2, 3}, {0, 1})
    strategy = Steps(max_failed_rounds=5, callbacks=[Watch()])
    with pytest.raises(RuntimeError, match=f"in all of the {rounds} rounds; the last"):
        start(strategy, LocalGrid(app_with(bad), 2), rounds=rounds)
    assert f"disk full in round {rounds}" in ended[0]
    assert [record.used for record in strategy.history] == [0] * rounds
    # one answer is enough
    start(Steps(max_failed_rounds=5), LocalGrid(app_with(bad), 2), rounds=4)


def test_rounds_that_ask_nobody_are_no_failures() -> None:
    strategy = Steps(participation=0.05, max_failed_rounds=1, seed=1)
    start(strategy, LocalGrid(app_with(), 2), rounds=60)
    sampled = [record.sampled for record in strategy.history]
    assert sampled.count(0) > 30
    assert max(sampled) > 0
    # not the first, which has the introductions
    empty = next(record for record in strategy.history[1:] if not record.sampled)
    assert (empty.used, empty.bytes_up, empty.bytes_down) == (0, 0, 0)


def test_late_replies_are_not_used() -> None:
    strategy = Steps(max_failed_rounds=3)
    with pytest.raises(RuntimeError, match="no answer"):
        start(strategy, LocalGrid(app_with(), 2, late_reply=1.0), rounds=9)
    assert not strategy.broadcast.model.any()


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

    class Slow(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            polls[0] += 1
            return super().pull_messages(message_ids) if now[0] >= seconds else []

        def settled(self, message_ids: Iterable[str]) -> bool:
            return False

    monkeypatch.setattr("fedtrellis.wire.exchange.time.sleep", sleep)
    monkeypatch.setattr("fedtrellis.wire.exchange.time.monotonic", lambda: now[0])
    grid = Slow(app_with(), 1)
    (node,) = grid.get_node_ids()
    request = Message(RecordDict(), node, "train", group_id="1")
    (reply,) = exchange(grid, [request], 1000.0, Traffic()).values()
    assert isinstance(reply, Message) or "error" in reply
    assert polls[0] <= most
    # and a wait ends when it has to
    polls[0], began = 0, now[0]
    silent = Slow(app_with(), 1, reply_loss=1.0)
    (node,) = silent.get_node_ids()
    request = Message(RecordDict(), node, "train", group_id="1")
    assert exchange(silent, [request], 100.0, Traffic()) == {node: "no answer"}
    assert 100.0 <= now[0] - began < 100.1


def test_repeated_replies_are_used_once() -> None:
    strategy = Steps()
    result = start(strategy, LocalGrid(app_with(), 3, duplicate=1.0), rounds=4)
    assert model_of(result) == [20.0] * SIZE
    assert not any(record.rejected for record in strategy.history)


def test_the_servers_copies_are_the_clients_states_whatever_gets_lost() -> None:
    # Steps.check compares them in every answer
    faults: Config = dict.fromkeys(
        ["request_loss", "wipe", "crash", "state_loss", "reply_loss", "late_reply"], 0.1
    )
    for encoded in (False, True):
        grid = LocalGrid(
            app_with(), 5, seed=3, encode=encoded, garbage=0.1, duplicate=0.1, **faults
        )
        strategy = Steps(participation=0.7, seed=2)
        result = start(strategy, grid, rounds=120)
        assert all(grid.fault_counts.values())
        mean = np.mean(list(strategy.x.values()), axis=0)
        assert model_of(result) == mean.tolist()
        assert 100 < sum(r.used for r in strategy.history) < 350
        assert sum(len(r.rejected) for r in strategy.history) > 50


def test_a_wiped_client_is_restored_in_the_same_round() -> None:
    class Wiping(Callback):
        def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
            if record.round == 2:
                for context in grid._contexts.values():
                    context.state = RecordDict()

    grid = LocalGrid(app_with(), 3)
    strategy = Steps(callbacks=[Wiping()])
    result = start(strategy, grid, rounds=4)
    assert model_of(result) == [20.0] * SIZE
    assert not any(record.rejected for record in strategy.history)
    downs = [record.bytes_down for record in strategy.history]
    assert downs[2] > 1.5 * downs[3]  # two waves


def test_a_client_that_can_never_be_restored_is_dropped() -> None:
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = cast(Message, call_next(message, context))
        if "in-sync" in reply.content["status"]:
            cast(ConfigRecord, reply.content["status"])["in-sync"] = False
        return reply

    strategy = Steps(max_failed_rounds=2)
    with pytest.raises(RuntimeError, match="its state could not be restored"):
        start(strategy, LocalGrid(app_with(mod), 1))


# ----------------------------------------------------------------------- who is who


def node(grid: LocalGrid, partition: int) -> int:
    return next(
        node_id
        for node_id, context in grid._contexts.items()
        if context.node_config["partition-id"] == partition
    )


def add_node(grid: LocalGrid, node_id: int, **node_config: Any) -> None:
    grid._contexts[node_id] = Context(1, node_id, dict(node_config), RecordDict(), {})


class Between(Callback):
    """Do something to the grid after a round."""

    def __init__(self, actions: Mapping[int, Callable[[], None]]) -> None:
        self.actions = actions

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
        if record.round in self.actions:
            self.actions[record.round]()


def test_two_nodes_of_one_identity_stop_the_run_at_once() -> None:
    configs = [{"client-id": "clinic"}, {}, {"client-id": "clinic"}]
    grid = LocalGrid(app_with(), 3, node_configs=configs)
    with pytest.raises(SettingsError, match="client-id = 'clinic' is used by two"):
        start(Steps(), grid)


def test_a_known_client_on_another_node_goes_on_where_it_was() -> None:
    grid = LocalGrid(app_with(), 3)

    def restart() -> None:
        del grid._contexts[node(grid, 1)]
        add_node(grid, 4711, **{"partition-id": 1})

    strategy = Steps(callbacks=[Between({2: restart})])
    result = start(strategy, grid, rounds=4)
    assert model_of(result) == [20.0] * SIZE
    assert strategy.num_clients == 3


def test_a_client_that_is_back_before_its_old_node_is_given_up_waits_for_that() -> None:
    grid = LocalGrid(app_with(failing({3, 4}, {-1})), 3)
    old = node(grid, 1)

    def restart() -> None:
        add_node(grid, 4711, **{"partition-id": 1})

    def give_up() -> None:
        del grid._contexts[old]

    strategy = Steps(callbacks=[Between({2: restart, 3: give_up})])
    result = start(strategy, grid, rounds=4)
    assert model_of(result) == [20.0] * SIZE
    assert strategy.conversation.client("1").node_id == 4711


def test_a_newcomer_after_the_start_is_left_out(logged: list[str]) -> None:
    grid = LocalGrid(app_with(), 3)

    def join() -> None:
        add_node(grid, 4711, **{"partition-id": 3})

    strategy = Steps(callbacks=[Between({2: join})])
    result = start(strategy, grid, rounds=4)
    assert model_of(result) == [20.0] * SIZE
    assert strategy.clients == ["0", "1", "2"]
    left_out = [line for line in logged if "left out" in line]
    why = "the method's clients are those of the start"
    assert left_out == [f"client 3 came after the start, left out: {why}"]


def test_a_client_that_is_gone_only_misses_its_rounds() -> None:
    grid = LocalGrid(app_with(), 3)
    gone: dict[int, Context] = {}
    gone_id = node(grid, 2)

    def leave() -> None:
        gone[gone_id] = grid._contexts.pop(gone_id)

    strategy = Steps(
        callbacks=[Between({1: leave, 3: lambda: grid._contexts.update(gone)})]
    )
    result = start(strategy, grid, rounds=4)
    used = {1: range(3), 2: (0, 1), 3: (0, 1), 4: range(3)}
    assert model_of(result) == pytest.approx(expected(used, 3), rel=1e-15)
    ((who, why),) = strategy.history[1].rejected
    assert (who, "no such node" in why) == ("2", True)


def test_nodes_that_cannot_introduce_themselves_are_left_out_or_end_the_run() -> None:
    def broken(context: Context) -> StepClient:
        if context.node_config["partition-id"] == 1:
            raise FileNotFoundError("no data on this node")
        return StepClient(context)

    strategy = Steps()
    start(strategy, LocalGrid(client_app(broken), 3), rounds=2)
    assert strategy.clients == ["0", "2"]
    assert any("no data on this node" in why for _, why in strategy.history[0].rejected)
    with pytest.raises(RuntimeError, match=r"none of 2 nodes .*returned a NoneType"):
        start(Steps(), LocalGrid(client_app(lambda context: None), 2))


class Plain(NumPyClient):
    """A client of a project that knows only Flower."""


def plain(context: Context) -> Any:
    return Plain()


def app_of_functions() -> ClientApp:
    app = ClientApp()
    app.train()(lambda message, context: Message(RecordDict(), reply_to=message))
    return app


@pytest.mark.parametrize(
    "app",
    [
        ClientApp(client_fn=plain),
        ClientApp(client_fn=lambda context: Plain().to_client()),
        app_of_functions(),
    ],
    ids=["client_fn", "to_client", "functions"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_app_that_is_not_ours_ends_the_run_and_says_what_to_use(
    app: ClientApp,
) -> None:
    way_out = r"none of 2 nodes .*app = fedtrellis\.client_app\(client_fn\)"
    with pytest.raises(RuntimeError, match=way_out):
        start(Steps(), LocalGrid(app, 2))


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize(
    "client",
    [StepClient, *(getattr(clients, name) for name in clients.__all__)],
)
def test_our_clients_on_flowers_older_api_say_what_to_use(
    client: Any, convert: bool
) -> None:
    def client_fn(context: Context) -> Any:
        # what its constructor wants beside the context does not come into it
        made = client.__new__(client)
        return made.to_client() if convert else made

    name = client.__name__
    way_out = (
        rf"none of 2 nodes .*{name} cannot be converted with \.to_client\(\), and "
        r"flwr\.client\.ClientApp\(client_fn=\.\.\.\) cannot run it.*"
        r"app = fedtrellis\.client_app\(client_fn\)"
    )
    with pytest.raises(RuntimeError, match=way_out):
        start(Steps(), LocalGrid(ClientApp(client_fn=client_fn), 2))
    # nor with Flower's own strategy, which such an app could otherwise talk to
    with pytest.raises(TypeError, match=rf"return the {name} itself from client_fn"):
        client.__new__(client).to_client()


def test_too_few_nodes_end_the_run_with_their_number() -> None:
    strategy = Steps(min_nodes=5, start_timeout=0.05)
    with pytest.raises(TimeoutError, match=r"3 of 5 nodes connected within 0.05 s"):
        start(strategy, LocalGrid(app_with(), 3))


def test_clients_properties_are_known_to_the_strategy() -> None:
    strategy = Steps()
    start(strategy, LocalGrid(app_with(), 2), rounds=1)
    assert strategy._client_properties("1") == {"num-partitions": 2}


# -------------------------------------------------------------------------- sampling


def with_clients(count: int, **options: Any) -> Steps:
    strategy = Steps(**options)
    strategy.clients = [str(i) for i in range(count)]
    return strategy


@pytest.mark.parametrize(
    ("p", "n", "count"),
    [
        (0.07, 100, 7),  # 0.07 · 100 is 7.000000000000001
        (0.1, 30, 3),
        (0.7, 10, 7),
        (0.5, 5, 3),
        (0.01, 10, 1),
        (0.999, 10, 10),
        (1.0, 7, 7),
        (0.3, 1, 1),
    ],
)
def test_fixed_sampling_takes_p_n_clients_rounded_up(
    p: float, n: int, count: int
) -> None:
    strategy = with_clients(n, participation=p, sampling="fixed")
    assert strategy._expected_participation == count / n
    assert with_clients(n, participation=p)._expected_participation == p
    for server_round in range(1, 20):
        chosen = strategy.sample(server_round)
        assert len(chosen) == len(set(chosen)) == count
        assert chosen == sorted(chosen, key=int)


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_sampling_depends_on_seed_and_round_only(sampling: str) -> None:
    def draws(**options: Any) -> list[list[str]]:
        strategy = with_clients(20, participation=0.4, sampling=sampling, **options)
        return [strategy.sample(t) for t in range(1, 30)]

    strategy = with_clients(20, participation=0.4, sampling=sampling, seed=5)
    backwards = [strategy.sample(t) for t in range(29, 0, -1)][::-1]
    assert draws(seed=5) == backwards
    assert draws(seed=6) != backwards
    assert len({tuple(chosen) for chosen in backwards}) > 20


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_every_client_takes_part_as_often_as_asked(sampling: str) -> None:
    strategy = with_clients(10, participation=0.3, sampling=sampling)
    counts = dict.fromkeys(strategy.clients, 0)
    for server_round in range(2000):
        for name in strategy.sample(server_round):
            counts[name] += 1
    # 600 ± 4.4 standard deviations of √(2000 · 0.3 · 0.7) = 20.5
    assert all(510 < count < 690 for count in counts.values())


def test_sampling_does_not_depend_on_node_ids() -> None:
    histories = []
    for seed in (0, 1):  # of the grid: its node ids
        strategy = Steps(participation=0.5)
        start(strategy, LocalGrid(app_with(), 8, seed=seed), rounds=10)
        histories.append(strategy.order)
    assert histories[0] == histories[1]


# ------------------------------------------------------------ evaluation and stopping


def test_the_server_evaluates_before_after_every_k_rounds_and_at_the_end() -> None:
    seen: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        (model,) = arrays.to_numpy_ndarrays()
        seen[server_round] = float(model[0])
        if server_round == 3:
            return None
        return MetricRecord({"loss": 10.0 - server_round, "many": [1, 2]})

    strategy = Steps(evaluate_every=3)
    result = start(strategy, LocalGrid(app_with(), 3), 7, evaluate_fn=evaluate)
    assert seen == {0: 0.0, 3: 12.0, 6: 42.0, 7: 56.0}
    assert list(result.evaluate_metrics_serverapp) == [0, 6, 7]
    assert result.evaluate_metrics_serverapp[6]["many"] == [1, 2]
    by_round = {r.round: r.evaluation for r in strategy.history}
    assert by_round[6] == {"loss": 4.0}
    assert by_round[1] == {}
    assert [r.round for r in strategy.history] == list(range(8))


def test_client_evaluation_is_the_mean_weighted_by_examples() -> None:
    strategy = Steps(client_evaluate_every=2, participation=0.5, seed=1)
    result = start(strategy, LocalGrid(app_with(), 3), 4)
    assert list(result.evaluate_metrics_clientapp) == [0, 2, 4]
    metrics = result.evaluate_metrics_clientapp[4]
    # all clients evaluate: losses and weights 1, 2, 3
    assert metrics["loss"] == pytest.approx((1 + 4 + 9) / 6, rel=1e-15)
    assert metrics["num-examples"] == 6
    # (1 · m / 1 + 2 · m / 2 + 3 · m / 3) / 6, of the model after the round
    model = strategy.broadcast.model[0]
    assert metrics["model"] == pytest.approx(model / 2, rel=1e-15)
    assert strategy.history[4].client_evaluation == dict(metrics)
    assert strategy.history[3].client_evaluation == {}


def test_metrics_in_the_mean_and_in_the_median() -> None:
    """A client without weight takes nothing away from the others."""
    told: list[dict[str, Any]] = [
        {"loss": 1.0, "num-examples": 30, "accuracy": 0.5},
        {"loss": 5.0, "num-examples": 10, "accuracy": 1.0},
        {"loss": 2.0, "num-examples": 40, "accuracy": "most"},
        {"loss": 9.0, "num-examples": 0},
    ]
    mean, equal = mean_metrics(told), mean_metrics(told, equal=True)
    assert mean is not None
    assert dict(mean) == {"loss": 2.0, "num-examples": 80}
    assert equal is not None
    assert equal["loss"] == pytest.approx(8 / 3)
    # half of the weight says 2 or more, and half 2 or less
    median = mean_metrics(told, median=True)
    assert median is not None
    assert dict(median) == {"loss": 2.0, "num-examples": 80}
    assert mean_metrics(told[3:]) is None
    # two halves that do not agree meet in the middle, as in the plain median
    halves = weighted_median(np.array([7.0, 1.0, 3.0]), np.array([1.0, 1.0, 2.0]))
    assert halves == weighted_median(np.array([3.0, 3.0, 7.0, 1.0]), np.ones(4)) == 3.0
    assert weighted_median(np.array([7.0, 1.0]), np.ones(2)) == 4.0


def test_client_metrics_that_cannot_be_averaged_are_left_out() -> None:
    class Detailed(StepClient):
        def evaluate(
            self, parameters: Arrays, config: Config
        ) -> tuple[float, int, dict[str, Any]]:
            extra: dict[str, Any] = {"per-class": [0.5, 1.0]}
            if self.client_id == "0":
                extra["only-here"] = 1.0
            return 2.0, 1, extra

    strategy = Steps(client_evaluate_every=1)
    start(strategy, LocalGrid(client_app(Detailed), 2), 1)
    assert strategy.history[0].client_evaluation == {"loss": 2.0, "num-examples": 2.0}


def test_early_stop_stops_and_every_callback_hears_of_it() -> None:
    heard: dict[str, list[Any]] = {"before": [], "after": []}

    class Listen(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_start(
            self, strategy: LoopStrategy, first_round: int, num_rounds: int
        ) -> None:
            heard[self.name].append(("start", first_round, num_rounds))

        def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
            heard[self.name].append(record.round)

        def on_end(self, strategy: LoopStrategy, result: Result) -> None:
            heard[self.name].append("end")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 5.0 - server_round})

    strategy = Steps(
        callbacks=[Listen("before"), EarlyStop("loss", 2.0), Listen("after")]
    )
    result = start(strategy, LocalGrid(app_with(), 3), 50, evaluate_fn=evaluate)
    assert heard["before"] == [("start", 1, 50), 0, 1, 2, 3, "end"]
    assert heard["after"] == heard["before"]
    assert model_of(result) == [12.0] * SIZE


def test_the_model_one_starts_from_does_not_stop_a_run() -> None:
    strategy = Steps(callbacks=[EarlyStop("loss", 2.0)])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 0.0})

    start(strategy, LocalGrid(app_with(), 1), 5, evaluate_fn=evaluate)
    assert [record.round for record in strategy.history] == [0, 1]


def test_an_error_in_a_callback_or_in_the_evaluation_reaches_on_failure() -> None:
    failures: list[str] = []

    class Watch(Callback):
        def on_failure(self, strategy: LoopStrategy, error: BaseException) -> None:
            failures.append(repr(error))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        raise ArithmeticError(f"round {server_round}")

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ArithmeticError):
        start(
            Steps(callbacks=[Watch()]), LocalGrid(app_with(), 1), evaluate_fn=evaluate
        )
    with pytest.raises(KeyboardInterrupt):
        start(Steps(callbacks=[Between({2: fail}), Watch()]), LocalGrid(app_with(), 1))
    assert failures == ["ArithmeticError('round 0')", "KeyboardInterrupt()"]


# ------------------------------------------------------------ sessions, and by hand


def test_a_second_start_on_the_same_grid_is_a_run_of_its_own() -> None:
    grid, strategy = LocalGrid(app_with(), 3), Steps(participation=0.6, seed=4)
    first = model_of(start(strategy, grid, rounds=6))
    first_history = [(r.sampled, r.used, r.rejected) for r in strategy.history]
    assert model_of(start(strategy, grid, rounds=6)) == first
    assert [(r.sampled, r.used, r.rejected) for r in strategy.history] == first_history
    other = Steps(participation=0.6, seed=4)
    assert model_of(start(other, grid, rounds=6)) == first
    fresh = start(Steps(participation=0.6, seed=4), LocalGrid(app_with(), 3), rounds=6)
    assert model_of(fresh) == first


def test_flowers_own_strategy_runs_on_the_local_grid() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (model,) = cast(ArrayRecord, message.content["arrays"]).to_numpy_ndarrays()
        weight = int(context.node_config["partition-id"]) + 1
        content = RecordDict(
            {
                "arrays": ArrayRecord([model + weight]),
                "metrics": MetricRecord({"num-examples": weight}),
            }
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 3.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    for encoded in (False, True):
        grid = LocalGrid(app, 3, encode=encoded)
        strategy = FedAvg()
        result = strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
        # each round adds (1·1 + 2·2 + 3·3) / 6
        assert result.arrays.to_numpy_ndarrays()[0] == pytest.approx(3 * 14 / 6)
        assert result.evaluate_metrics_clientapp[3]["loss"] == 3.0


# ------------------------------------------------------------------- before round 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participation": 0.0}, "participation = 0.0"),
        ({"participation": 1.1}, "at most 1"),
        ({"participation": float("nan")}, "participation = nan"),
        ({"sampling": "fixd"}, "did you mean 'fixed'"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"evaluate_every": 0}, "evaluate_every = 0"),
        ({"min_nodes": 0}, "min_nodes = 0"),
        ({"max_failed_rounds": 0}, "max_failed_rounds = 0"),
    ],
)
def test_wrong_settings_are_named(options: Config, words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        Steps(**options)


def test_a_wrong_model_or_number_of_rounds_stops_before_anything_is_sent() -> None:
    class Untouched(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            if any(m.metadata.message_type != "query.hello" for m in messages):
                raise AssertionError("something was sent")
            return super().push_messages(messages)

    grid = Untouched(app_with(), 2)
    with pytest.raises(SettingsError, match="num_rounds = 0"):
        start(Steps(), grid, rounds=0)
    with pytest.raises(ValueError, match="not finite"):
        Steps().start(grid, ArrayRecord([np.array([1.0, np.nan, 0.0])]), 1)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        Steps().start(grid, ArrayRecord([np.zeros(4)]), 1)


# ---------------------------------------------------------------------- one wave


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
    LocalGrid(app_with(), 1)  # gives this process the place in a run messages need
    return Message(RecordDict({"c": ConfigRecord({"n": dst})}), dst, "train")


def reply(message_id: str, src: int, content: RecordDict | Error) -> Message:
    request = ask(src)
    request.metadata.__dict__["_message_id"] = message_id
    if isinstance(content, Error):
        return Message(content, reply_to=request)
    return Message(content, reply_to=request)


def wave(
    script: Script, nodes: list[int], timeout: float = 5.0
) -> tuple[dict[int, Message | Reason], Traffic]:
    traffic = Traffic()
    requests = [ask(n) for n in nodes]
    return exchange(cast(Any, script), requests, timeout, traffic), traffic


def test_answers_belong_to_the_request_that_they_name() -> None:
    a, b = reply("m1", 10, RecordDict()), reply("m2", 20, RecordDict())
    script = Script([[b], [], [a]], ["m1", "m2"])
    result, traffic = wave(script, [10, 20])
    assert result == {10: a, 20: b}
    assert script.asked == [["m1", "m2"], ["m1"], ["m1"]]
    assert traffic.up > 0
    assert traffic.down > 0


def test_an_answer_to_a_message_of_another_type_is_not_used() -> None:
    a, b = reply("m1", 10, RecordDict()), reply("m2", 20, RecordDict())
    b.metadata.message_type = "train.propose"
    result, _ = wave(Script([[b, a]], ["m1", "m2"]), [10, 20])
    assert result == {10: a, 20: "the answer is one to 'train.propose', not to 'train'"}
    # Flower's own word for what it does not know any more has a type of Flower's
    gone = reply("m1", 1, Error(5, "not found"))
    gone.metadata.__dict__["_message_type"] = "system"
    assert wave(Script([[gone]], ["m1"]), [10])[0] == {10: "error 5: not found"}


def test_an_error_from_another_node_belongs_to_the_request_that_it_names() -> None:
    # Flower's own reply for a node that is gone comes from the SuperLink
    script = Script([[reply("m2", 1, Error(3, "Node Unavailable"))]], ["m1", "m2"])
    result, _ = wave(script, [10, 20], timeout=0.05)
    assert result == {10: "no answer", 20: "error 3: Node Unavailable"}


def test_an_error_without_a_reason_and_a_very_long_one() -> None:
    long = reply("m2", 20, Error(1, "x" * 5000 + " the end"))
    script = Script([[reply("m1", 10, Error(7)), long]], ["m1", "m2"])
    result, _ = wave(script, [10, 20])
    assert result[10] == "error 7: no reason given"
    assert str(result[20]).endswith("the end")
    assert len(str(result[20])) < 600


def test_answers_nobody_waits_for_are_not_counted() -> None:
    a = reply("m1", 10, RecordDict())
    stale = reply("m0", 10, RecordDict({"c": ConfigRecord({"big": b"0" * 9999})}))
    script = Script([[stale, a, a, stale]], ["m1"])
    result, traffic = wave(script, [10])
    assert result == {10: a}
    assert traffic.up < 1000


def test_requests_that_could_not_be_sent_are_not_waited_for() -> None:
    a = reply("m1", 10, RecordDict())
    result, _ = wave(Script([[a]], ["m1", None]), [10, 20])
    assert result == {10: a, 20: "the request could not be sent"}
    result, _ = wave(Script([[a]], ["m1"]), [10, 20])
    assert result[20] == "the request could not be sent"
    assert wave(Script([], []), [])[0] == {}


def test_a_registry_counts_the_introductions() -> None:
    registry, traffic = Registry(), Traffic()
    grid = LocalGrid(app_with(), 11, encode=True)
    registry.introduce(grid, 5.0, traffic, started=False)
    assert registry.names == [str(i) for i in range(11)]
    assert (traffic.up, traffic.down) == (grid.bytes_up, grid.bytes_down)
    registry.introduce(grid, 5.0, traffic, started=True)  # nobody new
    assert traffic.down == grid.bytes_down


class OneBehind:
    """A grid one of whose SuperNodes sends each answer when the next message comes."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid
        self.node_id = min(grid.get_node_ids())
        self.stale: list[str] = []
        self.late: set[str] = set()
        self.nudges = 0

    def get_node_ids(self) -> list[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = self.grid.push_messages(messages)
        for message_id, message in zip(ids, messages, strict=True):
            if message.metadata.dst_node_id != self.node_id:
                continue
            hello = message.metadata.message_type.startswith("query")
            self.nudges += hello
            if not hello or self.late:
                self.late -= set(self.stale)
                self.late.add(message_id)
                self.stale = [message_id]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self.grid.pull_messages(i for i in message_ids if i not in self.late)


def test_a_node_that_is_a_message_behind_is_nudged() -> None:
    """As a SuperNode is once it has given up a ClientApp that answers all the same."""
    grid = OneBehind(LocalGrid(app_with(), 3, seed=1))
    strategy = Steps()
    start(strategy, cast(LocalGrid, grid), 4, timeout=0.6)
    rounds = [record for record in strategy.history if record.round]
    # found out in the first round; from then on every answer is in time
    assert [record.used for record in rounds] == [2, 3, 3, 3]
    assert [why for _, why in rounds[0].rejected] == ["no answer"]
    assert grid.nudges == 1 + 3  # it was introduced first


def test_a_node_that_an_earlier_run_left_behind_takes_part_from_the_start() -> None:
    class AlwaysBehind(OneBehind):
        """Every message's answer goes out with the next one."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            messages = list(messages)
            self.late.add("another run's")
            return super().push_messages(messages)

    grid = AlwaysBehind(LocalGrid(app_with(), 3, seed=1))
    strategy = Steps(start_timeout=0.6)
    start(strategy, cast(LocalGrid, grid), 4, timeout=0.6)
    assert not strategy.refused
    assert strategy.num_clients == 3
    used = [record.used for record in strategy.history if record.round]
    assert used == [3, 3, 3, 3]
    assert grid.nudges == 2 + 4


def test_a_client_that_was_only_slow_once_is_nudged_once() -> None:
    class SlowOnce(OneBehind):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = list(super().pull_messages(message_ids))
            if len(strategy.history) > 0:
                self.late.clear()
                self.stale = []
            return found

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            ids = super().push_messages(messages)
            if len(strategy.history) > 0:
                self.late.clear()
            return ids

    strategy = Steps()
    grid = SlowOnce(LocalGrid(app_with(), 3, seed=1))
    start(strategy, cast(LocalGrid, grid), 5, timeout=0.4)
    assert [record.used for record in strategy.history if record.round] == [
        2,
        3,
        3,
        3,
        3,
    ]
    assert grid.nudges == 1  # an answer that is there at once needs none
