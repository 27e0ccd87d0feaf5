"""Before any label leaves a client: names for its samples, and the agreement."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.encryption import Cipher, intersection
from fedtrellis.encryption.block_sum import Introduction
from fedtrellis.encryption.releases import OwnRows
from fedtrellis.settings import SettingsError

from .._split_data import check_split_data
from .exposure import check_exposed
from .run import ClientRun, as_arrays, as_bytes

__all__ = ["agree", "align", "blind", "evaluate_points", "keyed_hashes"]

Arrays = list[NDArray[Any]]

# So that one of them and the server together cannot try ids.
_EVALUATORS = 2
_POINT_BYTES = 32


def blind(run: ClientRun) -> Arrays:
    """Blinded ids, where the clients have no common key to hash them under."""
    _check_roster(run)
    _check_data(run)
    part = run.part
    new = [] if part.new_samples is None else part.new_samples.sample_ids
    # new samples' are ids of another kind
    ids = [f"sample {i}" for i in part.sample_ids] + [f"new {i}" for i in new]
    return [intersection.blind(ids, _blinding(run), run.config["session"])]


def evaluate_points(run: ClientRun) -> Arrays:
    """Every client's points times this evaluator's secret."""
    _check_roster(run)
    secret = run.node.identity.derive("evaluate", run.config["session"])
    scalar = intersection.scalar_from(secret)
    count = len(run.config["owners"])
    points = [_points(run.config[f"points/{i}"]) for i in range(count)]
    return [intersection.evaluate(own, scalar) for own in points]


def _check_data(run: ClientRun) -> None:
    try:
        check_split_data(run.part, run.config)
    except SettingsError as error:
        public = f"{run.who}: its data cannot be used; its node's log says why"
        raise run.refusal(SettingsError, str(error), public) from None


def _check_roster(run: ClientRun) -> None:
    if run.node.kind != "roster":
        raise SettingsError(f"{run.who} has no identity and roster to blind ids with")


def _blinding(run: ClientRun) -> int:
    secret = run.node.identity.derive("blind", run.config["session"])
    return intersection.scalar_from(secret)


def _points(data: bytes) -> NDArray[np.uint8]:
    """Points of the curve, shape (n, 32), as a request has them."""
    if not isinstance(data, bytes) or len(data) % _POINT_BYTES:
        raise ValueError("the request's points are malformed")
    return as_bytes(data).reshape(-1, _POINT_BYTES)


def _pseudonyms(run: ClientRun) -> NDArray[np.uint8]:
    """The samples' hashes, then the new samples': shape (n + n_new, 16)."""
    if run.node.kind == "roster":
        points = [_points(run.config[f"points/{i}"]) for i in range(_EVALUATORS)]
        blinding = _blinding(run)
        return intersection.pseudonyms(
            *(intersection.unblind(one, blinding) for one in points)
        )
    # of this run alone: an id has another name in the next
    session = run.config["session"]
    hashes = keyed_hashes(
        run.common_key, ("sample", session), run.part.sample_ids, HASH_BYTES
    )
    if run.part.new_samples is not None:
        ids = run.part.new_samples.sample_ids
        hashes += keyed_hashes(run.common_key, ("new-sample", session), ids, HASH_BYTES)
    return as_bytes(hashes).reshape(-1, HASH_BYTES)


def keyed_hashes(
    cipher: Cipher, purpose: tuple[str, ...], names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under a key of clients, cut to ``length`` bytes."""
    key = cipher.derive("alignment", *purpose)
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def align(run: ClientRun) -> Arrays:
    """Hashes of the samples' ids, features' names, which key this is, a fresh key."""
    _check_data(run)
    hashes = _pseudonyms(run)
    n = len(run.part.sample_ids)
    own = run.block.introduce(run.config["session"].encode())
    answer = [
        hashes[:n],
        as_bytes("\n".join(run.part.feature_names).encode()),
        as_bytes(own.key.encode()),
        as_bytes(own.fresh),
        hashes[n:],
    ]
    if run.config["send-context"]:
        answer.append(as_bytes(run.common_key.evaluation_bytes()))
    return answer


def agree(run: ClientRun) -> Arrays:
    """Check what the server wrote down, and derive what is shared with each client.

    All keys and masks of the run follow from its digest. Returns the keys that this
    client draws for others, sealed.
    """
    agreement = run.agreement
    run.pin()
    if run.node.kind != "roster" and run.common_key.name != run.config["encryption"]:
        raise SettingsError(
            f"{run.who}: encryption = {run.config['encryption']!r} on the server, but "
            f"the key is of backend {run.common_key.name!r}"
        )
    check_exposed(run)
    members = [
        Introduction(one.name, one.key, bytes.fromhex(one.fresh))
        for one in agreement.members
    ]
    part = run.part
    # without a file of the node's what the client was given must do
    given = part.features, part.labels, part.weights
    rows = part.rows or OwnRows(tuple(part.feature_names), given)
    run.block.agree(members, agreement.digest, rows)
    return as_arrays(run.sealed_keys())
