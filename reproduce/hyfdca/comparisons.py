"""Figures 3 and 5 with several seeds: at the end, and at equal time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Item, Options, SkippedError, execute, load_results
from reproduce.drawing import spread, table

from .figures import (
    BUNDLE,
    FEDAVG,
    HYFEM,
    PRACTICAL,
    figure_run,
    practical_at,
    title_of,
)
from .problems import PROBLEMS, config_of
from .runs import LAST, last_accuracy, last_loss, optimum_of, perform_hybrid

__all__ = ["ITEMS"]

#: Seconds of a round trip: the paper's US to Singapore (7.3).
LATENCY = 0.2575
METHODS = (BUNDLE, FEDAVG, HYFEM)
#: The paper's step and ours, each of which is compared with the baselines.
OURS = (PRACTICAL, BUNDLE)
#: Seeds by the most seconds that a setting's three runs took in figure 3.
SEEDS = {60.0: 5, 70.0: 3, math.inf: 1}

Panel = dict[str, Any]


def clock(panel: Panel, method: str, latency: float) -> NDArray[np.float64]:
    """Seconds until each evaluated iteration: round trips, computation, encryption.

    The computation is that of all clients one after the other, the encryption what an
    iteration of the same setting took in tables 6 to 8.
    """
    curve = panel["curves"][method]
    spent = latency * np.asarray(curve["trips"], float) + np.asarray(curve["seconds"])
    # the baselines encrypt nothing
    each = panel.get("encryption", {}).get(method, 0.0)
    return np.asarray(spent + each * np.asarray(curve["round"], float))


def at_equal_time(
    panel: Panel, latency: float, methods: Sequence[str] = METHODS
) -> dict[str, tuple[float, float]]:
    """Loss and accuracy of each method when the first has had its iterations.

    Means of the last five evaluations up to then; no iteration is chosen by them.
    """
    clocks = {method: clock(panel, method, latency) for method in methods}
    end = min(times[-1] for times in clocks.values())
    found = {}
    for method, times in clocks.items():
        curve = panel["curves"][method]
        until = int(np.searchsorted(times, end, side="right"))
        past = slice(max(0, until - LAST), until)
        loss, accuracy = (np.mean(curve[what][past]) for what in ("loss", "accuracy"))
        found[method] = float(loss), float(accuracy)
    return found


def stored_panels(options: Options) -> tuple[dict[str, Any], list[Panel]]:
    """Figure 3's results, and its panels with what their encryption takes.

    Raises
    ------
    SkippedError
        Figure 3, or tables 6 to 8, have not been measured.
    """
    paths = [options.out / "results" / f"{k}.json" for k in ("figure-3", "tables-6-8")]
    for path in paths:
        if not path.is_file():
            raise SkippedError(f"needs the results of {path.stem}")
    runs, times = map(load_results, paths)

    def setting(row: Panel) -> tuple[Any, ...]:
        return row["problem"], row["split"], row["available"]

    seconds = {
        setting(row): {step: row[step]["encryption"] for step in OURS}
        for row in times["rows"]
    }
    panels = [
        {
            **panel,
            "encryption": seconds[setting(panel)],
            "optimum": runs["optima"][panel["problem"]]["value"],
        }
        for panel in runs["panels"]
    ]
    return runs, panels


# ------------------------------------------------------------------------ several seeds


def compute_seeds(options: Options) -> dict[str, Any]:
    """Seed 0 is figure 3's; the others are run here with the settings chosen there."""
    stored, panels = stored_panels(options)
    # digits are ours; a quick run has nothing else
    if len({panel["problem"] for panel in panels}) > 1:
        panels = [panel for panel in panels if panel["problem"] != "digits"]
    runs, optima = [], {}
    for k, one in enumerate(panels):
        name = one["problem"]
        split = next(s for s in PROBLEMS[name].splits if s.label == one["split"])
        tuned = stored["tuned"][name]
        took = sum(one["curves"][method]["seconds"][-1] for method in METHODS)
        count = next(count for most, count in SEEDS.items() if took <= most)
        one["seeds"] = options.numbers(count)
        for seed in one["seeds"]:
            if seed == 0:
                optima[name, seed] = one["optimum"]
                continue
            if (name, seed) not in optima:
                config = config_of(PROBLEMS[name], options, split) | {"seed": seed}
                optima[name, seed] = optimum_of(config, split.nodes)["value"]
            for method in (PRACTICAL, *METHODS):
                own = tuned[method]["settings"] if method != BUNDLE else {}
                if method == PRACTICAL:
                    count = int(stored["optima"][name]["samples"])
                    own = practical_at(own, count, PROBLEMS[name], split)
                key, there = (k, seed, method), one["available"]
                own = own | {"seed": seed}
                runs.append(figure_run(options, name, split, there, own, key))
    # consecutive runs share their data
    results = execute(runs, options.jobs, perform=perform_hybrid)
    rows = []
    for k, one in enumerate(panels):
        row: Panel = {q: one[q] for q in ("problem", "split", "paper", "available")}
        trios = {step: (step, FEDAVG, HYFEM) for step in OURS}
        for what in ("ends", "timed"):
            row[what] = {
                step: {method: {"loss": [], "accuracy": []} for method in trio}
                for step, trio in trios.items()
            }
        for seed in one["seeds"]:
            best, curves = optima[one["problem"], seed], one["curves"]
            if seed != 0:
                curves = {m: results[k, seed, m] for m in (PRACTICAL, *METHODS)}
            for step, trio in trios.items():
                timed = at_equal_time({**one, "curves": curves}, LATENCY, trio)
                for method in trio:
                    ends = last_loss(curves[method]), last_accuracy(curves[method])
                    for what, (loss, top) in (("ends", ends), ("timed", timed[method])):
                        row[what][step][method]["loss"].append(loss / best - 1.0)
                        row[what][step][method]["accuracy"].append(top)
        rows.append(row)
    return {"rows": rows, "seeds": max(len(one["seeds"]) for one in panels)}


def render_seeds(results: dict[str, Any], out: Path) -> str:
    """Where the runs end: losses and accuracies, means with extremes."""
    lines = []
    for row in results["rows"]:
        ends = [row["ends"][step][step] for step in OURS]
        ends += [row["ends"][BUNDLE][method] for method in (FEDAVG, HYFEM)]
        cells = (
            spread([100 * value for value in end[what]], form)
            for what, form in (("loss", "{:.2g}"), ("accuracy", "{:.1f}"))
            for end in ends
        )
        lines.append((title_of(row), len(ends[0]["loss"]), *cells))
    others = "HyFDCA, the paper's step | ours | HybridFedAvg | HyFEM"
    head = f"data, clients | seeds | relative loss, %: {others}"
    return (
        f"{table(f'{head} | accuracy, %: {others}', lines)}\n\n"
        "Means and, in brackets, extremes over the seeds, of means of the last five "
        "evaluated iterations."
    )


ITEMS = {
    # needs what figure 3 and tables 6 to 8 have measured
    "figure-3-seeds": Item(
        "figures 3 and 5: comparisons with several seeds", compute_seeds, render_seeds
    ),
}
