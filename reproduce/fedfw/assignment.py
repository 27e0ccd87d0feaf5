"""Workshop paper, figure 1d: quadratic assignment, chr12a of QAPLIB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import quadratic_assignment

from fedtrellis.domains import BirkhoffPolytope
from reproduce.common import (
    Item,
    Options,
    Run,
    app_config,
    execute,
    read_config,
    repeat,
)
from reproduce.drawing import new_figure, panel, save, table
from tasks import QuadraticAssignmentTask, make_task

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 72
STARTS = 10

#: The first two are the paper's λ_0; the others suit our split of the cost.
RUNS: dict[str, dict[str, Any]] = {
    "FedFW, λ_0 = 65": {"penalty": 65.0},
    "FedFW+, λ_0 = 10": {"penalty": 10.0, "variant": "augmented"},
    "FedFW, λ_0 = 1000": {"penalty": 1000.0},
    "FedFW+, λ_0 = 100": {"penalty": 100.0, "variant": "augmented"},
}


def compute(options: Options) -> dict[str, Any]:
    """Long runs from the barycentre, short ones from random starts, and FAQ."""
    base = read_config(HERE / "chr12a.toml")
    long, short = base["rounds"], 1000
    starts = min(options.seeds, STARTS)
    methods = RUNS
    if options.quick:
        long, short, starts = 20, 5, min(starts, 2)
        methods = dict(list(RUNS.items())[1:3])
    task = make_task("quadratic-assignment", app_config(base), NODES, 0)
    assert isinstance(task, QuadraticAssignmentTask)
    A, B, optimum = task.instance()
    seeds = map(np.random.default_rng, range(starts))
    points = [BirkhoffPolytope().random_point(A.shape, rng) for rng in seeds]
    cases = {name: base | s | {"rounds": long} for name, s in methods.items()}
    far = repeat(options, cases, [0], NODES, curve=True, every=0)
    runs = [
        Run(
            (name, seed),
            base | settings | {"rounds": short, "seed": seed},
            NODES,
            every=short,
            start=point,
        )
        for name, settings in methods.items()
        for seed, point in enumerate(points)
    ]
    results = execute(runs, options.jobs)
    faq = []
    for point in points:
        found = quadratic_assignment(A, B, method="faq", options={"P0": point})
        faq.append(float(found.fun))
    return {
        "long": {name: run for name, (run,) in far.items()},
        "short": {
            name: {
                "loss": [results[name, seed]["loss"] for seed in range(starts)],
                "cost": [
                    results[name, seed]["assignment-cost"] for seed in range(starts)
                ],
            }
            for name in methods
        },
        "faq": faq,
        "optimum": optimum,
        "rounds": long,
        "short-rounds": short,
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Draw objective and rounded cost over rounds."""
    figure, (axes,) = new_figure(2)
    for one, metric, label in (
        (axes[0], "loss", "relaxed objective F(x̄)"),
        (axes[1], "assignment-cost", "cost of the rounded x̄"),
    ):
        curves = {
            name: (run["curve"]["round"][1:], run["curve"][metric][1:])
            for name, run in results["long"].items()
        }
        panel(one, curves, "communication round", label, log="x", legend=None)
        one.axhline(results["optimum"], color="k", linestyle=":", label="optimum")
    axes[0].legend(fontsize="small")
    lines = []
    for name, run in results["long"].items():
        short = results["short"][name]
        ends = (run["loss"], run["gap"], run["assignment-cost"], run["seconds"])
        starts = f"{np.mean(short['loss']):,.0f} ± {np.std(short['loss']):,.0f}"
        numbers = (f"{value:,.0f}" for value in ends)
        lines.append((name, *numbers, starts, *_range(short["cost"])))
    lines.append(("FAQ (SciPy), in one place", *[""] * 5, *_range(results["faq"])))
    count = len(results["faq"])
    head = "method | F(x̄), from the barycentre | gap | rounded cost | seconds"
    head += f" | F(x̄), {count} starts | rounded cost: best | mean | worst"
    return (
        f"{save(figure, out, 'workshop-chr12a')}\n\n{table(head, lines)}\n\n"
        f"{NODES} nodes; {results['rounds']:,} rounds from the barycentre and "
        f"{results['short-rounds']:,} from each of {count} random starts, which FAQ "
        f"has too. The optimum is {results['optimum']:,.0f}."
    )


def _range(costs: list[float]) -> tuple[str, ...]:
    """Best, mean and worst."""
    return tuple(f"{v:,.0f}" for v in (min(costs), np.mean(costs), max(costs)))


ITEMS = {
    "workshop-chr12a": Item(
        "2022, figure 1d: quadratic assignment, chr12a", compute, render
    )
}
