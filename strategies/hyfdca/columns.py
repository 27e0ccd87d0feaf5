"""Sums over all before round 1: of raw columns, and of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedtrellis.dual.columns import PARTS, STATISTICS, ColumnScales, of_parts
from fedtrellis.dual.weights import BALANCED, labels_of
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["ask_columns"]


def ask_columns(
    strategy: HyFDCA, conversation: Conversation, timeout: float
) -> tuple[ColumnScales | None, FloatArray | None]:
    """Ask all clients for sums of their columns and weights; masks cancel in the sum.

    Returns
    -------
    (ColumnScales or None, ndarray of shape (T,) or None)
        What columns are shifted and divided by, if that is done; and what weights are
        normalised by, if there are any.

    Raises
    ------
    SettingsError
        A client refused, or the sums are none of any columns or weights.
    """
    alignment, settings = strategy.alignment, strategy.agreement.settings
    p = len(alignment.feature_names)
    weighted, rule = "weighted" in settings, strategy.class_rule
    T = len(labels_of(strategy.classes)) if rule == BALANCED else 1
    T = T if weighted or rule else 0
    rows = (STATISTICS + weighted) if strategy.standardize else 0
    words: dict[str, np.ndarray] = {}

    def take(answer: Answer) -> None:
        size = PARTS * (rows * len(alignment.columns[answer.client]) + T)
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
    total = np.zeros((PARTS * rows, p), dtype=np.uint64)
    rest = np.zeros(PARTS * T, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, own in words.items():
            columns = alignment.columns[name]
            of_columns = own[: len(own) - len(rest)]
            total[:, columns] += of_columns.reshape(PARTS * rows, len(columns))
            rest += own[len(of_columns) :]
    totals = _totals(strategy, of_parts(rest.reshape(PARTS, T))) if T else None
    if not rows:
        return None, totals
    found = of_parts(total.reshape(PARTS, rows, p))
    return _scales(strategy, found), totals


def _totals(strategy: HyFDCA, totals: FloatArray) -> FloatArray:
    """The same totals, if weights can be normalised by them."""
    if strategy.class_rule == BALANCED:
        for label, one in zip(labels_of(strategy.classes), totals, strict=True):
            if one == 0.0:
                raise SettingsError(
                    "class_weight = 'balanced': no sample of any weight is of class "
                    f"{label:g}"
                )
    elif totals[0] == 0.0:
        raise SettingsError("the weights of all samples are 0; some must be above 0")
    if not (np.isfinite(totals) & (totals > 0.0)).all():
        raise SettingsError(
            "the sums of the weights contradict each other: the clients were not asked "
            "alike, or one of them reports what is not so"
        )
    return totals


def _scales(strategy: HyFDCA, found: FloatArray) -> ColumnScales:
    """Means and scales from the sums, if they can be sums of columns."""
    alignment = strategy.alignment
    sums, squares, *weights = found
    N = alignment.num_samples
    counts = np.zeros(len(alignment.feature_names), dtype=np.int64)
    for group in alignment.groups:
        held = [alignment.columns[name] for name in group.holders]
        counts[np.unique(np.concatenate(held))] += group.size
    # Cauchy and Schwarz: (Σ s x)² ≤ Σ s Σ s x²
    mass = np.maximum(weights[0], 0.0) if weights else N
    bound = np.sqrt(mass * np.maximum(squares, 0.0))
    if (squares < 0.0).any() or (np.abs(sums) > bound * (1.0 + 1e-9)).any():
        raise SettingsError(
            "the sums of the columns over their holders contradict each other: the "
            "clients were not asked alike, or one of them reports what is not so"
        )
    return ColumnScales.of(sums, squares, counts, N, weights[0] if weights else None)
