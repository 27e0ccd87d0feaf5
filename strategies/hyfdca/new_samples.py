"""Scores of new samples whose features are split over the clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import MetricRecord

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation

from ..hybrid import ROWS, Blobs, add_shares
from .steps import read_blobs, split_blobs

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["score_new_samples"]


def score_new_samples(
    strategy: HyFDCA, conversation: Conversation, server_round: int, timeout: float
) -> MetricRecord | None:
    """Ask the two waves of :meth:`HyFDCA.predict`; returns what that returns."""
    cipher, new = strategy.cipher, strategy.new_samples
    if new is None:
        return None
    assert cipher is not None
    config = {**strategy.phase_config(), "prediction": server_round}
    holders = [name for name in strategy.clients if new.rows.get(name)]
    shares: dict[int, dict[str, Blobs]] = {}
    C = strategy.classes
    w = strategy.found_point().reshape(-1, C).T

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
