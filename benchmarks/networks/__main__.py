"""MNIST and CIFAR-10 by a small CNN, in a capped time that may be spent in pieces.

    FEDTRELLIS_DATA=/data python -m benchmarks.networks mnist-labels --hours 1

runs what is missing in ``runs/mnist-labels.jsonl``, a line a run, and prints the table
of what is there; ``--hours 0`` prints it alone, and ``--picture FILE.png`` draws it.
FEDTRELLIS_DATA has folders ``mnist`` and ``cifar10``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.drawing import band, new_figure, save, style_of

from ..report import Comparison
from .problems import CONTENDERS, NODES, PROBLEMS
from .runs import Curve, Runs, TimeUpError

#: Contenders that are drawn.
SHOWN = (
    "fedlmo, corrected",
    "FedAvg",
    "FedAdam, server step 0.03",
    "fedlmo, server",
    "error feedback, top 5 %",
    "fedlmo, ef21, natural",
)


def padded(curves: Sequence[Curve]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Accuracy in % and kB of a client, both (seeds, rounds), as long as the longest.

    A run that is at the goal keeps its accuracy, and its bytes go on as before: the
    picture asks when the goal is met, and the medians stay medians of all seeds.
    """
    runs = [curve.rounds[: curve.first] for curve in curves]
    length = max(map(len, runs))
    accuracy, moved = np.empty((2, len(runs), length))
    for i, run in enumerate(runs):
        own = len(run)
        accuracy[i] = 100 * run[-1][0]
        accuracy[i, :own] = [100 * row[0] for row in run]
        moved[i, :own] = [row[1] for row in run]
        more = np.arange(1, length - own + 1) / own
        moved[i, own:] = run[-1][1] * (1.0 + more)
    return accuracy, moved / 1e3 / NODES


def draw(all_runs: dict[str, Runs], picture: Path) -> None:
    """Draw problems' kept runs: medians of the seeds, and bands from worst to best."""
    figure, grid = new_figure(2, len(all_runs))
    for axes, (name, runs) in zip(grid, all_runs.items(), strict=True):
        goal = 100 * runs.problem.goal
        for number, contender in enumerate(SHOWN):
            curves = [curve for curve in runs.measured(contender) if curve is not None]
            if not curves:
                continue
            accuracy, moved = padded(curves)
            rounds = np.arange(1, accuracy.shape[1] + 1)
            for ax, x in zip(axes, (rounds, np.median(moved, axis=0)), strict=True):
                band(ax, x, accuracy, contender, **style_of(number))
        for ax in axes:
            ax.axhline(goal, color="0.5", linewidth=0.8)
            ax.set_ylim(max(0.0, goal - 40), goal + 3)
        axes[0].set_ylabel(f"{name}\ntest accuracy, %")
        axes[0].set_xlabel("rounds")
        axes[1].set_xscale("log")
        axes[1].set_xlabel("kB of a client, both ways")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    save(figure, picture.parent, picture.stem)


def main() -> None:
    """Run what the arguments ask for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    problems = [name for name, problem in PROBLEMS.items() if problem.images]
    parser.add_argument("problems", nargs="+", choices=problems)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--picture", type=Path, help="of kept runs alone")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    hours = 0.0 if given.picture else given.hours
    all_runs = {name: Runs(name, PROBLEMS[name], hours) for name in given.problems}
    if given.picture:
        draw(all_runs, given.picture)
        return
    for name, runs in all_runs.items():
        result, missing = Comparison(name, name, ""), []
        for contender in given.only:
            try:
                result.rows.append(runs.row(contender))
            except TimeUpError:
                missing.append(contender)
        print(f"{name}, {runs.seconds / 3600.0:.2f} hours of processor time")
        print(result.csv())
        if missing:
            print("not measured: " + "; ".join(missing))


if __name__ == "__main__":
    main()
