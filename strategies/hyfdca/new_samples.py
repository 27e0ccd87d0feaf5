"""Scores of new samples whose features are split over the clients."""

from __future__ import annotations

from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from fedtrellis.dual.alignment import align
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.flower_internals import log

from ..hybrid import ROWS, Blobs, add_shares
from .steps import read_blobs, split_blobs

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["score_new_samples"]


def score_new_samples(
    strategy: HyFDCA, conversation: Conversation, server_round: int, timeout: float
) -> MetricRecord | None:
    """Ask the three waves of :meth:`HyFDCA.predict`; returns what that returns."""
    cipher = strategy.cipher
    assert cipher is not None
    hashes: dict[str, NDArray[np.uint8]] = {}
    config = {**strategy.phase_config(), "prediction": server_round}

    def take_hashes(answer: Answer) -> None:
        (own,) = answer.arrays
        if own.ndim != 2 or own.dtype != np.uint8:
            raise ValueError("the hashes of the new samples are malformed")
        if len(own):
            hashes[answer.client] = own

    strategy.ask(
        conversation,
        server_round,
        "train.new_samples",
        lambda name: config,
        strategy.clients,
        take_hashes,
        timeout,
    )
    if not hashes:
        return None
    names = strategy.alignment.feature_names
    features = {
        k: [names[i] for i in strategy.alignment.columns[k]]
        for k in strategy.clients
        if k in hashes
    }
    in_order = {name: hashes[name] for name in features}
    try:
        new = align(in_order, features)
    except ValueError as error:
        log(WARNING, "new samples cannot be scored: %s", error)
        return None
    shares: dict[int, dict[str, Blobs]] = {}
    w = strategy.result_point()

    def request(name: str) -> dict[str, Any]:
        own = new.rows[name]
        entries = {f"rows/{g}": own[g].tolist() for g in sorted(own)}
        holders = [len(new.groups[g].holders) for g in sorted(own)]
        return {**config, "groups": sorted(own), "holders": holders, **entries}

    def take_products(answer: Answer) -> None:
        own = sorted(new.rows[answer.client])
        counts = [cipher.blocks(new.groups[g].size) for g in own]
        parts = split_blobs(read_blobs(answer.arrays), counts)
        for g, part in zip(own, parts, strict=True):
            shares.setdefault(g, {})[answer.client] = part

    strategy.ask(
        conversation,
        server_round,
        "train.new_products",
        lambda name: {**request(name), ROWS: strategy.own(name, w)},
        list(features),
        take_products,
        timeout,
    )
    scores: dict[int, Blobs] = {}
    for g, group in enumerate(new.groups):
        if set(shares.get(g, {})) == set(group.holders):
            total, _ = add_shares(cipher, shares[g])
            if total is not None:
                scores[g] = total
    to_score: dict[str, dict[str, Any]] = {}
    for name in features:
        entries = request(name)
        known = [g for g in entries["groups"] if g in scores]
        if known:
            entries |= {f"scores/{g}": scores[g] for g in known}
            to_score[name] = entries
    answers = conversation.ask(server_round, "evaluate", to_score, timeout)
    return strategy.mean_evaluation(answers)
