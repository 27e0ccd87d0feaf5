"""What a search leaves behind: the best settings, a picture, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtrellis.extras import need
from fedtrellis.server.records import to_toml
from fedtrellis.tune.ranking import LATENCIES, Ranking, Trial
from fedtrellis.wire.arrays import FloatArray

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["plot_front", "show", "write_best"]

_SHOWN = f"seconds-{LATENCIES[1]:g}"  # of the picture, and of a narrow table
_HEADERS = {
    **{f"seconds-{lag:g}": f"s a round\nat {lag:g} s" for lag in LATENCIES},
    "loss": "last\n5 losses",
    "accuracy": "best\naccuracy",
    "volatility": "vola-\ntility",
    "rounds-to-90": "rounds\nto 90 %",
}
_ROWS = 25  # of the table; trials.jsonl has all


def write_best(path: Path, ranking: Ranking, fixed: Mapping[str, Any]) -> None:
    """Write the recommended settings, with those of all trials, as a run config."""
    best = ranking.trials[0]
    head = (
        f"# Trial {best.number} of fedtrellis tune, recommended by grey relational "
        f"analysis over\n# {', '.join(ranking.metrics)}.\n"
    )
    path.write_text(head + to_toml({**fixed, **best.settings}), encoding="utf-8")


# -------------------------------------------------------------------------- picture


def plot_front(path: Path, ranking: Ranking, title: str) -> None:
    """Draw seconds a round against the final loss, by grade, to a PNG file.

    The Pareto front is that over all metrics, so it is no line in these two of them;
    the line is the front of the two.
    """
    need("matplotlib", f"the picture {path}", "plots")
    # the object interface: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x = np.array([trial.metrics[_SHOWN] for trial in ranking.trials])
    y = np.array([trial.metrics["loss"] for trial in ranking.trials])
    front, grades = np.array(ranking.front), np.array(ranking.grades)
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    across, down = _stairs(x, y)
    axes.plot(across, down, "--", color="0.6", lw=1.0, label="front of these two")
    if not front.all():
        axes.scatter(
            x[~front], y[~front], s=40, marker="x", color="0.5", label="dominated"
        )
    points = axes.scatter(
        x[front],
        y[front],
        c=grades[front],
        s=70,
        cmap="viridis",
        edgecolors="black",
        zorder=3,
        label=f"Pareto front over {len(ranking.metrics)} metrics",
    )
    axes.scatter(
        x[:1],
        y[:1],
        s=330,
        marker="*",
        facecolors="none",
        edgecolors="crimson",
        linewidths=1.8,
        zorder=4,
        label=f"recommended, trial {ranking.trials[0].number}",
    )
    for set_scale, values in ((axes.set_xscale, x), (axes.set_yscale, y)):
        # from ten times on a straight axis crowds the small ones
        if values.min() > 0 and values.max() > 10 * values.min():
            set_scale("log")
    axes.set_xlabel(f"seconds a round, with {LATENCIES[1]:g} s latency a round trip")
    axes.set_ylabel("mean of the last 5 losses")
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.colorbar(points, label="grey relational grade")
    figure.savefig(path, dpi=120)


def _stairs(x: FloatArray, y: FloatArray) -> tuple[list[float], list[float]]:
    """The front of two metrics to minimise, as a line of steps."""
    across: list[float] = []
    down: list[float] = []
    for i in np.lexsort((y, x)):
        if not down or y[i] < down[-1]:
            if down:
                across.append(float(x[i]))
                down.append(down[-1])
            across.append(float(x[i]))
            down.append(float(y[i]))
    return across, down


# ---------------------------------------------------------------------------- table


def show(console: Console, ranking: Ranking, trials: Sequence[Trial]) -> None:
    """Print the trials, the recommended first, and why others were left out."""
    from rich.measure import Measurement

    table = _table(ranking, ranking.metrics)
    wide = console.options.update(width=10_000, max_width=10_000)
    if Measurement.get(console, wide, table).maximum > console.width:
        # of the three latencies that of the picture
        names = [n for n in ranking.metrics if n == _SHOWN or "seconds" not in n]
        table = _table(ranking, names)
    console.print(table)
    if len(ranking.trials) > _ROWS:
        console.print(f"... and {len(ranking.trials) - _ROWS} more in trials.jsonl")
    for trial in sorted(trials, key=lambda trial: trial.number):
        if not trial.counts:
            console.print(
                f"left out: trial {trial.number} {trial.status}: {trial.reason}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _table(ranking: Ranking, names: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(
        title="Recommended first; grades of the Pareto front over "
        f"{len(ranking.metrics)} metrics",
        title_justify="left",
    )
    keys = list(ranking.trials[0].settings)
    table.add_column("trial", justify="right", no_wrap=True)
    for key in keys:
        table.add_column(key, justify="right")
    table.add_column("grade", justify="right", no_wrap=True)
    for name in names:
        table.add_column(_HEADERS[name], justify="right", no_wrap=True)
    shown = list(zip(ranking.trials, ranking.grades, strict=True))[:_ROWS]
    for row, (trial, grade) in enumerate(shown):
        table.add_row(
            str(trial.number),
            *(_text(trial.settings[key]) for key in keys),
            f"{grade:.3f}" if grade == grade else "-",
            *(f"{trial.metrics[name]:.4g}" for name in names),
            style="bold" if row == 0 else None,
        )
    return table


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
