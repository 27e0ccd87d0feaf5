"""The client's side: from a ``client_fn`` to a ``ClientApp`` on the Message API.

:class:`Serving` is a request at a client until its reply is there, however it came: in
a message, or within this process.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, INFO
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, ClassVar, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedtrellis.encryption.releases import OwnRows
from fedtrellis.settings import CodedError
from fedtrellis.wire.arrays import FloatArray, Layout, owned
from fedtrellis.wire.broadcast import ReceivedModel, RestoreNeededError, receive
from fedtrellis.wire.flower_internals import filled, log
from fedtrellis.wire.local_work import Steps, run_alone, run_together
from fedtrellis.wire.model_mods import change_model, check_client, parted
from fedtrellis.wire.protocol import (
    AGREED,
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    PHASE,
    STATUS,
    ClientMemory,
    Kept,
    MissingError,
    Named,
    NodeContext,
    NodeReply,
    NodeRequest,
    client_identity,
    is_request,
)
from fedtrellis.wire.summing import (
    ATTEMPT,
    SUM_PHASES,
    check_exposed,
    examples_of,
    hidden,
    hides,
    sum_phase,
)

ClientFn = Callable[[Context], Any]

# Entries of the points of clients side by side, and clients: so many that a few arrays
# of them, and their data, stay in the cache.
_ENTRIES, _CLIENTS = 2**18, 1024

# Phases of the clients' classes so far: ``train.NAME`` is for a client's ``fit_NAME``.
_PHASES: dict[str, None] = dict.fromkeys(n.removeprefix(PHASE) for n in SUM_PHASES)


class MethodClient(NumPyClient):
    """A NumPy client of one of fedtrellis's methods.

    It works with :func:`fedtrellis.client_app` only: Flower's
    ``ClientApp(client_fn=...)`` knows neither the messages of these methods nor where
    their clients keep state.

    A method ``fit_NAME(parameters, config)`` of a subclass is a phase of its own, for
    messages of type ``train.NAME``: every app that is made once the class is defined
    takes them.

    A subclass writes its local work as :meth:`steps`, and clients of a
    ``LocalGrid(..., batched=True)`` then compute together; or it overrides ``fit``, and
    is called alone.

    Attributes
    ----------
    objective : object
        The client's loss f_i, which a subclass sets: it answers what the steps ask for.
    layout : Layout
        Of the model, known from the moment :meth:`steps` is called.
    announcement : mapping
        Told to the server before round 1, beside what ``get_properties`` answers.
    weigh_evaluation : callable or None
        Given the loss, the number of examples and the metrics that ``evaluate``
        returned, returns the loss and the metrics to be sent.
    rows : OwnRows or None
        Of the client's data, for the memory of releases of a node with keys.
    sends_model : bool
        Of the class: whether ``fit`` answers with one point near the model received,
        and keeps nothing that depends on it, so that Flower's clipping mods apply.
    hides_by_itself : bool
        Of the class: whether a node with keys lets its answers pass that are no terms
        of a secure sum, because the client sees to what they show.

    Examples
    --------
    A client that sends the gradient of f_i(x) = ‖x‖²/2:

    >>> from fedtrellis import MethodClient
    >>> class GradientClient(MethodClient):
    ...     def fit(self, parameters, config):
    ...         return [parameters[0]], 1, {}
    >>> GradientClient().fit([2.0], {})
    ([2.0], 1, {})
    """

    # of any kind of loss, with mini-batches, bounds or stacks, or none of them
    objective: Any
    layout: Layout
    announcement: Mapping[str, Any] = MappingProxyType({})
    weigh_evaluation: (
        Callable[[float, int, dict[str, Any]], tuple[float, dict[str, Any]]] | None
    ) = None
    rows: OwnRows | None = None
    sends_model: ClassVar[bool] = False
    hides_by_itself: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Note the phases of a subclass, for the apps to come."""
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith(PHASE) and callable(getattr(cls, name)):
                _PHASES[name.removeprefix(PHASE)] = None

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The client's local work, a generator.

        It yields what it asks its loss for, such as :class:`~fedtrellis.Gradient`, and
        is sent the answer. Clients side by side take turns: a context such as
        ``np.errstate`` must not span a ``yield``.

        ``x`` is the model, one read-only ndarray of shape ``layout.point_shape``: of
        several arrays, the vector of all their entries. ``config`` is what the server
        sent, not to be changed. Returns a point, an ndarray that is sent in the model's
        shape and dtype; or all that ``fit`` returns.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither steps nor fit")

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Take the steps alone, which may raise anything.

        Returns what is sent, the number of examples (0: not revealed), and metrics.
        """
        arrays, examples, metrics = run_alone(self, parameters, config)
        return list(arrays), examples, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x), the number of examples and the objective's metrics."""
        return evaluate_objective(self.objective, parameters)


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

    Examples
    --------
    A client that counts those of its rounds that the server used:

    >>> import numpy as np
    >>> from fedtrellis import StatefulClient
    >>> class Counting(StatefulClient):
    ...     def fit(self, parameters, config):
    ...         self.state["rounds"] = self.state.get("rounds", np.zeros(1)) + 1
    ...         return parameters, 1, {"rounds": float(self.state["rounds"][0])}
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.client_id = client_identity(context)
        self.state: dict[str, FloatArray] = {}
        self.numbers: FloatArray | None = None


def evaluate_objective(
    objective: Any, parameters: Sequence[NDArray[Any]]
) -> tuple[float, int, dict[str, Any]]:
    """What ``NumPyClient.evaluate`` returns, of an objective at a model's arrays.

    The objective has ``value(x)`` and ``num_examples``, and maybe ``metrics(x)``.
    """
    layout = Layout.of(parameters)
    x = layout.objective_point(layout.point(parameters))
    metrics = getattr(objective, "metrics", None)
    extra = metrics(x) if metrics is not None else {}
    return float(objective.value(x)), int(objective.num_examples), extra


# ------------------------------------------------------------------------- serving


@dataclass(slots=True, eq=False)
class Serving:
    """A request at a client: :meth:`begin`, :meth:`call` and :meth:`finish`, in turn.

    Whoever calls these calls :meth:`failed` with what they raise: the client's state is
    then what it was before.
    """

    app: MethodApp
    function: str
    request: NodeRequest
    context: Context
    #: The models of requests that are served together, by what they are made of.
    received: dict[Any, ReceivedModel]
    client: NumPyClient = field(init=False)
    model: ReceivedModel = field(init=False)
    #: What the method is given, beside the layers of the model; not to be changed.
    config: Named = field(init=False)
    _before: Mapping[str, Any] | None = field(init=False, default=None)
    _held: ClientMemory | None = field(init=False, default=None)
    _memory: ClientMemory = field(init=False)
    _status: dict[str, Any] = field(init=False)
    _stateful: bool = field(init=False)

    def begin(self) -> None:
        """Take the request, and make the client."""
        context, request, app = self.context, self.request, self.app
        if isinstance(context, NodeContext):
            held, records = context.held()
        else:
            held, records = None, context.state
        self._held = held
        if AGREED in request.content:
            context.state[AGREED] = request.content[AGREED]
        self._before = {n: r.copy() for n, r in records.items()} if records else {}
        config, self._status, record = request.read
        self.config, session = config, config["session"] + config.get("epoch", "")
        if held is None or held.session != session:
            held = ClientMemory.load(records, session)
        # who has and is sent the same has the same; the requests all exist meanwhile
        key = id(record), held.model
        model = self.received.get(key)
        if model is None:
            model = receive(record, config, held.model)
            model.point.setflags(write=False)
            self.received[key] = model
        self._memory = held.take_request(model, request.content, config)
        self.model, client = model, app.client(context)
        self.client = client
        clear = self.function not in SUM_PHASES and ATTEMPT not in self.config
        if clear and not getattr(client, "hides_by_itself", False):
            check_exposed(context, self.function.removeprefix(PHASE))
        # of an abstract class isinstance would look it up every time
        self._stateful = StatefulClient in type(client).__mro__
        if self._stateful:
            keeps = cast(StatefulClient, client)
            state = self._memory.committed.decoded()
            keeps.state = Named("the client's state", state)

    def _reply(self, more: Mapping[str, Any]) -> NodeReply:
        status = {**self._status, **more} if more else self._status
        return NodeReply(client_identity(self.context), status)

    def failed(self, error: Exception) -> NodeReply | Exception:
        """Undo what was done to the client's state; a reply, if that is one."""
        before = self._before
        if before is None:
            return _for_server(error, self.context)
        state = self.context.state
        for name in set(state) - {*before}:
            del state[name]
        for name, record in before.items():
            state[name] = record
        if self._held is not None:
            cast(NodeContext, self.context).hold(self._held)
        if isinstance(error, RestoreNeededError):
            if not hasattr(self, "model"):
                known = self._status.items()
                self._status = {k: v for k, v in known if k != "model-version"}
            # the server sends everything in the same round
            return self._reply({"in-sync": False})
        # what could not be read is no request
        if not isinstance(error, CodedError) or not hasattr(self, "_status"):
            return _for_server(error, self.context)
        # what the server is not to read
        log(INFO, "refused: %s", getattr(error, "detail", error))
        return self._reply({"refused": error.code, "why": str(error)})

    def call(self) -> Any:
        """What the client's method returns, for :meth:`finish`."""
        if self.function in SUM_PHASES:
            own, x = getattr(self.client, "rows", None), self.model.point
            sent = sum_phase(self.function, self.context, self.config, own, x)
            return sent, 0, {}
        if self.app.model_mods and self.function != "evaluate":
            check_client(self.app.model_mods, self.client, self.function)
        handle = getattr(self.client, self.function, None)
        kind = type(self.client).__name__
        if handle is None:
            raise TypeError(f"{kind} has no method {self.function}")
        layers = self.model.layout.layers(self.model.point)
        try:
            return handle(layers, Named("the request's config", self.config))
        except MissingError as error:
            raise TypeError(
                f"{error.args[0]}: is {kind} the client of the server's strategy?"
            ) from error

    def finish(self, result: Any) -> NodeReply:
        """Make the reply of what :meth:`call` returned, and keep the client's state."""
        client, memory, config = self.client, self._memory, self.config
        numbers = getattr(client, "numbers", None)
        if self.app.model_mods and self.function == "fit":
            sent = self.model.layout.to_wire(self.model.point)
            mods, context = self.app.model_mods, self.context
            result = change_model(mods, result, sent, config, context)
        if ATTEMPT in config:
            term = hidden(self.context, config, self.model, client, result[0])
            result, numbers = ([term], 0, {}), None
        more, metrics = dict[str, Any](), dict[str, Any]()
        if self._stateful and numbers is not None and self.function != "evaluate":
            more["numbers"] = numbers.astype("<f8").tobytes()
        reply = self._reply(more)
        evaluates = self.function == "evaluate"
        if evaluates:
            loss, num_examples, extra = result
            if isinstance(client, MethodClient) and client.weigh_evaluation is not None:
                loss, extra = client.weigh_evaluation(*result)
            metrics["loss"] = float(loss)
            metrics[EXAMPLES] = int(num_examples)
        else:
            arrays, num_examples, extra = result
            reply.arrays = [owned(array) for array in arrays]
            if num_examples:  # a method that reveals nothing of its data returns 0
                metrics[EXAMPLES] = int(num_examples)
            if self._stateful and "used-round" in config:
                after = Kept.after(config, cast(StatefulClient, client).state)
                memory = ClientMemory(*memory[:3], after)
        metrics.update(extra)
        if metrics:
            reply.metrics = dict(MetricRecord(metrics).items())
        # the state is written last: whatever raised before has changed nothing
        if not config.get("keep-model", True):
            # the server sends the model whole anyway
            memory = ClientMemory(memory.session, None, *memory[2:])
            if evaluates:  # elsewhere than at the model that the client goes on with
                return reply
        if isinstance(self.context, NodeContext):
            self.context.hold(memory)
        else:
            memory.save(self.context.state)
        return reply


def _for_server(error: Exception, context: Context) -> Exception:
    """An error as the server may read it: of a node with a key no text but our own."""
    if isinstance(error, CodedError) or not hides(context):
        return error
    who = f"client {client_identity(context)}"
    # it may quote the data
    log(ERROR, "%s failed: %s: %s", who, type(error).__name__, error)
    return RuntimeError(f"{who} failed; its node's log says why")


def serve(serving: Serving, together: bool = False) -> Any:
    """The reply, or what was raised; None: steps to be taken ``together`` are begun."""
    try:
        serving.begin()
        # work that is its steps, and no fit of its own
        alone: Any = type(serving.client).fit
        if together and serving.function == "fit" and alone is MethodClient.fit:
            return None
        return serving.finish(serving.call())
    except Exception as error:
        return serving.failed(error)
    except BaseException:
        serving.failed(Exception())
        raise


def serve_together(servings: Sequence[Serving], replies: list[Any]) -> None:
    """Fill in replies as :func:`serve`, where clients' steps go side by side."""
    waiting: dict[Layout, list[int]] = defaultdict(list)
    place = -1
    # a wave makes no cycles: Python would go through all nodes to find that out
    collects = gc.isenabled()
    gc.disable()
    try:
        for place, serving in enumerate(servings):
            replies[place] = serve(serving, together=True)
            if replies[place] is not None:
                continue
            layout = serving.model.layout
            members = waiting[layout]
            members.append(place)
            large = len(members) * layout.size >= _ENTRIES
            if large or len(members) >= _CLIENTS:
                _side_by_side(servings, waiting.pop(layout), replies)
                if large:
                    gc.collect(0)  # cycles that clients have made
        for members in waiting.values():
            _side_by_side(servings, members, replies)
    except BaseException:
        for started, reply in zip(servings[: place + 1], replies, strict=False):
            if reply is None:
                started.failed(Exception())
        raise
    finally:
        if collects:
            gc.enable()


def _side_by_side(
    servings: Sequence[Serving], places: list[int], replies: list[Any]
) -> None:
    members = [servings[place] for place in places]
    models = {serving.model for serving in members}
    layers = {model: model.layout.layers(model.point) for model in models}
    results = run_together(
        [serving.client for serving in members],
        [layers[serving.model] for serving in members],
        [serving.config for serving in members],
    )
    for place, serving, result in zip(places, members, results, strict=True):
        try:
            if isinstance(result, Exception):
                raise result
            replies[place] = serving.finish(result)
        except Exception as error:
            serving.failed(error)
            replies[place] = serve(serving)  # in the words of a client alone


# ------------------------------------------------------------------------- the app


class MethodApp(ClientApp):
    """A ``ClientApp`` whose train messages can be handled many at once.

    Ray pickles the app with every message. One that a module holds, as Flower's
    projects have it, is pickled as the module's name and its own, so that a process
    imports it once and keeps what it caches; another one is pickled with its
    ``client_fn``, and nothing more.
    """

    def __init__(self, client_fn: ClientFn, mods: Any) -> None:
        #: Those that change a client's model, which are not around messages.
        self.model_mods, others = parted(mods or ())
        super().__init__(mods=others)
        self.client_fn = client_fn
        #: Whether no mods and no lifespan are around the handling of a message.
        self.plain = not others
        #: By types of messages, the client's methods that they are for.
        self.functions = {"train": "fit", "evaluate": "evaluate"}
        self.functions |= {f"train.{phase}": PHASE + phase for phase in _PHASES}
        for kind, function in self.functions.items():
            category, _, action = kind.partition(".")
            handle = partial(_handle, self, function)
            getattr(self, category)(action or "default")(handle)
        self.query("hello")(partial(_introduce, self))

    def client(self, context: Context) -> NumPyClient:
        """The client of a node; TypeError if it is none."""
        client = self.client_fn(context)
        # of an abstract class isinstance would look it up every time
        if NumPyClient not in type(client).__mro__:
            hint = "; return it without .to_client()" if hasattr(client, "fit") else ""
            raise TypeError(
                f"client_fn returned a {type(client).__name__}, "
                f"expected a flwr.client.NumPyClient{hint}"
            )
        return cast(NumPyClient, client)

    def lifespan(self) -> Any:
        """Flower's, which wants every message to pass through it."""
        self.plain = False
        return super().lifespan()

    def __reduce_ex__(self, protocol: Any) -> Any:
        found = by_name(self)
        return super().__reduce_ex__(protocol) if found is None else found


def by_name(thing: object) -> tuple[Any, tuple[str]] | None:
    """How to pickle an object as the name that a module holds it by, if one does.

    ``__main__`` is another module in every process.
    """
    known = vars(thing)
    if "_name" not in known:
        places = [
            (module, name)
            for module, loaded in list(sys.modules.items())
            # under its own name, which no program has in another process
            if module != "__main__" and getattr(loaded, "__name__", "") == module
            for name, held in list(vars(loaded).items())
            if held is thing
        ]
        # the one that made it, rather than those that import it from there
        known["_name"] = min(places, key=lambda place: len(place[0]), default=None)
    module, name = known["_name"] or ("", "")
    if getattr(sys.modules.get(module), name, None) is not thing:
        return None  # it holds another by now
    return resolve_name, (f"{module}:{name}",)


def _handle(
    app: MethodApp, function: str, message: Message, context: Context
) -> Message:
    if not is_request(message.content):
        return _end_run(app, message, context)
    request = NodeRequest(message.metadata.message_type, message.content)
    answer = serve(Serving(app, function, request, context, {}))
    if isinstance(answer, Exception):
        raise answer
    return Message(answer.content, reply_to=message)


def _end_run(app: MethodApp, message: Message, context: Context) -> Message:
    """A reply that ends the run of a strategy that is not of fedtrellis.

    Flower's pass over errors of clients, and end with an empty model. An array in a
    format that they cannot read ends them, with an error that names the format.
    """
    kind = type(app.client(context)).__name__
    why = (
        f"{kind} is a client of fedtrellis, which Flower's FedAvg and its like cannot "
        f"drive: start its strategy of fedtrellis ({kind.removesuffix('Client')})"
    )
    if message.metadata.message_type != "train":
        raise RuntimeError(why)
    log(ERROR, why)
    array = Array(dtype="float64", shape=(), stype=why, data=b"")
    arrays, metrics = ArrayRecord({"0": array}), MetricRecord({EXAMPLES: 1})
    return Message(RecordDict({ARRAYS: arrays, METRICS: metrics}), reply_to=message)


def _introduce(app: MethodApp, message: Message, context: Context) -> Message:
    """Answer who the client is, and what there is to know of it before round 1."""
    properties: dict[str, Any] = {}
    if AGREED in message.content:
        context.state[AGREED] = message.content[AGREED]
    try:
        client, config = app.client(context), context.node_config
        check_client(app.model_mods, client)
        # how many parts the node thinks that the data has, for whoever wants to check
        if "num-partitions" in config:
            properties["num-partitions"] = config["num-partitions"]
        # what a client weighs in an evaluation is declared before there is a model
        examples = examples_of(client)
        if examples is not None:
            properties[EXAMPLES] = int(examples)
        properties |= client.get_properties({})
        if isinstance(client, MethodClient):
            properties |= client.announcement
    except Exception as error:
        raise _for_server(error, context) from None
    status = filled(ConfigRecord(), {"client-id": client_identity(context)})
    records = {STATUS: status, CONFIG: filled(ConfigRecord(), properties)}
    return Message(filled(RecordDict(), records), reply_to=message)


def client_app(client_fn: ClientFn, *, mods: list[Any] | None = None) -> ClientApp:
    """Make a Flower ``ClientApp`` of a function that makes NumPy clients.

    Parameters
    ----------
    client_fn : callable
        Takes the ``Context`` and returns a client of :mod:`fedtrellis.clients`, or any
        ``NumPyClient``. Called for every message, so what is expensive belongs behind
        a module-level ``functools.lru_cache``. A :class:`MethodClient` with phases
        (methods ``fit_NAME``) has to be defined before the app is made.
    mods : list, optional
        Flower mods around every message. Those of ``flwr.clientapp.mod`` that clip or
        perturb a model (``fixedclipping_mod``, ``adaptiveclipping_mod`` and
        ``LocalDpMod``) are for clients that send one (``sends_model``); the clipping
        norm comes by ``train_config``, as ``clipping_norm``.

    Returns
    -------
    ClientApp
        An exception in the client leaves its state as it was before the message and
        reaches the server as an error reply.

    Raises
    ------
    SettingsError
        A mod of Flower's takes a message's arrays for the model.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedGiAClient
    >>> def client_fn(context):
    ...     return FedGiAClient(context, objective=my_loss(context))
    >>> app = client_app(client_fn)
    >>> type(app).__name__
    'MethodApp'
    """
    return MethodApp(client_fn, mods)
