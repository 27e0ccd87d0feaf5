"""What differs between a recorded result and today's, and what may."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import zip_longest
from math import inf, isfinite
from typing import Any, NamedTuple

__all__ = ["ACCEPTED", "TIES", "Accepted", "Difference", "differences"]

#: By how much bytes may differ where ciphertexts are among them (SEAL compresses them,
#: and their random numbers are not ours to fix), or where another BLAS leaves other
#: last bits: what travels are the entries that changed.
BYTES = 0.01
#: On another BLAS a rounding error decides in these which vertex an oracle returns, how
#: many entries change, or grows.
TIES = (
    "hyfdca/hybrid-svm/converges",
    "fedfw/digits/in-spectral-norm-ball",
    "projected-fedavg/quadratic-assignment/as-it-is",
    "feddr/quadratic-assignment/as-it-is",
)


class Difference(NamedTuple):
    """How a part of a result differs from the one recorded.

    The size is relative: of the model see :func:`model_distance`; of a metric |a − b|
    over max(1, |a|); of counts that of the whole run's; inf if one lacks the part.
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
        "fedfw/classification/dnn-*",
        {"model": 5e-8, "metrics.gap": 1e-7},
        "last bits of float32, by the processor",
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
    loose = case.get("ciphertexts", False) or tolerance > 0.0
    before, after = _parts(case["result"]), _parts(now)
    found: list[tuple[str, str | None]] = []
    for part in dict.fromkeys((*before, *after)):
        old, new = before.get(part), after.get(part)
        if old == new or (loose and part in ("up", "down") and _close(old, new)):
            continue
        size, allowed = inf, 0.0
        if old is None or new is None:
            pass
        elif part == "model":
            size, allowed = model_distance(old, new), tolerance
        elif part.startswith("metrics."):
            size, allowed = _distance(old, new) / max(1.0, abs(old)), tolerance
        elif isinstance(old, list) and isinstance(new, list):
            # a difference all the same where only single rounds' cancel
            size = max(abs(sum(old) - sum(new)) / max(sum(old), 1), 1e-16)
        if size > allowed:
            difference, name = Difference(size, old, new), case["name"]
            reason = _reason(name, part, difference)
            found.append((f"{name}: {part}: {difference}", reason))
    return found


def _close(old: list[int] | None, new: list[int] | None) -> bool:
    """Whether the bytes of every round are the same but for :data:`BYTES`."""
    pairs = list(zip_longest(old or (), new or (), fillvalue=inf))
    return all(abs(a - b) <= BYTES * max(a, 1) < inf for a, b in pairs)


def _reason(name: str, part: str, difference: Difference) -> str | None:
    """Why a part of a case's result may differ as it does; None if it may not."""
    for entry in ACCEPTED:
        for pattern, bound in entry.bounds.items():
            if fnmatch(name, entry.cases) and fnmatch(part, pattern):
                if isinstance(bound, str):
                    within = bound in str(difference.now)
                else:
                    within = difference.size <= bound
                if within:
                    return entry.reason
    return None


def _parts(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result, with a part for each metric."""
    parts = {key: value for key, value in result.items() if key != "metrics"}
    metrics = result.get("metrics", {})
    return parts | {f"metrics.{key}": value for key, value in metrics.items()}


def _distance(old: float, new: float) -> float:
    if old == new or (old != old and new != new):
        return 0.0
    return abs(old - new) if isfinite(old) and isfinite(new) else inf


def model_distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """The largest difference of a model's arrays.

    Of norms, first entries and probes, over the norm. 0 if all bits are the same, else
    at least 1e-16.
    """
    if list(old) != list(new):
        return inf
    largest = 0.0
    for was, now in zip(old.values(), new.values(), strict=True):
        if was["shape"] != now["shape"]:
            return inf
        if was["sha256"] != now["sha256"]:
            both = ([a["norm"], *a["first"], *a["probes"]] for a in (was, now))
            apart = [_distance(a, b) for a, b in zip(*both, strict=True)]
            largest = max(largest, 1e-16, *(d / (was["norm"] or 1.0) for d in apart))
    return largest
