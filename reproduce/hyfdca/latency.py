"""Figure 5: the runs of figure 3 over time, with the paper's latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Options, SkippedError, load_results
from reproduce.drawing import measured, new_figure, save, style_of

from .figures import BUNDLE, FEDAVG, HYFEM, LAST, relative
from .problems import PROBLEMS

__all__ = [
    "LATENCIES",
    "LATENCY",
    "at_equal_time",
    "clock",
    "compute_figure_5",
    "render_figure_5",
    "stored_panels",
]

#: Seconds of a round trip: none, US to Singapore, a geostationary satellite (7.3).
LATENCIES = (0.0, 0.2575, 0.8)
#: Of the paper's figure 5.
LATENCY = 0.2575
METHODS = (BUNDLE, FEDAVG, HYFEM)

Panel = dict[str, Any]


def clock(panel: Panel, method: str, latency: float) -> NDArray[np.float64]:
    """Seconds until each evaluated iteration: round trips, computation, encryption.

    The computation is that of all clients one after the other, the encryption what an
    iteration of the same setting took in tables 6 to 8.
    """
    curve = panel["curves"][method]
    spent = latency * np.asarray(curve["trips"], float) + np.asarray(curve["seconds"])
    # the baselines encrypt nothing
    each = panel.get("encryption", 0.0) if method == BUNDLE else 0.0
    return np.asarray(spent + each * np.asarray(curve["round"], float))


def at_equal_time(panel: Panel, latency: float) -> dict[str, tuple[float, float]]:
    """Loss and accuracy of each method when the first has had its iterations.

    Means of the last five evaluations up to then; no iteration is chosen by them.
    """
    clocks = {method: clock(panel, method, latency) for method in METHODS}
    end = min(times[-1] for times in clocks.values())
    found = {}
    for method, times in clocks.items():
        curve = panel["curves"][method]
        until = int(np.searchsorted(times, end, side="right"))
        past = slice(max(0, until - LAST), until)
        found[method] = (
            float(np.mean(curve["loss"][past])),
            float(np.mean(curve["accuracy"][past])),
        )
    return found


def with_encryption(runs: dict[str, Any], times: dict[str, Any]) -> list[Panel]:
    """Figure 3's panels, each with its seconds of encryption an iteration."""
    seconds = {
        (row["problem"], row["split"], row["available"]): row[BUNDLE]["encryption"]
        for row in times["rows"]
    }
    return [
        {
            **panel,
            "encryption": seconds[panel["problem"], panel["split"], panel["available"]],
        }
        for panel in runs["panels"]
    ]


def stored_panels(options: Options) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figure 3's results, and its panels with what their encryption takes.

    Raises
    ------
    SkippedError
        Figure 3, or tables 6 to 8, have not been measured.
    """
    folder = options.out / "results"
    paths = [folder / f"{name}.json" for name in ("figure-3", "tables-6-8")]
    for path in paths:
        if not path.is_file():
            raise SkippedError(f"needs the results of {path.stem}")
    runs, times = (load_results(path) for path in paths)
    return runs, with_encryption(runs, times)


def compute_figure_5(options: Options) -> dict[str, Any]:
    """Read what figure 3 and tables 6 to 8 have measured; nothing is run."""
    runs, panels = stored_panels(options)
    rows = []
    for panel in panels:
        best = runs["optima"][panel["problem"]]["value"]
        row: dict[str, Any] = {key: panel[key] for key in ("problem", "split")}
        row |= {"available": panel["available"], "curves": {}, "ends": {}}
        for method in METHODS:
            row["curves"][method] = {
                "seconds": clock(panel, method, LATENCY).tolist(),
                "trips": panel["curves"][method]["trips"],
                "relative": relative(panel["curves"][method], best).tolist(),
            }
        for latency in LATENCIES:
            row["ends"][f"{latency:g}"] = {
                method: [loss / best - 1.0, accuracy]
                for method, (loss, accuracy) in at_equal_time(panel, latency).items()
            }
        rows.append(row)
    return {"rows": rows, "seeds": 1}


def render_figure_5(results: dict[str, Any], out: Path) -> str:
    """Relative loss over round trips and over seconds; ends by latency."""
    rows = results["rows"]
    # the middle setting of each data set
    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = new_figure(len(names), 2)
    for column, name in enumerate(names):
        mine = [row for row in rows if row["problem"] == name]
        row = mine[len(mine) // 2]
        for line, what in enumerate(("trips", "seconds")):
            one = axes[line][column]
            for k, method in enumerate(METHODS):
                curve = row["curves"][method]
                one.plot(curve[what], curve["relative"], label=method, **style_of(k))
            one.set_yscale("log")
            one.set_title(
                f"{PROBLEMS[name].title}, {row['split']}, "
                f"{100 * row['available']:.0f} % there",
                fontsize="medium",
            )
            one.set_xlabel(
                "round trips" if what == "trips" else "seconds, 0.2575 a round trip"
            )
        axes[0][column].set_ylabel("$(P - P^*)/P^*$")
        axes[1][column].set_ylabel("$(P - P^*)/P^*$")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    lines = [
        "| latency, s | lower loss than both | higher accuracy than both | of |",
        "| --- | --- | --- | --- |",
    ]
    for latency in results["rows"][0]["ends"]:
        ends = [row["ends"][latency] for row in rows]
        lower = sum(e[BUNDLE][0] < min(e[FEDAVG][0], e[HYFEM][0]) for e in ends)
        higher = sum(e[BUNDLE][1] > max(e[FEDAVG][1], e[HYFEM][1]) for e in ends)
        lines.append(f"| {latency} | {lower} | {higher} | {len(ends)} |")
    return (
        f"{save(figure, out, 'figure-5')}\n\n"
        + "\n".join(lines)
        + "\n\nAt the time at which the first of the three has had its iterations, "
        "means of the last five evaluations up to then; the settings are figure 3's. "
        f"{measured(results)}"
    )
