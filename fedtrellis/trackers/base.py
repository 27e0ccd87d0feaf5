"""What all trackers share: a run's numbers by name, and what a failing tool costs."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from logging import WARNING
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.serverapp.strategy import Result

from fedtrellis.extras import need
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.records import how_it_ended
from fedtrellis.settings import AUTO, SettingsError
from fedtrellis.wire.flower_internals import log

if TYPE_CHECKING:
    from fedtrellis.server.loop import LoopStrategy

__all__ = ["ROUND_VALUES", "Tracker", "round_values"]

#: What of a round is told beside its metrics, by name.
ROUND_VALUES: dict[str, Callable[[RoundRecord], float]] = {
    "round/sampled": lambda record: record.sampled,
    "round/used": lambda record: record.used,
    "round/dropped": lambda record: len(record.rejected),
    "round/bytes-up": lambda record: record.bytes_up,
    "round/bytes-down": lambda record: record.bytes_down,
    "round/seconds": lambda record: record.seconds,
}


def round_values(record: RoundRecord) -> dict[str, float]:
    """A round's finite numbers by name."""
    found = dict(record.metrics)
    # round 0 is the start's evaluation: nobody was asked anything
    if record.round:
        found |= {name: value(record) for name, value in ROUND_VALUES.items()}
    return {name: float(v) for name, v in found.items() if math.isfinite(v)}


def settings_of(strategy: LoopStrategy) -> dict[str, Any]:
    """What a strategy's log begins with, under the names of run configs."""
    return {
        field.name.replace("_", "-"): AUTO if value is None else value
        for field in dataclasses.fields(strategy)
        if field.metadata.get("shown", "help" in field.metadata)
        for value in [getattr(strategy, field.name)]
    }


class Tracker(Callback):
    """Base class: one run told to one tool.

    A subclass has ``name`` (of run configs), ``library`` (what it imports) and
    ``extra`` (what installs it), and the three methods below.

    Raises
    ------
    SettingsError
        When it is made: the library is not installed. When a run starts: the tool
        cannot be written to.

    Examples
    --------
    A tool of your own:

    >>> from fedtrellis import RoundRecord
    >>> from fedtrellis.trackers import Tracker
    >>> class Printed(Tracker):
    ...     name = library = extra = "json"
    ...     def open(self, settings): ...
    ...     def write(self, step, values): print(step, values)
    ...     def close(self, status): ...
    >>> Printed().on_round(None, RoundRecord(round=0, evaluation={"loss": 0.5}))
    0 {'loss': 0.5}
    """

    name: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str]

    def __init__(self) -> None:
        need(self.library, type(self).__name__, self.extra)
        self._broken = False
        self._planned = 0

    @abstractmethod
    def open(self, settings: Mapping[str, Any]) -> None:
        """Begin a run; ``settings`` are the strategy's, by name."""

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Tell a round, ``step``, by its finite numbers."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run: ``completed``, ``interrupted`` or ``failed``."""

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Open it."""
        self._planned = num_rounds
        settings = {"strategy": type(strategy).__name__, **settings_of(strategy)}
        try:
            self.open(settings)
        except Exception as error:
            raise SettingsError(
                f"{type(self).__name__} cannot start: {error}"
            ) from error

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool | None:
        """Write the round."""
        self._tell(self.write, record.round, round_values(record))
        return None

    def on_end(self, strategy: LoopStrategy, result: Result) -> None:
        """Close it."""
        self._tell(self.close, "completed")

    def on_failure(self, strategy: LoopStrategy, error: BaseException) -> None:
        """Close it, with how the run ended."""
        self._tell(self.close, how_it_ended(error))

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it; after the first error nothing more is told, and the run goes on."""
        if self._broken:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._broken = True
            who = type(self).__name__
            log(WARNING, "%s: %s; nothing more is tracked with it", who, error)
