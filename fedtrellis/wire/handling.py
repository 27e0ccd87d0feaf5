"""One message at a client: what comes before its method, and what comes after.

:meth:`Handling.begin` makes the client and what its method is given of a request,
:meth:`Handling.finish` a reply of what the method returned; between them the method
is called, or many clients take their steps at once (:mod:`fedtrellis.wire.cohort`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from logging import INFO
from typing import Any, cast

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

from fedtrellis.settings import CodedError
from fedtrellis.wire.arrays import (
    FloatArray,
    array_record,
    contents,
    encode,
    filled,
)
from fedtrellis.wire.broadcast import OutOfSyncError, ReceivedModel, receive
from fedtrellis.wire.flower_internals import log, reply_to
from fedtrellis.wire.method_client import MethodClient, StatefulClient
from fedtrellis.wire.protocol import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    MODEL,
    STATUS,
    ClientMemory,
    MissingError,
    Named,
    RestoreNeededError,
    client_identity,
    read_request,
)

__all__ = [
    "PHASE",
    "Handling",
    "Node",
    "Wave",
    "make_client",
    "metric_record",
    "opening",
]

ClientFn = Callable[[Context], Any]

#: A message of type ``train.NAME`` is for the method of this prefix and NAME.
PHASE = "fit_"
_OUT_OF_STEP = object()
_USUAL = {CONFIG, MODEL}


@dataclass(frozen=True)
class Node:
    """What all the messages of an app are handled with.

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

    def answer(self, function: str, message: Message, context: Context) -> Message:
        """Handle one train or evaluate message, and keep the state protocol."""
        handling = Handling(self, function, message, context)
        try:
            with handling:
                if handling.begin():
                    handling.finish(handling.call())
        except CodedError as error:
            return handling.refused(error)
        return handling.reply


def opening(client_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the status of every answer says."""
    return {
        "client-id": client_id,
        "session": config["session"],
        "server-round": config["server-round"],
        "in-sync": True,
    }


class Wave:
    """What the requests of a wave have in common, looked at once.

    Requests that travel within a process share their records: a check of one, and the
    model that comes of one and of what a client had, hold for all that have the same.
    """

    def __init__(self) -> None:
        # by identities; what they are those of is kept, so that none is another's
        self._configs: dict[int, tuple[Any, Named]] = {}
        self._models: dict[Any, tuple[ReceivedModel, Any]] = {}

    def read(self, content: RecordDict, max_count: int) -> Named:
        """As :func:`~fedtrellis.wire.protocol.read_request`; not to be changed."""
        records = contents(content)
        record = records.get(CONFIG)
        known = self._configs.get(id(record))
        # what else a request may have, and what it must have, is its own
        if known is not None and records.keys() == _USUAL:
            return known[1]
        config = read_request(content, max_count)
        self._configs[id(record)] = record, config
        return config

    def receive(
        self,
        record: ArrayRecord,
        config: Named,
        stored: ReceivedModel | None,
        max_parameters: int,
    ) -> ReceivedModel:
        """As :func:`~fedtrellis.wire.broadcast.receive`; the point is read-only."""
        encoded = None if stored is None else vars(stored).get("encoded")
        # one that is not encoded is kept by its client, or by several
        known: Any = id(stored)
        if stored is not None and encoded is not None:
            known = stored.version, stored.layout, encoded.data
        key = id(record), id(config), known
        if key not in self._models:
            model = receive(record, config, stored, max_parameters)
            model.point.flags.writeable = False
            self._models[key] = model, (record, config, stored)
        return self._models[key][0]


class Handling:
    """A message at a client, from when it arrives until its reply is there.

    A context manager: an exception within puts the client's state back to what it was.

    Parameters
    ----------
    node : Node
    function : str
        The client's method that the message is for.
    message : Message
    context : Context
        The client's.

    Attributes
    ----------
    client : NumPyClient
    config : Named
        What the method is given, beside the layers of ``model``.
    reply : Message
        Once :meth:`begin` has returned False, or :meth:`finish` has been called.
    """

    client: NumPyClient
    config: Named
    reply: Message
    model: ReceivedModel

    def __init__(
        self, node: Node, function: str, message: Message, context: Context
    ) -> None:
        self.node, self.function = node, function
        self.message, self.context = message, context
        self._before: dict[str, Any] = {}
        self._status: dict[str, Any] = {}

    def __enter__(self) -> Handling:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.undo()

    def undo(self) -> None:
        """Put the client's state back.

        Flower keeps what an exception left behind when deployed, and drops it in
        simulation; a client that failed is as it was before, everywhere.
        """
        state = self.context.state
        for key in set(state) - set(self._before):
            del state[key]
        for key, record in self._before.items():
            state[key] = record

    def begin(self, wave: Wave | None = None) -> bool:
        """Take the request, and make the client.

        Parameters
        ----------
        wave : Wave, optional
            What the request has in common with others.

        Returns
        -------
        bool
            Whether the client's method is to be called; else the reply is there.
        """
        context, content = self.context, self.message.content
        state, node = context.state, self.node
        self._before = {k: record.copy() for k, record in contents(state).items()}
        read = read_request if wave is None else wave.read
        config = self.config = read(content, node.max_count)
        memory = ClientMemory.load(state, config["session"])
        self._memory = memory
        self._status = opening(client_identity(context), config)
        if self.function.startswith(PHASE):
            # a round has several of them, whose answers nothing else tells apart
            self._status["phase"] = self.function.removeprefix(PHASE)
        try:
            memory.take_request(
                content,
                config,
                node.max_parameters,
                receive if wave is None else wave.receive,
            )
        except (OutOfSyncError, RestoreNeededError):
            self._out_of_step()
            return False
        assert memory.model is not None
        self.model = memory.model
        self._keep_model = bool(config.get("keep-model", True))
        if self._keep_model or self.function == "evaluate":
            self._status["model-version"] = memory.model.version
        client = self.client = make_client(node.client_fn, context)
        if isinstance(client, StatefulClient):
            client.check_restored(content)
            client.state = Named("the client's state", memory.arrays())
        return True

    def _out_of_step(self) -> None:
        # nothing has changed; the server sends everything in the same round
        self._status["in-sync"] = False
        self._answer({})

    def refused(self, error: CodedError) -> Message:
        """The reply that says why the client does not do what it was asked.

        What could not be read is no request: then the error is raised again.
        """
        if not self._status:
            raise error
        log(INFO, "refused: %s", error)
        self._status |= {"refused": error.code, "why": str(error)}
        self._answer({})
        return self.reply

    def _answer(self, records: dict[str, Any]) -> None:
        status = filled(ConfigRecord(), self._status)
        answer = filled(RecordDict(), {STATUS: status, **records})
        self.reply = reply_to(self.message, answer)

    @property
    def layers(self) -> list[FloatArray]:
        """The model's arrays, for the client's method."""
        return self.model.layout.layers(self.model.point)

    def stand_alone(self) -> None:
        """Let the client have for itself what requests of the wave have in common."""
        self.config = Named("the request's config", self.config)
        model = self.model
        # what is a view of the message would have been read-only in any case
        if model.point.flags.owndata:
            self.model = ReceivedModel(model.layout, model.point.copy(), model.version)

    def call(self) -> Any:
        """What the client's method returns, for :meth:`finish`."""
        handle = getattr(self.client, self.function, None)
        if handle is None:
            name = type(self.client).__name__
            raise TypeError(f"{name} has no method {self.function}")
        try:
            return handle(self.layers, self.config)
        except RestoreNeededError:  # what the method found its state to be
            return _OUT_OF_STEP
        except MissingError as error:
            raise TypeError(
                f"{error.args[0]}: is {type(self.client).__name__} the client of the "
                "server's strategy?"
            ) from error

    def finish(self, result: Any) -> None:
        """Make the reply, and keep the client's state.

        Parameters
        ----------
        result : tuple
            What :meth:`call` returned, or what the client's steps came to.
        """
        if result is _OUT_OF_STEP:
            self._out_of_step()
            return
        client, memory, status = self.client, self._memory, self._status
        records: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        if self.function == "evaluate":
            loss, num_examples, extra = result
            if isinstance(client, MethodClient) and client.told_evaluation is not None:
                loss, extra = client.told_evaluation(*result)
            metrics["loss"] = float(loss)
            metrics[EXAMPLES] = int(num_examples)
        else:
            arrays, num_examples, extra = result
            records[ARRAYS] = array_record(arrays, join=True)
            if num_examples:  # a method that reveals nothing of its data returns 0
                metrics[EXAMPLES] = int(num_examples)
            if isinstance(client, StatefulClient):
                if client.numbers is not None:
                    status["numbers"] = client.numbers.astype("<f8").tobytes()
                if "used-round" in self.config:
                    memory.note(self.config, _encode_state(client.state))
        metrics.update(extra)
        if metrics:
            records[METRICS] = metric_record(metrics)
        self._answer(records)
        # the state is written last: whatever raised before has changed nothing
        if self._keep_model or self.function != "evaluate":
            # an evaluation elsewhere leaves the model that the client goes on with
            memory.save(self.context.state, self._keep_model)


@lru_cache(maxsize=128)  # of an abstract class Python would look it up every time
def _is_client(kind: type) -> bool:
    return issubclass(kind, NumPyClient)


def make_client(client_fn: ClientFn, context: Context) -> NumPyClient:
    """The client of a node; TypeError if it is none."""
    client = client_fn(context)
    kind: Any = type(client)
    if not _is_client(kind):
        hint = "; return it without .to_client()" if hasattr(client, "fit") else ""
        raise TypeError(
            f"client_fn returned a {type(client).__name__}, "
            f"expected a flwr.client.NumPyClient{hint}"
        )
    return cast(NumPyClient, client)


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Metrics as they travel."""
    record = MetricRecord()
    for name, value in metrics.items():
        record[name] = value
    return record


def _encode_state(state: Mapping[str, FloatArray]) -> dict[str, Array]:
    encoded: dict[str, Array] = {}
    for name, value in state.items():
        if value.dtype.kind == "f" and not math.isfinite(value.sum()):
            raise FloatingPointError(f"the client's state {name!r} is not finite")
        encoded[name] = encode(value)
    return encoded
