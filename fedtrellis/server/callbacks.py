"""A round's record, and the callbacks that get it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from flwr.serverapp.strategy import Result

__all__ = ["Callback", "EarlyStop", "RoundRecord", "format_bytes"]

#: What shows best how far a run has come, with and without a constraint, in order.
CRITERIA = (
    *("loss", "gap", "squared-gradient-norm", "gradient-map-norm"),
    "duality-gap",
)
#: Tasks' own measures that are worth a place in a line or a picture.
QUALITIES = ("accuracy", "rmse", "assignment-cost", "optimality-gap", "misclassified")


@dataclass
class RoundRecord:
    """All of one round.

    Attributes
    ----------
    round : int
        From 1; 0 is the model the run started from.
    sampled, used : int
        Clients asked (those of ``strategy.sample(round)``), and answers used.
    rejected : list of (str, str)
        Who was dropped, and why.
    bytes_up, bytes_down : int
        Of all the round's messages as encoded, to the server and to the clients;
        round 1 has those of the introduction too.
    seconds : float
        Wall time, without the evaluation on the server.
    train, client_evaluation, evaluation : dict
        Metrics of the method, of the clients' own data, and of ``evaluate_fn``.
    round_trips : int
        Waves of messages that the round took, those after losses included.

    Examples
    --------
    >>> from fedtrellis import RoundRecord
    >>> RoundRecord(round=3, train={'loss': 2.0}, evaluation={'gap': 0.5}).metrics
    {'loss': 2.0, 'gap': 0.5}
    """

    round: int
    sampled: int = 0
    used: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    train: dict[str, float] = field(default_factory=dict)
    client_evaluation: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    round_trips: int = 1

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics; where names are equal, ``evaluate_fn``'s count."""
        return {**self.train, **self.client_evaluation, **self.evaluation}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for one line of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RoundRecord:
        """Inverse of :meth:`to_dict`, after JSON; TypeError if it is something else."""
        record = cls(**data)
        record.rejected = [(who, why) for who, why in record.rejected]
        return record


class Callback:
    """Base class; every method may be left as it is.

    ``strategy`` is the run's :class:`~fedtrellis.LoopStrategy`.

    Attributes
    ----------
    tells_of_rounds : bool
        Whether it shows or logs each round itself, so that the run need not.

    Examples
    --------
    >>> from fedtrellis import Callback, RoundRecord
    >>> class Counter(Callback):
    ...     rounds = 0
    ...     def on_round(self, strategy, record):
    ...         self.rounds += 1
    >>> counter = Counter()
    >>> counter.on_round(None, RoundRecord(round=1))
    >>> counter.rounds
    1
    """

    tells_of_rounds: ClassVar[bool] = False

    def on_meeting(self, strategy: Any) -> None:
        """When it is known who the clients are, before anything is made of them."""

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Before the first round; ``first_round`` is above 1 in a resumed run."""

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """After a round (and after the evaluation of round 0); True stops the run."""
        return None

    def on_end(self, strategy: Any, result: Result) -> None:
        """After the last round."""

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """When the run ends with an error, which is raised afterwards."""


#: The callbacks of :func:`observed_by` around this line.
observers: ContextVar[tuple[Callback, ...]] = ContextVar("observers", default=())


@contextmanager
def observed_by(callback: Callback) -> Iterator[None]:
    """Give a callback to every strategy that is made inside, after its own."""
    token = observers.set((*observers.get(), callback))
    try:
        yield
    finally:
        observers.reset(token)


class EarlyStop(Callback):
    """Stop as soon as a metric is small enough.

    Parameters
    ----------
    metric : str
        Such as ``"gap"`` or ``"loss"``.
    tolerance : float
        The run stops when the metric is at most this.

    Examples
    --------
    >>> from fedtrellis import EarlyStop, RoundRecord
    >>> stop = EarlyStop('gap', 1e-3)
    >>> stop.on_round(None, RoundRecord(round=5, train={'gap': 1e-4}))
    True
    """

    def __init__(self, metric: str, tolerance: float) -> None:
        if not math.isfinite(tolerance):
            raise ValueError(f"tolerance = {tolerance} must be finite")
        self.metric = metric
        self.tolerance = tolerance

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """Compare; a round without the metric goes on."""
        value = record.metrics.get(self.metric, math.inf)
        return record.round > 0 and value <= self.tolerance


def format_bytes(count: float) -> str:
    """A number of bytes as people read it: 999 B, 1.5 kB, 20.1 MB."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if abs(count) < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def shortened(text: str, length: int = 80) -> str:
    """A text on one line; of a long one the end, where an error names its cause."""
    line = " ".join(text.split())
    return line if len(line) <= length else "…" + line[1 - length :]


def listed(names: Sequence[str], length: int = 5) -> str:
    """The first of many names, and how many more there are."""
    rest = len(names) - length
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:length]) + more


class Call(Callback):
    """Call a function after every round; it may return True to stop the run."""

    def __init__(self, function: Callable[[RoundRecord], bool | None]) -> None:
        self.function = function

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """Call it."""
        return self.function(record)
