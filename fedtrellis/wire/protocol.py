"""What travels between a strategy and its clients, and how their states stay in step.

A request is a Flower ``Message`` of three records:

=========== =====================================================================
``config``  the round, the session, the model's encoding, and what the method has to say
``model``   what the client needs to know x̄ (see :mod:`fedtrellis.wire.broadcast`)
``restore`` the client's own state, only where the server believes it has none
=========== =====================================================================

and an answer of up to three: ``status`` (who answers, for which round, in which phase
of a round that has several, whether it needs to be brought in line), ``arrays`` and
``metrics``. The status of one that refuses has the code of its
:class:`~fedtrellis.settings.CodedError` (``refused``) and a line for people (``why``).

The state protocol. A client cannot know whether the server used its answer, so what a
round did to its state is *provisional*. The server's next request names the last of
the client's rounds that it used (``used-round``). If that is the provisional one, it
becomes the client's state; if it is the one before, the provisional one is dropped. A
client that has neither (its process died before it stored its state, or it is new, or
lost everything) asks to be restored, and is sent its state in the same round.

A session is one call of ``strategy.start``: state of another session is never used. A
server that goes on from a checkpoint goes on with the session. But the rounds since
happen again: where clients are not set back, too, it adds an ``epoch``, and state of
another one is not used either.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, sqrt
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import (
    FloatArray,
    Layout,
    array_record,
    decode,
    encode,
    from_sparse_or_dense,
    owned,
    record_arrays,
    sparse_or_dense,
)
from fedtrellis.wire.broadcast import ReceivedModel, RestoreNeededError
from fedtrellis.wire.flower_internals import content_bytes, filled

HELLO = "query.hello"
#: What a hello may bring, and a node keeps: how all nodes' tables are prepared.
AGREED = "agreed"
#: A message of type ``train.NAME`` is for the client's method of this prefix and NAME.
PHASE = "fit_"
# Names of the records in a request.
CONFIG, MODEL, RESTORE = "config", "model", "restore"


class MissingError(KeyError):
    """A request, or a client's state, lacks an entry that the client's method needs."""


class Named(dict[str, Any]):
    """A dict that says what it is when something is missing in it (MissingError)."""

    def __init__(self, what: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, key: str) -> Any:
        raise MissingError(f"{self._what} has no {key!r}")


# Names of the records in an answer, and in a client's context.state.
STATUS, ARRAYS, METRICS = "status", "arrays", "metrics"
# A client's memory. These are in checkpoints and on SuperNodes' disks.
_META, _STORED = "fedtrellis.meta", "fedtrellis.arrays"
_MODEL, _KEPT = "model", ("committed", "provisional")

#: How many examples a client has, before round 1 and among an evaluation's metrics.
EXAMPLES = "num-examples"

#: Seconds that a request allows for local steps, and their number; in an answer's
#: metrics how many were taken.
DEADLINE, STEPS = "local-deadline", "local-steps"

NO_ROUND = -1

#: The largest number of an answer: sums of any number of squares stay finite.
LARGEST = 1e100
#: ‖x_i‖ / max(1, ‖x‖) beyond which a point x_i is none that a model x led to, unless a
#: request says another under ``answer-bound``.
ANSWER_BOUND = 1e9

# A restored array may come as its non-zero entries.
_INDICES, _VALUES = ".indices", ".values"


def client_identity(context: Context) -> str:
    """The name by which a client is known over restarts.

    ``client-id`` of its node config, else its ``partition-id``, else its node id, which
    Flower draws anew when an unauthenticated SuperNode restarts.
    """
    config = context.node_config
    name = config.get("client-id", config.get("partition-id"))
    return f"node-{context.node_id}" if name is None else str(name)


def identity_order(identity: str) -> tuple[int, int, str]:
    """Sort key for client identities: numbers by value, then the rest by name."""
    if identity.isdecimal():
        return (0, int(identity), identity)
    return (1, 0, identity)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether what somebody sent is a number of examples, which floats can hold."""
    return type(value) is int and 0 <= value < 2**53


def check_moderate(array: NDArray[Any]) -> None:
    """Raise ValueError for floats that are not finite, or beyond ±:data:`LARGEST`."""
    if array.dtype.kind != "f" or not array.size or moderate_norm(array) is not None:
        return
    # NaN is not between anything
    if not (float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST):
        raise ValueError(
            f"the answer is not finite, or has numbers beyond ±{LARGEST:g}"
        )


def moderate_norm(array: NDArray[Any]) -> float | None:
    """‖a‖ of a contiguous array of float64, if it is at most :data:`LARGEST`.

    Then so are its numbers, which takes one pass to find out.
    """
    if array.dtype != np.float64 or not array.flags.c_contiguous:
        return None
    flat = array.reshape(-1)
    # NaN is not at most anything
    square = float(flat.dot(flat))
    return sqrt(square) if square <= LARGEST**2 else None


def is_request(content: RecordDict) -> bool:
    """Whether records are a request of ours, or else of a strategy of another's."""
    config = content.get(CONFIG)
    return isinstance(config, ConfigRecord) and "session" in config


@dataclass(eq=False)
class NodeRequest:
    """What the server asks of a client, or of several."""

    #: The message's type: ``"train"``, ``"train.NAME"`` or ``"evaluate"``.
    kind: str
    content: RecordDict  # not to be changed

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its records in a message."""
        return content_bytes(self.content)

    @cached_property
    def read(self) -> tuple[Named, dict[str, Any], ArrayRecord]:
        """The config, the status to answer with, and the model's record.

        They are made once for all clients, and not to be changed.
        """
        records = Named("the request", dict(self.content.items()))
        config = Named("the request's config", dict(records[CONFIG].items()))
        status = {key: config[key] for key in ("session", "server-round")}
        status["in-sync"] = True
        # a round has several phases, whose answers nothing else distinguishes
        if phase := self.kind.partition(".")[2]:
            status["phase"] = phase
        if self.kind == "evaluate" or config.get("keep-model", True):
            status["model-version"] = config["model-version"]
        return config, status, records[MODEL]


def _width(value: Any) -> Hashable:
    """What the bytes of a record's item depend on: of numbers not which they are."""
    if type(value) is int:
        # bytes of seven bits each, one of which is the sign's
        return (max(value, ~value).bit_length() + 7) // 7
    if isinstance(value, list):
        return tuple(map(_width, value))
    if isinstance(value, bytes):
        return len(value)
    return float if isinstance(value, float) else value


@dataclass(slots=True)
class NodeReply:
    """What a client answers."""

    client: Any  # its name
    #: All else of its status, which replies to one request may have in common.
    status: Mapping[str, Any]
    #: Read-only; None of an evaluation, a refusal and a client that is out of step.
    arrays: Sequence[NDArray[Any]] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> RecordDict:
        """The records of a message, made of it."""
        status = {"client-id": self.client, **self.status}
        records: dict[str, Any] = {STATUS: filled(ConfigRecord(), status)}
        if self.arrays is not None:
            records[ARRAYS] = array_record(self.arrays, join=True)
        if self.metrics:
            records[METRICS] = filled(MetricRecord(), self.metrics)
        return filled(RecordDict(), records)

    @property
    def structure(self) -> Hashable:
        """All that its bytes depend on, but for what is in large or equal arrays."""
        arrays = [(array.dtype, array.shape) for array in self.arrays or ()]
        items = (*self.status.items(), *self.metrics.items())
        plain = str, bool
        widths = [(n, v if type(v) in plain else _width(v)) for n, v in items]
        kind = len(self.client.encode()), self.arrays is None
        return (*kind, *arrays, *widths)

    @classmethod
    def of(cls, content: RecordDict) -> NodeReply:
        """Inverse of :attr:`content`; ValueError if the records are not a reply's.

        What arrived may raise anything else, too. Nothing in it is trusted.
        """
        records: dict[str, Any] = dict(content.items())
        kinds = {STATUS: ConfigRecord, ARRAYS: ArrayRecord, METRICS: MetricRecord}
        if STATUS not in records:
            raise ValueError(f"the answer has no {STATUS}")
        for name, kind in kinds.items():
            if name in records and type(records[name]) is not kind:
                found = type(records[name]).__name__
                raise ValueError(f"the answer's {name!r} is a {found}")
        arrays = record_arrays(records[ARRAYS]) if ARRAYS in records else None
        metrics = dict(records.get(METRICS, {}).items())
        status = dict(records[STATUS].items())
        return cls(status.pop("client-id", None), status, arrays, metrics)


def pack_restore(
    state: Mapping[str, FloatArray], model: FloatArray
) -> tuple[ArrayRecord, dict[str, Any]]:
    """A client's state for the wire: arrays equal to the model are only named."""
    record = ArrayRecord()
    config: dict[str, Any] = {"restore": True}
    if same := [name for name, value in state.items() if value is model]:
        config["restore-as-model"] = same
    for name, value in state.items():
        if value is model:
            continue
        # a sparse array is unpacked in the model's shape
        alike = value.shape == model.shape and value.dtype.kind == "f"
        parts = sparse_or_dense(value) if alike else [value]
        if len(parts) == 2:
            record[name + _INDICES], record[name + _VALUES] = map(encode, parts)
        else:
            record[name] = encode(value)
    return record, config


def unpack_restore(
    record: ArrayRecord, config: Mapping[str, Any], model: ReceivedModel
) -> dict[str, Array]:
    """Inverse of :func:`pack_restore`, encoded as the client stores it."""
    names = config.get("restore-as-model", [])
    state = dict.fromkeys(names, model.encoded) if names else {}
    for name, array in record.items():
        if name.endswith(_INDICES):
            name = name.removesuffix(_INDICES)
            pair = decode(array), decode(record[name + _VALUES])
            state[name] = encode(from_sparse_or_dense(pair, model.layout.point_shape))
        elif not name.endswith(_VALUES):
            state[name] = array
    return state


class Kept(NamedTuple):
    """A method's arrays after one of its client's rounds.

    They are encoded, or read-only ones that nobody else has.
    """

    round: int = NO_ROUND
    arrays: Mapping[str, Any] = {}  # which can be pickled, and nobody changes

    @classmethod
    def after(cls, config: Mapping[str, Any], state: Mapping[str, Any]) -> Kept:
        """What the round of a request has made of the method's state."""
        arrays = {name: owned(value) for name, value in state.items()}
        for name, value in arrays.items():
            if value.dtype.kind != "f":
                continue
            flat = value.reshape(-1)
            # a sum of squares that overflows may be one of finite numbers
            if not (isfinite(flat.dot(flat)) or isfinite(flat.sum())):
                raise FloatingPointError(f"the client's state {name!r} is not finite")
        return cls(config["server-round"], arrays)

    def decoded(self) -> dict[str, NDArray[Any]]:
        """The arrays, read-only."""
        return {
            name: decode(value) if type(value) is Array else value
            for name, value in self.arrays.items()
        }


class ClientMemory(NamedTuple):
    """A client's state between messages, as it lies in ``context.state``."""

    session: str = ""  # the strategy.start it belongs to
    model: ReceivedModel | None = None  # x̄ as last received
    #: After the last round that the server used.
    committed: Kept = Kept()
    #: After a round of which that is not known yet.
    provisional: Kept = Kept()

    @classmethod
    def load(cls, state: RecordDict) -> ClientMemory:
        """Read what :meth:`save` has written, if anything."""
        if _META not in state:
            return cls()
        meta: Mapping[str, Any] = dict(state[_META].items())
        stored = dict(cast(ArrayRecord, state[_STORED]).items())
        model = None
        if _MODEL in stored:
            dtype = meta.get("model-dtype", "float64")
            layout = Layout.from_list(*meta["model-shapes"], dtype=dtype)
            array = stored[_MODEL]
            model = ReceivedModel(layout, decode(array), meta["model-version"])
            vars(model)["encoded"] = array
        kept = []
        for kind in _KEPT:
            names = [n for n in stored if n.startswith(f"{kind}/")]
            arrays = {n.removeprefix(f"{kind}/"): stored[n] for n in names}
            kept.append(Kept(meta[f"{kind}-round"], arrays))
        return cls(meta["session"], model, *kept)

    def save(self, state: RecordDict) -> None:
        """Write the memory into ``state``, instead of what stood there."""
        both = dict(zip(_KEPT, (self.committed, self.provisional), strict=True))
        meta: dict[str, Any] = {"session": self.session}
        stored: dict[str, Array] = {}
        if self.model is not None:
            meta |= self.model.layout.entries()
            meta["model-version"] = self.model.version
            stored[_MODEL] = self.model.encoded
        for kind, kept in both.items():
            meta[f"{kind}-round"] = kept.round
            for name, value in kept.arrays.items():
                array = value if type(value) is Array else encode(value)
                stored[f"{kind}/{name}"] = array
        if stored or _META not in state or dict(state[_META].items()) != meta:
            state[_META] = filled(ConfigRecord(), meta)
            state[_STORED] = filled(ArrayRecord(), stored)

    def take_request(
        self, model: ReceivedModel, content: RecordDict, config: Mapping[str, Any]
    ) -> ClientMemory:
        """The memory with the model received, and the state that the server wants.

        ``content`` and ``config`` are a request's. RestoreNeededError: the state cannot
        be had with what it holds.
        """
        used = config.get("used-round")
        if used is None:  # the method's clients have no state
            return self._replace(model=model)
        # the server used the round that was in doubt, or the one before it
        doubted = used != NO_ROUND and self.provisional.round == used
        committed = self.provisional if doubted else self.committed
        # whatever this client has, the server's word may count more
        if committed.round == used and not config.get("restore-over", False):
            pass
        elif config.get("restore", False):
            given = content[RESTORE] if RESTORE in content else ArrayRecord()
            # what only this client knew belongs to a round that does not count
            arrays = unpack_restore(cast(ArrayRecord, given), config, model)
            committed = Kept(used, arrays)
        else:
            raise RestoreNeededError(
                f"the server used round {used}; this client is at round "
                f"{self.committed.round} or {self.provisional.round}"
            )
        return ClientMemory(self.session, model, committed)


class NodeContext(Context):
    """A node's context in this process, which holds its memory as it is worked with.

    Records are made of it where somebody looks at :attr:`state`.
    """

    _records: RecordDict
    _memory: ClientMemory | None = None  # None: what there is is among the records

    @property
    def state(self) -> RecordDict:
        """What Flower keeps of a node from message to message."""
        if self._memory is not None and self._memory.session:
            self._memory.save(self._records)
        self._memory = None
        return self._records

    @state.setter
    def state(self, records: RecordDict) -> None:
        self._records, self._memory = records, None

    def held(self) -> tuple[ClientMemory, RecordDict]:
        """The memory, and the other records."""
        if self._memory is None:
            self._memory = ClientMemory.load(self._records)
            for name in {_META, _STORED} & self._records.keys():
                del self._records[name]
        return self._memory, self._records

    def hold(self, memory: ClientMemory) -> None:
        """Replace the memory."""
        self.held()
        self._memory = memory
