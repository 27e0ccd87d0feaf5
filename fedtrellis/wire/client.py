"""The client's side: from a ``client_fn`` to a ``ClientApp`` on the Message API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import filled
from fedtrellis.wire.broadcast import MAX_PARAMETERS
from fedtrellis.wire.flower_internals import reply_to
from fedtrellis.wire.handling import PHASE, ClientFn, Node, make_client
from fedtrellis.wire.method_client import (
    PHASES,
    MethodClient,
    StatefulClient,
    evaluate_objective,
    speaks_for,
)
from fedtrellis.wire.protocol import (
    CONFIG,
    EXAMPLES,
    STATUS,
    client_identity,
)

__all__ = [
    "MAX_COUNT",
    "MethodApp",
    "MethodClient",
    "StatefulClient",
    "client_app",
    "evaluate_objective",
    "speaks_for",
]

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
    plain : bool
        Whether a message is handled by that and by nothing else: there are no mods and
        no lifespan around it.
    """

    def __init__(self, node: Node, mods: list[Any] | None) -> None:
        super().__init__(mods=mods)
        self.node, self.plain = node, not mods

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
        return self.node.answer(self.function, message, context)


@dataclass(frozen=True)
class _Hello:
    """Answers who the client is, and what there is to know of it before round 1."""

    node: Node

    def __call__(self, message: Message, context: Context) -> Message:
        client = make_client(self.node.client_fn, context)
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
    for phase in dict.fromkeys((*PHASES, *phases)):
        app.train(phase)(_Handler(node, PHASE + phase))
    app.query("hello")(_Hello(node))
    return app
