"""What travels between a strategy and its clients, and how their states stay in step.

A request is a Flower ``Message`` of three records:

=========== =====================================================================
``config``  the round, the session, the model's encoding, and what the method has to say
``model``   what the client needs to know x̄ (see :mod:`fedtrellis.wire.broadcast`)
``restore`` the client's own state, only where the server believes it has none
=========== =====================================================================

and an answer of up to three: ``status`` (who answers, for which round, in which phase
of a round that has several, whether it needs to be brought in line), ``arrays`` and
``metrics``.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeGuard, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from fedtrellis.wire.arrays import FloatArray, Layout, decode, encode, filled
from fedtrellis.wire.broadcast import MAX_PARAMETERS, ReceivedModel, receive
from fedtrellis.wire.sparse import from_sparse_or_dense, sparse_or_dense

__all__ = [
    "ANSWER_BOUND",
    "EXAMPLES",
    "HELLO",
    "LARGEST",
    "ClientMemory",
    "MissingError",
    "Named",
    "client_identity",
    "identity_order",
    "is_count",
    "read_request",
]

HELLO = "query.hello"
# Names of the records in a request, an answer, and in a client's context.state.
CONFIG, MODEL, RESTORE = "config", "model", "restore"
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

# What a request's config may say of the protocol, and of which type it is.
_REQUIRED: dict[str, type] = {
    "session": str,
    "server-round": int,
    "model-encoding": str,
    "model-version": int,
}
_OPTIONAL: dict[str, type] = {
    "model-base": int,
    "model-shapes": list,
    "model-dtype": str,
    "keep-model": bool,
    "used-round": int,
    "used-epoch": str,
    "epoch": str,
    "restore": bool,
    "restore-alone": bool,
    "restore-over": bool,
    "restore-as-model": list,
}
_TYPES = _REQUIRED | _OPTIONAL
_KINDS = {CONFIG: ConfigRecord, MODEL: ArrayRecord, RESTORE: ArrayRecord}
# How often a client is to do something, or how many numbers it is to draw.
_COUNTS = ("local-steps", "samples", "batch-size", "local-passes")
# What a client keeps a number for each of: so many samples in each of so many steps.
_TOGETHER = ("local-steps", "samples")
# A restored array may come as its non-zero entries, and then grows to the model's size.
_MAX_SPARSE = 8


class MissingError(KeyError):
    """A request, or a client's state, lacks an entry that the client's method needs."""


class Named(dict[str, Any]):
    """A dict that says what it is when something is missing in it (MissingError).

    Parameters
    ----------
    what : str
        Such as ``"the request's config"``.
    items : mapping
    """

    def __init__(self, what: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, key: str) -> Any:
        raise MissingError(f"{self._what} has no {key!r}")


def read_request(content: RecordDict, max_count: int) -> Named:
    """A request's config, once its records and what the protocol needs are right.

    Parameters
    ----------
    content : RecordDict
        What arrived. Nothing in it is trusted.
    max_count : int
        The largest number of local steps, samples or examples that it may ask for, and
        of samples in all local steps together.

    Raises
    ------
    ValueError, KeyError
        A record or an entry is missing or of the wrong type, or a number too large.
    """
    for name, kind in _KINDS.items():
        record = content.get(name)
        if record is None and name != RESTORE:
            raise ValueError(f"the request has no {name!r}")
        if record is not None and not isinstance(record, kind):
            raise ValueError(
                f"the request's {name!r} is a {type(record).__name__}, expected "
                f"{kind.__name__}"
            )
    config = Named("the request's config", cast(ConfigRecord, content[CONFIG]))
    for key in _REQUIRED:
        config[key]  # which says so if it is missing
    for key, value in config.items():
        expected = _TYPES.get(key)
        # True is an int too, but no round
        if expected is not None and type(value) is not expected:
            raise ValueError(
                f"the request has {key} = {value!r}, expected {expected.__name__}"
            )
    for key, of in (("model-shapes", int), ("restore-as-model", str)):
        if not all(type(item) is of for item in config.get(key, [])):
            raise ValueError(f"the request has {key} = {config[key]!r}")
    for key, value in config.items():
        # such as a number for each of so many steps
        if isinstance(value, list) and len(value) > max_count:
            raise ValueError(
                f"the request has {len(value)} numbers for {key}; this client takes "
                f"up to {max_count} (client_app's max_count)"
            )
    for key in _COUNTS:
        if key in config and not (
            type(config[key]) is int and 0 <= config[key] <= max_count
        ):
            raise ValueError(
                f"the request has {key} = {config[key]!r}; this client takes whole "
                f"numbers up to {max_count} (client_app's max_count)"
            )
    together = prod(config.get(key, 1) for key in _TOGETHER)
    if together > max_count:
        raise ValueError(
            f"the request has {' times '.join(_TOGETHER)} = {together}; this client "
            f"takes up to {max_count} (client_app's max_count)"
        )
    return config


def client_identity(context: Context) -> str:
    """The name by which a client is known over restarts.

    ``client-id`` of its node config, else its ``partition-id``, else its node id (which
    Flower draws anew when an unauthenticated SuperNode restarts: such a client starts
    over each time).
    """
    for key in ("client-id", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    return f"node-{context.node_id}"


def identity_order(identity: str) -> tuple[int, int, str]:
    """Sort key for client identities: numbers by value, then the rest by name."""
    if identity.isdecimal():
        return (0, int(identity), identity)
    return (1, 0, identity)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether what somebody sent is a number of examples, which floats can hold."""
    return type(value) is int and 0 <= value < 2**53


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
    state = dict.fromkeys(names, encode(model.point)) if names else {}
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


@dataclass
class ClientMemory:
    """A client's state between messages, as it lies in ``context.state``.

    Attributes
    ----------
    session : str
        The ``strategy.start`` it belongs to.
    model : ReceivedModel or None
        x̄ as last received.
    committed, provisional : dict of str to Array
        The method's state after ``committed_round``, which the server used, and after
        ``provisional_round``, of which that is not known yet (``-1``: there is none).
    committed_epoch, provisional_epoch : str
        The epochs of these rounds.
    """

    session: str = ""
    model: ReceivedModel | None = None
    committed: dict[str, Array] = field(default_factory=dict)
    committed_round: int = NO_ROUND
    committed_epoch: str = ""
    provisional: dict[str, Array] = field(default_factory=dict)
    provisional_round: int = NO_ROUND
    provisional_epoch: str = ""

    @classmethod
    def load(cls, state: RecordDict, session: str) -> ClientMemory:
        """Read the memory; one of another session counts as empty."""
        meta = cast(ConfigRecord | None, state.get(_META))
        if meta is None or meta["session"] != session:
            return cls(session)
        memory = cls(
            session,
            committed_round=cast(int, meta["committed-round"]),
            provisional_round=cast(int, meta["provisional-round"]),
            committed_epoch=cast(str, meta.get("committed-epoch", "")),
            provisional_epoch=cast(str, meta.get("provisional-epoch", "")),
        )
        for name, array in cast(ArrayRecord, state[_STORED]).items():
            if name == _MODEL:
                memory.model = ReceivedModel(
                    Layout.of_entries(meta),
                    decode(array),
                    cast(int, meta["model-version"]),
                )
            elif name.startswith(_COMMITTED):
                memory.committed[name.removeprefix(_COMMITTED)] = array
            else:
                memory.provisional[name.removeprefix(_PROVISIONAL)] = array
        return memory

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
            stored[_MODEL] = encode(self.model.point)
        for prefix, arrays in (
            (_COMMITTED, self.committed),
            (_PROVISIONAL, self.provisional),
        ):
            for name, array in arrays.items():
                stored[prefix + name] = array
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
    ) -> None:
        """Bring model and state to where the server's request wants them.

        ``content`` and ``config`` are as :func:`read_request` wants them;
        ``max_parameters`` is that of :func:`~fedtrellis.wire.broadcast.receive`.

        Raises
        ------
        OutOfSyncError, RestoreNeededError
            If that cannot be done with what the request holds; nothing has changed.
        ValueError
            If the request is malformed; nothing has changed.
        """
        model = receive(
            cast(ArrayRecord, content[MODEL]), config, self.model, max_parameters
        )
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
