"""What is told of every round: the history, early stopping, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.common.logger import log
from flwr.serverapp.strategy import Result

if TYPE_CHECKING:
    from fedtrellis.loop import RoundStrategy

__all__ = ["Callback", "EarlyStop", "Progress", "RoundRecord", "format_bytes"]


#: What shows best how far a run has come, with and without a constraint, in order.
CRITERIA = (
    "loss",
    "gap",
    "squared-gradient-norm",
    "gradient-map-norm",
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
        Clients asked (``strategy.sample(round)`` says which), and answers used.
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


class Callback:
    """Base class; every method may be left as it is."""

    def on_start(
        self, strategy: RoundStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Before the first round; ``first_round`` is above 1 in a resumed run."""

    def on_round(self, strategy: RoundStrategy, record: RoundRecord) -> bool | None:
        """After a round (and after the evaluation of round 0); True stops the run."""
        return None

    def on_end(self, strategy: RoundStrategy, result: Result) -> None:
        """After the last round."""

    def on_failure(self, strategy: RoundStrategy, error: BaseException) -> None:
        """When the run ends with an error, which is raised afterwards."""


class EarlyStop(Callback):
    """Stop as soon as a metric is small enough.

    Parameters
    ----------
    metric : str
        Such as ``"gap"`` or ``"loss"``.
    tolerance : float
        The run stops when the metric is at most this.
    """

    def __init__(self, metric: str, tolerance: float) -> None:
        if not math.isfinite(tolerance):
            raise ValueError(f"tolerance = {tolerance} must be finite")
        self.metric = metric
        self.tolerance = tolerance

    def on_round(self, strategy: RoundStrategy, record: RoundRecord) -> bool | None:
        """Compare; a round without the metric goes on."""
        value = record.metrics.get(self.metric, math.inf)
        return record.round > 0 and value <= self.tolerance


def format_bytes(count: float) -> str:
    """A number of bytes as people read it: 999 B, 1.5 kB, 20.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            digits = 0 if unit == "B" else 1
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    raise AssertionError


class Progress(Callback):
    """Loss, bytes and time left: a live bar on a terminal, lines of the log elsewhere.

    Parameters
    ----------
    lines : int
        About how many lines to log where there is no terminal.
    console : rich.console.Console, optional
        Where to draw; by default the standard output.
    """

    def __init__(self, lines: int = 10, console: Any = None) -> None:
        self.lines = lines
        self._console = console
        self._live: Any = None

    def on_start(
        self, strategy: RoundStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Start the bar, if there is a terminal to draw it on."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        # a resumed run's rounds so far count
        self._up = sum(record.bytes_up for record in strategy.history)
        self._down = sum(record.bytes_down for record in strategy.history)
        self._last: dict[str, float] = {}
        self._began, self._first, self._total = time.time(), first_round, num_rounds
        self._every = max(1, num_rounds // self.lines)
        console = self._console or Console()
        if console.is_terminal:
            self._live = Bar(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
                refresh_per_second=8,
            )
            self._task = self._live.add_task(
                "", total=num_rounds, completed=first_round - 1, text=""
            )
            self._live.start()

    def on_round(self, strategy: RoundStrategy, record: RoundRecord) -> None:
        """Draw or log."""
        self._up += record.bytes_up
        self._down += record.bytes_down
        self._last.update(record.metrics)
        shown = [
            f"{name} {self._last[name]:.4g}"
            for name in (*CRITERIA, *QUALITIES)
            if name in self._last
        ]
        shown.append(f"↑ {format_bytes(self._up)} ↓ {format_bytes(self._down)}")
        if record.rejected:
            shown.append(f"{len(record.rejected)} dropped")
        if self._live is not None:
            self._live.update(self._task, completed=record.round, text="  ".join(shown))
        elif record.round in (0, 1, self._total) or record.round % self._every == 0:
            done = record.round - self._first + 1
            if done > 0:
                left = (time.time() - self._began) / done * (self._total - record.round)
                shown.append(f"{left:.0f} s left")
            log(INFO, "round %d/%d  %s", record.round, self._total, "  ".join(shown))

    def on_end(self, strategy: RoundStrategy, result: Result) -> None:
        """Leave the bar as it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_failure(self, strategy: RoundStrategy, error: BaseException) -> None:
        """Leave the terminal in order."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Call(Callback):
    """Call a function after every round; it may return True to stop the run."""

    def __init__(self, function: Callable[[RoundRecord], bool | None]) -> None:
        self.function = function

    def on_round(self, strategy: RoundStrategy, record: RoundRecord) -> bool | None:
        """Call it."""
        return self.function(record)
