"""The client's side: from a ``client_fn`` to a ``ClientApp`` on the Message API."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, cast

from flwr.app import (
    Array,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import (
    FloatArray,
    Layout,
    array_record,
    decode,
    encode,
    filled,
)
from fedtrellis.wire.broadcast import MAX_PARAMETERS, OutOfSyncError
from fedtrellis.wire.protocol import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    RESTORE,
    STATUS,
    ClientMemory,
    MissingError,
    Named,
    RestoreNeededError,
    client_identity,
    read_request,
)

__all__ = ["MethodClient", "StatefulClient", "client_app", "evaluate_objective"]

ClientFn = Callable[[Context], Any]

#: Phases of rounds of several waves that the clients' classes defined so far have, as
#: keys: a message of type ``train.NAME`` is for a client's ``fit_NAME``.
PHASES: dict[str, None] = {}
_PHASE = "fit_"

# Flower's mods that take a message's arrays for the model
_PLAIN_MODS = (
    "fixedclipping_mod",
    "adaptiveclipping_mod",
    "LocalDpMod",
    "secagg_mod",
    "secaggplus_mod",
)

#: Local steps, samples and the like that a request may ask for, see :func:`client_app`.
MAX_COUNT = 10**6


class MethodClient(NumPyClient):
    """A NumPy client of one of fedtrellis's methods.

    It works with :func:`client_app` only: Flower's ``ClientApp(client_fn=...)`` knows
    neither the messages of these methods nor where their clients keep state.

    A method ``fit_NAME(parameters, config)`` of a subclass is a phase of its own, for
    messages of type ``train.NAME``: every app that is made once the class is defined
    takes them.

    Attributes
    ----------
    announcement : mapping
        Told to the server before round 1, beside what ``get_properties`` answers.
    told_evaluation : callable or None
        Given the loss, the number of examples and the metrics that ``evaluate``
        returned, returns the loss and the metrics to be sent.
    """

    announcement: Mapping[str, Any] = MappingProxyType({})
    told_evaluation: (
        Callable[[float, int, dict[str, Any]], tuple[float, dict[str, Any]]] | None
    ) = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Note the phases of a subclass, for the apps to come."""
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith(_PHASE) and callable(getattr(cls, name)):
                PHASES[name.removeprefix(_PHASE)] = None

    def to_client(self) -> Client:
        """Refuse Flower's older API, which calls this itself, with the way out.

        Raises
        ------
        TypeError
            Always.
        """
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be converted with .to_client(), and "
            "flwr.client.ClientApp(client_fn=...) cannot run it: return the "
            f"{name} itself from client_fn, make the ClientApp with "
            "app = fedtrellis.client_app(client_fn), and start a strategy of "
            "fedtrellis.strategies on the server"
        )


class StatefulClient(MethodClient):
    """A NumPy client whose method keeps state from one round to the next.

    Parameters
    ----------
    context : Context
        The context that ``client_fn`` was given.

    Attributes
    ----------
    state : dict of str to ndarray
        What the method keeps. Read-only arrays when :meth:`fit` starts: the state
        after the last of this client's rounds that the server used. What ``fit``
        leaves here is the state after this round, should the server use it.
    numbers : ndarray of float64 or None
        A short vector that ``fit`` may leave here to be sent beside its arrays: it
        travels without the half kilobyte that an array has around it.
    client_id : str
        The stable identity, see :func:`fedtrellis.wire.protocol.client_identity`.
    """

    #: Names of the arrays that a server may give back; None: any.
    restorable: ClassVar[frozenset[str] | None] = None

    def __init__(self, context: Context) -> None:
        self.context = context
        self.client_id = client_identity(context)
        self.state: dict[str, FloatArray] = {}
        self.numbers: FloatArray | None = None

    def check_restored(self, content: RecordDict) -> None:
        """Raise ValueError if a server gives back what this client does not take.

        Parameters
        ----------
        content : RecordDict
            A request. Its record of what is restored may be missing.
        """
        given = content.get(RESTORE)
        if self.restorable is None or given is None:
            return
        strange = sorted(set(given) - self.restorable)
        if strange:
            raise ValueError(f"a client of this method takes no {strange[0]!r} back")


def evaluate_objective(
    objective: Any, parameters: Sequence[NDArray[Any]]
) -> tuple[float, int, dict[str, Any]]:
    """What ``NumPyClient.evaluate`` returns: value, examples, metrics of an objective.

    Parameters
    ----------
    objective : object
        With ``value(x)`` and ``num_examples``, and if it has any, ``metrics(x)``.
    parameters : list of ndarray
        The model's arrays.
    """
    layout = Layout.of(parameters)
    x = layout.objective_point(layout.point(parameters))
    metrics = getattr(objective, "metrics", None)
    extra = metrics(x) if metrics is not None else {}
    return float(objective.value(x)), int(objective.num_examples), extra


def client_app(
    client_fn: ClientFn,
    *,
    phases: Sequence[str] = (),
    mods: list[Any] | None = None,
    max_parameters: int = MAX_PARAMETERS,
    max_count: int = MAX_COUNT,
) -> ClientApp:
    """Make a Flower ``ClientApp`` of a function that makes NumPy clients.

    Parameters
    ----------
    client_fn : callable
        Takes the ``Context`` and returns a client of :mod:`fedtrellis.clients`, or any
        ``NumPyClient``. Called for every message, so what is expensive belongs behind
        a module-level ``functools.lru_cache``.
    phases : sequence of str
        Names of phases of a round: a message of type ``train.NAME`` calls the client's
        method ``fit_NAME(parameters, config)``. Those of subclasses of
        :class:`MethodClient` are known by themselves, unless the class is defined
        later than the app, say in a module that only ``client_fn`` imports.
    mods : list, optional
        Flower mods around every message.
    max_parameters : int
        The largest model that a message may declare without bringing all its entries,
        as steps and sparse models do: what is beyond is refused unallocated.
    max_count : int
        The largest number of local steps, samples, passes or examples of a mini-batch
        that a request may ask for.

    Returns
    -------
    ClientApp
        An exception in the client leaves its state as it was before the message and
        reaches the server as an error reply.
    """
    for mod in mods or ():
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in _PLAIN_MODS:
            raise SettingsError(
                f"mods has {name}, which clips or perturbs the one plain array of "
                "Flower's own messages; these methods' messages are others"
            )
    app = ClientApp(mods=mods)

    def handler(function: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            return _answer(
                client_fn, function, message, context, max_parameters, max_count
            )

        return handle

    app.train()(handler("fit"))
    app.evaluate()(handler("evaluate"))
    for phase in dict.fromkeys((*PHASES, *phases)):
        app.train(phase)(handler(_PHASE + phase))

    def hello(message: Message, context: Context) -> Message:
        client = _make(client_fn, context)
        status = ConfigRecord({"client-id": client_identity(context)})
        # how many parts the node thinks that the data has, for whoever wants to check
        properties: dict[str, Any] = {
            key: value
            for key, value in context.node_config.items()
            if key == "num-partitions"
        }
        # what a client weighs in an evaluation is declared before there is a model
        examples = getattr(getattr(client, "objective", None), "num_examples", None)
        if examples is not None:
            properties[EXAMPLES] = int(examples)
        properties |= client.get_properties({})
        if isinstance(client, MethodClient):
            properties |= client.announcement
        content = RecordDict({STATUS: status, CONFIG: ConfigRecord(properties)})
        return Message(content, reply_to=message)

    app.query("hello")(hello)
    return app


def _make(client_fn: ClientFn, context: Context) -> NumPyClient:
    client = client_fn(context)
    if not isinstance(client, NumPyClient):
        hint = "; return it without .to_client()" if hasattr(client, "fit") else ""
        raise TypeError(
            f"client_fn returned a {type(client).__name__}, "
            f"expected a flwr.client.NumPyClient{hint}"
        )
    return client


def _answer(
    client_fn: ClientFn,
    function: str,
    message: Message,
    context: Context,
    max_parameters: int,
    max_count: int,
) -> Message:
    """Handle one train or evaluate message, and keep the state protocol."""
    before = {key: record.copy() for key, record in context.state.items()}
    try:
        content = message.content
        config = read_request(content, max_count)
        memory = ClientMemory.load(context.state, config["session"])
        status = filled(
            ConfigRecord(),
            {
                "client-id": client_identity(context),
                "session": config["session"],
                "server-round": config["server-round"],
                "in-sync": True,
            },
        )
        if function.startswith(_PHASE):
            # a round has several of them, whose answers nothing else tells apart
            status["phase"] = function.removeprefix(_PHASE)
        answer = filled(RecordDict(), {STATUS: status})
        try:
            memory.take_request(content, config, max_parameters)
        except (OutOfSyncError, RestoreNeededError):
            # nothing has changed; the server sends everything in the same round
            status["in-sync"] = False
            return Message(answer, reply_to=message)
        assert memory.model is not None
        keep_model = config.get("keep-model", True)
        if keep_model or function == "evaluate":
            status["model-version"] = memory.model.version

        client = _make(client_fn, context)
        if isinstance(client, StatefulClient):
            client.check_restored(content)
            state = {k: decode(v) for k, v in memory.committed.items()}
            client.state = Named("the client's state", state)
        layers = memory.model.layout.layers(memory.model.point)
        handle = getattr(client, function, None)
        if handle is None:
            raise TypeError(f"{type(client).__name__} has no method {function}")
        try:
            result = handle(layers, config)
        except RestoreNeededError:  # what the method found its state to be
            status["in-sync"] = False
            return Message(answer, reply_to=message)
        except MissingError as error:
            raise TypeError(
                f"{error.args[0]}: is {type(client).__name__} the client of the "
                "server's strategy?"
            ) from error
        metrics = MetricRecord()
        if function == "evaluate":
            loss, num_examples, extra = result
            if isinstance(client, MethodClient) and client.told_evaluation is not None:
                loss, extra = client.told_evaluation(*result)
            metrics["loss"] = float(loss)
            metrics[EXAMPLES] = int(num_examples)
        else:
            arrays, num_examples, extra = result
            filled(answer, {ARRAYS: array_record(arrays, join=True)})
            if num_examples:  # a method that reveals nothing of its data returns 0
                metrics[EXAMPLES] = int(num_examples)
            if isinstance(client, StatefulClient) and client.numbers is not None:
                status["numbers"] = client.numbers.astype("<f8").tobytes()
            if isinstance(client, StatefulClient) and "used-round" in config:
                memory.provisional = _encode_state(client.state)
                memory.provisional_round = cast(int, config["server-round"])
                memory.provisional_epoch = config.get("epoch", "")
        for name, value in extra.items():
            metrics[name] = value
        if metrics:
            answer[METRICS] = metrics
        reply = Message(answer, reply_to=message)
        # the state is written last: whatever raised before has changed nothing
        if keep_model or function != "evaluate":
            # an evaluation elsewhere leaves the model that the client goes on with
            memory.save(context.state, keep_model)
    except BaseException:
        # Flower keeps what an exception left behind when deployed, and drops it in
        # simulation; a client that failed is as it was before, everywhere
        for key in set(context.state) - set(before):
            del context.state[key]
        for key, record in before.items():
            context.state[key] = record
        raise
    return reply


def _encode_state(state: dict[str, FloatArray]) -> dict[str, Array]:
    encoded = {}
    for name, value in state.items():
        if value.dtype.kind == "f" and not math.isfinite(value.sum()):
            raise FloatingPointError(f"the client's state {name!r} is not finite")
        encoded[name] = encode(value)
    return encoded
