"""Means and scales of raw columns, from sums over all who hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedtrellis.dual.columns import PARTS, STATISTICS, ColumnScales, of_parts
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["ask_columns"]


def ask_columns(
    strategy: HyFDCA, conversation: Conversation, timeout: float
) -> ColumnScales:
    """Ask all clients for Σ x and Σ x² of their columns; their masks cancel in the sum.

    Raises
    ------
    SettingsError
        A client refused, or the sums are none of any columns.
    """
    alignment = strategy.alignment
    p = len(alignment.feature_names)
    words: dict[str, np.ndarray] = {}

    def take(answer: Answer) -> None:
        size = PARTS * STATISTICS * len(alignment.columns[answer.client])
        (own,) = answer.arrays
        if own.dtype != np.uint64 or own.shape != (size,):
            raise ValueError("the answer does not have the sums of its columns")
        words[answer.client] = own

    strategy.ask_everyone(
        conversation,
        "train.columns",
        lambda name: strategy.phase_config(),
        take,
        timeout,
    )
    total = np.zeros((PARTS * STATISTICS, p), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, own in words.items():
            columns = alignment.columns[name]
            total[:, columns] += own.reshape(-1, len(columns))
    sums, squares = of_parts(total.reshape(PARTS, STATISTICS, p))
    # Cauchy and Schwarz: (Σ x)² ≤ N Σ x²
    bound = np.sqrt(alignment.num_samples * np.maximum(squares, 0.0))
    if (squares < 0.0).any() or (np.abs(sums) > bound * (1.0 + 1e-9)).any():
        raise SettingsError(
            "the sums of the columns over their holders contradict each other: the "
            "clients were not asked alike, or one of them reports what is not so"
        )
    counts = np.zeros(p, dtype=np.int64)
    for group in alignment.groups:
        held = [alignment.columns[name] for name in group.holders]
        counts[np.unique(np.concatenate(held))] += group.size
    return ColumnScales.of(sums, squares, counts, alignment.num_samples)
