"""The client's side: from a ``client_fn`` to a ``ClientApp`` on the Message API.

:func:`serving` is a request at a client until its reply is there, however it came: in
a message, or within this process.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from logging import ERROR, INFO
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, cast

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
    DEADLINE,
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
    check_batches,
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


#: A client whose steps are to be taken, its model, and the request's config.
Work = tuple[MethodClient, ReceivedModel, Named]


def serving(
    app: MethodApp,
    request: NodeRequest,
    context: NodeContext,
    received: dict[Any, ReceivedModel],
    together: bool = False,
) -> Generator[Work, Any, NodeReply]:
    """A request at a client until its reply is there, however it came.

    Requests that are served at once have their models in common, ``received`` by what
    they are made of. With ``together`` it yields work that is steps, and is sent what
    ``fit`` would return or raise. Whatever is raised, the client's state is then what
    it was before.
    """
    before: Mapping[str, Any] | None = None
    client: Any = None
    model, arrays = None, None
    status: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    result: Any
    function = app.functions[request.kind]
    try:
        held, records = context.held()
        before = {n: r.copy() for n, r in records.items()} if records else {}
        if AGREED in request.content:
            records[AGREED] = request.content[AGREED]
        config, status, record = request.read
        session = config["session"] + config.get("epoch", "")
        memory = held if held.session == session else ClientMemory(session)
        # who has and is sent the same has the same; the requests all exist meanwhile
        key = id(record), memory.model
        known = received.get(key)
        if known is None:
            known = receive(record, config, memory.model)
            known.point.setflags(write=False)
            received[key] = known
        memory = memory.take_request(known, request.content, config)
        if ATTEMPT in config:
            check_batches(context, config)
        model = known
        client = app.client(context)
        sums = function in SUM_PHASES or (ATTEMPT in config and function != "evaluate")
        if not (sums or getattr(client, "hides_by_itself", False)):
            check_exposed(context, function.removeprefix(PHASE))
        # of an abstract class isinstance would look it up every time
        stateful = StatefulClient in type(client).__mro__
        if stateful:
            state = memory.committed.decoded()
            client.state = Named("the client's state", state)
        if function in SUM_PHASES:
            rows = getattr(client, "rows", None)
            result = sum_phase(function, context, config, rows, model.point), 0, {}
        # work that is its steps, and no fit of its own; a deadline is each client's
        elif (
            together
            and function == "fit"
            and type(client).fit is MethodClient.fit
            and (DEADLINE not in config or hasattr(context, "clock"))
        ):
            result = yield client, model, config
            if isinstance(result, Exception):
                raise result
        else:
            result = _call(app, function, client, model, config)
        if function == "evaluate":
            loss, num_examples, extra = result
            if isinstance(client, MethodClient) and client.weigh_evaluation is not None:
                loss, extra = client.weigh_evaluation(*result)
            metrics = {"loss": float(loss), EXAMPLES: int(num_examples)}
        else:
            numbers = getattr(client, "numbers", None) if stateful else None
            if app.model_mods and function == "fit":
                sent = model.layout.to_wire(model.point)
                result = change_model(app.model_mods, result, sent, config, context)
            if ATTEMPT in config:
                term = hidden(context, config, model, client, result[0])
                result, numbers = ([term], 0, {}), None
            if numbers is not None:
                status = {**status, "numbers": numbers.astype("<f8").tobytes()}
            arrays, num_examples, extra = result
            arrays = [owned(array) for array in arrays]
            # a method that reveals nothing of its data returns 0
            metrics = {EXAMPLES: int(num_examples)} if num_examples else {}
            if stateful and "used-round" in config:
                memory = memory._replace(provisional=Kept.after(config, client.state))
        metrics.update(extra)
        metrics = dict(MetricRecord(metrics).items()) if metrics else {}
        # the state is written last: whatever raised before has changed nothing
        keep_model = config.get("keep-model", True)
        if not keep_model:  # the server sends it whole anyway
            memory = memory._replace(model=None)
        # an evaluation may be elsewhere than at the model that the client goes on with
        if keep_model or function != "evaluate":
            context.hold(memory)
    except BaseException as error:
        if before is not None:
            records = context.state
            for name in set(records) - {*before}:
                del records[name]
            records.update(before)
            context.hold(held)
        arrays, metrics = None, {}
        if isinstance(error, RestoreNeededError):
            # the server sends everything in the same round
            status = {**status, "in-sync": False}
            if model is None:
                status.pop("model-version", None)
        # what could not be read is no request
        elif isinstance(error, CodedError) and status:
            # what the server is not to read
            log(INFO, "refused: %s", getattr(error, "detail", error))
            status = {**status, "refused": error.code, "why": str(error)}
        else:
            _raise_shown(error, context, client)
    return NodeReply(client_identity(context), status, arrays, metrics)


def _call(
    app: MethodApp, function: str, client: Any, model: ReceivedModel, config: Named
) -> Any:
    """What a client's method returns."""
    if app.model_mods and function != "evaluate":
        check_client(app.model_mods, client, function)
    handle, kind = getattr(client, function, None), type(client).__name__
    if handle is None:
        raise TypeError(f"{kind} has no method {function}")
    layers = model.layout.layers(model.point)
    try:
        return handle(layers, Named("the request's config", config))
    except MissingError as error:
        raise TypeError(
            f"{error.args[0]}: is {kind} the client of the server's strategy?"
        ) from error


def _raise_shown(error: BaseException, context: Context, client: Any) -> NoReturn:
    """Raise what the server may read: of a node with a key no text but our own."""
    if isinstance(error, CodedError) or not isinstance(error, Exception):
        raise error
    # a client may have its keys from Python
    keyless = getattr(getattr(client, "node", None), "kind", "run") == "run"
    if keyless and not hides(context):
        raise error
    who = f"client {client_identity(context)}"
    # it may quote the data
    log(ERROR, "%s failed: %s: %s", who, type(error).__name__, error)
    raise RuntimeError(f"{who} failed; its node's log says why") from None


def advance(service: Generator[Work, Any, NodeReply], result: Any = None) -> Any:
    """The reply to a request, the work that it waits for, or what was raised."""
    try:
        return service.send(result)
    except StopIteration as end:
        return end.value
    except Exception as error:
        return error


def serve_together(
    begin: Sequence[Callable[..., Generator[Work, Any, NodeReply]]], replies: list[Any]
) -> None:
    """Fill in the replies of what begins a :func:`serving`; steps go side by side."""
    services = dict[int, Generator[Work, Any, NodeReply]]()  # those that wait
    waiting: dict[Layout, dict[int, Work]] = defaultdict(dict)

    def work(layout: Layout) -> None:
        works = waiting.pop(layout)
        results = run_together(layout, list(works.values()))
        for place, result in zip(works, results, strict=True):
            replies[place] = advance(services.pop(place), result)
            if isinstance(replies[place], Exception):  # in the words of a client alone
                replies[place] = advance(begin[place]())

    # a wave makes no cycles: Python would go through all nodes to find that out
    collects = gc.isenabled()
    gc.disable()
    try:
        for place, one in enumerate(begin):
            service = one(together=True)
            found = replies[place] = advance(service)
            if not isinstance(found, tuple):
                continue
            services[place] = service
            layout = found[1].layout
            members = waiting[layout]
            members[place] = found
            large = len(members) * layout.size >= _ENTRIES
            if large or len(members) >= _CLIENTS:
                work(layout)
                if large:
                    gc.collect(0)  # cycles that clients have made
        for layout in list(waiting):
            work(layout)
    finally:
        for service in services.values():
            service.close()
        if collects:
            gc.enable()


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
        for kind in self.functions:
            category, _, action = kind.partition(".")
            getattr(self, category)(action or "default")(partial(_handle, self))
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


def _handle(app: MethodApp, message: Message, context: Context) -> Message:
    if not is_request(message.content):
        return _end_run(app, message, context)
    request = NodeRequest(message.metadata.message_type, message.content)
    node = context
    if not isinstance(node, NodeContext):
        node = NodeContext(**vars(context))
    try:
        answer = advance(serving(app, request, node, {}))
    finally:
        context.state = node.state
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
    client: Any = None
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
        _raise_shown(error, context, client)
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
