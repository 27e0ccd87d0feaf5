"""A client's half of secure sums, whatever its method or app.

The server's half is :mod:`fedtrellis.server.secure_sum`. What a client trained becomes
one vector, of changes where it is a model, and leaves under masks that cancel in the
sum over the client's block (:mod:`fedtrellis.encryption.block_sum`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import ERROR
from math import ceil, sqrt
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis.encryption.block_sum import BlockMember, Introduction, discrete_normal
from fedtrellis.encryption.fixed_point import Coding, RangeError, Words
from fedtrellis.encryption.node_secrets import NodeSecrets, remove_run_key
from fedtrellis.encryption.releases import OwnRows, ReleaseMemory
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import client_identity

#: The entry of a request that asks for a term of a sum.
ATTEMPT = "sum-attempt"
#: The record of a message, and of its reply, that is about sums.
RECORD = "secure-sum"


def node_secrets(context: Context) -> NodeSecrets:
    """The keys of the node that a message came to."""
    return NodeSecrets(client_identity(context), context.node_config)


def _member(context: Context, config: Mapping[str, Any]) -> BlockMember:
    return BlockMember(node_secrets(context), config["session"])


#: Phases that every client has, by their methods' names.
SUM_PHASES = ("fit_sum_keys", "fit_sum_agree", "fit_sum_finish")


def sum_phase(
    name: str,
    context: Context,
    config: Mapping[str, Any],
    rows: OwnRows | None = None,
    x: FloatArray | None = None,
) -> list[NDArray[Any]]:
    """What a client sends in one of :data:`SUM_PHASES`; ``x`` is the run's model."""
    if name == "fit_sum_keys":  # a fresh key, and which key the node has
        return [*_member(context, config).introduce(config["beginning"]).arrays()]
    if name == "fit_sum_agree":  # the block's keys, and what is shared with each member
        sent = (config[key] for key in ("members", "member-keys", "member-fresh"))
        members = [Introduction(*one) for one in zip(*sent, strict=True)]
        _member(context, config).agree(members, b"sum " + config["sum-told"], rows)
        return []
    node = node_secrets(context)  # the run is over
    if x is not None:
        ReleaseMemory(node, config["session"]).note_model(x)
    if node.kind == "run":
        remove_run_key(config["session"])
    return []


def examples_of(client: Any) -> Any:
    """How many examples a client's objective has; None if it does not say."""
    return getattr(getattr(client, "objective", None), "num_examples", None)


def hidden(
    context: Context,
    config: Mapping[str, Any],
    model: ReceivedModel,
    client: Any,
    arrays: Sequence[NDArray[Any]],
) -> Words:
    """The term of an answer, of the arrays that ``fit`` returned and what it left.

    Of the first ``sum-points`` arrays, which are models, the change from ``model`` is
    hidden. Raises what BlockMember does; RangeError: a number does not fit.
    """
    node = node_secrets(context)
    member = BlockMember(node, config["session"])
    before = member.answered(config[ATTEMPT])
    if before is not None:  # noise would be another one
        return before
    x, parts = model.point, []
    for index, array in enumerate(arrays):
        part = model.layout.from_wire(array).astype(np.float64)
        parts.append(part - x if index < config["sum-points"] else part)
    numbers = getattr(client, "numbers", None)
    parts += [] if numbers is None else [numbers]
    vector = np.concatenate([part.reshape(-1) for part in parts])
    if "sum-largest" in config:  # w_i / w_max
        vector = vector * (examples_of(client) / config["sum-largest"])
    coding = Coding(config["sum-bits"], config["sum-word"])
    clip, deviation = config["sum-clip"], config["sum-deviation"]
    if clip:
        # the rounding of p numbers adds √p 2^−f/2 at most
        most = clip - sqrt(vector.size) * 2.0**-coding.bits / 2.0
        if most <= 0.0:
            raise SettingsError(f"secure-sum.clip = {clip:g} is less than the rounding")
        if not np.isfinite(vector).all():
            vector = np.zeros(vector.size)
        norm = float(np.linalg.norm(vector))
        vector = vector * min(1.0, most / norm) if norm else vector

    def noise() -> Words:
        # whole numbers of steps, rounded up
        return coding.wrapped(discrete_normal(ceil(deviation), vector.size))

    releases = ReleaseMemory(node, config["session"])
    # a file may have changed since the agreement
    releases.admit(member.names, getattr(client, "rows", None))
    # where the run config names none, an app begins at its task's own start
    named = bool(context.run_config.get("initial-model", "any"))
    releases.note_model(x, first=named and config["server-round"] <= 1)
    words = coding.words(vector, config["sum-terms"])
    return member.term(config[ATTEMPT], words, noise=noise if deviation else None)


def hides(context: Context) -> bool:
    """Whether a node has a key, and so says nothing of its data in the clear."""
    config = context.node_config
    keys = "key-file" in config or "identity-file" in config
    return keys and config.get("exposed") != "accept"


def check_exposed(context: Context, what: str) -> None:
    """Refuse an answer in the clear by a node that has a key."""
    if hides(context):
        raise SettingsError(
            f"client {client_identity(context)} has a key, and its {what} would travel "
            "in the clear; its node allows that with exposed = 'accept'"
        )


def check_batches(context: Context, config: Mapping[str, Any]) -> None:
    """Refuse mini-batches in a sum without noise by a node that has a key.

    Sums over mini-batches single out rows, whatever the batches are drawn by.
    """
    drawn = config.get("batch-size", 0) or config.get("batch-fraction", 1.0) < 1.0
    if not drawn or config["sum-deviation"]:
        return
    node = node_secrets(context)
    choice = node.choice("mini-batches", ("refuse", "accept"))
    if node.kind != "run" and choice == "refuse":
        raise SettingsError(
            f"client {client_identity(context)} has a key, and sums over mini-batches "
            "single out rows: set batch-size = 0 or batch-fraction = 1, or noise; its "
            "node allows them with mini-batches = 'accept'"
        )


# -------------------------------------------------------- around an app of one's own


def secure_sum_mod(
    msg: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Hide what a ClientApp trained in the sum over its block.

    For an app whose strategy :class:`~fedtrellis.SecureSums` wraps. It has to be the
    first of the app's mods, so that it is the last to see a reply. Of a reply to a
    train message nothing leaves in the clear, neither metrics nor an error's text,
    which is in the node's log. Evaluations and answers to queries pass, where the node
    has a key only if its node config has ``exposed = "accept"``.

    Keys are named in the node config, as for ``aggregation = "secure-sum"``; only the
    clients of a simulation need none. SettingsError: the message asks for an answer in
    the clear. RuntimeError: the app failed.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fedtrellis import secure_sum_mod
    >>> app = ClientApp(mods=[secure_sum_mod])
    """
    category = msg.metadata.message_type.partition(".")[0]
    if category != "train":
        what = "evaluation" if category == "evaluate" else f"answer to a {category}"
        check_exposed(context, what)
        return call_next(msg, context)
    who = f"client {client_identity(context)}"
    if RECORD not in msg.content:
        raise SettingsError(
            f"{who}: secure_sum_mod answers a train message of SecureSums(...) only: "
            "wrap the ServerApp's strategy"
        )
    config: Any = msg.content[RECORD]
    records = {name: r for name, r in msg.content.items() if name != RECORD}
    status = {"client-id": client_identity(context)}
    arrays: list[NDArray[Any]] = []
    try:
        if config["step"] == "term":
            msg.content = RecordDict(records)
            arrays = [_term(msg, context, call_next, config)]
        elif config["step"] != "hello":
            simulated = config["simulated"] and "num-partitions" in context.node_config
            # only the clients of a simulation make a key for their run
            if node_secrets(context).kind == "run" and not simulated:
                raise SettingsError(
                    f"{who} has no key, and this is no simulation: make one with "
                    "fedtrellis-keys, and name it in the node config"
                )
            arrays = sum_phase(f"fit_sum_{config['step']}", context, config)
    except CodedError as error:
        # what the server is not to read
        log(ERROR, "refused: %s", getattr(error, "detail", error))
        status |= {"refused": error.code, "why": str(error)}
    content = RecordDict({RECORD: ConfigRecord({**status})})
    content["arrays"] = ArrayRecord(arrays)
    return Message(content, reply_to=msg)


def _term(
    msg: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    config: Mapping[str, Any],
) -> NDArray[Any]:
    """What is answered to an attempt: what it was before, if it is asked again.

    Else a term of changes and metrics times w_i/w_max, and of w_i/w_max itself.
    """
    who, member = f"client {client_identity(context)}", _member(context, config)
    before = member.answered(config[ATTEMPT])
    if before is not None:
        return before
    sent: Any = msg.content[config["arrays"]]
    model = {name: array.numpy() for name, array in sent.items()}
    try:
        reply = call_next(msg, context)
        failed = reply.error.reason if reply.has_error() else ""
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    if failed:  # it may say something of the data
        log(ERROR, "%s failed: %s", who, failed)
        raise RuntimeError(f"{who} failed; its node's log says why")
    found = list(reply.content.array_records.values())
    trained = {k: array.numpy() for k, array in found[0].items()} if found else {}
    shapes = {name: array.shape for name, array in model.items()}
    if len(found) != 1 or shapes != {k: a.shape for k, a in trained.items()}:
        raise SettingsError(
            f"{who}: its reply must have one ArrayRecord, of the names and shapes that "
            "the model has"
        )
    records = reply.content.metric_records.values()
    metrics: dict[str, Any] = {k: v for r in records for k, v in r.items()}
    wanted = [*config["metrics"], config["weight"]]
    for name in wanted:
        if not isinstance(metrics.get(name), int | float):
            raise SettingsError(f"{who}: its reply must have a number {name!r}")
    *measured, weight = (float(metrics[name]) for name in wanted)
    if not 0.0 <= weight <= config["largest"]:
        raise RangeError(
            f"{who}: its {wanted[-1]!r} must be from 0 to largest_weight = "
            f"{config['largest']:g}, which SecureSums(...) takes"
        )
    layout = Layout(tuple(shapes.values()))
    new, old = ([one[name] for name in model] for one in (trained, model))
    change = (layout.point(new) - layout.point(old)).reshape(-1)
    vector = np.concatenate([change, [*measured, 1.0]])
    vector = vector * (weight / float(config["largest"]))
    words = Coding(config["sum-bits"]).words(vector, config["sum-terms"])
    return member.term(config[ATTEMPT], words)
