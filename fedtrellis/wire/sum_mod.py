"""A mod that gives a ClientApp of one's own its half of secure sums.

The server's half is :mod:`fedtrellis.server.flower_sums`, around a strategy of
Flower's. A train message of it has one record more, ``RECORD``, which the app itself
does not see: a step of the agreement on keys, or an attempt. An attempt's reply is one
vector under masks: w_i/w_max times the model's changes and the metrics that are summed,
and w_i/w_max.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import ERROR
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.fixed_point import Coding, RangeError
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import client_identity
from fedtrellis.wire.summing import ATTEMPT, SUM_PHASES, check_exposed, node_secrets

__all__ = ["RECORD", "secure_sum_mod"]

#: The record of a message, and of its reply, that is about sums.
RECORD = "secure-sum"


def secure_sum_mod(
    msg: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Hide what a ClientApp trained in the sum over its block.

    For an app whose strategy :class:`~fedtrellis.SecureSums` wraps. It has to be the
    first of the app's mods, so that it is the last to see a reply. Of a reply to a
    train message nothing leaves in the clear, neither metrics nor an error's text,
    which is in the node's log. Other messages pass; an evaluation does not where the
    node has a key, unless its node config has ``exposed = "accept"``.

    Parameters
    ----------
    msg : Message
    context : Context
        Keys are named in the node config, as for ``aggregation = "secure-sum"``; only
        the clients of a simulation need none.
    call_next : callable
        The app, or its next mod.

    Raises
    ------
    SettingsError
        The message asks for an answer in the clear.
    RuntimeError
        The app failed.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fedtrellis import secure_sum_mod
    >>> app = ClientApp(mods=[secure_sum_mod])
    """
    category = msg.metadata.message_type.partition(".")[0]
    if category == "evaluate":
        check_exposed(context, "evaluation")
    if category != "train":
        return call_next(msg, context)
    who = f"client {client_identity(context)}"
    if RECORD not in msg.content:
        raise SettingsError(
            f"{who}: secure_sum_mod answers a train message of SecureSums(...) only: "
            "wrap the ServerApp's strategy"
        )
    config: Any = msg.content[RECORD]
    records = {name: r for name, r in msg.content.items() if name != RECORD}
    status = {"client-id": client_identity(context), "wave": config["wave"]}
    arrays: list[NDArray[Any]] = []
    try:
        if config["step"] == "term":
            msg.content = RecordDict(records)
            arrays = [_term(who, msg, context, call_next, config)]
        else:
            _check_key(who, context, config)
            arrays = SUM_PHASES[f"fit_sum_{config['step']}"](context, config)[0]
    except CodedError as error:
        arrays = []
        # what the server is not to read
        log(ERROR, "refused: %s", getattr(error, "detail", error))
        status |= {"refused": error.code, "why": str(error)}
    content: dict[str, Any] = {RECORD: ConfigRecord({**status})}
    content["arrays"] = ArrayRecord(arrays)
    return Message(RecordDict(content), reply_to=msg)


def _check_key(who: str, context: Context, config: Mapping[str, Any]) -> None:
    """Only the clients of a simulation make a key for their run."""
    simulated = config["simulated"] and "num-partitions" in context.node_config
    if node_secrets(context).kind == "run" and not simulated:
        raise SettingsError(
            f"{who} has no key, and this is no simulation: make one with "
            "fedtrellis-keys (identity and roster, or new), and name it in the node "
            "config (identity-file and roster-file, or key-file)"
        )


def _term(
    who: str,
    msg: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    config: Mapping[str, Any],
) -> NDArray[Any]:
    """What is answered to an attempt: what it was before, if it is asked again."""
    member = BlockMember(node_secrets(context), config["session"])
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
    vector = _vector(who, reply.content, model, config)
    try:
        words = Coding(config["sum-bits"]).words(vector, config["sum-terms"])
    except RangeError as error:
        raise RangeError(f"{who}: {error}") from None
    return member.term(config[ATTEMPT], words)


def _vector(
    who: str,
    content: RecordDict,
    model: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
) -> FloatArray:
    """Changes and metrics times w_i/w_max, and w_i/w_max itself, as one vector."""
    found = list(content.array_records.values())
    trained = {k: array.numpy() for k, array in found[0].items()} if found else {}
    shapes = {name: array.shape for name, array in model.items()}
    if len(found) != 1 or shapes != {k: a.shape for k, a in trained.items()}:
        raise SettingsError(
            f"{who}: its reply must have one ArrayRecord, of the names and shapes that "
            "the model has"
        )
    metrics = {k: v for r in content.metric_records.values() for k, v in r.items()}
    wanted = [*config["metrics"], config["weight"]]
    for name in wanted:
        if not isinstance(metrics.get(name), int | float):
            raise SettingsError(f"{who}: its reply must have a number {name!r}")
    *measured, weight = (float(metrics[name]) for name in wanted)  # type: ignore[arg-type]
    if not 0.0 <= weight <= config["largest"]:
        raise RangeError(
            f"{who}: its {wanted[-1]!r} must be from 0 to largest_weight = "
            f"{config['largest']:g}, which SecureSums(...) takes"
        )
    changes = [
        (trained[name].astype(np.float64) - array.astype(np.float64)).reshape(-1)
        for name, array in model.items()
    ]
    vector: FloatArray = np.concatenate([*changes, [*measured, 1.0]])
    return vector * (weight / float(config["largest"]))
