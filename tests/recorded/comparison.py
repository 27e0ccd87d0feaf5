"""What differs between a recorded result and today's, and what may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from math import inf, isfinite
from typing import Any, NamedTuple

__all__ = ["ACCEPTED", "TIES", "Accepted", "Difference", "differences"]

#: By how much bytes may differ where ciphertexts are among them (SEAL compresses them,
#: and their random numbers are not ours to fix), or where another BLAS leaves other
#: last bits: what travels are the entries that changed.
BYTES = 0.01
#: On another BLAS a rounding error decides in these which vertex an oracle returns, or
#: how many entries change.
TIES = (
    "fedfw/digits/in-spectral-norm-ball",
    "fedfw/digits/outer-linf-ball",
    "projected-fedavg/quadratic-assignment/as-it-is",
    "feddr/quadratic-assignment/as-it-is",
)


class Difference(NamedTuple):
    """How a part of a result differs from the one recorded.

    Attributes
    ----------
    size : float
        Relative: of the model see :func:`model_distance`; of a metric |a − b| over
        max(1, |a|); of bytes and counts that of the whole run's. inf where one of both
        lacks the part or they cannot be compared.
    was, now : object
        What was recorded, and today's.
    """

    size: float
    was: Any
    now: Any

    def __str__(self) -> str:
        if isinstance(self.was, dict) and isfinite(self.size):
            return f"differs by {self.size:.1e}"
        return f"was {self.was!r}, is {self.now!r}"


class Accepted(NamedTuple):
    """Why some runs are no longer as they were, and by how much at most."""

    cases: str
    bounds: Mapping[str, float | str]
    reason: str


#: What was changed on purpose since the table was recorded; the bounds are what was
#: measured, rounded up.
ACCEPTED: list[Accepted] = [
    Accepted(
        "hyfdca/*/encrypted-practical",
        {"metrics.*": 20.0},
        "it diverges, and ends at whatever the ciphertexts' random numbers lead to",
    ),
    *(
        Accepted(f"*/logistic-regression/{case}", {"error": "1.csv"}, "pandas' words")
        for case in ("no-number", "short-row", "empty")
    ),
]


def differences(
    case: Mapping[str, Any], now: Mapping[str, Any], tolerance: float = 0.0
) -> list[tuple[str, str | None]]:
    """What is not as it was, and why it may be otherwise; None if it may not."""
    found = compare(case["result"], now, tolerance, case.get("ciphertexts", False))
    return [
        (
            f"{case['name']}: {part}: {difference}",
            _reason(case["name"], part, difference),
        )
        for part, difference in found.items()
    ]


def compare(
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    tolerance: float,
    ciphertexts: bool,
) -> dict[str, Difference]:
    """By part what differs between two results, by more than a tolerance."""
    loose = ciphertexts or tolerance > 0.0
    before, after = _parts(was), _parts(now)
    found = {}
    for part in dict.fromkeys((*before, *after)):
        old, new = before.get(part), after.get(part)
        if old == new:
            continue
        allowed = 0.0
        if old is None or new is None:
            size = inf
        elif part == "model":
            size, allowed = model_distance(old, new), tolerance
        elif part.startswith("metrics."):
            size, allowed = _distance(old, new), tolerance
        elif part in ("up", "down") and loose and _close(old, new):
            continue
        elif isinstance(old, list) and isinstance(new, list):
            # a difference all the same where only single rounds' cancel
            size = max(abs(sum(old) - sum(new)) / max(sum(old), 1), 1e-16)
        else:
            size = inf
        if size > allowed:
            found[part] = Difference(size, old, new)
    return found


def _close(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether the bytes of every round are the same but for :data:`BYTES`."""
    pairs = zip(old, new, strict=False)
    return len(old) == len(new) and all(
        abs(a - b) <= BYTES * max(a, 1) for a, b in pairs
    )


def _reason(name: str, part: str, difference: Difference) -> str | None:
    """Why a part of a case's result may differ as it does; None if it may not."""
    return next(
        (
            entry.reason
            for entry in ACCEPTED
            if fnmatch(name, entry.cases)
            for pattern, bound in entry.bounds.items()
            if fnmatch(part, pattern) and _within(difference, bound)
        ),
        None,
    )


def _within(difference: Difference, bound: float | str) -> bool:
    if isinstance(bound, str):
        return bound in str(difference.now)
    return difference.size <= bound


def _parts(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result, with a part for each metric."""
    parts = {key: value for key, value in result.items() if key != "metrics"}
    metrics = result.get("metrics", {})
    return parts | {f"metrics.{key}": value for key, value in metrics.items()}


def _distance(old: float, new: float) -> float:
    """|a − b|, relative where the numbers are above 1."""
    if old == new or (old != old and new != new):
        return 0.0
    if not (isfinite(old) and isfinite(new)):
        return inf
    return abs(old - new) / max(1.0, abs(old))


def model_distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """The largest difference of a model's arrays.

    Of norms, first entries and probes, over the norm. 0 if all bits are the same, else
    at least 1e-16.
    """
    if list(old) != list(new):
        return inf
    largest = 0.0
    for name, was in old.items():
        now = new[name]
        if was["sha256"] == now["sha256"]:
            continue
        if was["shape"] != now["shape"]:
            return inf
        largest = max(largest, 1e-16)
        scale = was["norm"] or 1.0
        for key in ("norm", "first", "probes"):
            before, after = was[key], now[key]
            before = before if isinstance(before, list) else [before]
            after = after if isinstance(after, list) else [after]
            for a, b in zip(before, after, strict=True):
                largest = max(largest, abs(a - b) / scale if a == a and b == b else inf)
    return largest
