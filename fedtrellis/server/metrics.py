"""Metrics that clients and evaluations answer, as a history can keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import EXAMPLES, LARGEST

__all__ = ["mean_metrics", "plain_metrics", "weighted_median"]


def mean_metrics(
    metrics: Sequence[Mapping[str, Any]],
    weights: Sequence[float],
    *,
    median: bool = False,
) -> MetricRecord | None:
    """Mean of several clients' metrics, which all have ``num-examples``.

    One without weight (no labels, say) does not take metrics away from the others. With
    ``median`` it is the weighted median: nobody with less than half of the weight can
    choose it.

    Returns
    -------
    MetricRecord or None
        The numbers that all with weight name, and the sum of ``num-examples``; None if
        nobody has weight.
    """
    pairs = [(m, w) for m, w in zip(metrics, weights, strict=True) if w > 0.0]
    if not pairs:
        return None
    counted = [m for m, _ in pairs]
    shares = np.array([w for _, w in pairs], dtype=np.float64)
    numbers = [{n for n, v in m.items() if _is_number(v)} for m in counted]
    result = {}
    for name in sorted(set.intersection(*numbers) - {EXAMPLES}):
        values = np.array([m[name] for m in counted], dtype=np.float64)
        if median:
            result[name] = weighted_median(values, shares)
        else:
            result[name] = float(np.average(values, weights=shares))
    return MetricRecord({**result, EXAMPLES: int(sum(m[EXAMPLES] for m in counted))})


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The value with at most half of the weight on either side; of two the mean."""
    order = np.argsort(values, kind="stable")
    ordered, below = values[order], np.cumsum(weights[order])
    half = 0.5 * below[-1]
    low, high = np.searchsorted(below, half), np.searchsorted(below, half, "right")
    return float(0.5 * (ordered[low] + ordered[min(high, len(ordered) - 1)]))


def _is_number(value: Any) -> bool:
    # sums of what is larger would not be finite
    return isinstance(value, int | float) and abs(value) <= LARGEST


def plain_metrics(metrics: MetricRecord | None) -> dict[str, float]:
    """The numbers among metrics, as floats; none of None."""
    return {
        name: float(value)
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float)
    }
