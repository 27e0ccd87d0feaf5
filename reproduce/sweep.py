"""Runs that differ in one setting, several seeds each, and their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduce.common import Options, repeat
from reproduce.drawing import new_figure, panel, save

__all__ = ["Point", "seeds_of", "sweep", "sweep_picture"]


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
    seeds: Sequence[int],
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
    seeds : sequence of int
    every : int
        Rounds between evaluations.
    goal : tuple of str and float, optional
        A metric, and the value whose first round is looked for.

    Returns
    -------
    dict
        ``seeds``, ``metrics`` and ``rows``, one a point: means, extremes and every
        seed's metrics by round; and lists over the seeds of the last metrics,
        ``seconds``, ``evaluations``, ``bytes``, ``bytes-up`` and, with a goal,
        ``reached`` and ``reached-bytes``: the first round evaluated that meets it, and
        what was moved until then, up and down; -1 for none.
    """
    cases = {point.label: {**base, **point.settings} for point in points}
    nodes = {point.label: point.nodes for point in points}
    results = repeat(options, cases, seeds, nodes, curve=True, every=every)
    rows = []
    for label, found in results.items():
        good = [value for value in found if "failed" not in value]
        row: dict[str, Any] = {"label": label, "nodes": nodes[label]}
        row["failed"] = len(found) - len(good)
        rows.append(row | (_summary(good, metrics, goal) if good else {}))
    return {"rows": rows, "seeds": len(seeds), "metrics": list(metrics)}


def _summary(
    runs: list[dict[str, Any]], metrics: Sequence[str], goal: tuple[str, float] | None
) -> dict[str, Any]:
    curves: dict[str, Any] = {"round": runs[0]["curve"]["round"]}
    for metric in metrics:
        by_round = np.array([run["curve"][metric] for run in runs])
        curves[metric] = {
            "seeds": by_round.tolist(),
            "mean": by_round.mean(axis=0).tolist(),
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
        row["reached"] = [_until(run["curve"], *goal, "round") for run in runs]
        row["reached-bytes"] = [_until(run["curve"], *goal, "bytes") for run in runs]
    return {"curves": curves, **row}


def _until(
    curve: Mapping[str, Sequence[float]], metric: str, goal: float, what: str
) -> int:
    pairs = zip(curve[what], curve[metric], strict=True)
    return next((int(t) for t, value in pairs if value >= goal), -1)


def sweep_picture(
    panels: Mapping[str, Sequence[Mapping[str, Any]]],
    out: Path,
    name: str,
    labels: Mapping[str, str],
    *,
    title: str,
    logarithmic: Sequence[str] = (),
    chance: Mapping[str, float],
) -> str:
    """Draw metrics over rounds, a line of panels for each group of rows.

    ``labels`` are the metrics' names on the axes, ``title`` is the legend's, and
    ``chance`` what the metrics are without learning.
    """
    figure, axes = new_figure(len(labels), len(panels))
    for line, (group, rows) in zip(axes, panels.items(), strict=True):
        for one, (metric, text) in zip(line, labels.items(), strict=True):
            curves = {
                row["label"]: (
                    row["curves"]["round"],
                    [row["curves"][metric][k] for k in ("lowest", "mean", "highest")],
                )
                for row in rows
                if "curves" in row
            }
            log = "y" if metric in logarithmic else ""
            how: dict[str, Any] = {"title": group, "log": log, "legend": title}
            panel(one, curves, "communication round", text, **how)
            if metric in chance:
                one.axhline(chance[metric], color="gray", linestyle=":")
    return save(figure, out, name)


def seeds_of(results: Mapping[str, Any]) -> str:
    """Return what stands below a table of means."""
    seeds = results["seeds"]
    failed = sum(row["failed"] for row in results["rows"])
    note = f" {failed} runs diverged and are left out." if failed else ""
    means = "One seed." if seeds == 1 else f"Means of {seeds} seeds, extremes shaded."
    return means + note
