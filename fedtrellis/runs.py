"""Finished and running runs: read one, list them, compare them."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.app.command_line import flatten
from fedtrellis.exports import EXPORTS, export
from fedtrellis.files import naming
from fedtrellis.server.callbacks import CRITERIA, QUALITIES, RoundRecord, format_bytes
from fedtrellis.server.records import (
    AXES,
    default_results_dir,
    plot_convergence,
    read_history,
)
from fedtrellis.settings import SettingsError, check_choice, need
from fedtrellis.tables import SHARES, TableModel

if TYPE_CHECKING:
    import pandas as pd

# the rest serves the commands ``fedtrellis runs`` and ``fedtrellis compare``
__all__ = ["Run", "find_runs", "load_run"]

# what a round is, beside its metrics; seconds and bytes are those of this round alone
_OF_A_ROUND = ("round", "sampled", "used", "bytes_up", "bytes_down", "seconds")
# what the name has anyway, and where a run's files and lines went
_UNNAMED = ("method", "resume", "results-dir", "log-format")


@dataclass(frozen=True)
class Run:
    """One run, as its record has it.

    Attributes
    ----------
    directory : Path
        The record.
    settings : dict
        The run config, flat: ``{"method": "fedfw", "fedfw.penalty": ..., ...}``.
    summary : dict
        What ``summary.json`` has: ``status``, ``rounds``, ``metrics``, totals.
    history : list of RoundRecord
        A record a round, the start (round 0) first.

    Examples
    --------
    >>> import fedtrellis
    >>> run = fedtrellis.load_run("RECORD")  # doctest: +SKIP
    >>> run.settings["method"], run.status  # doctest: +SKIP
    ('fedfw', 'round limit')
    >>> run.columns()["loss"][-1]  # doctest: +SKIP
    1.2701...
    """

    directory: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    history: list[RoundRecord]

    def __repr__(self) -> str:
        """A line: what it is of, how it ended, where it lies."""
        rounds = self.history[-1].round if self.history else 0
        how = f"{self.status}, {rounds} rounds, {str(self.directory)!r}"
        return f"<Run {self.title}: {how}>"

    @property
    def status(self) -> str:
        """One of ``STATUSES`` of :mod:`fedtrellis.server.callbacks`."""
        return str(self.summary.get("status", "running"))

    @property
    def title(self) -> str:
        """Method and task, such as ``"fedfw on digits"``."""
        return f"{self.settings.get('method', '?')} on {self.settings.get('task', '?')}"

    @property
    def reference(self) -> float | None:
        """F*, if the run knew it (``reference=true``)."""
        value = self.summary.get("reference_optimum")
        return None if value is None else float(value)

    @cached_property
    def model(self) -> TableModel | None:
        """The model's arrays by their names; None until the run has ended.

        One that was learnt from a table predicts: ``model.predict(table)``.
        """
        path = self.directory / "model.npz"
        if not path.is_file():
            return None
        about = _text(self.directory / "model.json")
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        return TableModel(found, json.loads(about) if about else None)

    def _used(self) -> dict[str, Any]:
        """The settings of the run, its method and its task, not those of others."""
        owners = self.settings.get("method"), self.settings.get("task")
        return {
            key: value
            for key, value in self.settings.items()
            if "." not in key or key.split(".")[0] in owners
        }

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The history as columns of float64, of shape (rounds + 1,), by name.

        ``round``, ``sampled``, ``used``, ``bytes_up``, ``bytes_down`` (bytes of the
        round), ``seconds`` (wall time of the round), and every metric; NaN where a
        round has no such metric.
        """
        metrics = dict.fromkeys(name for r in self.history for name in r.metrics)
        rows = [
            # a metric by the name of a field of the round stands back
            {**r.metrics, **{name: getattr(r, name) for name in _OF_A_ROUND}}
            for r in self.history
        ]
        return {
            name: np.array([float(row.get(name, np.nan)) for row in rows])
            for name in dict.fromkeys((*_OF_A_ROUND, *metrics))
        }

    def frame(self) -> pd.DataFrame:
        """:meth:`columns` as a pandas frame, indexed by round.

        SettingsError if pandas is not installed; :meth:`columns` needs none.
        """
        need("pandas", "Run.frame()", "report")
        import pandas as pd

        frame = pd.DataFrame(self.columns())
        return frame.astype({"round": int}).set_index("round")


def load_run(directory: str | Path) -> Run:
    """Read the record of a run, also of one that goes on or failed.

    SettingsError if the directory is no record, or one of its files cannot be read.

    Examples
    --------
    >>> from fedtrellis import load_run
    >>> run = load_run("~/runs/20261122-110950-fedfw-digits")    # doctest: +SKIP
    >>> load_run("/nowhere")
    Traceback (most recent call last):
    fedtrellis.settings.SettingsError: '/nowhere' is not the record of a run
    """
    path = Path(directory).expanduser().resolve()
    # a strategy of somebody else may leave no config.toml
    if not (path / "summary.json").is_file():
        raise SettingsError(f"{str(directory)!r} is not the record of a run")
    name = "config.toml"
    try:
        settings = flatten(tomllib.loads(_text(path / name)))
        name = "summary.json"
        summary = json.loads(_text(path / name) or "{}")
        name = "history.jsonl"
        history = read_history(_text(path / name))
    except (OSError, TypeError, ValueError) as error:
        raise SettingsError(f"{path / name} cannot be read: {error}") from None
    return Run(path, settings, summary, history)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def find_runs(parent: str | Path | None = None) -> list[Run]:
    """All records directly under a directory, the oldest first.

    By default under ``~/.fedtrellis/runs``; SettingsError if there is no such
    directory.

    Examples
    --------
    >>> import tempfile
    >>> from fedtrellis.runs import find_runs
    >>> find_runs(tempfile.mkdtemp())
    []
    """
    path = Path(parent).expanduser() if parent else default_results_dir()
    if parent is not None and not path.is_dir():
        raise SettingsError(f"{str(parent)!r} is not a directory")
    return [load_run(file.parent) for file in sorted(path.glob("*/summary.json"))]


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis runs`` takes."""
    text = "folder of records [~/.fedtrellis/runs]"
    parser.add_argument("directory", metavar="DIR", nargs="?", help=text)


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis predict`` takes."""
    parser.add_argument("directory", metavar="DIR", help="the run's record")
    parser.add_argument("table", metavar="FILE", help="a csv file, with its columns")
    parser.add_argument("--out", metavar="CSV", help="where predictions go [printed]")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis export`` takes."""
    parser.add_argument("directory", metavar="DIR", help="the run's record")
    parser.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    parser.add_argument("--out", metavar="FILE", help="the file [a name by format]")


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis compare`` takes."""
    add = parser.add_argument
    add("directories", metavar="DIR", nargs="+", help="a run's record")
    add("--x", choices=list(AXES), default="rounds", help="drawn over [rounds]")
    add("--metric", help="loss, gap, ... [a table of all, and a picture of the loss]")
    add("--out", metavar="FILE", help="a picture: .png, .svg or .pdf")
    text = "take runs of different tasks [refused]"
    add("--different-tasks", action="store_true", help=text)


def list_runs(options: argparse.Namespace) -> None:
    """Print a line a run, the oldest first."""
    runs = find_runs(options.directory)
    if not runs:
        print("no runs yet")
        return
    print(f"{'status':12}{'rounds':8}{'loss':12}record")
    for run in runs:
        rounds = run.summary.get("rounds", 0)
        loss = run.summary.get("metrics", {}).get("loss")
        shown = "–" if loss is None else f"{loss:.6g}"
        print(f"{run.status:12}{rounds:<8}{shown:12}{run.directory}")


def _finished(directory: str | Path) -> tuple[Run, TableModel]:
    """A run and its model; SettingsError if there is none yet."""
    run = load_run(directory)
    if run.model is None:
        raise SettingsError(f"{str(directory)!r} has no model: the run has not ended")
    return run, run.model


def predict(options: argparse.Namespace) -> None:
    """Predict each row of a table, with the classes' probabilities, as csv."""
    need("pandas", "fedtrellis predict", "data")
    import pandas as pd

    _, model = _finished(options.directory)
    found = pd.DataFrame({"predicted": model.predict(options.table)})
    if model.loss in SHARES:
        shares = model.predict_proba(options.table).T
        for name, values in zip(model.classes, shares, strict=True):
            found[f"probability of {name}"] = values
    found.to_csv(options.out or sys.stdout, index=False)


def export_model(options: argparse.Namespace) -> None:
    """Write a run's model in the units of its table, for use without fedtrellis."""
    path = options.out or EXPORTS[options.to]
    run, model = _finished(options.directory)
    export(model, run.settings, options.to, path)
    print(f"Written: {path}")


def compare_runs(options: argparse.Namespace) -> None:
    """Print the table, and draw the curves if a file is named."""
    need("pandas", "fedtrellis compare", "report")
    runs = [load_run(directory) for directory in options.directories]
    tasks = list(dict.fromkeys(str(run.settings.get("task", "?")) for run in runs))
    if len(tasks) > 1 and not options.different_tasks:
        what = f"the runs are of different tasks: {', '.join(tasks)}"
        raise SettingsError(f"{what}; --different-tasks compares them all the same")
    if options.metric is not None:
        check_choice("--metric", options.metric, _known(runs))
    shown = table(runs, options.metric)
    print(shown.to_string(na_rep="–", float_format="{:.6g}".format))
    if options.out is not None:
        compare(runs, options.out, options.x, options.metric or "loss")
        print(f"Curves: {options.out}")


def _known(runs: Sequence[Run]) -> set[str]:
    return {name for run in runs for name in run.columns()}


def names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its method and what it does not share with the rest.

    ``fedgia``, ``fedfw variant=plain``; runs of equal settings are numbered.
    """
    values: dict[str, set[str]] = {}
    for key, value in (item for run in runs for item in run._used().items()):
        values.setdefault(key, set()).add(repr(value))
    found = []
    for run in runs:
        method = str(run.settings.get("method", "?"))
        parts = [
            f"{key.removeprefix(f'{method}.')}={value}"
            for key, value in run._used().items()
            # an empty text is the task's default; a missing key is no difference
            if len(values[key]) > 1 and value != "" and key not in _UNNAMED
        ]
        found.append(" ".join([method, *parts]))
    numbered = []
    for i, name in enumerate(found):
        if found.count(name) > 1:
            number = found[: i + 1].count(name)
            name = f"{name} ({number})"
        numbered.append(name)
    return numbered


def table(runs: Sequence[Run], metric: str | None = None) -> pd.DataFrame:
    """Last values of a metric, or of all, and totals: a row a run, by its name."""
    import pandas as pd

    known = _known(runs)
    metrics = [name for name in (*CRITERIA, *QUALITIES) if name in known]
    rows = []
    for run in runs:
        frame = run.frame()
        last = {} if frame.empty else frame.ffill().iloc[-1]
        rows.append(
            {
                "status": run.status,
                "rounds": max(frame.index, default=0),
                **{m: last.get(m) for m in ([metric] if metric else metrics)},
                "up": format_bytes(frame["bytes_up"].sum()),
                "down": format_bytes(frame["bytes_down"].sum()),
                "seconds": frame["seconds"].sum().round(1),
            }
        )
    return pd.DataFrame(rows, index=names(runs))


def compare(
    runs: Sequence[Run], out: str | Path, x: str = "rounds", metric: str = "loss"
) -> None:
    """Draw the runs' curves into one file.

    Bytes and seconds add up over the rounds. The loss of runs that know F* of one
    problem is drawn as its distance to F*; distances and gaps are logarithmic.
    """
    check_choice("metric", metric, _known(runs))
    optima = {run.reference for run in runs}
    optimum = optima.pop() if len(optima) == 1 else None
    path = Path(out).expanduser()
    histories = [run.history for run in runs]
    curves = dict(zip(names(runs), histories, strict=True))
    with naming(path):
        plot_convergence(curves, path, optimum, [(metric, x)])
