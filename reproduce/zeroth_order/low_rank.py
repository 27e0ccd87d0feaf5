"""Figures 7 to 9: a network whose hidden weight matrix has low rank."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, app_config, read_config
from reproduce.drawing import new_figure, percent, save, style_of
from reproduce.sweep import Point, seeds_and_time, sweep, sweep_picture
from tasks import make_task

__all__ = [
    "compute_figure_7",
    "compute_figure_8",
    "compute_figure_9",
    "render_figure_7",
    "render_figure_8",
    "render_figure_9",
]

HERE = Path(__file__).parent
CLIENTS = 10
FULL = {"low-rank-network.full-rank": True}
WHOLE = {"low-rank-network.factored": False}
GRADIENTS = {"method": "first-order-rfl"}

# What suits the factors is too little for W as a whole. Of 0.003, 0.01, 0.03, 0.1 and
# 0.3 the one with the lowest training loss after 100 rounds with seed 0.
FULL_STEP = {"local-step-size": 0.3}
# Ranks below 8 leave what they had learnt with 0.01 after 100 rounds.
SMALL_STEP = {"local-step-size": 0.005}
WHOLE_STEP = {"local-step-size": 0.3}
GRADIENT_STEP = {"local-step-size": 0.01}
FULL_GRADIENT_STEP = {"local-step-size": 0.3}


def _base(options: Options) -> dict[str, Any]:
    base = read_config(HERE / "low-rank.toml")
    return base | {"rounds": 4} if options.quick else base


def _sweep(
    options: Options, points: list[Point], *, seeds: int, **changes: Any
) -> dict[str, Any]:
    base = _base(options)
    if not options.quick:
        base |= changes
    results = sweep(
        options,
        base,
        points,
        ("loss", "accuracy", "bytes"),
        seeds=min(options.seeds, seeds),
        every=2 if options.quick else 5,
    )
    sizes = {}
    for point in points:
        config = app_config({**base, **point.settings})
        task = make_task(base["task"], config, point.nodes, 0)
        sizes[point.label] = sum(prod(shape) for shape in task.shapes())
    return results | {"rounds": base["rounds"], "sizes": sizes}


def _table(results: dict[str, Any], title: str) -> str:
    rounds = results["rounds"]
    lines = [
        f"| {title} | parameters | test accuracy | F | values of each f_i "
        "| kB up, a client and round | kB down |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        head = f"| {row['label']} | {results['sizes'][row['label']]:,} "
        if "curves" not in row:
            lines.append(f"{head}| diverged | | | | |")
            continue
        each = rounds * row["nodes"]
        up = np.mean(row["bytes-up"]) / each
        down = np.mean(row["bytes"]) / each - up
        values = "none"
        if "evaluations" in row:
            values = f"{np.mean(row['evaluations']) / row['nodes']:,.0f}"
        lines.append(
            f"{head}| {percent(row['accuracy'])} | {np.mean(row['loss']):.3f} "
            f"| {values} | {up / 1e3:.1f} | {down / 1e3:.1f} |"
        )
    return "\n".join([*lines, "", f"{rounds} rounds. {seeds_and_time(results)}"])


def _render(results: dict[str, Any], out: Path, name: str, title: str) -> str:
    labels = {"loss": "objective F(x)", "accuracy": "test accuracy (share)"}
    picture = sweep_picture(
        results, out, name, title=title, labels=labels, logarithmic=["loss"]
    )
    return f"{picture}\n\n{_table(results, title)}"


def compute_figure_7(options: Options) -> dict[str, Any]:
    """N = 10, 20, 30; R = 8, m = 50, τ = 5; half the step size, see the page."""
    clients = (10, 20) if options.quick else (10, 20, 30)
    points = [Point(str(n), {"local-step-size": 0.005}, n) for n in clients]
    return _sweep(options, points, seeds=1)


def render_figure_7(results: dict[str, Any], out: Path) -> str:
    """A line for every n."""
    return _render(results, out, "figure-7", "clients n")


def compute_figure_8(options: Options) -> dict[str, Any]:
    """M = 5, 20, 50, 100; R = 8, W whole, n = 10, τ = 5."""
    samples = (5, 20) if options.quick else (5, 20, 50, 100)
    settings = WHOLE | {"local-step-size": 0.1}
    points = [Point(str(m), settings | {"samples": m}, CLIENTS) for m in samples]
    return _sweep(options, points, seeds=1, rounds=100)


def render_figure_8(results: dict[str, Any], out: Path) -> str:
    """A line for every m."""
    return _render(results, out, "figure-8", "directions m")


def compute_figure_9(options: Options) -> dict[str, Any]:
    """R = 2, 4, 8, 16 and full, from values; R = 8 and full, from gradients."""
    ranks = (2, 8) if options.quick else (2, 4, 8, 16)
    points = []
    for rank in ranks:
        settings: dict[str, Any] = {"low-rank-network.rank": rank}
        if rank < 8:
            settings |= SMALL_STEP
        points.append(Point(f"values, R = {rank}", settings, CLIENTS))
    points += [
        Point("values, R = 8, W whole", WHOLE | WHOLE_STEP, CLIENTS),
        Point("values, full rank", FULL | FULL_STEP, CLIENTS),
        Point("gradients, R = 8", GRADIENTS | GRADIENT_STEP, CLIENTS),
        Point("gradients, full rank", GRADIENTS | FULL | FULL_GRADIENT_STEP, CLIENTS),
    ]
    return _sweep(options, points, seeds=2)


def render_figure_9(results: dict[str, Any], out: Path) -> str:
    """Accuracy over rounds and over bytes moved."""
    figure, axes = new_figure(2, 2)
    rows = [row for row in results["rows"] if "curves" in row]
    kinds = ("values", "gradients")
    for row in rows:
        line = int(not row["label"].startswith(kinds[0]))
        left, right = axes[line]
        style = style_of(sum(len(one.get_xdata()) > 2 for one in left.lines))
        curve = row["curves"]
        accuracy = curve["accuracy"]["mean"]
        left.plot(curve["round"], accuracy, label=row["label"], **style)
        # the start has moved nothing, which has no place on the axis
        moved = np.array(curve["bytes"]["mean"][1:]) / 1e6
        right.plot(moved, accuracy[1:], label=row["label"], **style)
    for left, right in axes:
        left.set_xlabel("communication round")
        right.set_xlabel("megabytes moved, up and down, all clients")
        right.set_xscale("log")
        for one in (left, right):
            one.set_ylabel("test accuracy (share)")
            one.axhline(0.1, color="gray", linestyle=":")
        left.legend(fontsize="small")
    return f"{save(figure, out, 'figure-9')}\n\n{_table(results, 'method')}"
