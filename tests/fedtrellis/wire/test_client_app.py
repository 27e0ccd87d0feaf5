"""The client's side: the user's client in a ClientApp, its state kept in step."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedtrellis import LocalGrid, StatefulClient, client_app
from fedtrellis.wire.arrays import Layout, decode, encode
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.protocol import (
    ARRAYS,
    CONFIG,
    METRICS,
    MODEL,
    RESTORE,
    STATUS,
    NodeContext,
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


def new_context(kind: type[Context] = Context, **node_config: Any) -> Context:
    return kind(1, 11, {"partition-id": 4, **node_config}, RecordDict(), {})


def request(
    server_round: int,
    used: int | None,
    *,
    kind: str = "train",
    restore: dict[str, NDArray[Any]] | None = None,
) -> Message:
    server = ModelBroadcast(Layout(((3,),)), np.ones(3))
    arrays, config = server.encode(None)
    config = {**config, "session": "s", "server-round": server_round}
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


def started(app: ClientApp, kind: type[Context] = Context) -> Context:
    """A context after round 1, of which nothing is known to the client yet."""
    context = new_context(kind)
    app(request(1, 0, restore={}), context)
    return context


def snapshot(context: Context) -> Any:
    """All of a context's state as plain data."""
    return {
        key: {name: getattr(value, "data", value) for name, value in record.items()}
        for key, record in context.state.items()
    }


def change_in_place(client: StatefulClient) -> None:
    for record in client.context.state.values():
        if isinstance(record, ArrayRecord):
            for name in list(record):
                record[name] = encode(np.full(9, -1.0))
    client.context.state["mine"] = ConfigRecord({"a": 1})
    raise KeyboardInterrupt("stopped")


def replace_state(client: StatefulClient) -> None:
    client.context.state = RecordDict()
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("kind", [Context, NodeContext])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (change_in_place, "stopped"),
        (replace_state, "out of memory"),
        (lambda client: client.state["total"].fill(1.0), "read-only"),
        (lambda c: c.state.update(total=np.array([np.nan])), "'total' is not finite"),
    ],
)
def test_a_client_that_raises_is_as_it_was_before(
    failing: Callable[[StatefulClient], None], reason: str, kind: type[Context]
) -> None:
    class Failing(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            if config["server-round"] < 3:
                return super().fit(parameters, config)
            failing(self)
            return [np.zeros(3)], 1, {}

    app = client_app(Failing)
    context = started(app, kind)
    app(request(2, 1), context)
    before = snapshot(context)
    with pytest.raises(BaseException, match=reason):
        app(request(3, 2), context)
    assert snapshot(context) == before


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "config has no 'step': is Asking the client of the server's strategy"),
        ({"step": 1}, "the client's state has no 'x'"),
    ],
)
def test_a_refused_request_changes_nothing(said: Any, reason: str) -> None:
    class Asking(Adder):
        def fit(self, parameters: Arrays, config: Config) -> Fit:
            if config["server-round"] == 1:
                return super().fit(parameters, config)
            return [config["step"] * self.state["x"]], 1, {}

    app = client_app(Asking)
    context = started(app)
    before = snapshot(context)
    message = request(2, 1)
    config: Any = message.content[CONFIG]
    config.update(said)
    with pytest.raises((ValueError, TypeError), match=reason):
        app(message, context)
    assert snapshot(context) == before


class Plain(NumPyClient):
    """Flower's own kind of client, without state."""

    def fit(self, parameters: Arrays, config: Config) -> Fit:
        return [2.0 * parameters[0]], 7, {"loss": 0.5}

    def evaluate(
        self, parameters: Arrays, config: Config
    ) -> tuple[float, int, dict[str, Any]]:
        return 1.5, 4, {"accuracy": 0.25}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (None, "a NoneType, expected a flwr.client.NumPyClient"),
        (Plain().to_client(), r"return it without .to_client\(\)"),
    ],
)
def test_something_that_is_no_client_is_refused(made: Any, reason: str) -> None:
    for message in (request(1, None), Message(RecordDict(), 11, "query.hello")):
        with pytest.raises(TypeError, match=reason):
            client_app(lambda context: made)(message, new_context())


def test_a_plain_numpy_client_works() -> None:
    app, context = client_app(lambda context: Plain()), new_context()
    reply = app(request(1, None), context)
    assert arrays_of(reply) == [2.0] * 3
    assert metrics_of(reply) == {"num-examples": 7, "loss": 0.5}
    reply = app(request(1, None, kind="evaluate"), context)
    assert metrics_of(reply) == {"loss": 1.5, "num-examples": 4, "accuracy": 0.25}


def test_phases_are_known_by_the_classes_that_have_them() -> None:
    """Of a mix-in too; not of a class that comes later, nor other attributes."""

    class Curvature:
        fit_intercept = True

        def fit_curvature_of_a_mix_in(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([3.0])], 1, {}

    class Somebodys(Curvature, Adder):
        pass

    app = client_app(Somebodys)
    message = request(1, None, kind="train.curvature_of_a_mix_in")
    assert arrays_of(app(message, new_context())) == [3.0]

    class Later(Adder):
        def fit_of_a_class_to_come(self, parameters: Arrays, config: Config) -> Fit:
            return [np.array([1.0])], 1, {}

    for phase in ("of_a_class_to_come", "intercept"):
        with pytest.raises(ValueError, match=phase):
            app(request(1, None, kind=f"train.{phase}"), new_context())


def test_hello_answers_identity_and_properties() -> None:
    class Proud(Adder):
        def get_properties(self, config: Config) -> dict[str, Any]:
            return {"num-examples": 12}

    context = new_context(Context, **{"num-partitions": 10, "secret": "path"})
    reply = client_app(Proud)(Message(RecordDict(), 11, "query.hello"), context)
    assert status(reply) == {"client-id": "4"}
    properties = dict(cast(ConfigRecord, reply.content[CONFIG]))
    assert properties == {"num-partitions": 10, "num-examples": 12}
    assert len(context.state) == 0
