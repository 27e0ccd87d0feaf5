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
server that goes on from a checkpoint goes on with the session, but in a new *epoch*:
the rounds since the checkpoint happen again, and clients may have state of the first
time, which another ``epoch`` beside the round gives away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, TypeGuard, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import (
    FloatArray,
    Layout,
    contents,
    decode,
    encode,
    filled,
)
from fedtrellis.wire.broadcast import MAX_PARAMETERS, ReceivedModel, receive
from fedtrellis.wire.requests import (
    CONFIG,
    ENTRY_TYPES,
    MODEL,
    RESTORE,
    MissingError,
    Named,
    read_request,
)
from fedtrellis.wire.sparse import from_sparse_or_dense, sparse_or_dense

__all__ = [
    "ANSWER_BOUND",
    "CONFIG",
    "ENTRY_TYPES",
    "EXAMPLES",
    "HELLO",
    "LARGEST",
    "MEMORY_RECORDS",
    "MODEL",
    "RESTORE",
    "ClientMemory",
    "MissingError",
    "Named",
    "client_identity",
    "identity_order",
    "is_count",
    "is_moderate",
    "moderate_norm",
    "read_request",
]

HELLO = "query.hello"
# Names of the records in an answer, and in a client's context.state.
STATUS, ARRAYS, METRICS = "status", "arrays", "metrics"
# These two are in checkpoints and on SuperNodes' disks: names, not modules.
_META, _STORED = "fedtrellis.meta", "fedtrellis.arrays"
_MODEL, _COMMITTED, _PROVISIONAL = "model", "committed/", "provisional/"

#: How many examples a client has: among what it says before round 1, and among the
#: metrics of an evaluation.
EXAMPLES = "num-examples"

NO_ROUND = -1

#: The largest number of an answer: sums of any number of squares stay finite.
LARGEST = 1e100
#: ‖x_i‖ / max(1, ‖x‖) beyond which a point x_i is none that a model x led to, unless a
#: request says another under ``answer-bound``.
ANSWER_BOUND = 1e9

# A restored array may come as its non-zero entries, and grow to the model's size.
_MAX_SPARSE = 8


def client_identity(context: Context) -> str:
    """The name by which a client is known over restarts.

    ``client-id`` of its node config, else its ``partition-id``, else its node id (which
    Flower draws anew when an unauthenticated SuperNode restarts: such a client starts
    over each time).
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


def is_moderate(array: NDArray[Any]) -> bool:
    """Whether all of an array's numbers are finite, and none beyond ±:data:`LARGEST`.

    Of numbers that are no floats they are.
    """
    if array.dtype.kind != "f" or not array.size or moderate_norm(array) is not None:
        return True
    # NaN is not between anything
    return float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST


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


class RestoreNeededError(Exception):
    """The client's state is at none of the rounds that the server names."""


def pack_restore(
    state: Mapping[str, FloatArray], model: FloatArray
) -> tuple[ArrayRecord, dict[str, Any]]:
    """A client's state for the wire: arrays equal to the model are only named."""
    record, same = ArrayRecord(), []
    for name, value in state.items():
        if value is model:
            same.append(name)
            continue
        # a sparse array is unpacked in the model's shape
        alike = value.shape == model.shape and value.dtype.kind == "f"
        parts = sparse_or_dense(value) if alike else [value]
        if len(parts) == 1:
            record[name] = encode(parts[0])
        else:
            record[name + ".indices"], record[name + ".values"] = map(encode, parts)
    config: dict[str, Any] = {"restore": True}
    if same:
        config["restore-as-model"] = same
    return record, config


def unpack_restore(
    record: ArrayRecord, config: Mapping[str, Any], model: ReceivedModel
) -> dict[str, Array]:
    """Inverse of :func:`pack_restore`, encoded as the client stores it."""
    names = config.get("restore-as-model", [])
    # encoded once, however often it is named
    state = dict.fromkeys(names, encoded(model)) if names else {}
    if sum(name.endswith(".indices") for name in record) > _MAX_SPARSE:
        raise ValueError(f"more than {_MAX_SPARSE} sparse arrays are to be restored")
    for name, array in record.items():
        if name.endswith(".values"):
            continue
        if name.endswith(".indices"):
            name = name.removesuffix(".indices")
            if name + ".values" not in record:
                raise ValueError(f"the values of {name!r} are missing")
            pair = [decode(array), decode(record[name + ".values"])]
            point = from_sparse_or_dense(pair, model.layout.point_shape)
            state[name] = encode(point)
        else:
            state[name] = array
    return state


def encoded(model: ReceivedModel) -> Array:
    """A model as a client's state keeps it; made once."""
    kept: dict[str, Any] = vars(model)
    if "encoded" not in kept:
        kept["encoded"] = encode(model.point)
    return cast(Array, kept["encoded"])


#: The records of ``context.state`` that a :class:`ClientMemory` lies in.
MEMORY_RECORDS = frozenset((_META, _STORED))


@dataclass
class ClientMemory:
    """A client's state between messages, as it lies in ``context.state``.

    Attributes
    ----------
    session : str
        The ``strategy.start`` it belongs to.
    model : ReceivedModel or None
        x̄ as last received.
    committed, provisional : dict
        The method's arrays, encoded or read-only ones that nobody else has: those after
        ``committed_round``, which the server used, and after ``provisional_round``, of
        which that is not known yet (``-1``: there is none).
    committed_epoch, provisional_epoch : str
        The epochs of these rounds.
    """

    session: str = ""
    model: ReceivedModel | None = None
    committed: dict[str, Any] = field(default_factory=dict)
    committed_round: int = NO_ROUND
    committed_epoch: str = ""
    provisional: dict[str, Any] = field(default_factory=dict)
    provisional_round: int = NO_ROUND
    provisional_epoch: str = ""

    def copy(self) -> ClientMemory:
        """A shallow copy, of which :meth:`take_request` may change its part."""
        made = object.__new__(ClientMemory)
        made.__dict__.update(self.__dict__)
        return made

    @staticmethod
    def session_of(state: RecordDict) -> str | None:
        """The session whose memory lies there."""
        session = contents(contents(state).get(_META, {})).get("session")
        return None if session is None else str(session)

    @classmethod
    def load(cls, state: RecordDict, session: str) -> ClientMemory:
        """Read the memory; one of another session counts as empty."""
        records = contents(state)
        meta = contents(records.get(_META, {}))
        if not meta or meta["session"] != session:
            return cls(session)
        memory = cls(
            session,
            committed_round=meta["committed-round"],
            provisional_round=meta["provisional-round"],
            committed_epoch=meta.get("committed-epoch", ""),
            provisional_epoch=meta.get("provisional-epoch", ""),
        )
        for name, array in contents(records[_STORED]).items():
            if name == _MODEL:
                memory.model = ReceivedModel(
                    Layout.of_entries(meta),
                    decode(array),
                    meta["model-version"],
                )
                vars(memory.model)["encoded"] = array
            elif name.startswith(_COMMITTED):
                memory.committed[name.removeprefix(_COMMITTED)] = array
            else:
                memory.provisional[name.removeprefix(_PROVISIONAL)] = array
        return memory

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The method's state after ``committed_round``; read-only arrays."""
        return {
            name: decode(value) if isinstance(value, Array) else value
            for name, value in self.committed.items()
        }

    def note(self, config: Mapping[str, Any], state: dict[str, Any]) -> None:
        """Keep what the round of a request has made of the method's state."""
        self.provisional = state
        self.provisional_round = cast(int, config["server-round"])
        self.provisional_epoch = config.get("epoch", "")

    def save(self, state: RecordDict, keep_model: bool = True) -> None:
        """Write the memory into ``state``, in place of what stood there.

        The model is left out where the server says that it will send it whole anyway.
        """
        meta: dict[str, Any] = {
            "session": self.session,
            "committed-round": self.committed_round,
            "provisional-round": self.provisional_round,
            "committed-epoch": self.committed_epoch,
            "provisional-epoch": self.provisional_epoch,
        }
        stored: dict[str, Array] = {}
        if self.model is not None and keep_model:
            meta |= self.model.layout.entries()
            meta["model-version"] = self.model.version
            stored[_MODEL] = encoded(self.model)
        for prefix, arrays in (
            (_COMMITTED, self.committed),
            (_PROVISIONAL, self.provisional),
        ):
            for name, value in arrays.items():
                array = value if isinstance(value, Array) else encode(value)
                stored[prefix + name] = array
        before = contents(state)
        if stored or before.get(_META) != meta or before.get(_STORED) != stored:
            records = {
                _META: filled(ConfigRecord(), meta),
                _STORED: filled(ArrayRecord(), stored),
            }
            filled(state, records)

    def take_request(
        self,
        content: RecordDict,
        config: Mapping[str, Any],
        max_parameters: int = MAX_PARAMETERS,
        receive: Callable[..., ReceivedModel] = receive,
    ) -> None:
        """Bring model and state to where the server's request wants them.

        ``content`` and ``config`` are as :func:`read_request` wants them, and
        ``receive`` is :func:`~fedtrellis.wire.broadcast.receive` or does the same.

        Raises
        ------
        OutOfSyncError, RestoreNeededError
            If that cannot be done with what the request holds; nothing has changed.
        ValueError
            If the request is malformed; nothing has changed.
        """
        record = cast(ArrayRecord, contents(content)[MODEL])
        model = receive(record, config, self.model, max_parameters)
        used = config.get("used-round", None)
        if used is None:  # the method's clients have no state
            self.model = model
            return
        epoch = config.get("used-epoch", "")
        # whatever this client has, the server's word may count more
        own_counts = not config.get("restore-over", False)
        provisional = self.provisional_round, self.provisional_epoch
        if own_counts and (used, epoch) == provisional and used != NO_ROUND:
            # the server used the round that was in doubt
            committed = self.provisional
        elif own_counts and (used, epoch) == (
            self.committed_round,
            self.committed_epoch,
        ):
            committed = self.committed
        elif config.get("restore", False):
            record = cast(ArrayRecord, content.get(RESTORE, ArrayRecord()))
            committed = unpack_restore(record, config, model)
            if not config.get("restore-alone", False):
                # what only this client knows, and the server cannot give back, stays
                committed = {**self.committed, **committed}
        else:
            raise RestoreNeededError(
                f"the server used round {used}; this client is at round "
                f"{self.committed_round} or {self.provisional_round}"
            )
        self.model = model
        self.committed = committed
        self.committed_round, self.committed_epoch = used, epoch
        self.provisional, self.provisional_round = {}, NO_ROUND
        self.provisional_epoch = ""
