"""A client's half of ``aggregation = "secure-sum"``, whatever its method.

The server's half is :mod:`fedtrellis.server.secure_sum`. What ``fit`` returned becomes
one vector, of changes where it is a model, and leaves under masks that cancel in the
sum over the client's block (:mod:`fedtrellis.encryption.block_sum`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.encryption.block_sum import BlockMember, Introduction
from fedtrellis.encryption.discrete_normal import discrete_normal
from fedtrellis.encryption.fixed_point import Coding, RangeError, Words
from fedtrellis.encryption.node_secrets import NodeSecrets, remove_run_key
from fedtrellis.encryption.releases import OwnRows, ReleaseMemory
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.protocol import client_identity

__all__ = [
    "ATTEMPT",
    "SUM_PHASES",
    "check_exposed",
    "hidden",
    "hides",
    "node_secrets",
]

#: The entry of a request that asks for a term of a sum.
ATTEMPT = "sum-attempt"

Answer = tuple[list[NDArray[Any]], int, dict[str, Any]]


def node_secrets(context: Context) -> NodeSecrets:
    """The keys of the node that a message came to."""
    return NodeSecrets(client_identity(context), context.node_config)


def _introduce(context: Context, config: Mapping[str, Any], *_: Any) -> Answer:
    """A fresh key, and which key the node has."""
    member = BlockMember(node_secrets(context), config["session"])
    own = member.introduce(config["beginning"])
    sent = own.key.encode(), own.fresh
    return [np.frombuffer(data, np.uint8) for data in sent], 0, {}


def _agree(
    context: Context,
    config: Mapping[str, Any],
    rows: OwnRows | None = None,
    x: FloatArray | None = None,
) -> Answer:
    """Check the block's keys, and derive what is shared with each member."""
    sent = (config[key] for key in ("members", "member-keys", "member-fresh"))
    members = [Introduction(*one) for one in zip(*sent, strict=True)]
    member = BlockMember(node_secrets(context), config["session"])
    member.agree(members, config["sum-told"], rows)
    return [], 0, {}


def _finish(
    context: Context,
    config: Mapping[str, Any],
    rows: OwnRows | None = None,
    x: FloatArray | None = None,
) -> Answer:
    """Remember the run's model; a simulation's key for the run goes."""
    node = node_secrets(context)
    if x is not None:
        ReleaseMemory(node, config["session"]).note_model(x)
    if node.kind == "run":
        remove_run_key(config["session"])
    return [], 0, {}


#: Phases that every client has, by their methods' names.
SUM_PHASES = {
    "fit_sum_keys": _introduce,
    "fit_sum_agree": _agree,
    "fit_sum_finish": _finish,
}


def hidden(
    context: Context,
    config: Mapping[str, Any],
    layout: Layout,
    x: FloatArray,
    arrays: Sequence[NDArray[Any]],
    numbers: FloatArray | None,
    rows: OwnRows | None = None,
) -> Words:
    """The term of an answer, of what ``fit`` returned and left.

    Of the first ``sum-points`` arrays, which are models, the change from ``x`` is
    hidden. Raises what BlockMember does; RangeError: a number does not fit.
    ``rows`` are those of the client's data, if it knows them.
    """
    parts = []
    for index, array in enumerate(arrays):
        part = layout.from_wire(array).astype(np.float64)
        parts.append(part - x if index < config["sum-points"] else part)
    parts += [] if numbers is None else [numbers]
    vector = np.concatenate([part.reshape(-1) for part in parts])
    if "sum-largest" in config:  # w_i / w_max
        vector = vector * (config["sum-examples"] / config["sum-largest"])
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

    node = node_secrets(context)
    member = BlockMember(node, config["session"])
    releases = ReleaseMemory(node, config["session"])
    releases.admit(member.names, rows)  # a file may have changed since the agreement
    # where the run config names none, an app begins at its task's own start
    if config["server-round"] <= 1 and context.run_config.get("initial-model", "any"):
        releases.check_start(x)
    releases.note_model(x)
    try:
        words = coding.words(vector, config["sum-terms"])
    except RangeError as error:
        raise RangeError(f"client {client_identity(context)}: {error}") from None
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
