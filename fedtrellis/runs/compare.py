"""``fedtrellis runs`` and ``fedtrellis compare``: a table, and curves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedtrellis.extras import need
from fedtrellis.runs.load import Run, find_runs, load_run
from fedtrellis.server.callbacks import CRITERIA, QUALITIES, format_bytes
from fedtrellis.server.files import naming
from fedtrellis.settings import SettingsError, check_choice

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AXES",
    "add_compare_options",
    "add_runs_options",
    "check_tasks",
    "compare",
    "compare_runs",
    "list_runs",
    "names",
    "table",
]

#: What a curve can be drawn over, and how the axis is called.
AXES = {
    "rounds": "round",
    "bytes": "bytes up and down, all nodes",
    "seconds": "seconds of the rounds",
}
# what the name has anyway, and where a run's files and lines went
_UNNAMED = ("method", "resume", "results-dir", "log-format")


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis runs`` takes."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        help="folder of records [~/.fedtrellis/runs]",
    )


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis compare`` takes."""
    parser.add_argument("directories", metavar="DIR", nargs="+", help="a run's record")
    parser.add_argument(
        "--x", choices=list(AXES), default="rounds", help="drawn over [rounds]"
    )
    parser.add_argument(
        "--metric", help="loss, gap, ... [a table of all, and a picture of the loss]"
    )
    parser.add_argument("--out", metavar="FILE", help="a picture: .png, .svg or .pdf")
    parser.add_argument(
        "--different-tasks",
        action="store_true",
        help="take runs of different tasks [refused]",
    )


def list_runs(options: argparse.Namespace) -> None:
    """Print a line a run, the oldest first."""
    runs = find_runs(options.directory)
    print(f"{'status':12}{'rounds':8}{'loss':12}record" if runs else "no runs yet")
    for run in runs:
        rounds = run.summary.get("rounds", 0)
        loss = run.summary.get("metrics", {}).get("loss")
        shown = "–" if loss is None else f"{loss:.6g}"
        print(f"{run.status:12}{rounds:<8}{shown:12}{run.directory}")


def compare_runs(options: argparse.Namespace) -> None:
    """Print the table, and draw the curves if a file is named."""
    need("pandas", "fedtrellis compare", "report")
    runs = [load_run(directory) for directory in options.directories]
    if not options.different_tasks:
        check_tasks(runs)
    if options.metric is not None:
        known = {name for run in runs for name in run.columns()}
        check_choice("--metric", options.metric, known)
    shown = table(runs, options.metric)
    print(shown.to_string(na_rep="–", float_format="{:.6g}".format))
    if options.out is not None:
        compare(runs, options.out, options.x, options.metric or "loss")
        print(f"Curves: {options.out}")


def names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its method and what it does not share with the rest.

    ``fedgia``, ``fedfw variant=plain``; runs of equal settings are numbered.
    """
    known = []
    for run in runs:
        owners = run.settings.get("method"), run.settings.get("task")
        own = {k: v for k, v in run.settings.items() if k not in _UNNAMED}
        known.append(
            {k: v for k, v in own.items() if "." not in k or k.split(".")[0] in owners}
        )
    # a key that some versions have and others not is no difference by itself
    values: dict[str, set[str]] = {}
    for key, value in (item for one in known for item in one.items()):
        values.setdefault(key, set()).add(repr(value))
    found = []
    for run, one in zip(runs, known, strict=True):
        method = str(run.settings.get("method", "?"))
        parts = [
            f"{key.removeprefix(f'{method}.')}={value}"
            for key, value in one.items()
            # an empty text says "the task's own": nothing to be told apart by
            if len(values[key]) > 1 and value != ""
        ]
        found.append(" ".join([method, *parts]))
    return [
        f"{name} ({found[: i + 1].count(name)})" if found.count(name) > 1 else name
        for i, name in enumerate(found)
    ]


def check_tasks(runs: Sequence[Run]) -> None:
    """Refuse runs of different tasks, whose losses have nothing in common."""
    tasks = list(dict.fromkeys(str(run.settings.get("task", "?")) for run in runs))
    if len(tasks) > 1:
        raise SettingsError(
            f"the runs are of different tasks: {', '.join(tasks)}; "
            "--different-tasks compares them all the same"
        )


def table(runs: Sequence[Run], metric: str | None = None) -> pd.DataFrame:
    """Last values of a metric, or of all, and totals: a row a run, by its name.

    Columns are ``status``, ``rounds``, the metrics (NaN where a run has none), ``up``
    and ``down`` (bytes as people read them) and ``seconds``.
    """
    import pandas as pd

    known = {name for run in runs for name in run.columns()}
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
    runs: Sequence[Run],
    out: str | Path,
    x: str = "rounds",
    metric: str = "loss",
) -> None:
    """Draw the runs' curves into one file of a kind that Matplotlib writes.

    Bytes and seconds add up over the rounds. The loss of runs that know F* of one
    problem is drawn as its distance to F*. The axis is logarithmic where all values are
    positive.
    """
    need("matplotlib", f"--out = {str(out)!r}", "report")
    # the object interface: no global state, no display
    from matplotlib.figure import Figure

    path = Path(out).expanduser()
    check_choice("metric", metric, {name for run in runs for name in run.columns()})
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    optima = {run.reference for run in runs}
    optimum = optima.pop() if metric == "loss" and len(optima) == 1 else None
    positive = True
    for run, name in zip(runs, names(runs), strict=True):
        columns = run.columns()
        values = columns.get(metric, np.full(len(run.history), np.nan))
        along = {
            "rounds": columns["round"],
            "bytes": np.cumsum(columns["bytes_up"] + columns["bytes_down"]),
            "seconds": np.cumsum(columns["seconds"]),
        }[x]
        known = np.isfinite(values)
        at, values = along[known], values[known]
        if optimum is not None:  # what rounding made negative has no place
            values = np.where(values > optimum, values - optimum, np.nan)
        axes.plot(at, values, label=name)
        positive = positive and not np.any(values <= 0.0)
    axes.set_yscale("log" if positive else "linear")
    axes.set_xlabel(AXES[x])
    axes.set_ylabel(metric if optimum is None else "loss − F*")
    axes.grid(True, alpha=0.3)
    figure.legend(loc="outside lower center")
    with naming(path):
        figure.savefig(path, dpi=130)
