"""Accuracy against rounds and against bytes, of the runs that are kept.

    python -m benchmarks.networks.picture docs/networks.png mnist-labels mnist-iid

A row a problem of :mod:`.images`, lines of at most six methods: the median of the
seeds, and a band from the worst to the best. A run ends at the goal, and stays there in
the picture until the last seed has arrived.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .comparison import NODES, Curve
from .images import PROBLEMS, Runs

__all__ = ["SHOWN", "draw", "padded"]

#: Contenders that are drawn, each with a colour of Okabe and Ito's (2008), which are
#: told apart with any colour vision, and dashes.
SHOWN: dict[str, tuple[str, Any]] = {
    "FedAvg": ("#000000", "-"),
    "FedAdam, server step 0.03": ("#0072B2", "-"),
    "error feedback, top 5 %": ("#56B4E9", "--"),
    "fedlmo, corrected": ("#D55E00", "-"),
    "fedlmo, server": ("#E69F00", "-"),
    "fedlmo, ef21, natural": ("#CC79A7", "--"),
}


def padded(curves: Sequence[Curve], goal: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Accuracy in % and kB of a client, both (seeds, rounds), as long as the longest.

    A run that is at the goal keeps its accuracy, and its bytes go on as before: the
    picture asks when the goal is met, and the medians stay medians of all seeds.
    """
    runs = [curve.rounds[: curve.first(goal)] for curve in curves]
    length = max(map(len, runs))
    accuracy, moved = np.empty((2, len(runs), length))
    for i, run in enumerate(runs):
        own = len(run)
        accuracy[i] = 100 * run[-1][0]
        accuracy[i, :own] = [100 * row[0] for row in run]
        total = np.array([row[2] for row in run], dtype=float)
        steady = total[-1] / own
        moved[i, :own] = total
        moved[i, own:] = total[-1] + steady * np.arange(1, length - own + 1)
    return accuracy, moved / 1e3 / NODES


def draw(problems: Sequence[str], picture: Path) -> None:
    """Draw the problems' kept runs.

    Raises
    ------
    TimeUpError
        A run is missing.
    """
    from matplotlib.figure import Figure

    rows = len(problems)
    figure = Figure(figsize=(9.0, 0.5 + 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, sharey="row", squeeze=False)
    for axes, name in zip(grid, problems, strict=True):
        runs, goal = Runs(name, 0.0), PROBLEMS[name].goal
        for contender, (color, dashes) in SHOWN.items():
            curves = [curve for curve in runs.measured(contender) if curve is not None]
            if not curves:
                continue
            accuracy, moved = padded(curves, goal)
            rounds = np.arange(1, accuracy.shape[1] + 1)
            for ax, x in zip(axes, (rounds, np.median(moved, axis=0)), strict=True):
                style: dict[str, Any] = {"color": color, "linestyle": dashes}
                ax.plot(x, np.median(accuracy, axis=0), label=contender, **style)
                low, high = accuracy.min(axis=0), accuracy.max(axis=0)
                ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
        for ax in axes:
            ax.axhline(100 * goal, color="0.5", linewidth=0.8)
            ax.set_ylim(max(0.0, 100 * goal - 40), 100 * goal + 3)
            ax.grid(alpha=0.3)
        axes[0].set_ylabel(f"{name}\ntest accuracy, %")
        axes[0].set_xlabel("rounds")
        axes[1].set_xscale("log")
        axes[1].set_xlabel("kB of a client, both ways")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Draw what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("problems", nargs="+", choices=PROBLEMS)
    arguments = parser.parse_args()
    draw(arguments.problems, arguments.picture)


if __name__ == "__main__":
    main()
