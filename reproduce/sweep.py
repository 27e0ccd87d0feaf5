"""Runs that differ in one setting, several seeds each, and their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduce.common import Options, Run, execute
from reproduce.drawing import MOST_LINES, measured, new_figure, save, style_of

__all__ = ["Point", "sweep", "sweep_picture", "until"]


class Point(NamedTuple):
    """A value of what is varied: its label, its settings, the number of clients."""

    label: str
    settings: Mapping[str, Any]
    nodes: int


def sweep(
    options: Options,
    base: Mapping[str, Any],
    points: Sequence[Point],
    metrics: Sequence[str],
    *,
    seeds: int,
    every: int = 1,
    goal: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """Run all points with all seeds.

    Parameters
    ----------
    options : Options
    base : mapping
        Run config of all.
    points : sequence of Point
    metrics : sequence of str
        What is kept by round.
    seeds : int
    every : int
        Rounds between evaluations.
    goal : tuple of str and float, optional
        A metric, and the value whose first round is looked for.

    Returns
    -------
    dict
        ``seeds``, ``metrics`` and ``rows``, one a point: means and extremes of the
        metrics by round, and medians; and lists over the seeds of the last metrics,
        ``seconds``, ``evaluations``, ``bytes``, ``bytes-up`` and, with a goal,
        ``reached`` and ``reached-bytes``: the first round evaluated that meets it, and
        what was moved until then, up and down; -1 for none.
    """
    runs = [
        Run(
            (point.label, seed),
            {**base, **point.settings, "seed": seed},
            point.nodes,
            curve=True,
            every=every,
        )
        for point in points
        for seed in range(seeds)
    ]
    # the longest first, so that no process ends up alone with one
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs)
    rows = []
    for point in points:
        found = [results[point.label, seed] for seed in range(seeds)]
        good = [value for value in found if "failed" not in value]
        row: dict[str, Any] = {
            "label": point.label,
            "nodes": point.nodes,
            "failed": len(found) - len(good),
        }
        if good:
            row |= _summary(good, metrics, goal)
        rows.append(row)
    return {"rows": rows, "seeds": seeds, "metrics": list(metrics)}


def _summary(
    runs: list[dict[str, Any]],
    metrics: Sequence[str],
    goal: tuple[str, float] | None,
) -> dict[str, Any]:
    curves: dict[str, Any] = {"round": runs[0]["curve"]["round"]}
    for metric in metrics:
        by_round = np.array([run["curve"][metric] for run in runs])
        curves[metric] = {
            "mean": by_round.mean(axis=0).tolist(),
            "median": np.median(by_round, axis=0).tolist(),
            "lowest": by_round.min(axis=0).tolist(),
            "highest": by_round.max(axis=0).tolist(),
        }
    totals = ("seconds", "bytes", "bytes-up", "evaluations")
    row: dict[str, Any] = {
        what: [run[what] for run in runs]
        for what in (*metrics, *totals)
        if what in runs[0]
    }
    if goal:
        row["reached"] = [until(run["curve"], *goal) for run in runs]
        row["reached-bytes"] = [until(run["curve"], *goal, "bytes") for run in runs]
    return {"curves": curves, **row}


def until(
    curve: Mapping[str, Sequence[float]], metric: str, goal: float, what: str = "round"
) -> int:
    """Return the first evaluated round that meets the goal, or its bytes; -1: none."""
    pairs = zip(curve[what], curve[metric], strict=True)
    return next((int(t) for t, value in pairs if value >= goal), -1)


def sweep_picture(
    results: dict[str, Any],
    out: Path,
    name: str,
    *,
    title: str,
    labels: Mapping[str, str],
    logarithmic: Sequence[str] = (),
    chance: Mapping[str, float],
) -> str:
    """Draw the metrics over rounds: medians over the seeds, extremes shaded.

    ``labels`` are the metrics' names on the axes, ``chance`` what they are without
    learning. More than six lines are dealt to
    several rows of panels, by what follows the first comma in their labels, or by what
    stands before it.
    """
    rows = [row for row in results["rows"] if "curves" in row]
    groups = _groups(rows)
    figure, axes = new_figure(len(labels), len(groups))
    for line, group in zip(axes, groups, strict=True):
        for one, (metric, text) in zip(line, labels.items(), strict=True):
            for k, row in enumerate(group):
                curve = row["curves"][metric]
                rounds, style = row["curves"]["round"], style_of(k)
                one.plot(rounds, curve["median"], label=row["label"], **style)
                one.fill_between(
                    rounds,
                    curve["lowest"],
                    curve["highest"],
                    color=style["color"],
                    alpha=0.13,
                    linewidth=0,
                )
            one.set_xlabel("communication round")
            one.set_ylabel(text)
            if metric in logarithmic:
                one.set_yscale("log")
            if metric in chance:
                one.axhline(chance[metric], color="gray", linestyle=":")
            one.legend(title=title, fontsize="small")
    return save(figure, out, name)


def _groups(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows for each line of panels: all, or if they are many by a part of labels."""
    if len(rows) <= MOST_LINES:
        return [rows]
    found: list[list[dict[str, Any]]] = []
    for part in (2, 0):
        names = [row["label"].partition(", ")[part] for row in rows]
        found = [
            [row for row, other in zip(rows, names, strict=True) if other == name]
            for name in dict.fromkeys(names)
        ]
        if len(found) <= 3:
            break
    return found


def seeds_and_time(results: dict[str, Any]) -> str:
    """Return what stands below a table of means."""
    seeds = results["seeds"]
    failed = sum(row["failed"] for row in results["rows"])
    note = f" {failed} runs diverged and are left out." if failed else ""
    means = "One seed." if seeds == 1 else f"Means of {seeds} seeds, extremes shaded."
    return f"{means}{note} {measured(results)}"
