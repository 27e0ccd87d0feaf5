"""Figures 3 and 5 with several seeds: at the end, and at equal time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Item, Options, SkippedError, execute, load_results
from reproduce.drawing import spread, table

from .figures import BUNDLE, FEDAVG, HYFEM, PRACTICAL, figure_run, title_of
from .problems import PROBLEMS, config_of
from .runs import LAST, last_accuracy, last_loss, optimum_of, perform_hybrid

__all__ = ["ITEMS", "at_equal_time", "at_the_end"]

#: Seconds of a round trip: the paper's US to Singapore (7.3).
LATENCY = 0.2575
#: The paper's step and ours, each of which is compared with the baselines.
OURS = (PRACTICAL, BUNDLE)
METHODS = (*OURS, FEDAVG, HYFEM)
#: Seeds; of settings with more clients than these only figure 3's.
SEEDS, MOST_CLIENTS = 5, 100

Row = dict[str, Any]
Ends = dict[str, dict[str, list[float]]]


def clock(curve: Row, encryption: float, latency: float) -> NDArray[np.float64]:
    """Seconds until each evaluated iteration: round trips, computation, encryption.

    The computation is that of all clients one after the other.
    """
    spent = latency * np.asarray(curve["trips"], float) + np.asarray(curve["seconds"])
    return np.asarray(spent + encryption * np.asarray(curve["round"], float))


def at_the_end(row: Row) -> Ends:
    """Relative losses and accuracies of every method, where its runs end, by seed."""
    return {
        method: {
            "loss": [
                last_loss(curve) / best - 1.0
                for curve, best in zip(curves, row["optima"], strict=True)
            ],
            "accuracy": [last_accuracy(curve) for curve in curves],
        }
        for method, curves in row["curves"].items()
    }


def at_equal_time(row: Row, encryption: dict[str, float], ours: str) -> Ends:
    """The same when the first of three methods has had its iterations.

    Means of the last five evaluations up to then; no iteration is chosen by them.
    ``encryption`` is what an iteration's takes of the methods that encrypt.
    """
    trio = (ours, FEDAVG, HYFEM)
    found: Ends = {method: {"loss": [], "accuracy": []} for method in trio}
    for k, best in enumerate(row["optima"]):
        curves = {method: row["curves"][method][k] for method in trio}
        clocks = {
            method: clock(curve, encryption.get(method, 0.0), LATENCY)
            for method, curve in curves.items()
        }
        end = min(times[-1] for times in clocks.values())
        for method, times in clocks.items():
            until = int(np.searchsorted(times, end, side="right"))
            past = slice(max(0, until - LAST), until)
            loss, top = (np.mean(curves[method][q][past]) for q in ("loss", "accuracy"))
            found[method]["loss"].append(float(loss) / best - 1.0)
            found[method]["accuracy"].append(float(top))
    return found


# ------------------------------------------------------------------------ several seeds


def compute_seeds(options: Options) -> dict[str, Any]:
    """Seed 0 is figure 3's; the others are run here with the settings chosen there."""
    path = options.out / "results" / "figure-3.json"
    if not path.is_file():
        raise SkippedError("needs the results of figure-3")
    stored = load_results(path)
    runs, rows = [], []
    optima = {(name, 0): best["value"] for name, best in stored["optima"].items()}
    for k, one in enumerate(stored["panels"]):
        row = {q: one[q] for q in ("problem", "split", "paper", "available")}
        name = one["problem"]
        split = next(s for s in PROBLEMS[name].splits if s.label == one["split"])
        seeds = options.numbers(SEEDS if split.nodes <= MOST_CLIENTS else 1)
        for seed in set(seeds) - {0}:
            if (name, seed) not in optima:
                config = config_of(PROBLEMS[name], options, split) | {"seed": seed}
                optima[name, seed] = optimum_of(config, split.nodes)["value"]
            runs += [
                figure_run(
                    *(options, name, split, one["available"]),
                    one["settings"][method] | {"seed": seed},
                    (k, seed, method),
                )
                for method in METHODS
            ]
        rows.append(row | {"seeds": seeds, "curves": one["curves"]})
    # consecutive runs share their data
    results = execute(runs, options.jobs, perform=perform_hybrid)
    for k, row in enumerate(rows):
        first = row["curves"]
        row["optima"] = [optima[row["problem"], seed] for seed in row["seeds"]]
        row["curves"] = {
            m: [results[k, s, m] if s else first[m] for s in row["seeds"]]
            for m in METHODS
        }
        row["seeds"] = list(row["seeds"])
    return {"rows": rows, "seeds": max(len(row["seeds"]) for row in rows)}


def render_seeds(results: dict[str, Any], out: Path) -> str:
    """Where the runs end: losses and accuracies, means with extremes."""
    lines = []
    for row in results["rows"]:
        ends = at_the_end(row)
        cells = (
            spread([100 * value for value in ends[method][what]], form)
            for what, form in (("loss", "{:.2g}"), ("accuracy", "{:.1f}"))
            for method in METHODS
        )
        lines.append((title_of(row), len(row["seeds"]), *cells))
    others = "HyFDCA, the paper's step | ours | HybridFedAvg | HyFEM"
    head = f"data, clients | seeds | relative loss, %: {others}"
    return (
        f"{table(f'{head} | accuracy, %: {others}', lines)}\n\n"
        "Means and, in brackets, extremes over the seeds, of means of the last five "
        "evaluated iterations."
    )


ITEMS = {
    # needs what figure 3 has measured
    "figure-3-seeds": Item(
        "figures 3 and 5: comparisons with several seeds", compute_seeds, render_seeds
    ),
}
