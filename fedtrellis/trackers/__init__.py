"""Rounds told to the tools that people watch runs with.

Each is a callback, given to a strategy or, by its name in the run config's ``track``,
to the app::

    FedFW(domain, callbacks=[TensorBoard("logs")])
    python sim.py -c 'track="tensorboard, openmetrics"'

What is told is the same everywhere: every metric of a round under its own name, and
beside them how the round went (``round/used``, ``round/bytes-up`` and so on). The
libraries are imported when a run starts. A tool that fails while the run goes on costs
the run nothing: one warning, and no more is tracked with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedtrellis.extras import need
from fedtrellis.settings import check_choice
from fedtrellis.trackers.base import Tracker
from fedtrellis.trackers.mlflow import MLflow
from fedtrellis.trackers.openmetrics import OpenMetrics
from fedtrellis.trackers.tensorboard import TensorBoard
from fedtrellis.trackers.wandb import WeightsAndBiases

__all__ = [
    "MLflow",
    "OpenMetrics",
    "TensorBoard",
    "Tracker",
    "WeightsAndBiases",
    "make_trackers",
    "tracker_names",
]

_TRACKERS = (TensorBoard, MLflow, WeightsAndBiases, OpenMetrics)


def tracker_names(track: str) -> list[str]:
    """The trackers that a run config's ``track`` names, with commas between.

    Raises
    ------
    SettingsError
        One is not known, or its library is not installed.

    Examples
    --------
    >>> from fedtrellis.trackers import tracker_names
    >>> tracker_names("")
    []
    """
    names = [name.strip() for name in track.split(",") if name.strip()]
    known: dict[str, type[Tracker]] = {cls.name: cls for cls in _TRACKERS}
    for name in names:
        check_choice("track", name, known)
        need(known[name].library, f"track = {track!r}", known[name].extra)
    return names


def make_trackers(names: list[str], directory: Path) -> list[Tracker]:
    """Trackers by name, for a run with a record.

    Parameters
    ----------
    names : list of str
        As :func:`tracker_names` returns them.
    directory : Path
        The record: ``tensorboard`` and ``wandb`` are folders in it, ``metrics.prom`` a
        file. MLflow writes where ``MLFLOW_TRACKING_URI`` says.

    Examples
    --------
    >>> from fedtrellis.trackers import make_trackers
    >>> make_trackers([], None)
    []
    """
    make: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(directory / "tensorboard"),
        "mlflow": lambda: MLflow(directory.name),
        "wandb": lambda: WeightsAndBiases(run_name=directory.name, directory=directory),
        "openmetrics": lambda: OpenMetrics(directory / "metrics.prom"),
    }
    return [make[name]() for name in names]
