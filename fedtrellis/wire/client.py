"""The client's side: from a ``client_fn`` to a ``ClientApp`` on the Message API.

:class:`Serving` is a request at a client until its reply is there, however it came: in
a message, or within this process.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from logging import INFO
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import contents, filled, owned
from fedtrellis.wire.broadcast import (
    MAX_PARAMETERS,
    OutOfSyncError,
    ReceivedModel,
    receive,
)
from fedtrellis.wire.flower_internals import log, reply_to
from fedtrellis.wire.layout import Layout
from fedtrellis.wire.local_work import run_together
from fedtrellis.wire.method_client import (
    PHASES,
    MethodClient,
    StatefulClient,
    evaluate_objective,
    speaks_for,
    takes_steps,
)
from fedtrellis.wire.protocol import (
    CONFIG,
    EXAMPLES,
    PHASE,
    STATUS,
    ClientMemory,
    MissingError,
    Named,
    NodeContext,
    NodeReply,
    NodeRequest,
    RestoreNeededError,
    client_identity,
)

__all__ = [
    "MAX_COUNT",
    "MethodApp",
    "MethodClient",
    "Node",
    "Serving",
    "StatefulClient",
    "client_app",
    "evaluate_objective",
    "serve",
    "speaks_for",
]

ClientFn = Callable[[Context], Any]

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

# Entries of the points of clients side by side: 2 MiB, so that a few arrays of them
# stay in the cache. A client with as many by itself gains nothing from company.
_ENTRIES = 2**18


@dataclass(frozen=True)
class Node:
    """What all the requests of an app are served with.

    Parameters
    ----------
    client_fn : callable
        Makes the client.
    max_parameters, max_count : int
        As :func:`fedtrellis.client_app` takes them.
    """

    client_fn: ClientFn
    max_parameters: int
    max_count: int

    def client(self, context: Context) -> NumPyClient:
        """The client of a node; TypeError if it is none."""
        client = self.client_fn(context)
        kind: Any = type(client)
        if not _is_client(kind):
            hint = "; return it without .to_client()" if hasattr(client, "fit") else ""
            raise TypeError(
                f"client_fn returned a {type(client).__name__}, "
                f"expected a flwr.client.NumPyClient{hint}"
            )
        return cast(NumPyClient, client)


@lru_cache(maxsize=128)  # of an abstract class Python would look it up every time
def _is_client(kind: type) -> bool:
    return issubclass(kind, NumPyClient)


class Serving:
    """A request at a client: :meth:`begin`, :meth:`call` and :meth:`finish`, in turn.

    Whoever calls these calls :meth:`failed` with what they raise: the client's state is
    then what it was before.

    Parameters
    ----------
    node : Node
    function : str
        The client's method that the request is for.
    request : NodeRequest
    context : Context
        The client's.
    received : dict, optional
        The models of requests that are served together, by what they are made of.

    Attributes
    ----------
    client : NumPyClient
    config : Named
        What the method is given, beside the layers of ``model``; not to be changed.
    model : ReceivedModel
        Read-only.
    """

    client: NumPyClient
    config: Named
    model: ReceivedModel
    _before: tuple[ClientMemory | None, Mapping[str, Any]] | None = None

    def __init__(
        self,
        node: Node,
        function: str,
        request: NodeRequest,
        context: Context,
        received: dict[Any, ReceivedModel] | None = None,
    ) -> None:
        self.node, self.function = node, function
        self.request, self.context = request, context
        self._received = {} if received is None else received
        self._status: dict[str, Any] = {}

    def begin(self) -> NodeReply | None:
        """Take the request, and make the client; a reply if that is all."""
        context, content, node = self.context, self.request.content, self.node
        held: ClientMemory | None = None
        if isinstance(context, NodeContext):
            held, records = context.held()
        else:
            records = context.state
        before = contents(records)
        self._before = held, {k: before[k].copy() for k in before} if before else {}
        config, status = self.request.read(self.function, node.max_count)
        self.config, session = config, config["session"]
        if held is not None and held.session == session:
            memory = held.copy()
        elif held is not None:
            memory = ClientMemory(session)
        else:
            memory = ClientMemory.load(records, session)
        self._memory = memory
        self._status = {"client-id": client_identity(context), **status}
        try:
            memory.take_request(content, config, node.max_parameters, self._receive)
        except (OutOfSyncError, RestoreNeededError):
            return self._out_of_step()
        assert memory.model is not None
        self.model = memory.model
        self._keep_model = bool(config.get("keep-model", True))
        if self._keep_model or self.function == "evaluate":
            self._status["model-version"] = memory.model.version
        client = self.client = node.client(context)
        if isinstance(client, StatefulClient):
            client.check_restored(content)
            client.state = Named("the client's state", memory.arrays())
        return None

    def _receive(
        self,
        record: Any,
        config: Mapping[str, Any],
        stored: ReceivedModel | None,
        max_parameters: int,
    ) -> ReceivedModel:
        """As :func:`receive`; who has and is sent the same has the same model."""
        key = id(record), stored  # the requests that are served together all exist
        model = self._received.get(key)
        if model is None:
            model = receive(record, config, stored, max_parameters)
            model.point.flags.writeable = False
            self._received[key] = model
        return model

    def _out_of_step(self) -> NodeReply:
        # nothing has changed; the server sends everything in the same round
        return NodeReply({**self._status, "in-sync": False})

    def failed(self, error: Exception) -> NodeReply | Exception:
        """Undo what was done to the client's state; the reply of one that refuses.

        Flower keeps what an exception left behind when deployed, and drops it in
        simulation; a client that failed is as it was before, everywhere.
        """
        if self._before is None:
            return error
        held, records = self._before
        if isinstance(self.context, NodeContext):
            self.context.put_back(held, RecordDict(dict(records)))
        else:
            state = self.context.state
            for key in set(state) - set(records):
                del state[key]
            for key, record in records.items():
                state[key] = record
        # what could not be read is no request
        if not isinstance(error, CodedError) or not self._status:
            return error
        log(INFO, "refused: %s", error)
        return NodeReply({**self._status, "refused": error.code, "why": str(error)})

    def call(self) -> Any:
        """What the client's method returns, for :meth:`finish`."""
        handle = getattr(self.client, self.function, None)
        kind = type(self.client).__name__
        if handle is None:
            raise TypeError(f"{kind} has no method {self.function}")
        model = self.model
        layers = model.layout.layers(model.point)
        try:
            return handle(layers, Named("the request's config", self.config))
        except RestoreNeededError:  # what the method found its state to be
            return None
        except MissingError as error:
            raise TypeError(
                f"{error.args[0]}: is {kind} the client of the server's strategy?"
            ) from error

    def finish(self, result: Any) -> NodeReply:
        """Make the reply, and keep the client's state.

        Parameters
        ----------
        result : tuple or None
            What :meth:`call` returned, or what the client's steps came to.
        """
        if result is None:
            return self._out_of_step()
        client, memory = self.client, self._memory
        reply = NodeReply(self._status)
        metrics: dict[str, Any] = {}
        if self.function == "evaluate":
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
            if isinstance(client, StatefulClient):
                if client.numbers is not None:
                    self._status["numbers"] = client.numbers.astype("<f8").tobytes()
                if "used-round" in self.config:
                    memory.note(self.config, client.state)
        metrics.update(extra)
        if metrics:
            reply.metrics = contents(MetricRecord(metrics))
        # the state is written last: whatever raised before has changed nothing
        if self._keep_model or self.function != "evaluate":
            # an evaluation elsewhere leaves the model that the client goes on with
            if not self._keep_model:
                memory.model = None  # the server sends it whole anyway
            if isinstance(self.context, NodeContext):
                self.context.hold(memory)
            else:
                memory.save(self.context.state)
        return reply


def serve(serving: Serving) -> NodeReply | Exception:
    """The reply to a request, or what the client raised."""
    try:
        return serving.begin() or serving.finish(serving.call())
    except Exception as error:
        return serving.failed(error)
    except BaseException:
        serving.failed(Exception())
        raise


def serve_together(servings: Sequence[Serving], replies: list[Any]) -> None:
    """As :func:`serve`, where clients' steps go side by side.

    Parameters
    ----------
    servings : sequence of Serving
    replies : list
        To be filled.
    """
    waiting: dict[Layout, list[int]] = defaultdict(list)
    place, members = -1, list[int]()
    layout: Layout | None = None  # of the last ones, the members
    # what a wave makes for each client it drops at the end, and it makes no cycles:
    # Python would go through all nodes again and again to find that out
    collects = gc.isenabled()
    gc.disable()
    try:
        for place, serving in enumerate(servings):
            try:
                replies[place] = serving.begin()
                if replies[place] is not None:
                    continue
                if serving.function != "fit" or not takes_steps(serving.client):
                    replies[place] = serving.finish(serving.call())
                    continue
            except Exception as error:
                replies[place] = serving.failed(error)
                continue
            if serving.model.layout is not layout:
                layout = serving.model.layout
                members = waiting[layout]
            members.append(place)
            # so many at a time, that what they need is still in the cache
            if len(members) * layout.size >= _ENTRIES:
                _side_by_side(servings, waiting.pop(layout), replies)
                members = waiting[layout]
        for members in filter(None, waiting.values()):
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
    layers: dict[ReceivedModel, Any] = {}
    members = [servings[place] for place in places]
    for model in {serving.model for serving in members}:
        layers[model] = model.layout.layers(model.point)
    results = run_together(
        [serving.client for serving in members],
        [layers[serving.model] for serving in members],
        [serving.config for serving in members],
    )
    gc.collect(0)  # cycles that clients have made
    for place, serving, result in zip(places, members, results, strict=True):
        try:
            if isinstance(result, Exception):
                raise result
            replies[place] = serving.finish(result)
        except Exception as error:
            serving.failed(error)
            # it says so in the words of a client alone
            replies[place] = serve(serving)


class MethodApp(ClientApp):
    """A ``ClientApp`` whose train messages can be handled many at once.

    Ray pickles the app with every message. One that a module holds, as Flower's
    projects have it, is pickled as the module's name and its own, so that a process
    imports it once and keeps what it caches; another one is pickled with its
    ``client_fn``, and nothing more.

    Attributes
    ----------
    node : Node
        What its messages are handled with.
    functions : dict of str to str
        By types of messages, the client's methods that they are for.
    plain : bool
        Whether a message is handled by that and by nothing else: there are no mods and
        no lifespan around it.
    """

    def __init__(self, node: Node, mods: list[Any] | None) -> None:
        super().__init__(mods=mods)
        self.node, self.plain = node, not mods
        self.functions: dict[str, str] = {}

    def lifespan(self) -> Any:
        """Flower's, which wants every message to pass through it."""
        self.plain = False
        return super().lifespan()

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = name_of(self)
        return super().__reduce_ex__(protocol) if name is None else (by_name, name)


def name_of(thing: object) -> tuple[str, str] | None:
    """The module and the name by which another process can import an object.

    None if no imported module holds it, or only ``__main__``, which is another module
    in every process.
    """
    known = vars(thing)
    if "_name" not in known:
        places = [
            (module, name)
            for module, loaded in list(sys.modules.items())
            # under its own name: that of the program is found under others, too
            if module != "__main__" and getattr(loaded, "__name__", "") == module
            for name, held in list(vars(loaded).items())
            if held is thing
        ]
        # the one that made it, rather than those that import it from there
        known["_name"] = min(places, key=lambda place: len(place[0]), default=None)
    name: tuple[str, str] | None = known["_name"]
    if name and getattr(sys.modules.get(name[0]), name[1], None) is not thing:
        return None  # it holds another by now
    return name


def by_name(module: str, name: str) -> Any:
    """The object that a module holds."""
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class _Handler:
    """Handles one type of message by a method of the client."""

    node: Node
    function: str

    def __call__(self, message: Message, context: Context) -> Message:
        request = NodeRequest(message.metadata.message_type, message.content)
        answer = serve(Serving(self.node, self.function, request, context))
        if isinstance(answer, Exception):
            raise answer
        return reply_to(message, answer.content)


@dataclass(frozen=True)
class _Hello:
    """Answers who the client is, and what there is to know of it before round 1."""

    node: Node

    def __call__(self, message: Message, context: Context) -> Message:
        client = self.node.client(context)
        status = filled(ConfigRecord(), {"client-id": client_identity(context)})
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
        config = filled(ConfigRecord(), properties)
        content = filled(RecordDict(), {STATUS: status, CONFIG: config})
        return reply_to(message, content)


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
    for mod in mods or ():
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in _PLAIN_MODS:
            raise SettingsError(
                f"mods has {name}, which clips or perturbs the one plain array of "
                "Flower's own messages; these methods' messages are others"
            )
    node = Node(client_fn, max_parameters, max_count)
    app = MethodApp(node, mods)

    app.train()(_Handler(node, "fit"))
    app.evaluate()(_Handler(node, "evaluate"))
    app.functions = {"train": "fit", "evaluate": "evaluate"}
    for phase in dict.fromkeys((*PHASES, *phases)):
        app.train(phase)(_Handler(node, PHASE + phase))
        app.functions[f"train.{phase}"] = PHASE + phase
    app.query("hello")(_Hello(node))
    return app
