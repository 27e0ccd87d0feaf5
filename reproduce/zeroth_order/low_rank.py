"""Figures 7 to 9: a network whose hidden weight matrix has low rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, read_config, repeat
from reproduce.drawing import percent, table
from reproduce.sweep import Point, seeds_of, sweep, sweep_picture
from reproduce.tuning import Search, Space, search

__all__ = ["ITEMS", "ROUNDS"]

HERE = Path(__file__).parent
CLIENTS = 10
SEEDS = 5
ROUNDS: int = read_config(HERE / "low-rank.toml")["rounds"]
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
    cases = {point.label: point for point in points}

    def scores(asked: list[tuple[str, dict[str, float]]]) -> list[list[float]]:
        wanted = {
            k: {**base, **cases[label].settings, **step}
            for k, (label, step) in enumerate(asked)
        }
        nodes = {k: cases[label].nodes for k, (label, _) in enumerate(asked)}
        found = repeat(options, wanted, [CHOICE], nodes, every=base["rounds"])
        # what diverged is not chosen
        return [[run.get("accuracy", float("nan"))] for (run,) in found.values()]

    spaces = dict.fromkeys(cases, STEP)
    if options.quick:
        return search(spaces, 1, scores)
    return search(spaces, BUDGET, scores, 4)


RANKS: dict[str, dict[str, Any]] = {
    "R = 8": {},
    "R = 16": {"low-rank-network.rank": 16},
    "full rank": {"low-rank-network.full-rank": True},
}
#: By figure what is varied, and its points; a quick run has the first two.
FIGURES: dict[str, tuple[str, list[Point]]] = {
    "figure-7": ("clients n", [Point(str(n), {}, n) for n in (10, 20, 30)]),
    "figure-8": (
        "directions m",
        [Point(str(m), {"samples": m}, CLIENTS) for m in (5, 20, 50)],
    ),
    "figure-9": (
        "method",
        [
            Point(f"{kind}, {rank}", method | settings, CLIENTS)
            for kind, method in (
                ("values", {}),
                ("gradients", {"method": "first-order-rfl"}),
            )
            for rank, settings in RANKS.items()
        ],
    ),
}


def compute(options: Options, name: str) -> dict[str, Any]:
    """Choose every case's step, then run all with the same seeds."""
    base, points = _base(options), FIGURES[name][1]
    if options.quick and name != "figure-9":
        points = points[:2]
    searches = _searches(options, points)
    reached = min(one.tried[one.best] for one in searches.values())
    goal = round(PART * reached, 2)
    points = [
        point._replace(settings={**point.settings, **searches[point.label].chosen})
        for point in points
    ]
    results = sweep(
        options,
        base,
        points,
        ("loss", "accuracy", "bytes"),
        seeds=options.numbers(SEEDS),
        every=2,
        goal=("accuracy", goal),
    )
    return results | {
        "rounds": base["rounds"],
        "goal": goal,
        "steps": {label: one.record() for label, one in searches.items()},
    }


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Objective and accuracy over rounds, a line for every point, and a table."""
    title, rounds, rows = FIGURES[name][0], results["rounds"], results["rows"]
    panels = {"": rows}
    if name == "figure-9":
        panels = {
            kind: [row for row in rows if row["label"].startswith(kind)]
            for kind in ("values", "gradients")
        }
    picture = sweep_picture(
        panels,
        out,
        name,
        {"loss": "objective F(x)", "accuracy": "test accuracy (share)"},
        title=title,
        logarithmic=["loss"],
        chance={"accuracy": 0.1},
    )
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        label = row["label"]
        step = results["steps"][label]["chosen"]["step-size"]
        start = (label, f"{step:g}")
        if "curves" not in row:
            lines.append((*start, "diverged", *[""] * 5))
            continue
        each = 1e3 * rounds * row["nodes"]
        up, both = np.mean(row["bytes-up"]) / each, np.mean(row["bytes"]) / each
        values, moved = "none", np.array(row["reached-bytes"])
        if "evaluations" in row:
            values = f"{np.mean(row['evaluations']) / row['nodes']:,.0f}"
        lines.append(
            (
                *start,
                *(percent(row["accuracy"]), f"{np.mean(row['loss']):.3f}", values),
                *(f"{up:.1f}", f"{both - up:.1f}"),
                f"{moved.mean() / 1e6:.1f}" if moved.min() >= 0 else "not by all seeds",
            )
        )
    head = f"{title} | step η | test accuracy | F | values of each f_i"
    head += f" | kB up, a client and round | kB down | MB until {results['goal']:.0%}"
    tried = sorted({len(one["tried"]) for one in results["steps"].values()})
    return (
        f"{picture}\n\n{table(head, lines)}\n\n{rounds} rounds. {seeds_of(results)} "
        "Dotted is chance. "
        f"{'–'.join(map(str, tried))} steps tried for each row."
    )


ITEMS = {
    name: Item(
        f"low-rank network: by the {what}",
        partial(compute, name=name),
        partial(render, name=name),
    )
    for name, (what, _) in FIGURES.items()
}
