"""How a run goes, for people and for machines: a bar, a line a round, JSON."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from logging import INFO
from typing import Any, TextIO

from flwr.serverapp.strategy import Result

from fedtrellis.server.callbacks import (
    CRITERIA,
    QUALITIES,
    Callback,
    RoundRecord,
    format_bytes,
    listed,
    shortened,
)
from fedtrellis.server.records import how_it_ended, summarise
from fedtrellis.wire.exchange import NO_ANSWER
from fedtrellis.wire.flower_internals import LOGGER_NAME, ConsoleHandler, log

__all__ = [
    "LOG_FORMATS",
    "JsonLines",
    "Progress",
    "json_log",
    "print_json",
    "settle_colours",
]

LOG_FORMATS = ("text", "json")

# Reasons that a line of the log names; the history has all.
_NAMED = 5


def why_dropped(rejected: Sequence[tuple[str, str]]) -> str:
    """A round's dropped answers on one line: whose they were, reason by reason."""
    clients: dict[str, list[str]] = defaultdict(list)
    for who, reason in rejected:
        clients[shortened(reason)].append(who)
    parts = [f"client {listed(names)}: {reason}" for reason, names in clients.items()]
    return "; ".join([*parts[:_NAMED], *(["..."] if len(parts) > _NAMED else [])])


class Progress(Callback):
    """Loss, bytes and time left: a live bar on a terminal, a line a round elsewhere.

    Where there is no terminal each round is a line of the log, with the clients whose
    answers were dropped and why, and the totals end the run. A run of many rounds has
    at most one line a second: deployed, where a round takes seconds, that is still
    every round, and 10 000 quick ones do not fill a screen each.

    Parameters
    ----------
    lines : int
        Runs of up to this many rounds have a line for every round, however quick.
    console : rich.console.Console, optional
        Where to draw; by default the standard output.

    Examples
    --------
    >>> from fedtrellis import Progress
    >>> callback = Progress(lines=100)
    """

    tells_of_rounds = True

    def __init__(self, lines: int = 1000, console: Any = None) -> None:
        self.lines, self._console = lines, console
        self._bar: Any = None

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Start the bar, if there is a terminal to draw it on."""
        # rich takes a while to load
        from rich import progress
        from rich.console import Console

        # a resumed run's rounds so far count
        self._up = sum(record.bytes_up for record in strategy.history)
        self._down = sum(record.bytes_down for record in strategy.history)
        self._last: dict[str, tuple[float, int]] = {}  # a metric, and of which round
        self._began, self._first, self._total = time.time(), first_round, num_rounds
        self._logged = -math.inf
        console = self._console or Console()
        if not console.is_terminal:
            return
        self._bar = progress.Progress(
            *("round", progress.MofNCompleteColumn(), progress.BarColumn(24)),
            *("{task.fields[text]}", progress.TimeElapsedColumn()),
            *("left", progress.TimeRemainingColumn()),
            console=console,
        )
        done = first_round - 1
        self._task = self._bar.add_task("", total=num_rounds, completed=done, text="")
        self._bar.start()

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Draw or log."""
        self._up += record.bytes_up
        self._down += record.bytes_down
        self._last |= {name: (v, record.round) for name, v in record.metrics.items()}
        now, number = time.time(), record.round
        if self._bar is not None:
            shown = self._shown(number, older=True)
            if record.rejected:
                shown.append(f"{len(record.rejected)} dropped")
            self._bar.update(self._task, completed=number, text="  ".join(shown))
        elif (
            self._total <= self.lines
            or number in (0, 1, self._total)
            or now - self._logged >= 1.0
        ):
            self._logged = now
            log(INFO, "%s", "  ".join(self._parts(record, now)))

    def _shown(self, server_round: int, older: bool) -> list[str]:
        """A round's metrics; on request older ones too, and which round they are of."""
        shown = []
        for name in (*CRITERIA, *QUALITIES):
            value, of = self._last.get(name, (math.nan, -1))
            if of == server_round:
                shown.append(f"{name} {value:.4g}")
            elif older and of >= 0:
                shown.append(f"{name} {value:.4g} (round {of})")
        return [*shown, f"↑ {format_bytes(self._up)} ↓ {format_bytes(self._down)}"]

    def _parts(self, record: RoundRecord, now: float) -> list[str]:
        """What a round's line says."""
        parts = self._shown(record.round, older=False)
        if record.round:
            parts.insert(0, f"{record.used} of {record.sampled} used")
            parts.append(f"{record.seconds:.2f} s")
        if (done := record.round - self._first + 1) > 0:
            rest = (now - self._began) / done * (self._total - record.round)
            parts.append(f"{rest:.0f} s left")
        if dropped := record.rejected:
            parts.append(f"{len(dropped)} dropped ({why_dropped(dropped)})")
        return [f"round {record.round}/{self._total}", *parts]

    def on_end(self, strategy: Any, result: Result) -> None:
        """Log the totals; leave the bar as it is."""
        self._finish(strategy)

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """Log the totals so far; leave the terminal in order."""
        self._finish(strategy)

    def _finish(self, strategy: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            return
        totals = summarise(strategy.history)
        reasons = dict(totals["rejected_by_reason"])
        lost = reasons.pop(NO_ANSWER, 0)
        refused = f"{totals['rejected'] - lost} rejected"
        if reasons:
            counts = [f"{shortened(why)}: {n}" for why, n in reasons.items()]
            refused += f" ({'; '.join(counts[:_NAMED])})"
        up, down = format_bytes(totals["bytes_up"]), format_bytes(totals["bytes_down"])
        line = "total: {rounds} rounds  {used} of {sampled} used".format_map(totals)
        moved = f"↑ {up} ↓ {down}  {totals['seconds']:.2f} s"
        log(INFO, "%s", f"{line}  {lost} lost  {refused}  {moved}")


# ----------------------------------------------------------------------------- JSON


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _to_json(event: str, fields: Mapping[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"event": event, "time": now, **fields}
    # JSON has no NaN and no infinities: null instead
    plain = json.loads(
        json.dumps(line, default=_plain), parse_constant=lambda name: None
    )
    return json.dumps(plain, ensure_ascii=False)


def print_json(event: str, file: TextIO | None = None, **fields: Any) -> None:
    """Print one event as one line of JSON, to the standard output by default."""
    # one write: under flwr run others write to the same log
    print(_to_json(event, fields) + "\n", end="", file=file, flush=True)


class JsonLines(Callback):
    """Prints a JSON object a line: ``start``, ``round`` for every round, ``end``.

    =========== ======================================================================
    ``start``   ``strategy``, ``clients``, ``first_round``, ``rounds``
    ``round``   ``round``, ``rounds``, ``seconds``, ``sampled``, ``used``,
                ``rejected`` (a list of ``client`` and ``reason``), ``bytes_up``,
                ``bytes_down``, ``round_trips``, ``metrics``
    ``end``     ``status`` (completed, interrupted or failed), ``error`` if it did not
                complete, ``rounds``, ``metrics`` (the last of each), ``sampled``,
                ``used``, ``rejected``, ``rejected_by_reason``, ``bytes_up``,
                ``bytes_down``, ``seconds``
    =========== ======================================================================

    Each has its ``event`` and the ``time`` (ISO 8601, UTC); a number that is not
    finite is null.

    Parameters
    ----------
    start, end : mapping, optional
        More fields of the first and of the last object; what ``end`` holds when the
        run ends counts.

    Examples
    --------
    >>> from fedtrellis import JsonLines
    >>> callback = JsonLines(start={'experiment': 'a'})
    """

    tells_of_rounds = True

    def __init__(
        self,
        start: Mapping[str, Any] | None = None,
        end: Mapping[str, Any] | None = None,
    ) -> None:
        self.start, self.end = start or {}, {} if end is None else end

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Print ``start``."""
        self._rounds = num_rounds
        print_json(
            "start",
            strategy=type(strategy).__name__,
            clients=strategy.num_clients,
            first_round=first_round,
            rounds=num_rounds,
            **self.start,
        )

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Print ``round``; round 0 is the model that the run starts from."""
        fields = record.to_dict()
        for kind in ("train", "client_evaluation", "evaluation"):
            del fields[kind]
        fields["rejected"] = [{"client": w, "reason": y} for w, y in record.rejected]
        print_json("round", rounds=self._rounds, **fields, metrics=record.metrics)

    def on_end(self, strategy: Any, result: Result) -> None:
        """Print ``end``."""
        print_json("end", status="completed", **summarise(strategy.history), **self.end)

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """Print ``end`` with what went wrong."""
        status, message = how_it_ended(error), f"{type(error).__name__}: {error}"
        totals = summarise(strategy.history)
        print_json("end", status=status, error=message, **totals, **self.end)


def _consoles() -> list[ConsoleHandler]:
    """Flower's own handlers of its log."""
    handlers = logging.getLogger(LOGGER_NAME).handlers
    return [handler for handler in handlers if isinstance(handler, ConsoleHandler)]


def settle_colours() -> None:
    """Flower's log lines have colours on a terminal only, and not under NO_COLOR."""
    for handler in _consoles():
        wanted = handler.stream.isatty() and not os.environ.get("NO_COLOR")
        handler.colored = wanted


@contextmanager
def json_log() -> Iterator[None]:
    """Make Flower's log lines in this process JSON objects too, with event ``log``."""

    def as_json(record: logging.LogRecord) -> str:
        fields = {"level": record.levelname, "message": record.getMessage().strip()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        return _to_json("log", fields)

    consoles = _consoles()
    for handler in consoles:
        # Flower's handler does its own formatting and takes no Formatter; the stream
        # it writes to changes over time, so the handler has to stay
        handler.format = as_json  # type: ignore[method-assign]
    try:
        yield
    finally:
        for handler in consoles:
            del handler.format
