"""Finished and running runs: read one, list them, compare them."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.app.application import installed_app
from fedtrellis.app.command_line import flatten, shown_seeds
from fedtrellis.exports import EXPORTS, export
from fedtrellis.files import naming, read_arrays
from fedtrellis.server.callbacks import (
    CRITERIA,
    ENDINGS,
    QUALITIES,
    RoundRecord,
    format_bytes,
    summarise,
)
from fedtrellis.server.records import (
    AXES,
    DEFAULT_NODES,
    default_results_dir,
    is_alive,
    plot_convergence,
    read_history,
    refusing,
)
from fedtrellis.settings import SettingsError, check_choice, need, refused
from fedtrellis.tables import SHARES, TableModel

if TYPE_CHECKING:
    import pandas as pd

# the rest serves the commands ``fedtrellis runs`` and ``fedtrellis compare``
__all__ = ["Run", "find_runs", "load_run", "run"]

# what a round is, beside its metrics; seconds and bytes are those of this round alone
_OF_A_ROUND = ("round", "sampled", "used", "bytes_up", "bytes_down", "seconds")
# where a run's files and lines went
_ELSEWHERE = ("resume", "results-dir", "log-format", "picture", "track")


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
    settings: dict[str, Any] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    history: list[RoundRecord] = field(repr=False)

    @property
    def status(self) -> str:
        """One of ``STATUSES`` of :mod:`fedtrellis.server.callbacks`, or ``"dead"``.

        A dead run's process has ended without a word.
        """
        found = str(self.summary.get("status", "running"))
        process = self.summary.get("process", {})
        alive = found != "running" or is_alive(process, self.directory / "summary.json")
        return found if alive else "dead"

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
        with refusing(f"{path} cannot be read"):
            found = read_arrays(path)
        about = self.directory / "model.json"
        with refusing(f"{about} cannot be read"):
            model = TableModel(found, json.loads(_text(about) or "{}"))
            if model.known:
                model.preparation  # noqa: B018
        return model

    @property
    def seed(self) -> int:
        """The run's seed; 0 of a record that has none."""
        return int(self.settings.get("seed", 0))

    @cached_property
    def _setting(self) -> dict[str, Any]:
        """What runs of one setting share: all but the seed, and where files went."""
        # an empty text is the task's default, and a missing key is no difference
        of = {"clients": self.summary.get("clients", ""), **self.settings}
        without = (*_ELSEWHERE, "seed")
        return {k: v for k, v in of.items() if k not in without and v != ""}

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The history as columns of float64, of shape (rounds + 1,), by name.

        ``round``, ``sampled``, ``used``, ``bytes_up``, ``bytes_down`` (bytes of the
        round), ``seconds`` (wall time of the round), and every metric; NaN where a
        round has no such metric.
        """
        rows = [
            # a metric by the name of a field of the round stands back
            {**record.metrics, **{name: getattr(record, name) for name in _OF_A_ROUND}}
            for record in self.history
        ]
        names = dict.fromkeys([*_OF_A_ROUND, *(name for row in rows for name in row)])
        return {
            name: np.array([row.get(name, np.nan) for row in rows], np.float64)
            for name in names
        }


def run(
    settings: Mapping[str, Any],
    nodes: int = DEFAULT_NODES,
    node_configs: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """Run a method on nodes in this process, as ``fedtrellis run``; return its record.

    ``settings`` are those of the run config that are not as by default, and
    ``node_configs`` the nodes' configs, one each. SettingsError: one is not allowed.

    Examples
    --------
    >>> import fedtrellis
    >>> settings = {"method": "fedgia", "task": "linear-regression", "rounds": 3}
    >>> fedtrellis.run(settings, nodes=4).status  # doctest: +SKIP
    'round limit'
    """
    app = installed_app()
    app.registry.check_known(settings, "settings")
    config = app.default_config() | dict(settings)
    return load_run(app.run_on_nodes(config, nodes, node_configs))


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
    with refusing(f"{path / 'config.toml'} cannot be read"):
        settings = flatten(tomllib.loads(_text(path / "config.toml")))
    with refusing(f"{path / 'summary.json'} cannot be read"):
        summary = json.loads(_text(path / "summary.json") or "{}")
        numbers = summary.get("rounds", 0), *summary.get("metrics", {}).values()
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError("it is no summary of a run")
    with refusing(f"{path / 'history.jsonl'} cannot be read"):
        history = read_history(_text(path / "history.jsonl"))
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
    return [load_run(record) for record in _records_in(parent)]


def _records_in(parent: str | Path | None) -> list[Path]:
    """The records of :func:`find_runs`, whether or not they can be read."""
    path = Path(parent).expanduser() if parent else default_results_dir()
    if parent is not None and not path.is_dir():
        raise SettingsError(f"{str(parent)!r} is not a directory")
    return [file.parent for file in sorted(path.glob("*/summary.json"))]


def add_commands(add: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    """Add the commands that read records; ``add`` takes name, action and help."""
    command = add("runs", list_runs, "the runs there are")
    text = "folder of records [~/.fedtrellis/runs]"
    command.add_argument("directory", metavar="DIR", nargs="?", help=text)

    text = "runs of any methods beside each other: a table and curves"
    command = add("compare", compare_runs, text)
    text = "a run's record, or a folder of records"
    command.add_argument("directories", metavar="DIR", nargs="+", help=text)
    text = "drawn over [rounds]"
    command.add_argument("--x", choices=list(AXES), help=text)
    text = "loss, gap, ... [a table of all, and a picture of the loss]"
    command.add_argument("--metric", help=text)
    command.add_argument("--out", metavar="FILE", help="a picture: .png, .svg or .pdf")
    command.add_argument("--csv", metavar="FILE", help="a table with a row a run")
    text = "take runs on different data [refused]"
    command.add_argument("--different-data", action="store_true", help=text)

    command = add("predict", predict, "what a run's model says of a table's rows")
    command.add_argument("directory", metavar="DIR", help="the run's record")
    text = "a csv file, with its columns"
    command.add_argument("table", metavar="FILE", help=text)
    text = "where predictions go [printed]"
    command.add_argument("--out", metavar="CSV", help=text)

    command = add("export", export_model, "a run's model for use without fedtrellis")
    command.add_argument("directory", metavar="DIR", help="the run's record")
    command.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    text = "the file [a name by format]"
    command.add_argument("--out", metavar="FILE", help=text)


def list_runs(options: argparse.Namespace) -> None:
    """Print a line a setting, the oldest first: its runs differ in the seed alone."""
    runs = []
    for record in _records_in(options.directory):
        try:
            runs.append(load_run(record))
        except SettingsError as error:
            print(f"unreadable  {error}")
    print_runs(runs)


def print_runs(runs: Sequence[Run]) -> None:
    """Print a line for the runs of each setting, with the first one's record.

    A dead, interrupted or failed run has a line more, of how to go on.
    """
    if not runs:
        print("no runs yet")
        return
    groups, lines = grouped(runs), [("status", "rounds", "seeds", "loss", "record")]
    for group in groups:
        ended = [run.summary for run in group if run.status in ENDINGS]
        # of one that goes on, or is dead, the summary may be old
        summaries = ended or [summarise(run.history) for run in group]
        losses = [each.get("metrics", {}).get("loss", math.nan) for each in summaries]
        rounds = [run.history[-1].round if run.history else 0 for run in group]
        first, last = min(rounds), max(rounds)
        status = _statuses([run.status for run in group])
        span = str(first) if first == last else f"{first}–{last}"
        seeds = shown_seeds([run.seed for run in group])
        lines.append((status, span, seeds, spread(losses), str(group[0].directory)))
    # as wide as what is in them, with a space between
    least = (11, 7, 7, 19, 0)
    columns = zip(*lines, strict=True)
    widths = [max(w, *map(len, c)) for w, c in zip(least, columns, strict=True)]
    for line, group in zip(lines, [[], *groups], strict=True):
        cells = [cell.ljust(w) for cell, w in zip(line, widths, strict=True)]
        print(" ".join(cells).rstrip())
        for run in group:
            if run.status in ("dead", "interrupted", "failed"):
                how = run.summary.get("resume", f"fedtrellis resume {run.directory}")
                there = (run.directory / "checkpoint.npz").is_file()
                how = f"to go on: {how}" if there else "no checkpoint: start it again"
                print(f"{'':{widths[0]}} {how}")


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
    """Print the table, and write what else is asked for: curves, a csv file."""
    need("pandas", "fedtrellis compare", "report")
    if options.x and options.out is None:
        raise refused("--x", options.x, "is a picture's axis: give --out")
    runs = [run for directory in options.directories for run in _records(directory)]
    groups = grouped(runs)
    if not options.different_data:
        _check_data(groups)
    known = {name for run in runs for name in summarise(run.history)["metrics"]}
    metrics = [name for name in (*CRITERIA, *QUALITIES) if name in known]
    if options.metric or options.out:
        check_choice("--metric", options.metric or "loss", known)
    if options.metric:
        metrics = [options.metric]
    found = frame_of(groups)
    print(table(found, metrics).to_string())
    pairs = differences(found, metrics)
    if not pairs.empty:
        what = f"Difference from {found['setting'][0]}, paired by seed"
        print(f"\n{what}\n{pairs.to_string()}")
    if len(found) > len(groups):
        print("\n±: half of a 95 % confidence interval of the mean over seeds")
    if options.csv is not None:
        with naming(path := Path(options.csv).expanduser()):
            found.to_csv(path, index=False)
        print(f"Table: {options.csv}")
    if options.out is not None:
        compare(groups, options.out, options.x or "rounds", options.metric or "loss")
        print(f"Curves: {options.out}")


def _records(directory: str) -> list[Run]:
    """A run, or those of a folder of records."""
    path = Path(directory).expanduser()
    inside = path.is_dir() and not (path / "summary.json").is_file()
    found = find_runs(path) if inside else []
    return found or [load_run(directory)]


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in the seed alone together; a seed once more begins a group."""
    found: dict[tuple[str, int], list[Run]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for run in runs:
        what = repr(sorted(run._setting.items()))
        times[what, run.seed] += 1
        found.setdefault((what, times[what, run.seed]), []).append(run)
    return list(found.values())


def _data_of(run: Run) -> dict[str, Any]:
    """What a run's data is made of: task, settings of it and of data, clients."""
    owners = ("task", run.settings.get("task"), "data", "clients")
    return {k: v for k, v in run._setting.items() if k.split(".")[0] in owners}


def _check_data(groups: Sequence[Sequence[Run]]) -> None:
    """SettingsError if runs are of different tasks or data; it names what differs."""
    first, *others = groups
    one, seeds = _data_of(first[0]), {run.seed for run in first}
    for group in others:
        other = _data_of(group[0])
        # the task first, as its settings follow from it
        pairs = {k: (one.get(k), other.get(k)) for k in ["task", *one, *other]}
        if None in pairs.get("clients", ()):  # a run that failed before they were known
            del pairs["clients"]
        if seeds.isdisjoint(run.seed for run in group):
            pairs["seed"] = first[0].seed, group[0].seed
        for key, (mine, theirs) in pairs.items():
            if mine != theirs:
                what = f"{key} = {mine!r} and {theirs!r}"
                hint = "--different-data compares them all the same"
                raise SettingsError(f"the runs are on different data: {what}; {hint}")


def names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A short name for each setting: its method and what it does not share with others.

    ``fedgia``, ``fedfw variant=plain``; settings that are equal are numbered.
    """
    firsts = [group[0] for group in groups]
    # settings of another run's method or task say nothing of this one
    owners = {run.settings.get(kind) for run in firsts for kind in ("method", "task")}
    mine = [
        {
            key: value
            for key, value in run._setting.items()
            if key.split(".")[0] not in owners - {*run.settings.values()}
        }
        for run in firsts
    ]
    found, bare = list[str](), list[str]()
    for run, setting in zip(firsts, mine, strict=True):
        method = str(run.settings.get("method", "?"))
        parts = [
            f"{key.removeprefix(f'{method}.')}={value}"
            for key, value in setting.items()
            if key != "method" and any(other.get(key, value) != value for other in mine)
        ]
        name = " ".join([method, *parts])
        number = 1 + bare.count(name)
        bare.append(name)
        found.append(f"{name} ({number})" if number > 1 else name)
    return found


def _statuses(statuses: Sequence[str]) -> str:
    """How the runs of a setting ended, with numbers where they differ."""
    counts = Counter(statuses)
    if len(counts) == 1:
        return statuses[0]
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def interval(values: Sequence[float], error: float = 0.05) -> tuple[float, float]:
    """Mean, and half the width of its confidence interval by Student's t.

    That misses the mean with probability ``error``. Of a single value the half is NaN.
    """
    from scipy.special import stdtrit  # slow to load

    n = len(values)
    if n < 2:
        return float(np.mean(values)), float("nan")
    # t_{1 − error/2, n−1} s/√n
    half = stdtrit(n - 1, 1.0 - error / 2.0) * np.std(values, ddof=1) / np.sqrt(n)
    return float(np.mean(values)), float(half)


def spread(values: Sequence[float]) -> str:
    """Mean ± half of its interval, as tables have it; a single value as it is."""
    there = [value for value in values if not np.isnan(value)]
    if not there:
        return "–"
    mean, half = interval(there)
    if not half > 0.0:
        return f"{mean:.6g}"
    places = 1 - math.floor(math.log10(half)) if math.isfinite(half) else 8
    if abs(mean) >= 1e7 or places > 7:
        return f"{mean:.3e} ± {half:.1e}"
    return f"{mean:.{max(places, 0)}f} ± {half:.{max(places, 0)}f}"


def frame_of(groups: Sequence[Sequence[Run]]) -> pd.DataFrame:
    """A row a run: its setting's name, seed, status, last metrics, totals, record."""
    import pandas as pd

    rows = []
    for name, group in zip(names(groups), groups, strict=True):
        for run in group:
            found = summarise(run.history)
            row = {"setting": name, "seed": run.seed, "status": run.status}
            row |= {"rounds": found["rounds"], **found["metrics"]}
            row |= {total: found[total] for total in ("bytes_up", "bytes_down")}
            row |= {"seconds": found["seconds"], "record": str(run.directory)}
            rows.append(row)
    return pd.DataFrame(rows)


def table(found: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Last values of metrics, and totals, of :func:`frame_of`: a row a setting.

    Over several seeds the mean ± half of its 95 % interval; runs that were cut short
    are left out of it, unless all were.
    """
    import pandas as pd

    rows = {}
    for name, group in found.groupby("setting", sort=False):
        ended = group[group["status"].isin(ENDINGS)]
        ended = group if ended.empty else ended
        rows[name] = {
            "status": _statuses(group["status"].tolist()),
            "seeds": shown_seeds(group["seed"].tolist()),
            **{name: spread(ended[name].tolist()) for name in ("rounds", *metrics)},
            "up": format_bytes(ended["bytes_up"].mean()),
            "down": format_bytes(ended["bytes_down"].mean()),
            "seconds": f"{ended['seconds'].mean():.1f}",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def differences(found: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Each setting less the first, by seed, as :func:`table`; with two pairs or more.

    Runs that were cut short have no pair.
    """
    import pandas as pd

    rows = {}
    first, *rest = found["setting"].unique()
    ended = found[found["status"].isin(ENDINGS)].set_index("seed")
    one = ended.loc[ended["setting"] == first, [*metrics]]
    for name in rest:
        pairs = ended.loc[ended["setting"] == name, [*metrics]].sub(one)
        pairs = pairs.loc[pairs.index.intersection(one.index)].dropna(how="all")
        if len(pairs) > 1:
            cells = {metric: spread(pairs[metric].tolist()) for metric in metrics}
            rows[name] = {"seeds": shown_seeds(pairs.index.tolist()), **cells}
    return pd.DataFrame.from_dict(rows, orient="index")


def compare(
    groups: Sequence[Sequence[Run]],
    out: str | Path,
    x: str = "rounds",
    metric: str = "loss",
) -> None:
    """Draw each setting's curve into one file: the median over seeds, and a band.

    Bytes and seconds add up over the rounds. If all runs know F*, the loss is drawn as
    its distance to that; distances and gaps are logarithmic.
    """
    certified = all(run.reference is not None for group in groups for run in group)
    curves = {
        name: [(run.history, run.reference if certified else None) for run in group]
        for name, group in zip(names(groups), groups, strict=True)
    }
    with naming(path := Path(out).expanduser()):
        plot_convergence(curves, path, [(metric, x)])
