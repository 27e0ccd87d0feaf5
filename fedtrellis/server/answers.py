"""A client's answer, its checks, and the mean of several clients' metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.protocol import (
    EXAMPLES,
    LARGEST,
    STATUS,
    NodeReply,
    is_moderate,
    moderate_norm,
)

__all__ = [
    "Answer",
    "ClientRefusalError",
    "one_point",
    "open_answer",
    "refusal_in",
    "scalars_of",
]


_NONE: FloatArray = np.empty(0)
_NONE.flags.writeable = False


class ClientRefusalError(ValueError):
    """A client will not do what it was asked.

    Attributes
    ----------
    code : str
        That of its :class:`~fedtrellis.settings.CodedError`.
    """

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


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


def one_point(answer: Answer, shape: tuple[int, ...], layout: Layout) -> FloatArray:
    """The single dense array of an answer; ValueError if it is anything else.

    A point of the model, or a part of one, in the dtype that the model travels in.
    """
    if len(answer.arrays) != 1:
        raise ValueError(f"the answer has {len(answer.arrays)} arrays instead of 1")
    array, dtype = answer.arrays[0], layout.wire_dtype
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"the answer has shape {array.shape} and dtype {array.dtype}, "
            f"expected {shape} and {layout.wire_dtype}"
        )
    if dtype is layout.point_dtype:
        return array
    point = layout.from_wire(array)
    if array.dtype.kind != "f":
        _check_moderate(point)  # of bits nobody could tell before
    return point


def scalars_of(answer: Answer, count: int) -> FloatArray:
    """The scalars of an answer that is nothing else; ValueError if it is not."""
    if answer.arrays or answer.numbers.shape != (count,):
        raise ValueError(
            f"the answer has {answer.numbers.size} scalars and {len(answer.arrays)} "
            f"arrays, expected {count} and none"
        )
    return answer.numbers


def refusal_in(content: RecordDict) -> ClientRefusalError | None:
    """The refusal that a reply is; None if it is another."""
    status = content.get(STATUS)
    return _refusal(status) if isinstance(status, ConfigRecord) else None


def _refusal(status: Mapping[str, Any]) -> ClientRefusalError | None:
    code, why = status.get("refused"), status.get("why")
    if not (isinstance(code, str) and code and isinstance(why, str)):
        return None
    return ClientRefusalError(code, why)


def open_answer(
    reply: NodeReply,
    client: str,
    session: str,
    server_round: int,
    model_version: int | None,
    phase: str | None,
) -> Answer | None:
    """Check a reply, of which nothing is trusted; None if its client must be restored.

    ``model_version`` is None where clients do not keep the model, ``phase`` in a round
    of one wave. Raises ClientRefusalError where the client refuses, and ValueError with
    the reason to drop an answer that is malformed, of somebody else or another round
    or phase, or not finite; what a client sent may raise anything else, too.
    """
    status = reply.status
    if not (
        status.get("client-id") == client
        and status.get("session") == session
        and status.get("server-round") == server_round
        and status.get("phase") == phase
    ):
        expected = client, session, server_round, phase
        keys = "client-id", "session", "server-round", "phase"
        for key, value in zip(keys, expected, strict=True):
            if status.get(key) != value:
                found = status.get(key)
                raise ValueError(f"the answer has {key} {found!r}, not {value!r}")
    if "refused" in status and (refused := _refusal(status)):
        raise refused
    in_sync = status.get("in-sync")
    if not isinstance(in_sync, bool):
        raise ValueError(f"the answer has in-sync {in_sync!r}")
    if not in_sync:
        return None
    version = status.get("model-version")
    if model_version is not None and (
        type(version) is not int or version != model_version
    ):
        raise ValueError(f"the answer is for model version {version!r}")
    arrays = reply.arrays or []
    data = status.get("numbers", b"")
    if not isinstance(data, bytes) or len(data) % 8:
        raise ValueError("the answer's numbers are not numbers of 8 bytes each")
    numbers = np.frombuffer(data, dtype="<f8") if data else _NONE
    norm = moderate_norm(arrays[0]) if len(arrays) == 1 else None
    for array in () if norm is not None else arrays:
        _check_moderate(array)
    if data:
        _check_moderate(numbers)
    metrics = dict(reply.metrics)
    return Answer(client, arrays, metrics, numbers, model_version, server_round, norm)


def _check_moderate(array: NDArray[Any]) -> None:
    if not is_moderate(array):
        raise ValueError(
            f"the answer is not finite, or has numbers beyond ±{LARGEST:g}"
        )


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
