"""Scores of new samples whose features are split over the clients."""

from __future__ import annotations

from typing import Any

from flwr.app import MetricRecord

from fedtrellis.dual.alignment import Alignment
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import ROWS, Blobs
from .settings import HyFDCASettings
from .steps import add_shares, read_blobs, split_blobs

__all__ = ["score_new_samples"]


def score_new_samples(
    strategy: HyFDCASettings,
    new: Alignment,
    w: FloatArray,
    conversation: Conversation,
    server_round: int,
    timeout: float,
) -> MetricRecord | None:
    """Ask the two waves of :meth:`HyFDCA.predict`; returns what that returns.

    ``new`` says who holds which of the new samples, w is of shape (C, p).
    """
    cipher, C = strategy.cipher, strategy.classes
    config = {**strategy.phase_config(), "prediction": server_round}
    holders = [name for name in strategy.clients if new.rows.get(name)]
    shares: dict[int, dict[str, Blobs]] = {}

    def take_products(answer: Answer) -> None:
        own = new.client_groups(answer.client)
        counts = [cipher.blocks(C * new.groups[g].size) for g in own]
        parts = split_blobs(read_blobs(answer.arrays), counts)
        for g, part in zip(own, parts, strict=True):
            shares.setdefault(g, {})[answer.client] = part

    strategy.ask(
        conversation,
        server_round,
        "train.new_products",
        lambda name: {**config, ROWS: strategy.own(name, w)},
        holders,
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
    for name in holders:
        known = [g for g in new.client_groups(name) if g in scores]
        if known:
            to_score[name] = {**config, **{f"scores/{g}": scores[g] for g in known}}
    answers = conversation.ask(server_round, "evaluate", to_score, timeout)
    return strategy._mean_evaluation(answers)
