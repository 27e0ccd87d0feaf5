"""Metrics that clients and evaluations answer, as a history can keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from fedtrellis.wire.protocol import LARGEST

__all__ = ["mean_metrics", "plain_metrics"]


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> MetricRecord | None:
    """Mean of several clients' metrics, weighted by their numbers of examples.

    A client may answer anything: one that names no number of examples has no weight,
    and one without weight (no labels, say) does not take metrics away from the others.

    Returns
    -------
    MetricRecord or None
        The numbers that all with weight name, and ``num-examples``, the sum; None if
        nobody has weight.
    """
    metrics = [
        m
        for m in metrics
        if _is_number(m.get("num-examples")) and m["num-examples"] > 0
    ]
    weights = np.array([float(m["num-examples"]) for m in metrics])
    if not metrics:
        return None
    names = set.intersection(
        *({n for n, v in m.items() if _is_number(v)} for m in metrics)
    ) - {"num-examples"}
    mean = {
        name: float(np.average([m[name] for m in metrics], weights=weights))
        for name in sorted(names)
    }
    return MetricRecord({**mean, "num-examples": int(weights.sum())})


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
