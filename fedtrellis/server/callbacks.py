"""A round's record, the callbacks that get it, and those that show how a run goes."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from logging import INFO
from typing import Any

from flwr.serverapp.strategy import Result

from fedtrellis.wire.exchange import RunError
from fedtrellis.wire.flower_internals import log

#: What shows best how far a run has come, with and without a constraint, in order; and
#: what the axis of a picture says.
CRITERIA = {
    "loss": "F(x̄)",
    "gap": "Frank-Wolfe gap",
    "squared-gradient-norm": "‖∇F(x)‖²",
    "gradient-map-norm": "‖G(x)‖, gradient map on the manifold",
    "duality-gap": "duality gap P(w) − D(α)",
}
#: Tasks' own measures that are worth a place in a line or a picture.
QUALITIES = ("accuracy", "rmse", "assignment-cost", "optimality-gap", "misclassified")
#: Measures of which more is better: of an attack, the images that it changes.
RISING = ("accuracy", "explained", "train-accuracy", "train-explained", "misclassified")
#: How a run ends that was not cut short: the method's own rule says that it is solved,
#: a callback stopped it, or it had all its rounds.
ENDINGS = ("converged", "stopped", "round limit")
STATUSES = ("running", *ENDINGS, "diverged", "interrupted", "failed")
# Rounds of a run of which each has a line of the log.
_ALL_LOGGED = 1000


@dataclass
class RoundRecord:
    """All of one round.

    Metrics are by name; ``rejected`` says who was dropped, and why.

    Examples
    --------
    >>> from fedtrellis import RoundRecord
    >>> RoundRecord(round=3, train={'loss': 2.0}, evaluation={'gap': 0.5}).metrics
    {'loss': 2.0, 'gap': 0.5}
    """

    #: From 1; 0 is the model that the run started from.
    round: int
    #: Clients asked (those of ``strategy.sample(round)``), and answers used.
    sampled: int = 0
    used: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)
    #: Of all the round's messages as encoded, to the server and to the clients; round 1
    #: has those of the introduction too.
    bytes_up: int = 0
    bytes_down: int = 0
    #: Wall time, without the evaluation on the server.
    seconds: float = 0.0
    #: Metrics of the method, of the clients' own data, and of ``evaluate_fn``.
    train: dict[str, float] = field(default_factory=dict)
    client_evaluation: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    #: Waves of messages that the round took, those after losses included.
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
        rejected = [(who, why) for who, why in data.get("rejected", ())]
        return cls(**{**data, "rejected": rejected})


class Callback:
    """Base class; every method may be left as it is.

    ``strategy`` is the run's :class:`~fedtrellis.LoopStrategy`.

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

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Before the first round; ``first_round`` is above 1 in a resumed run."""

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """After a round (and after the evaluation of round 0); True stops the run."""
        return None

    def on_end(self, strategy: Any, result: Result) -> None:
        """After the last round."""
        self._ended(strategy, {"status": strategy.ending})

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """When the run ends with an error, which is raised afterwards."""
        self._ended(strategy, how_it_ended(error))

    def _ended(self, strategy: Any, how: Mapping[str, str]) -> None:
        """When the run ends, whatever its status."""


class DivergedError(RunError):
    """The run's loss ended out of all proportion, or its measure did."""


def how_it_ended(error: BaseException) -> dict[str, str]:
    """The status of a run that ended with an error, and that error."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    status = "diverged" if isinstance(error, DivergedError) else status
    return {"status": status, "error": f"{type(error).__name__}: {error}"}


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
    """Stop as soon as a metric, such as ``"gap"``, is at most a finite ``tolerance``.

    ``"accuracy"`` and ``"misclassified"`` stop a run where they are at least that.

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
        self.metric, self.tolerance = metric, tolerance

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """Compare; a round without the metric goes on."""
        sign = -1.0 if self.metric in RISING else 1.0
        value = sign * record.metrics.get(self.metric, sign * math.inf)
        return record.round > 0 and value <= sign * self.tolerance


class Call(Callback):
    """Call a function after every round; it may return True to stop the run."""

    def __init__(self, function: Callable[[RoundRecord], bool | None]) -> None:
        self.function = function

    def on_round(self, strategy: Any, record: RoundRecord) -> bool | None:
        """Call it."""
        return self.function(record)


# ------------------------------------------------------------------- as people read it


def format_bytes(count: float) -> str:
    """A number of bytes as people read it: 999 B, 1.5 kB, 20.1 MB."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1)):
        if abs(round(count, digits)) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def summarise(history: Sequence[RoundRecord]) -> dict[str, Any]:
    """Totals and last metrics of a history."""
    metrics: dict[str, float] = {}
    for record in history:
        metrics.update(record.metrics)
    reasons = Counter(reason for record in history for _, reason in record.rejected)
    added = ("bytes_up", "bytes_down", "seconds", "sampled", "used")
    return {
        "rounds": history[-1].round if history else 0,
        "metrics": metrics,
        **{name: sum(getattr(record, name) for record in history) for name in added},
        "rejected": reasons.total(),
        "rejected_by_reason": dict(reasons.most_common()),
    }


def in_a_line(history: Sequence[RoundRecord]) -> str:
    """The totals and last metrics that end a run, as people read them."""
    total = summarise(history)
    up, down = format_bytes(total["bytes_up"]), format_bytes(total["bytes_down"])
    shown = [f"rounds {total['rounds']}"]
    shown += [f"{name} {value:.6g}" for name, value in total["metrics"].items()]
    shown += [f"↑ {up} ↓ {down}", f"{total['seconds']:.2f} s"]
    shown.append(f"{total['used']} of {total['sampled']} used")
    if reasons := total["rejected_by_reason"]:
        shown.append(f"{total['rejected']} dropped, most often: {next(iter(reasons))}")
    return "  ".join(shown)


class Progress(Callback):
    """Logs a line a round, and the totals in the end.

    Of a run of more than 1 000 rounds at most one a second. A run with neither this
    callback nor :class:`JsonLines` has one of these.

    Examples
    --------
    >>> from fedtrellis import Progress
    >>> callback = Progress()
    """

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Begin to count."""
        # a resumed run's rounds so far count
        total = summarise(strategy.history)
        self._up, self._down = total["bytes_up"], total["bytes_down"]
        self._began, self._first, self._total = time.time(), first_round, num_rounds
        self._logged = -math.inf

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Log a line."""
        self._up += record.bytes_up
        self._down += record.bytes_down
        now, number = time.time(), record.round
        often = self._total <= _ALL_LOGGED or number in (0, 1, self._total)
        if not often and now - self._logged < 1.0:
            return
        self._logged = now
        parts = [f"{record.used} of {record.sampled} used"] if number else []
        known = [n for n in (*CRITERIA, *QUALITIES) if n in record.metrics]
        parts += [f"{name} {record.metrics[name]:.4g}" for name in known]
        parts.append(f"↑ {format_bytes(self._up)} ↓ {format_bytes(self._down)}")
        parts += [f"{record.seconds:.2f} s"] if number else []
        if (done := number - self._first + 1) > 0:
            rest = (now - self._began) / done * (self._total - number)
            parts.append(f"{rest:.0f} s left")
        parts += [f"{len(record.rejected)} dropped"] if record.rejected else []
        log(INFO, "round %d/%d  %s", number, self._total, "  ".join(parts))

    def _ended(self, strategy: Any, how: Mapping[str, str]) -> None:
        log(INFO, "total: %s", in_a_line(strategy.history))


# ------------------------------------------------------------------ as machines read it


class JsonLines(Callback):
    """Prints a JSON object a line: ``start``, ``round`` for every round, ``end``.

    They go to the standard output; Flower's log goes to the standard error.

    =========== ======================================================================
    ``start``   ``strategy``, ``clients``, ``first_round``, ``rounds``
    ``round``   ``round``, ``rounds``, ``seconds``, ``sampled``, ``used``,
                ``rejected`` (a list of ``client`` and ``reason``), ``bytes_up``,
                ``bytes_down``, ``round_trips``, ``metrics``
    ``end``     ``status`` (one of :data:`STATUSES`), ``error`` if one ended it,
                ``rounds``, ``metrics`` (the last of each), ``sampled``, ``used``,
                ``rejected``, ``rejected_by_reason``, ``bytes_up``, ``bytes_down``,
                ``seconds``
    =========== ======================================================================

    Each has its ``event`` and the ``time`` (ISO 8601, UTC); a number that is not
    finite is null. The mappings ``start`` and ``end`` are more fields of the first and
    of the last object; what ``end`` holds when the run ends counts.

    Examples
    --------
    >>> from fedtrellis import JsonLines
    >>> callback = JsonLines(start={'experiment': 'a'})
    """

    def __init__(
        self,
        start: Mapping[str, Any] | None = None,
        end: Mapping[str, Any] | None = None,
    ) -> None:
        self.start, self.end = start or {}, {} if end is None else end

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Print ``start``."""
        self._rounds = num_rounds
        name, n = type(strategy).__name__, strategy.num_clients
        what = {"first_round": first_round, "rounds": num_rounds, **self.start}
        _print_json("start", {"strategy": name, "clients": n, **what})

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Print ``round``; round 0 is the model that the run starts from."""
        fields = record.to_dict()
        for kind in ("train", "client_evaluation", "evaluation"):
            del fields[kind]
        fields["rejected"] = [{"client": w, "reason": y} for w, y in record.rejected]
        fields |= {"rounds": self._rounds, "metrics": record.metrics}
        _print_json("round", fields)

    def _ended(self, strategy: Any, how: Mapping[str, str]) -> None:
        _print_json("end", {**how, **summarise(strategy.history), **self.end})


def _print_json(event: str, fields: Mapping[str, Any]) -> None:
    """Print one event as one line of JSON, to the standard output."""

    def plain(value: Any) -> Any:
        return dict(value) if isinstance(value, Mapping) else str(value)

    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    text = json.dumps({"event": event, "time": now, **fields}, default=plain)
    # JSON has no NaN and no infinities: null instead
    finite = json.loads(text, parse_constant=lambda name: None)
    # one write: under flwr run others write to the same log
    print(json.dumps(finite, ensure_ascii=False) + "\n", end="", flush=True)
