"""A file that Prometheus collects."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrellis.trackers.base import ROUND_VALUES, Tracker, round_values

if TYPE_CHECKING:
    from fedtrellis.server.loop import LoopStrategy

__all__ = ["OpenMetrics"]


class OpenMetrics(Tracker):
    """A file that Prometheus collects, replaced in one step after every round.

    Point the textfile collector of a node exporter at its folder (the name must end
    with ``.prom``), or serve it. It has the round and the rounds planned, the totals of
    bytes, of answers used and dropped, the last value of each metric, when the last
    round ended, and the run's status.

    Parameters
    ----------
    path : path
        The file; its folder has to be there.
    labels : mapping, optional
        Of every sample, such as ``{"run": "nightly"}``.

    Examples
    --------
    >>> from fedtrellis.trackers import OpenMetrics
    >>> callback = OpenMetrics("/var/lib/node_exporter/run.prom")      # doctest: +SKIP
    """

    name, library, extra = "openmetrics", "prometheus_client", "metrics"

    def __init__(
        self, path: str | Path, labels: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.path, self.labels = Path(path), dict(labels or {})

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Begin to count, in a resumed run with the rounds so far."""
        super().on_start(strategy, first_round, num_rounds)
        for record in strategy.history:
            self._tell(self.write, record.round, round_values(record))

    def open(self, settings: Mapping[str, Any]) -> None:
        """The first file says that the run is running."""
        self._labels = {**self.labels, "strategy": str(settings["strategy"])}
        self._last: dict[str, float] = {}
        self._sums = dict.fromkeys(ROUND_VALUES, 0.0)
        self._round = 0
        self._save("running")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the round to the totals."""
        self._round = step
        for name, value in values.items():
            if name in self._sums:
                self._sums[name] += value
            else:
                self._last[name] = value
        self._save("running")

    def close(self, status: str) -> None:
        """Write how it ended."""
        self._save(status)

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names, values = list(self._labels), list(self._labels.values())

        def family(kind: Any, name: str, told: str, *keys: str) -> Any:
            return kind(f"fedtrellis_{name}", told, labels=[*names, *keys])

        def one(name: str, told: str, value: float) -> Any:
            gauge = family(GaugeMetricFamily, name, told)
            gauge.add_metric(values, value)
            return gauge

        yield one("round", "The last finished round.", self._round)
        yield one("rounds_planned", "Rounds planned.", self._planned)
        yield one("last_round_timestamp_seconds", "When it ended.", time.time())
        counts = (
            ("bytes", "Bytes of messages.", "direction", ("up", "down"), "bytes-{}"),
            ("answers", "Clients' answers.", "fate", ("used", "dropped"), "{}"),
        )
        for name, told, key, kinds, pattern in counts:
            counter = family(CounterMetricFamily, name, told, key)
            for kind in kinds:
                total = self._sums[f"round/{pattern.format(kind)}"]
                counter.add_metric([*values, kind], total)
            yield counter
        metric = family(GaugeMetricFamily, "metric", "The last value.", "name")
        for name, value in self._last.items():
            metric.add_metric([*values, name], value)
        yield metric
        status = family(GaugeMetricFamily, "run_status", "1: it is this.", "status")
        for name in ("running", "completed", "interrupted", "failed"):
            status.add_metric([*values, name], float(name == self._status))
        yield status

    def _save(self, status: str) -> None:
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics import exposition

        self._status = status
        registry = CollectorRegistry()
        registry.register(self)
        part = self.path.with_name(f".{self.path.name}.part")
        latest: Any = exposition.generate_latest
        part.write_bytes(latest(registry))
        os.replace(part, self.path)
