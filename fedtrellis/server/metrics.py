"""Metrics that clients and evaluations answer, as a history can keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from fedtrellis.wire.protocol import LARGEST, WEIGHT

__all__ = ["mean_metrics", "plain_metrics"]


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> MetricRecord | None:
    """Mean of several clients' metrics, by their numbers of examples or own weights.

    What a client says of its own weight, under ``protocol.WEIGHT``, counts instead. A
    client may answer anything: one that names no number of examples has no weight, and
    one without weight (no labels, say) does not take metrics away from the others.

    Returns
    -------
    MetricRecord or None
        The numbers that all with weight name, and the sum of ``num-examples``; None if
        nobody has weight.
    """
    examples = "num-examples"
    metrics = [
        {WEIGHT: m[examples], **m} for m in metrics if _is_positive(m.get(examples))
    ]
    metrics = [m for m in metrics if _is_positive(m[WEIGHT])]
    weights = np.array([float(m[WEIGHT]) for m in metrics])
    if not metrics:
        return None
    names = set.intersection(
        *({n for n, v in m.items() if _is_number(v)} for m in metrics)
    ) - {examples, WEIGHT}
    mean = {
        name: float(np.average([m[name] for m in metrics], weights=weights))
        for name in sorted(names)
    }
    return MetricRecord({**mean, examples: int(sum(m[examples] for m in metrics))})


def _is_number(value: Any) -> bool:
    # sums of what is larger would not be finite
    return isinstance(value, int | float) and abs(value) <= LARGEST


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def plain_metrics(metrics: MetricRecord | None) -> dict[str, float]:
    """The numbers among metrics, as floats; none of None."""
    return {
        name: float(value)
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float)
    }
