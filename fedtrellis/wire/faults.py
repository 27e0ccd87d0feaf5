"""What can go wrong with a message in a grid of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import array_record, record_arrays
from fedtrellis.wire.nodes import Delivery

__all__ = ["FAULTS", "Faults", "Parcel", "checked_faults", "spoilt"]

#: Probabilities, by message, of what can go wrong, and when it strikes.
FAULTS = {
    "request_loss": "the node never sees the request",
    "wipe": "the node lost all state before the request",
    "crash": "the client raises after it has written its state",
    "state_loss": "the reply arrives, but the node did not store its new state",
    "reply_loss": "the node handled the request, the reply is lost",
    "late_reply": "the reply arrives one wave too late",
    "garbage": "the reply arrives spoilt",
    "duplicate": "the reply arrives twice",
}


class Faults(TypedDict, total=False):
    """:data:`FAULTS` as keyword arguments, for editors and type checkers."""

    request_loss: float
    wipe: float
    crash: float
    state_loss: float
    reply_loss: float
    late_reply: float
    garbage: float
    duplicate: float


def checked_faults(given: Faults) -> dict[str, float]:
    """The probability of each of :data:`FAULTS`; SettingsError if one is wrong."""
    chances = cast(dict[str, float], given)
    for name, probability in chances.items():
        if name not in FAULTS:
            raise SettingsError(f"{name!r} is no fault; allowed: {', '.join(FAULTS)}")
        if not 0.0 <= probability <= 1.0:
            raise SettingsError(
                f"{name} = {probability!r} must be at least 0 and at most 1"
            )
    return {name: float(chances.get(name, 0.0)) for name in FAULTS}


@dataclass
class Parcel:
    """A message on its way, and what strikes it."""

    message: Message
    strikes: set[str] = field(default_factory=set)

    def delivery(self) -> Delivery:
        """As the node gets it."""
        return Delivery(
            self.message, "wipe" in self.strikes, "state_loss" in self.strikes
        )


def spoilt(content: RecordDict, rng: np.random.Generator) -> RecordDict:
    """An answer with one thing wrong: NaN, a cut array, no records, another round."""
    records: dict[str, Any] = {k: v.copy() for k, v in content.items()}
    status = [r for r in records.values() if isinstance(r, ConfigRecord)]
    kind = int(rng.integers(4))
    if kind == 1 and status:
        status[0]["server-round"] = 10**9
    elif kind < 2 or not any(isinstance(r, ArrayRecord) for r in records.values()):
        records = {}
    else:
        for name, record in records.items():
            if isinstance(record, ArrayRecord):
                arrays = [_broken(a, kind == 2) for a in record_arrays(record)]
                records[name] = array_record(arrays, join="joined" in record)
    return RecordDict(records)


def _broken(array: NDArray[Any], nan: bool) -> NDArray[Any]:
    if nan and array.dtype.kind == "f":
        return np.full_like(array, np.nan)
    return array.reshape(-1)[:-1]
