"""A client's answer, its checks, and the mean of several clients' metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.protocol import EXAMPLES, LARGEST, STATUS, is_moderate

__all__ = ["Answer", "mean_metrics", "refusal_in", "scalars_of"]


@dataclass(slots=True)
class Answer:
    """A client's answer that passed every check of the wire.

    Attributes
    ----------
    client : str
        Who answered.
    arrays : sequence of ndarray
        What ``fit`` returned; read-only.
    metrics : dict
        Its metrics.
    numbers : ndarray of float64
        The vector that it left in ``self.numbers``; empty if none.
    version : int or None
        The model version that the client has now, if it keeps the model.
    server_round : int
        The round that it was asked in.
    norm : float or None
        ‖a‖ of its only array a, where that is known already.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Answer
    >>> answer = Answer("3", [np.array([1.0, -1.0])], {"steps": 5})
    >>> answer.client, answer.metrics["steps"], answer.numbers.size
    ('3', 5, 0)
    """

    client: str
    arrays: Sequence[NDArray[Any]]
    metrics: dict[str, Any]
    numbers: FloatArray = field(default_factory=lambda: np.empty(0))
    version: int | None = None
    server_round: int = 0
    norm: float | None = None


def scalars_of(answer: Answer, count: int) -> FloatArray:
    """The scalars of an answer that is nothing else; ValueError if it is not."""
    if answer.arrays or answer.numbers.shape != (count,):
        raise ValueError(
            f"the answer has {answer.numbers.size} scalars and {len(answer.arrays)} "
            f"arrays, expected {count} and none"
        )
    return answer.numbers


def refusal_in(content: RecordDict) -> Reason | None:
    """The refusal that a message's content is; None if it is another."""
    status = content.get(STATUS)
    return refusal_of(status) if isinstance(status, ConfigRecord) else None


def refusal_of(status: Mapping[str, Any]) -> Reason | None:
    """A client will not do what it was asked: its words, and its error's code."""
    code, why = status.get("refused"), status.get("why")
    if not (isinstance(code, str) and code and isinstance(why, str)):
        return None
    return Reason(why, "refused", code)


def check_moderate(array: NDArray[Any]) -> None:
    """Raise ValueError for numbers that are not finite, or out of all proportion."""
    if not is_moderate(array):
        raise ValueError(
            f"the answer is not finite, or has numbers beyond ±{LARGEST:g}"
        )


def mean_metrics(
    metrics: Sequence[Mapping[str, Any]], *, equal: bool = False, median: bool = False
) -> MetricRecord | None:
    """Mean of several clients' metrics, weighted by their ``num-examples`` or equally.

    One without examples (no labels, say) does not take metrics away from the others.
    With ``median`` it is the weighted median: nobody with less than half of the weight
    can choose it.

    Returns
    -------
    MetricRecord or None
        The numbers that all with examples name, and the sum of ``num-examples``; None
        if nobody has any.
    """
    counted = [m for m in metrics if m[EXAMPLES] > 0]
    if not counted:
        return None
    weights = np.array([1.0 if equal else float(m[EXAMPLES]) for m in counted])
    numbers = [{n for n, v in m.items() if _is_number(v)} for m in counted]
    result = {}
    for name in sorted(set.intersection(*numbers) - {EXAMPLES}):
        values = np.array([m[name] for m in counted], dtype=np.float64)
        mean = weighted_median if median else _weighted_mean
        result[name] = mean(values, weights)
    return MetricRecord({**result, EXAMPLES: int(sum(m[EXAMPLES] for m in counted))})


def _weighted_mean(values: FloatArray, weights: FloatArray) -> float:
    return float(np.average(values, weights=weights))


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
