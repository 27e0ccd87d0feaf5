"""What pseudonyms without a common key cost, beside a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fedtrellis.encryption.intersection import (
    POINT_BYTES,
    PSEUDONYM_BYTES,
    ByteArray,
    blind,
    evaluate,
    pseudonyms,
    scalar_from,
    unblind,
)

from .report import Comparison, Row, Spread

__all__ = ["FULL", "QUICK", "Case", "compare"]

_KEYED = "HMAC under a common key"
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Case:
    """How much is measured.

    Parameters
    ----------
    repetitions : int
        All steps in turn, so many times.
    ids : int
        Samples of one client.
    """

    repetitions: int
    ids: int


QUICK = Case(2, 2_000)
FULL = Case(3, 100_000)


class _Clock:
    """Processor seconds of each step, repetition by repetition."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, step: str, action: Callable[[], _Result]) -> _Result:
        start = time.process_time()
        result = action()
        self.seconds.setdefault(step, []).append(time.process_time() - start)
        return result


def _keyed_hashes(ids: list[str], key: bytes) -> list[bytes]:
    return [
        hmac.digest(key, name.encode(), hashlib.sha256)[:PSEUDONYM_BYTES]
        for name in ids
    ]


def compare(case: Case) -> Comparison:
    """One row a step of one client, or of an evaluator for one client."""
    result = Comparison(
        "intersection",
        f"Pseudonyms of {case.ids:,} samples",
        "Processor time of one core (threads do not help). Blinding, unblinding and "
        "hashing are a client's for its own ids, unblinding for each of the two "
        "evaluators; an evaluator evaluates for every client. All numbers are for one "
        "client's ids.",
    )
    ids = [f"patient {i}" for i in range(case.ids)]
    own, *others = (scalar_from(bytes([i]) * 32) for i in range(3))
    clock = _Clock()
    for _ in range(case.repetitions):
        clock(_KEYED, partial(_keyed_hashes, ids, bytes(32)))
        sent = clock("blind", partial(blind, ids, own, "samples"))
        outputs: list[ByteArray] = []
        for other in others:
            answer = clock("evaluate", partial(evaluate, sent, other))
            outputs.append(clock("unblind", partial(unblind, answer, own)))
        clock("pseudonyms", partial(pseudonyms, *outputs))
    sizes = {"blind": 2 * POINT_BYTES, "evaluate": POINT_BYTES}
    sizes |= {_KEYED: PSEUDONYM_BYTES, "pseudonyms": PSEUDONYM_BYTES}
    for step, seconds in clock.seconds.items():
        row: Row = {
            "step": step,
            "for all ids": Spread(tuple(seconds), "s"),
            "an id": Spread(tuple(value / case.ids for value in seconds), "ms"),
        }
        if step in sizes:
            row["bytes an id sent"] = sizes[step]
        result.rows.append(row)
    return result
