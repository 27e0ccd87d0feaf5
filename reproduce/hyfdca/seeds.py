"""Figure 3's comparisons with several seeds, by iterations and by time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, execute
from reproduce.drawing import measured

from .figures import BUNDLE, figure_run, last_accuracy, last_loss
from .latency import LATENCY, METHODS, at_equal_time, stored_panels
from .problems import PROBLEMS, Split, config_of
from .runs import optimum_of, perform_hybrid

__all__ = ["compute_seeds", "render_seeds"]

#: Seeds by the most seconds that a setting's three runs took in figure 3.
SEEDS = {60.0: 5, 70.0: 3, math.inf: 1}
Ends = dict[str, dict[str, list[float]]]


def _panels(options: Options) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figure 3's panels with their encryption, and the baselines' settings."""
    runs, panels = stored_panels(options)
    names = {panel["problem"] for panel in panels}
    # digits are ours; a quick run has nothing else
    kept = [p for p in panels if len(names) == 1 or p["problem"] != "digits"]
    for panel in kept:
        panel["optimum"] = runs["optima"][panel["problem"]]["value"]
    return kept, runs["tuned"]


def _split(panel: dict[str, Any]) -> Split:
    splits = PROBLEMS[panel["problem"]].splits
    return next(s for s in splits if s.label == panel["split"])


def compute_seeds(options: Options) -> dict[str, Any]:
    """Seed 0 is figure 3's; the others are run here with the settings chosen there."""
    panels, tuned = _panels(options)
    runs, optima = [], {}
    for k, panel in enumerate(panels):
        name, split = panel["problem"], _split(panel)
        chosen = {method: tuned[name][method]["settings"] for method in METHODS[1:]}
        took = sum(panel["curves"][method]["seconds"][-1] for method in METHODS)
        count = next(count for most, count in SEEDS.items() if took <= most)
        panel["seeds"] = options.numbers(count)
        for seed in panel["seeds"]:
            if seed == 0:
                optima[name, seed] = panel["optimum"]
                continue
            if (name, seed) not in optima:
                config = config_of(PROBLEMS[name], options, split) | {"seed": seed}
                optima[name, seed] = optimum_of(config, split.nodes)["value"]
            for method in METHODS:
                settings = chosen.get(method, {}) | {"seed": seed}
                key = (k, seed, method)
                runs.append(
                    figure_run(options, name, split, panel["available"], settings, key)
                )
    # consecutive runs share their data
    results = execute(runs, options.jobs, perform=perform_hybrid)
    rows = []
    for k, panel in enumerate(panels):
        kept = ("problem", "split", "paper", "available")
        row: dict[str, Any] = {key: panel[key] for key in kept}
        row |= {"ends": _empty(), "timed": _empty()}
        for seed in panel["seeds"]:
            best, curves = optima[panel["problem"], seed], panel["curves"]
            if seed != 0:
                curves = {method: results[k, seed, method] for method in METHODS}
            timed = at_equal_time({**panel, "curves": curves}, LATENCY)
            for method in METHODS:
                own = curves[method]
                for what, (loss, accuracy) in (
                    ("ends", (last_loss(own), last_accuracy(own))),
                    ("timed", timed[method]),
                ):
                    row[what][method]["loss"].append(loss / best - 1.0)
                    row[what][method]["accuracy"].append(accuracy)
        rows.append(row)
    return {"rows": rows, "seeds": max(len(panel["seeds"]) for panel in panels)}


def _empty() -> Ends:
    return {method: {"loss": [], "accuracy": []} for method in METHODS}


def _spread(values: list[float], digits: str = ".2g") -> str:
    """A median and its extremes, in percent."""
    shown = [
        f"{100 * v:{digits}}" if v < 1.0 else f"{100 * v:,.0f}"
        for v in (float(np.median(values)), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def render_seeds(results: dict[str, Any], out: Path) -> str:
    """Where the runs end: losses and accuracies, medians with extremes."""
    lines = [
        "| data | clients, there | seeds | relative loss, %: HyFDCA | HybridFedAvg "
        "| HyFEM | accuracy, %: HyFDCA | HybridFedAvg | HyFEM |",
        "| --- " * 9 + "|",
    ]
    for row in results["rows"]:
        ends = row["ends"]
        cells = [
            *(_spread(ends[method]["loss"]) for method in METHODS),
            *(_spread(ends[method]["accuracy"], ".1f") for method in METHODS),
        ]
        lines.append(
            f"| {PROBLEMS[row['problem']].title} | {row['split']}, "
            f"{100 * row['available']:.0f} % | {len(ends[BUNDLE]['loss'])} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(
        [
            *lines,
            "",
            "Medians and, in brackets, extremes over the seeds, of means of the last "
            f"five evaluated iterations. {measured(results)}",
        ]
    )
