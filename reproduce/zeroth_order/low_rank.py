"""Figures 7 to 9: a network whose hidden weight matrix has low rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, app_config, execute, read_config
from reproduce.drawing import new_figure, percent, save, style_of
from reproduce.fedfw.tuning import Search, Space, search
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
SEEDS = 5
ROUNDS: int = read_config(HERE / "low-rank.toml")["rounds"]
CHANCE = {"accuracy": 0.1}
FULL = {"low-rank-network.full-rank": True}
GRADIENTS = {"method": "first-order-rfl"}
#: What a quick run has instead of MNIST: no file is needed.
DIGITS = {"rounds": 4, "low-rank-network.dataset": "digits"}
#: Where every case's search for its step begins, and how many steps each may try.
STEP = Space(("step-size",), (-1.75,))
BUDGET = 8
#: The seed of the runs that steps are chosen on, and what share of the training images
#: takes the place of the test images in them.
CHOICE = 1000
VALIDATION = 0.2
#: The goal is this part of the accuracy that every case has on validation images.
PART = 0.9


def _base(options: Options) -> dict[str, Any]:
    base = read_config(HERE / "low-rank.toml")
    if options.quick:
        return base | DIGITS
    return base | {"low-rank-network.path": str(options.file("mnist"))}


def _searches(options: Options, points: Sequence[Point]) -> dict[str, Search]:
    """Choose each case's step by its accuracy on validation images, at the end."""
    base = _base(options) | {"low-rank-network.validation-fraction": VALIDATION}
    base["seed"] = CHOICE
    cases = {point.label: point for point in points}

    def scores(asked: list[tuple[str, dict[str, float]]]) -> list[list[float]]:
        runs = [
            Run(
                (k,),
                {**base, **cases[label].settings, **step},
                cases[label].nodes,
                every=base["rounds"],
            )
            for k, (label, step) in enumerate(asked)
        ]
        found = execute(runs, options.jobs)
        # what diverged is not chosen
        return [[found[(k,)].get("accuracy", float("nan"))] for k in range(len(asked))]

    spaces = dict.fromkeys(cases, STEP)
    if options.quick:
        return search(spaces, 1, scores)
    return search(spaces, BUDGET, scores, 4)


def _sweep(options: Options, points: Sequence[Point]) -> dict[str, Any]:
    """Choose every case's step, then run all with the same seeds."""
    base = _base(options)
    searches = _searches(options, points)
    reached = min(one.tried[one.best] for one in searches.values())
    goal = round(PART * reached, 2)
    points = [
        point._replace(settings={**point.settings, **STEP.settings(found.best)})
        for point, found in zip(points, searches.values(), strict=True)
    ]
    results = sweep(
        options,
        base,
        points,
        ("loss", "accuracy", "bytes"),
        seeds=min(options.seeds, SEEDS),
        every=2,
        goal=("accuracy", goal),
    )
    sizes = {}
    for point in points:
        config = app_config({**base, **point.settings})
        task = make_task(base["task"], config, point.nodes, 0)
        sizes[point.label] = sum(prod(shape) for shape in task.shapes())
    return results | {
        "rounds": base["rounds"],
        "sizes": sizes,
        "goal": goal,
        "steps": {label: one.record() for label, one in searches.items()},
    }


def _table(results: dict[str, Any], title: str) -> str:
    rounds = results["rounds"]
    lines = [
        f"| {title} | parameters | step η | test accuracy | F | values of each f_i "
        "| kB up, a client and round | kB down "
        f"| MB until {results['goal']:.0%} |",
        "| --- " * 9 + "|",
    ]
    for row in results["rows"]:
        label = row["label"]
        step = results["steps"][label]["chosen"]["step-size"]
        head = f"| {label} | {results['sizes'][label]:,} | {step:g} "
        if "curves" not in row:
            lines.append(f"{head}| diverged | | | | | |")
            continue
        each = rounds * row["nodes"]
        up = np.mean(row["bytes-up"]) / each
        down = np.mean(row["bytes"]) / each - up
        values = "none"
        if "evaluations" in row:
            values = f"{np.mean(row['evaluations']) / row['nodes']:,.0f}"
        lines.append(
            f"{head}| {percent(row['accuracy'])} | {np.mean(row['loss']):.3f} "
            f"| {values} | {up / 1e3:.1f} | {down / 1e3:.1f} | {_moved(row)} |"
        )
    tried = {len(one["tried"]) for one in results["steps"].values()}
    lines += [
        "",
        f"{rounds} rounds. {seeds_and_time(results)} The lines are medians, dotted is "
        f"chance. {'–'.join(map(str, sorted(tried)))} steps tried for each row.",
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
    return _sweep(options, [Point(str(n), {}, n) for n in clients])


def render_figure_7(results: dict[str, Any], out: Path) -> str:
    """A line for every n."""
    return _render(results, out, "figure-7", "clients n")


def compute_figure_8(options: Options) -> dict[str, Any]:
    """M = 5, 20, 50; R = 8, n = 10, τ = 5."""
    samples = (5, 20) if options.quick else (5, 20, 50)
    return _sweep(options, [Point(str(m), {"samples": m}, CLIENTS) for m in samples])


def render_figure_8(results: dict[str, Any], out: Path) -> str:
    """A line for every m."""
    return _render(results, out, "figure-8", "directions m")


def compute_figure_9(options: Options) -> dict[str, Any]:
    """R = 8, 16 and full, from values and from gradients."""
    ranks: dict[str, dict[str, Any]] = {
        "R = 8": {},
        "R = 16": {"low-rank-network.rank": 16},
        "full rank": FULL,
    }
    kinds: dict[str, dict[str, Any]] = {"values": {}, "gradients": GRADIENTS}
    return _sweep(
        options,
        [
            Point(f"{kind}, {rank}", method | settings, CLIENTS)
            for kind, method in kinds.items()
            for rank, settings in ranks.items()
        ],
    )


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
    picture = save(figure, out, "figure-9")
    return f"{picture}\n\n{_table(results, 'method')}"
