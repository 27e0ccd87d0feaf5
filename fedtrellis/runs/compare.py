"""Runs beside each other: a table, and curves over rounds, bytes or seconds."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.extras import need
from fedtrellis.runs.load import Run
from fedtrellis.server.callbacks import CRITERIA, QUALITIES, format_bytes
from fedtrellis.server.files import naming
from fedtrellis.settings import SettingsError, check_choice

__all__ = ["AXES", "check_tasks", "compare", "names", "table"]

#: What a curve can be drawn over, and how the axis is called.
AXES = {
    "rounds": "round",
    "bytes": "bytes up and down, all nodes",
    "seconds": "seconds of the rounds",
}
_PICTURES = (".png", ".svg", ".pdf")
_PAGE = ".html"
# Okabe and Ito's colours, which those who see fewer colours can tell apart
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#F0E442",
)
_DASHES = ("solid", "dash", "dot", "dashdot")
_LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
# what the name says anyway, and where a run's files and lines went
_UNTOLD = ("method", "resume", "results-dir", "log-format")
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


def names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its method and what it does not share with the rest.

    Examples
    --------
    ``fedgia``, ``fedfw variant=plain``, ``fedfw lasso.noise=0.1``; runs of equal
    settings are numbered.
    """
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in run.settings.items():
            if key not in _UNTOLD and _is_of(key, run):
                values.setdefault(key, set()).add(repr(value))
    # a key that some versions have and others not is no difference by itself
    differ = [key for key, found in values.items() if len(found) > 1]
    found = []
    for run in runs:
        method = str(run.settings.get("method", "?"))
        parts = [
            f"{key.removeprefix(f'{method}.')}={run.settings[key]}"
            for key in differ
            # an empty text says "the task's own": nothing to be told apart by
            if run.settings.get(key, "") != "" and _is_of(key, run)
        ]
        found.append(" ".join([method, *parts]))
    counts = {name: found.count(name) for name in found}
    seen: dict[str, int] = {}
    for i, name in enumerate(found):
        if counts[name] > 1:
            seen[name] = seen.get(name, 0) + 1
            found[i] = f"{name} ({seen[name]})"
    return found


def _is_of(key: str, run: Run) -> bool:
    """Whether a key is the run's own, or its method's or task's."""
    owner, dot, _ = key.partition(".")
    return not dot or owner in (run.settings.get("method"), run.settings.get("task"))


def _tasks(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(str(run.settings.get("task", "?")) for run in runs))


def check_tasks(runs: Sequence[Run]) -> None:
    """Refuse runs of different tasks, whose losses have nothing in common.

    Raises
    ------
    SettingsError
        One line, which names the tasks.
    """
    if len(tasks := _tasks(runs)) > 1:
        raise SettingsError(
            f"the runs are of different tasks: {', '.join(tasks)}; "
            "--different-tasks compares them all the same"
        )


def _last(run: Run, metric: str) -> float:
    values = run.columns().get(metric, np.array([np.nan]))
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def _metrics(runs: Sequence[Run]) -> list[str]:
    """The criteria and qualities that any of the runs has, in their order."""
    known = {name for run in runs for name in run.columns()}
    return [name for name in (*CRITERIA, *QUALITIES) if name in known]


def table(runs: Sequence[Run], metric: str | None = None) -> list[list[str]]:
    """Rows of text, the first of them the headings.

    Parameters
    ----------
    runs : sequence of Run
    metric : str, optional
        Only this one; by default all of loss, criteria and qualities.
    """
    metrics = [metric] if metric else _metrics(runs)
    rows = [["run", "status", "rounds", *metrics, "up", "down", "seconds"]]
    for run, name in zip(runs, names(runs), strict=True):
        columns = run.columns()
        rows.append(
            [
                name,
                run.status,
                str(int(max(columns["round"], default=0))),
                *(_number(_last(run, metric)) for metric in metrics),
                format_bytes(columns["bytes_up"].sum()),
                format_bytes(columns["bytes_down"].sum()),
                f"{columns['seconds'].sum():.1f}",
            ]
        )
    return rows


def _number(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else "–"


def _curve(run: Run, x: str, metric: str) -> Curve:
    """Where a run was, and the metric there; rounds without it are left out."""
    columns = run.columns()
    values = columns.get(metric, np.full(len(run.history), np.nan))
    if x == "rounds":
        at = columns["round"]
    elif x == "bytes":
        at = np.cumsum(columns["bytes_up"] + columns["bytes_down"])
    else:
        at = np.cumsum(columns["seconds"])
    known = np.isfinite(values)
    return at[known], values[known]


def compare(
    runs: Sequence[Run],
    out: str | Path,
    x: str = "rounds",
    metric: str | None = None,
    different_tasks: bool = False,
) -> None:
    """Draw the runs' curves into one file.

    Parameters
    ----------
    runs : sequence of Run
        At least one.
    out : path
        ``.png``, ``.svg`` or ``.pdf`` for a picture (needs matplotlib); ``.html`` for a
        page in one file with curves to zoom and point at, and the table (needs plotly,
        ``pip install "fedtrellis[report]"``).
    x : {"rounds", "bytes", "seconds"}
        What the curves are drawn over; bytes and seconds add up over the rounds.
    metric : str, optional
        By default the loss, the first criterion of optimality and the first measure of
        quality that the runs have, a panel each.
    different_tasks : bool
        Whether the runs may be of more than one task; the legend then names it.

    Raises
    ------
    SettingsError
        No run, runs of different tasks, no such metric, no such folder, or an
        ending that is not known.
    """
    check_choice("x", x, AXES)
    path = Path(out).expanduser()
    if not runs:
        raise SettingsError("there is no run to compare")
    if not different_tasks:
        check_tasks(runs)
    if path.suffix not in (*_PICTURES, _PAGE):
        raise SettingsError(
            f"--out = {str(out)!r} must end with one of {', '.join(_PICTURES)}, {_PAGE}"
        )
    if not path.absolute().parent.is_dir():
        raise SettingsError(
            f"--out = {str(out)!r}: there is no folder {path.absolute().parent}"
        )
    known = dict.fromkeys(name for run in runs for name in run.columns())
    if metric is not None:
        check_choice("metric", metric, known)
    panels = [metric] if metric else _panels(runs)
    if not panels:
        raise SettingsError("the runs have no loss, criterion or quality to draw")
    draw = _page if path.suffix == _PAGE else _picture
    with naming(path):
        draw(runs, path, x, panels)


def _panels(runs: Sequence[Run]) -> list[str]:
    known = _metrics(runs)
    loss = [name for name in known if name == "loss"]
    rest = [name for name in known if name in CRITERIA and name != "loss"]
    return loss + rest[:1] + [name for name in known if name in QUALITIES][:1]


def _shown(runs: Sequence[Run], metric: str) -> tuple[str, float, bool]:
    """A metric's label, what is taken off it, and whether its axis is logarithmic."""
    optima = {run.reference for run in runs}
    if metric == "loss" and len(optima) == 1 and None not in optima:
        return "loss − F*", float(optima.pop() or 0.0), True
    return metric, 0.0, metric in CRITERIA and metric != "loss"


def _curves(
    runs: Sequence[Run], x: str, metric: str
) -> Iterable[tuple[str, str, str, Curve]]:
    """Name, colour, dash and curve of each run that has the metric."""
    _, less, logarithmic = _shown(runs, metric)
    for i, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        at, values = _curve(run, x, metric)
        values = values - less
        if logarithmic:  # a logarithm has no place for what rounding made negative
            at, values = at[values > 0.0], values[values > 0.0]
        if at.size:
            dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
            yield name, _COLOURS[i % len(_COLOURS)], dash, (at, values)


def _picture(runs: Sequence[Run], path: Path, x: str, panels: Sequence[str]) -> None:
    need("matplotlib", f"--out = {str(path)!r}", "plots")
    # the object interface: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    legend = 0.22 * len(runs) + 0.3
    figure = Figure(figsize=(4.4 * len(panels), 3.4 + legend), layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    all_axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axes, metric in zip(all_axes, panels, strict=True):
        label, _, logarithmic = _shown(runs, metric)
        for name, colour, dash, (at, values) in _curves(runs, x, metric):
            style = {"color": colour, "linestyle": _LINES[dash]}
            (handles[name],) = axes.plot(at, values, label=name, **style)
        if logarithmic:
            axes.set_yscale("log")
        axes.set_xlabel(AXES[x])
        axes.set_ylabel(label)
        axes.grid(True, alpha=0.3)
    figure.legend(handles=list(handles.values()), loc="outside lower center")
    figure.savefig(path, dpi=130)


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 90rem;
       padding: 1rem; color: #1a1a1a; background: #fff; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right;
         white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head><body><h1>{title}</h1>
"""


def _page(runs: Sequence[Run], path: Path, x: str, panels: Sequence[str]) -> None:
    need("plotly", f"--out = {str(path)!r}", "report")
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

    one = runs[0].title if len(runs) == 1 else ""
    title = html.escape(one or f"{len(runs)} runs on {', '.join(_tasks(runs))}")
    parts = [_HEAD.format(title=title), f"<script>{get_plotlyjs()}</script>"]
    parts.append(_html_table(table(runs)))
    for metric in panels:
        label, _, logarithmic = _shown(runs, metric)
        figure = go.Figure()
        for name, colour, dash, (at, values) in _curves(runs, x, metric):
            line = {"color": colour, "dash": dash}
            # lists: a page says numbers, not a binary form that few readers know
            figure.add_scatter(
                x=at.tolist(), y=values.tolist(), name=name, line=line, mode="lines"
            )
        figure.update_layout(
            template="simple_white",
            showlegend=True,
            legend={"orientation": "h", "y": -0.25},
            margin={"l": 60, "r": 20, "t": 20, "b": 40},
            xaxis={"title": {"text": AXES[x]}, "exponentformat": "SI"},
            yaxis={
                "title": {"text": label},
                "type": "log" if logarithmic else "linear",
                "exponentformat": "power",
            },
        )
        parts.append(f"<h2>{html.escape(label)}</h2>")
        options = {"responsive": True, "displayModeBar": False}
        parts.append(
            figure.to_html(full_html=False, include_plotlyjs=False, config=options)
        )
    for run, name in zip(runs, names(runs), strict=True):
        rows = [["setting", "value"]]
        rows += [[key, str(value)] for key, value in sorted(run.settings.items())]
        parts.append(
            f"<details><summary>Settings of {html.escape(name)}: "
            f"{html.escape(run.directory.name)}</summary>{_html_table(rows)}</details>"
        )
    parts.append("</body></html>\n")
    path.write_text("\n".join(parts), encoding="utf-8")


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for i, row in enumerate(rows):
        cell = "td" if i else "th"
        cells = "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    return '<div class="wide"><table>' + "".join(lines) + "</table></div>"
