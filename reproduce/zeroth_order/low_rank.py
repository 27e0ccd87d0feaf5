"""Figures 7 to 9: a network whose hidden weight matrix has low rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, app_config, execute, read_config
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
SEEDS = 3
GOAL = 0.45
CHANCE = {"accuracy": 0.1}
FULL = {"low-rank-network.full-rank": True}
GRADIENTS = {"method": "first-order-rfl"}
#: What a quick run has instead of MNIST: no file is needed.
DIGITS = {"rounds": 4, "low-rank-network.dataset": "digits"}
# The seed of the runs that choose step sizes, as long as those that are measured.
TRIAL_SEED = 100


def _base(options: Options) -> dict[str, Any]:
    base = read_config(HERE / "low-rank.toml")
    if options.quick:
        return base | DIGITS
    return base | {"low-rank-network.path": str(options.file("mnist"))}


def _sweep(
    options: Options, points: list[Point], rounds: int, *, every: int = 4
) -> dict[str, Any]:
    base = _base(options)
    if not options.quick:
        base |= {"rounds": rounds}
    results = sweep(
        options,
        base,
        points,
        ("loss", "accuracy", "bytes"),
        seeds=min(options.seeds, SEEDS),
        every=2 if options.quick else every,
        goal=("accuracy", GOAL),
    )
    sizes = {}
    for point in points:
        config = app_config({**base, **point.settings})
        task = make_task(base["task"], config, point.nodes, 0)
        sizes[point.label] = sum(prod(shape) for shape in task.shapes())
    return results | {"rounds": base["rounds"], "sizes": sizes}


def _chosen_steps(
    options: Options, cases: Mapping[str, tuple[dict[str, Any], Sequence[float]]]
) -> dict[str, Any]:
    """Choose each case's step size: the least training loss with a seed of its own."""
    base = _base(options) | {"seed": TRIAL_SEED}
    runs = [
        Run(
            (name, step),
            base | settings | {"step-size": step},
            CLIENTS,
            every=base["rounds"],
        )
        for name, (settings, steps) in cases.items()
        for step in steps
    ]
    found = execute(runs, options.jobs)
    chosen: dict[str, Any] = {}
    for name, (_, steps) in cases.items():
        # what diverged is not chosen
        losses = [
            float("inf") if "failed" in found[name, step] else found[name, step]["loss"]
            for step in steps
        ]
        best = int(np.argmin(losses))
        chosen[name] = {"tried": list(steps), "loss": losses, "step": steps[best]}
    return chosen


def _table(results: dict[str, Any], title: str, *, moved: bool = False) -> str:
    rounds = results["rounds"]
    lines = [
        f"| {title} | parameters | test accuracy | F | values of each f_i "
        "| kB up, a client and round | kB down |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    if moved:
        lines[0] += f" MB until {GOAL:.0%} |"
        lines[1] += " --- |"
    for row in results["rows"]:
        head = f"| {row['label']} | {results['sizes'][row['label']]:,} "
        if "curves" not in row:
            lines.append(f"{head}| diverged | | | | |" + " |" * moved)
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
            + (f" {_moved(row)} |" if moved else "")
        )
    lines += [
        "",
        f"{rounds} rounds. {seeds_and_time(results)} The lines are medians, dotted is "
        "chance.",
    ]
    return "\n".join(lines)


def _moved(row: dict[str, Any]) -> str:
    """Write the megabytes until the goal, all clients, up and down."""
    moved = np.array(row["reached-bytes"])
    if (moved < 0).any():
        return "not by all seeds"
    return f"{np.mean(moved) / 1e6:.1f}"


def _render(results: dict[str, Any], out: Path, name: str, title: str) -> str:
    labels = {"loss": "objective F(x)", "accuracy": "test accuracy (share)"}
    picture = sweep_picture(
        results,
        out,
        name,
        title=title,
        labels=labels,
        logarithmic=["loss"],
        chance=CHANCE,
    )
    return f"{picture}\n\n{_table(results, title)}"


def compute_figure_7(options: Options) -> dict[str, Any]:
    """N = 10, 20, 30; R = 8, m = 10, τ = 5."""
    clients = (10, 20) if options.quick else (10, 20, 30)
    return _sweep(options, [Point(str(n), {}, n) for n in clients], 12)


def render_figure_7(results: dict[str, Any], out: Path) -> str:
    """A line for every n."""
    return _render(results, out, "figure-7", "clients n")


def compute_figure_8(options: Options) -> dict[str, Any]:
    """M = 5, 20, 50; R = 8, n = 10, τ = 5."""
    samples = (5, 20) if options.quick else (5, 20, 50)
    return _sweep(
        options, [Point(str(m), {"samples": m}, CLIENTS) for m in samples], 12
    )


def render_figure_8(results: dict[str, Any], out: Path) -> str:
    """A line for every m."""
    return _render(results, out, "figure-8", "directions m")


def compute_figure_9(options: Options) -> dict[str, Any]:
    """R = 4, 8 and full, from values; R = 8 and full, from gradients."""
    factors: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04, 0.08)
    whole: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    if options.quick:
        factors, whole = (0.01,), (0.3,)
    four = {"low-rank-network.rank": 4}
    cases: dict[str, tuple[dict[str, Any], Sequence[float]]] = {
        "values, R = 4": (four, factors),
        "values, R = 8": ({}, factors),
        "values, full rank": (FULL, whole),
        "gradients, R = 8": (GRADIENTS, factors),
        "gradients, full rank": (GRADIENTS | FULL, whole),
    }
    chosen = _chosen_steps(options, cases)
    points = [
        Point(name, settings | {"step-size": chosen[name]["step"]}, CLIENTS)
        for name, (settings, _) in cases.items()
    ]
    return _sweep(options, points, _base(options)["rounds"], every=2) | {
        "steps": chosen
    }


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
        accuracy = curve["accuracy"]["median"]
        left.plot(curve["round"], accuracy, label=row["label"], **style)
        left.fill_between(
            curve["round"],
            curve["accuracy"]["lowest"],
            curve["accuracy"]["highest"],
            color=style["color"],
            alpha=0.13,
            linewidth=0,
        )
        # the start has moved nothing, which has no place on the axis
        moved = np.array(curve["bytes"]["mean"][1:]) / 1e6
        right.plot(moved, accuracy[1:], label=row["label"], **style)
    for left, right in axes:
        left.set_xlabel("communication round")
        right.set_xlabel("megabytes moved, up and down, all clients")
        right.set_xscale("log")
        for one in (left, right):
            one.set_ylabel("test accuracy (share)")
            one.axhline(CHANCE["accuracy"], color="gray", linestyle=":")
        left.legend(fontsize="small")
    chosen = "; ".join(
        f"{name}: {one['step']:g}" for name, one in results["steps"].items()
    )
    table = _table(results, "method", moved=True)
    picture = save(figure, out, "figure-9")
    return f"{picture}\n\n{table}\n\nStep sizes chosen: {chosen}."
