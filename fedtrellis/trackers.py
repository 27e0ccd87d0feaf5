"""Rounds passed on to the tools that people watch runs with.

Each is a callback, given to a strategy or, by its name in the run config's ``track``,
to the app::

    FedFW(domain, callbacks=[TensorBoard("logs")])
    python sim.py -c 'track="tensorboard, openmetrics"'

All get the same: every metric of a round under its own name, and beside them how the
round went (``round/used``, ``round/bytes-up`` and so on). The libraries are imported
when a run starts. A tool that fails while the run goes on costs the run nothing: one
warning, and no more is tracked with it.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any, ClassVar

from fedtrellis.files import replacing
from fedtrellis.server.callbacks import STATUSES, Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import SettingsError, check_choice, need, refused
from fedtrellis.wire.flower_internals import log

__all__ = ["MLflow", "OpenMetrics", "TensorBoard", "Tracker"]


@dataclass(eq=False, repr=False)
class Tracker(Callback):
    """Base class: one run passed on to one tool.

    A subclass has ``name`` (of run configs), ``library`` (what it imports), ``extra``
    (what installs it), and the methods ``open``, ``write`` and ``close``. SettingsError
    when it is made, if the library is not installed, and when a run starts, if the tool
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

    # for a class with a constructor of its own
    _broken = False
    _planned = 0

    def __post_init__(self) -> None:
        """Look for the library."""
        need(self.library, f"track = {self.name!r}", self.extra)

    @abstractmethod
    def open(self, settings: Mapping[str, Any]) -> None:
        """Begin a run; ``settings`` are the strategy's, by name."""

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on a round, ``step``, by its finite numbers."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run, of this status, such as ``round limit`` or ``failed``."""

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Open it, with the strategy's settings under the names of run configs."""
        self._planned = num_rounds
        shown = {f.name.replace("_", "-"): v for f, v in strategy._shown()}
        try:
            self.open({"strategy": type(strategy).__name__, **shown})
        except Exception as error:
            who = type(self).__name__
            raise SettingsError(f"{who} cannot start: {error}") from error

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool | None:
        """Write the round: its metrics, and how it went."""
        values = dict(record.metrics)
        # round 0 is the start's evaluation: nobody was asked anything
        if record.round:
            values |= {
                "round/sampled": record.sampled,
                "round/used": record.used,
                "round/dropped": len(record.rejected),
                "round/bytes-up": record.bytes_up,
                "round/bytes-down": record.bytes_down,
                "round/seconds": record.seconds,
            }
        finite = {name: float(v) for name, v in values.items() if math.isfinite(v)}
        self._pass_on(self.write, record.round, finite)
        return None

    def _ended(self, strategy: LoopStrategy, how: Mapping[str, str]) -> None:
        self._pass_on(self.close, how["status"])

    def _pass_on(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it; after the first error nothing more is passed on."""
        if self._broken:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._broken = True
            who = type(self).__name__
            log(WARNING, "%s: %s; nothing more is tracked with it", who, error)


@dataclass(eq=False, repr=False)
class TensorBoard(Tracker):
    """Event files for ``tensorboard --logdir DIRECTORY``, or ``wandb sync DIRECTORY``.

    Each run needs a directory of its own.

    Examples
    --------
    >>> from fedtrellis.trackers import TensorBoard
    >>> FedFW(domain, callbacks=[TensorBoard("logs/run-1")])      # doctest: +SKIP
    """

    name, library, extra = "tensorboard", "tensorboard", "tensorboard"

    directory: str | Path

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the file."""
        from tensorboard.summary import Writer

        self._writer = Writer(str(self.directory))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar a number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


@dataclass(eq=False, repr=False)
class MLflow(Tracker):
    """A run of MLflow, with the settings as its parameters.

    ``tracking_uri`` is a server or a database; by default what ``MLFLOW_TRACKING_URI``
    says.

    Examples
    --------
    >>> from fedtrellis.trackers import MLflow
    >>> MLflow("first try", tracking_uri="sqlite:///runs.db")    # doctest: +SKIP
    """

    name, library, extra = "mlflow", "mlflow", "mlflow"

    run_name: str | None = None
    experiment: str = "fedtrellis"
    tracking_uri: str | None = None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the run; a client of its own leaves MLflow's global run alone."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self.tracking_uri)
        known = self._client.get_experiment_by_name(self.experiment)
        home = known and known.experiment_id
        home = home or self._client.create_experiment(self.experiment)
        run = self._client.create_run(home, run_name=self.run_name)
        self.run_id: str = run.info.run_id
        # a value of MLflow's has an end
        params = [Param(name, str(value)[:500]) for name, value in settings.items()]
        self._client.log_batch(self.run_id, params=params)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One request a round."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self, status: str) -> None:
        """Say how it ended."""
        ended = {"interrupted": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
        self._client.set_terminated(self.run_id, ended.get(status, "FINISHED"))


@dataclass(eq=False, repr=False)
class OpenMetrics(Tracker):
    """A file that Prometheus collects, replaced in one step after every round.

    Point the textfile collector of a node exporter at its folder (the name must end
    with ``.prom``), or let the run serve the same at ``/metrics``. It has the round and
    the rounds planned, the totals of bytes, of answers used and dropped, the last value
    of each metric, when the last round ended, and the run's status.

    Parameters
    ----------
    path : path
        The file; its folder has to be there.
    labels : mapping, optional
        Of every sample, such as ``{"run": "nightly"}``.
    port : int
        Where it is served as long as the run goes on, on this machine's own address
        127.0.0.1; 0: nowhere.

    Examples
    --------
    >>> from fedtrellis.trackers import OpenMetrics
    >>> callback = OpenMetrics("/var/lib/node_exporter/run.prom")      # doctest: +SKIP
    """

    name, library, extra = "openmetrics", "prometheus_client", "metrics"

    path: str | Path
    labels: Mapping[str, str] | None = None
    port: int = 0

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Begin to count, in a resumed run with the rounds so far."""
        super().on_start(strategy, first_round, num_rounds)
        for record in strategy.history:
            self.on_round(strategy, record)

    def open(self, settings: Mapping[str, Any]) -> None:
        """The first file says that the run is running."""
        self._labels = {**(self.labels or {}), "strategy": str(settings["strategy"])}
        from prometheus_client import CollectorRegistry

        # last values of metrics, totals of what a round took
        self._last: dict[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._round = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._server: Any = None
        self._status, self._time = "running", time.time()
        if self.port:
            from prometheus_client import start_http_server

            served = start_http_server(self.port, "127.0.0.1", self._registry)
            self._server = served[0]
        self.close("running")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the round to the totals."""
        self._round = step
        for name, value in values.items():
            if name.startswith("round/"):
                self._sums[name] += value
            else:
                self._last[name] = value
        self.close("running")

    def close(self, status: str) -> None:
        """Write the file; a run that ended is not served any more."""
        from prometheus_client.openmetrics import exposition

        self._status, self._time = status, time.time()
        latest: Any = exposition.generate_latest
        with replacing(Path(self.path)) as file:
            file.write(latest(self._registry))
        if status != "running" and self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for."""
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        def family(kind: Any, name: str, text: str, samples: Any, *key: str) -> Any:
            found = kind(f"fedtrellis_{name}", text, labels=[*self._labels, *key])
            for which, value in samples.items():
                more = [which] if key else []
                found.add_metric([*self._labels.values(), *more], value)
            return found

        yield family(Gauge, "round", "The last finished round.", {"": self._round})
        yield family(Gauge, "rounds_planned", "Rounds planned.", {"": self._planned})
        name = "last_round_timestamp_seconds"
        yield family(Gauge, name, "When it ended.", {"": self._time})
        sent = {way: self._sums[f"round/bytes-{way}"] for way in ("up", "down")}
        yield family(Counter, "bytes", "Bytes of messages.", sent, "direction")
        answers = {fate: self._sums[f"round/{fate}"] for fate in ("used", "dropped")}
        yield family(Counter, "answers", "Clients' answers.", answers, "fate")
        yield family(Gauge, "metric", "The last value.", self._last, "name")
        status = {name: float(name == self._status) for name in STATUSES}
        yield family(Gauge, "run_status", "1: it is this.", status, "status")


def make_trackers(track: str, record: Path) -> list[Tracker]:
    """The trackers that a run config's ``track`` names, with commas between.

    All but MLflow's write into the ``record``; ``openmetrics:9100`` is served at that
    port, too. SettingsError if one is not known, or its library is not installed.
    """
    known: dict[str, tuple[Any, dict[str, Any]]] = {
        "tensorboard": (TensorBoard, {"directory": record / "tensorboard"}),
        "mlflow": (MLflow, {"run_name": record.name}),
        "openmetrics": (OpenMetrics, {"path": record / "metrics.prom"}),
    }
    made = []
    for name in filter(None, map(str.strip, track.split(","))):
        name, _, port = name.partition(":")
        kind, arguments = known[check_choice("track", name, known)]
        if port:
            if kind is not OpenMetrics or not port.isdecimal():
                raise refused("track", track, "has a port that is none of openmetrics'")
            arguments = {**arguments, "port": int(port)}
        made.append(kind(**arguments))
    return made
