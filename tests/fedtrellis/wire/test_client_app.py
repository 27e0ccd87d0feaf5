"""The client's side: the user's client in a ClientApp, its state kept in step."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis import LocalGrid, StatefulClient, client_app
from fedtrellis.wire.arrays import Layout, decode, encode, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.client import evaluate_objective
from fedtrellis.wire.protocol import (
    ARRAYS,
    CONFIG,
    METRICS,
    MODEL,
    RESTORE,
    STATUS,
    ClientMemory,
    pack_restore,
)

Arrays = list[NDArray[Any]]
Config = dict[str, Any]
Fit = tuple[Arrays, int, dict[str, Any]]

# a grid gives this process the place in a run that messages need
LocalGrid(client_app(lambda context: None), 1)


class Adder(StatefulClient):
    """Its state is the sum of the models that it was sent, each times its round."""

    def fit(self, parameters: Arrays, config: Config) -> Fit:
        total = self.state.get("total", np.zeros(parameters[0].shape))
        self.state["total"] = total + config["server-round"] * parameters[0]
        return [self.state["total"]], 3, {"round": config["server-round"]}

    def evaluate(
        self, parameters: Arrays, config: Config
    ) -> tuple[float, int, dict[str, Any]]:
        total = self.state.get("total", np.zeros(1))
        return float(parameters[0].sum()), 2, {"total": float(total.sum())}


def new_context(**node_config: Any) -> Context:
    return Context(1, 11, {"partition-id": 4, **node_config}, RecordDict(), {})


def whole(model: NDArray[Any]) -> ModelBroadcast:
    return ModelBroadcast(Layout((model.shape,)), model)


def request(
    server_round: int,
    used: int | None,
    *,
    kind: str = "train",
    model: NDArray[Any] | None = None,
    restore: dict[str, NDArray[Any]] | None = None,
    session: str = "s",
    **more: Any,
) -> Message:
    server = whole(np.ones(3) if model is None else model)
    arrays, config = server.encode(None)
    config = {**config, "session": session, "server-round": server_round, **more}
    content = RecordDict({MODEL: arrays})
    if used is not None:
        config["used-round"] = used
    if restore is not None:
        content[RESTORE], added = pack_restore(restore, server.model)
        config.update(added)
    content[CONFIG] = ConfigRecord(config)
    return Message(content, 11, kind)


def status(reply: Message) -> dict[str, Any]:
    return dict(cast(ConfigRecord, reply.content[STATUS]))


def arrays_of(reply: Message) -> list[float]:
    (array,) = cast(ArrayRecord, reply.content[ARRAYS]).values()
    return [float(x) for x in decode(array)]


def metrics_of(reply: Message) -> dict[str, Any]:
    return dict(cast(Any, reply.content[METRICS]))


def started(app: ClientApp) -> Context:
    """A context after round 1, of which nothing is known to the client yet."""
    context = new_context()
    app(request(1, 0, restore={}), context)
    return context


def test_the_answer_has_status_arrays_and_metrics() -> None:
    app, context = client_app(Adder), new_context()
    reply = app(request(1, 0, restore={}), context)
    assert status(reply) == {
        "client-id": "4",
        "session": "s",
        "server-round": 1,
        "in-sync": True,
        "model-version": 0,
    }
    assert arrays_of(reply) == [1.0, 1.0, 1.0]
    assert metrics_of(reply) == {"num-examples": 3, "round": 1}


def test_a_message_handled_long_after_its_time_does_not_count() -> None:
    app = client_app(Adder)
    context = started(app)
    app(request(2, 1), context)
    assert arrays_of(app(request(4, 2), context)) == [7.0] * 3  # 1 + 2 + 4
    app(request(3, 2), context)  # given up by the server long ago
    reply = app(request(5, 4), context)
    assert status(reply)["in-sync"] is False
    reply = app(request(5, 4, restore={"total": np.full(3, 7.0)}), context)
    assert arrays_of(reply) == [12.0] * 3


def test_a_client_behind_asks_and_changes_nothing() -> None:
    app = client_app(Adder)
    context = started(app)
    before = snapshot(context)
    reply = app(request(7, 6), context)
    assert status(reply)["in-sync"] is False
    assert list(reply.content) == [STATUS]
    assert snapshot(context) == before
    reply = app(request(7, 6, restore={"total": np.full(3, 100.0)}), context)
    assert arrays_of(reply) == [107.0] * 3


def test_state_of_another_session_is_not_used() -> None:
    app = client_app(Adder)
    context = started(app)
    reply = app(request(2, 1, session="t"), context)
    assert status(reply)["in-sync"] is False
    reply = app(request(1, 0, session="t", restore={}), context)
    assert arrays_of(reply) == [1.0] * 3


def test_evaluation_sees_what_was_used_and_changes_no_state() -> None:
    app = client_app(Adder)
    context = started(app)
    app(request(2, 1), context)  # committed: 1, provisional: 3
    before = ClientMemory.load(context.state, "s")
    reply = app(request(2, None, kind="evaluate", model=np.full(3, 2.0)), context)
    assert metrics_of(reply) == {"loss": 6.0, "num-examples": 2, "total": 3.0}
    assert ARRAYS not in reply.content
    after = ClientMemory.load(context.state, "s")
    assert (after.committed.round, after.provisional.round) == (
        before.committed.round,
        before.provisional.round,
    )
    assert arrays_of(app(request(3, 2), context)) == [6.0] * 3


def snapshot(context: Context) -> Any:
    """All of a context's state as plain data."""
    return {
        key: {
            name: value.data if hasattr(value, "data") else value
            for name, value in record.items()
        }
        for key, record in context.state.items()
    }


def raising(change: Callable[[Context], None]) -> ClientApp:
    class Raising(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            if config["server-round"] > 1:
                change(self.context)
                raise RuntimeError("out of memory")
            return super().fit(parameters, config)

    return client_app(Raising)


def add_record(context: Context) -> None:
    context.state["mine"] = ConfigRecord({"a": 1})


def change_in_place(context: Context) -> None:
    for record in context.state.values():
        if isinstance(record, ArrayRecord):
            for name in list(record):
                record[name] = encode(np.full(9, -1.0))
            record["more"] = encode(np.zeros(1))
        elif isinstance(record, ConfigRecord):
            record["committed-round"] = 99


def delete_all(context: Context) -> None:
    for key in list(context.state):
        del context.state[key]


def replace_state(context: Context) -> None:
    context.state = RecordDict()


@pytest.mark.parametrize(
    "change", [add_record, change_in_place, delete_all, replace_state]
)
def test_a_client_that_raises_is_as_it_was_before(
    change: Callable[[Context], None],
) -> None:
    app = raising(change)
    context = started(app)
    before = snapshot(context)
    with pytest.raises(RuntimeError, match="out of memory"):
        app(request(2, 1), context)
    assert snapshot(context) == before


def test_an_interrupt_leaves_the_state_too() -> None:
    class Interrupted(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            raise KeyboardInterrupt

    context = started(client_app(Adder))
    before = snapshot(context)
    with pytest.raises(KeyboardInterrupt):
        client_app(Interrupted)(request(2, 1), context)
    assert snapshot(context) == before


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [[1, np.nan], [np.inf, 0], [np.inf, -np.inf]])
def test_state_that_is_not_finite_is_refused(bad: list[float]) -> None:
    class Diverging(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            self.state["total"] = np.array(bad)
            return [np.zeros(3)], 1, {}

    context = started(client_app(Adder))
    before = snapshot(context)
    with pytest.raises(FloatingPointError, match="'total' is not finite"):
        client_app(Diverging)(request(2, 1), context)
    assert snapshot(context) == before


def test_integer_and_empty_state_is_kept() -> None:
    class Counting(StatefulClient):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            count = self.state.get("count", np.array(0)) + 1
            self.state = {"count": count, "nothing": np.zeros((0, 2))}
            return [np.asarray(count)], 0, {}

    app, context = client_app(Counting), new_context()
    app(request(1, 0, restore={}), context)
    reply = app(request(2, 1), context)
    (array,) = cast(ArrayRecord, reply.content[ARRAYS]).values()
    assert decode(array) == 2
    assert METRICS not in reply.content  # no examples, no metrics: nothing revealed


def test_the_state_given_to_fit_is_read_only() -> None:
    class Careless(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            if "total" in self.state:
                self.state["total"] += 1.0
            return super().fit(parameters, config)

    app = client_app(Careless)
    context = started(app)
    with pytest.raises(ValueError, match="read-only"):
        app(request(2, 1), context)


# ------------------------------------------------------------------ kinds of clients


def test_a_client_in_flowers_other_form_is_refused_with_the_way_out() -> None:
    app = client_app(lambda context: Plain().to_client())
    with pytest.raises(TypeError, match=r"expected a flwr.client.NumPyClient") as e:
        app(request(1, 0, restore={}), new_context())
    assert "return it without .to_client()" in str(e.value)
    app = client_app(lambda context: Adder(context).to_client())
    with pytest.raises(TypeError, match="return the Adder itself from client_fn"):
        app(request(1, 0, restore={}), new_context())


@pytest.mark.parametrize("made", [None, 3, "client", Adder])
def test_something_that_is_no_client_is_refused(made: Any) -> None:
    app = client_app(lambda context: made)
    with pytest.raises(TypeError, match="expected a flwr.client.NumPyClient"):
        app(request(1, 0, restore={}), new_context())
    with pytest.raises(TypeError, match="expected a flwr.client.NumPyClient"):
        app(Message(RecordDict(), 11, "query.hello"), new_context())


class Plain(NumPyClient):
    """Flower's own kind of client, without state."""

    def fit(self, parameters: Arrays, config: Config) -> Fit:
        return [2.0 * parameters[0]], 7, {"loss": 0.5}

    def evaluate(
        self, parameters: Arrays, config: Config
    ) -> tuple[float, int, dict[str, Any]]:
        return 1.5, 4, {"accuracy": 0.25}


def test_a_plain_numpy_client_works() -> None:
    app, context = client_app(lambda context: Plain()), new_context()
    reply = app(request(1, None), context)
    assert arrays_of(reply) == [2.0] * 3
    assert metrics_of(reply) == {"num-examples": 7, "loss": 0.5}
    reply = app(request(1, None, kind="evaluate"), context)
    assert metrics_of(reply) == {"loss": 1.5, "num-examples": 4, "accuracy": 0.25}


def test_a_model_of_several_layers_arrives_as_layers() -> None:
    class Shapes(NumPyClient):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            return parameters[::-1], 1, {}

    layers: Arrays = [np.arange(6.0).reshape(2, 3), np.array([7.0])]
    layout = Layout.of(layers)
    arrays, config = ModelBroadcast(layout, layout.point(layers)).encode(None)
    config = {**config, "session": "s", "server-round": 1}
    content = RecordDict({MODEL: arrays, CONFIG: ConfigRecord(config)})
    reply = client_app(lambda context: Shapes())(
        Message(content, 11, "train"), new_context()
    )
    back = record_arrays(cast(ArrayRecord, reply.content[ARRAYS]))
    assert [a.tolist() for a in back] == [[7.0], layers[0].tolist()]


def test_phases_call_methods_of_their_names() -> None:
    class Phased(Adder):
        def fit_inner_product(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([-5.0])], 1, {}

    class Other(Adder):
        def fit_missing(self, parameters: Arrays, config: Config) -> Fit:
            raise AssertionError

    app = client_app(Phased)
    message = request(1, None, kind="train.inner_product")
    assert arrays_of(app(message, new_context())) == [-5.0]
    with pytest.raises(TypeError, match="Phased has no method fit_missing"):
        app(request(1, None, kind="train.missing"), new_context())


def test_phases_are_known_by_the_classes_that_have_them() -> None:
    """Of somebody else's class too, and of a mix-in; not of one that comes later."""

    class Curvature:
        fit_intercept = True  # an attribute, not a phase

        def fit_curvature_of_a_mix_in(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([3.0])], 1, {}

    class Somebodys(Curvature, Adder):
        def fit_somebodys_own(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([-7.0])], 1, {}

    app = client_app(lambda context: Later(context))
    for phase, value in (("somebodys_own", -7.0), ("curvature_of_a_mix_in", 3.0)):
        reply = client_app(Somebodys)(
            request(1, None, kind=f"train.{phase}"), new_context()
        )
        assert arrays_of(reply) == [value]

    class Later(Adder):
        def fit_of_a_class_to_come(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([1.0])], 1, {}

    late = request(1, None, kind="train.of_a_class_to_come")
    with pytest.raises(ValueError, match="of_a_class_to_come"):
        app(late, new_context())
    app = client_app(lambda context: Later(context))
    assert arrays_of(app(late, new_context())) == [1.0]
    with pytest.raises(ValueError, match="intercept"):
        app(request(1, None, kind="train.intercept"), new_context())


def test_mods_see_every_message() -> None:
    seen: list[str] = []

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        seen.append(message.metadata.message_type)
        return cast(Message, call_next(message, context))

    app = client_app(Adder, mods=[mod])
    app(request(1, 0, restore={}), new_context())
    app(request(1, None, kind="evaluate"), new_context())
    app(Message(RecordDict(), 11, "query.hello"), new_context())
    assert seen == ["train", "evaluate", "query.hello"]


def test_hello_answers_identity_and_properties() -> None:
    class Proud(Adder):
        def get_properties(self, config: Config) -> dict[str, Any]:
            return {"num-examples": 12}

    context = new_context(**{"num-partitions": 10, "secret": "path"})
    reply = client_app(Proud)(Message(RecordDict(), 11, "query.hello"), context)
    assert status(reply) == {"client-id": "4"}
    properties = dict(cast(ConfigRecord, reply.content[CONFIG]))
    assert properties == {"num-partitions": 10, "num-examples": 12}
    assert len(context.state) == 0


def test_a_request_without_what_it_needs_raises_and_changes_nothing() -> None:
    app = client_app(Adder)
    context = started(app)
    before = snapshot(context)
    for missing in (CONFIG, MODEL):
        message = request(2, 1)
        del message.content[missing]
        with pytest.raises(ValueError, match=f"the request has no {missing}"):
            app(message, context)
    message = request(2, 1)
    cast(ArrayRecord, message.content[MODEL])["0"] = encode(np.zeros(2))
    with pytest.raises(ValueError, match="reshape"):
        app(message, context)
    assert snapshot(context) == before


def test_evaluate_objective_gives_value_examples_and_metrics() -> None:
    class Half:
        num_examples = 3

        def value(self, x: NDArray[Any]) -> float:
            return float(x.sum()) / 2

    class Rated(Half):
        def metrics(self, x: NDArray[Any]) -> dict[str, float]:
            return {"rmse": float(x.max())}

    assert evaluate_objective(Half(), [np.arange(3.0)]) == (1.5, 3, {})
    assert evaluate_objective(Rated(), [np.arange(3.0)]) == (1.5, 3, {"rmse": 2.0})


# --------------------------------------------------------------- whatever gets lost


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["used", "used", "used", "lost-reply", "lost-request", "state-loss"]
            + ["wipe", "late"]
        ),
        min_size=1,
        max_size=30,
    )
)
def test_the_client_stands_where_the_server_says_whatever_happens(
    events: list[str],
) -> None:
    """A server that knows the sum of the rounds it used, and one client.

    In each round the client has to answer with exactly what the server can work out:
    the sum of the rounds that it used before, and this one.
    """
    app, context = client_app(Adder), new_context()
    used, total, ready = 0, 0.0, False
    late: list[Message] = []
    for server_round, event in enumerate(events, start=1):
        if event == "wipe":
            context.state = RecordDict()
        restore = {"total": np.full(3, total)}
        message = request(server_round, used, restore=None if ready else restore)
        if event == "lost-request":
            continue
        if event == "late":
            late.append(message)  # handled after the next one
            continue
        before = RecordDict({k: v.copy() for k, v in context.state.items()})
        reply = app(message, context)
        if not status(reply)["in-sync"]:
            reply = app(request(server_round, used, restore=restore), context)
        assert arrays_of(reply) == [total + server_round] * 3
        if event == "state-loss":
            context.state = before
        if event != "lost-reply":
            used, total, ready = server_round, total + server_round, True
        for message in late:
            app(message, context)
        late = []
