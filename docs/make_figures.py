"""Make docs/convergence.png and docs/two-quadratics.png, on a grid in this process.

Run it as ``python docs/make_figures.py`` in the root of the repository.
"""

from __future__ import annotations

import csv
import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
from flwr.app import ArrayRecord, Context  # noqa: E402

from clients import FedLMOClient, NaiveFrankWolfeClient  # noqa: E402
from fedtrellis import LocalGrid, client_app  # noqa: E402
from fedtrellis.domains import L1Ball  # noqa: E402
from fedtrellis.objectives import LeastSquares  # noqa: E402
from fedtrellis.server.callbacks import Callback, RoundRecord  # noqa: E402
from strategies import FedLMO, NaiveFrankWolfe  # noqa: E402

mpl.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROUNDS = 100
#: The LASSO's curves in docs/matrix.csv: a colour a method, dashed where it is untuned.
COLOURS = {
    "FedFW": "tab:blue",
    "FedFW of the paper": "tab:green",
    "FedFW+ of the paper": "tab:red",
    "FedDR": "tab:orange",
    "projected FedAvg": "tab:purple",
    "FedDualAvg": "tab:brown",
    "FedGiA": "tab:gray",
}


def lasso() -> None:
    """What each method reaches on the matrix's LASSO, over rounds and over bytes."""
    with open(ROOT / "docs/matrix.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["problem"] == "lasso-l1"]
    figure, panels = plt.subplots(
        1, 2, figsize=(7.6, 4.2), layout="constrained", sharey=True
    )
    for method in dict.fromkeys(row["method"] for row in rows):
        curve = [row for row in rows if row["method"] == method]
        # a run that reached 10⁻⁴ ends there
        met = next((k for k, row in enumerate(curve) if row["gap"] == "0.0001"), None)
        curve = curve if met is None else curve[: met + 1]
        kind, _, untuned = method.partition(", ")
        dashes = "--" if untuned else "-"
        style: dict[str, Any] = {"color": COLOURS[kind], "linestyle": dashes}
        gaps = [float(row["gap"]) for row in curve]
        rounds = [float(row["rounds"]) for row in curve]
        sent = [(float(row["up"]) + float(row["down"])) / 1e6 for row in curve]
        label = f"{method} ({curve[0]['given']})" if curve[0]["given"] else method
        for axes, along in zip(panels, (rounds, sent), strict=True):
            axes.loglog(along, gaps, marker=".", label=label, **style)
            if met is None:  # the budget of gradients was spent before
                axes.plot(along[-1], gaps[-1], "x", color=style["color"])
    panels[0].set_ylabel("(F(x) − F*) / (F(x¹) − F*)")
    panels[0].set_xlabel("rounds")
    panels[1].set_xlabel("MB up and down, all ten clients")
    for axes in panels:
        axes.grid(True, alpha=0.3)
    names, labels = panels[0].get_legend_handles_labels()
    figure.legend(names, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(ROOT / "docs/convergence.png", dpi=140)


class _Gaps(Callback):
    """F(x) − F(1) = ½(x − 1)² of F(x) = ¼(x − 3)² + ¼(x + 1)², after every round."""

    def __init__(self) -> None:
        self.gaps = [0.5]

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        """Note it down."""
        self.gaps.append(0.5 * float(strategy.broadcast.model[0] - 1.0) ** 2)
        return False


def two_quadratics() -> None:
    """FedFW's Appendix A, over [−1, 1] from 0: averages of oracles stand still."""
    losses = [LeastSquares(np.eye(1), np.array([target])) for target in (3.0, -1.0)]

    def fedlmo(context: Context) -> FedLMOClient:
        return FedLMOClient(context, losses[int(context.node_config["partition-id"])])

    def naive(context: Context) -> NaiveFrankWolfeClient:
        loss = losses[int(context.node_config["partition-id"])]
        return NaiveFrankWolfeClient(context, loss, L1Ball(1.0))

    shared: dict[str, Any] = {"radius": 1.0, "step_size": 0.2, "batch_size": 0}
    ways: dict[str, tuple[Any, Any]] = {
        "naive Frank-Wolfe": (naive, NaiveFrankWolfe(L1Ball(1.0))),
        **{
            f"fedlmo, {variant}": (fedlmo, FedLMO(variant=variant, **shared))
            for variant in ("local", "averaged", "corrected", "server", "ef21")
        },
    }
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (name, (client, strategy)), style in zip(
        ways.items(), ("-", "--", ":", "-", "-", "--"), strict=True
    ):
        curve = _Gaps()
        strategy.options.callbacks = [curve]
        start = ArrayRecord([np.zeros(1)])
        strategy.start(LocalGrid(client_app(client), 2), start, num_rounds=ROUNDS)
        axes.semilogy(np.maximum(curve.gaps, 1e-16), style, label=name)
        print(f"{name}: F − F* = {curve.gaps[-1]:.1e}")
    axes.set_xlabel("round")
    axes.set_ylabel("F(x) − F*")
    axes.legend(frameon=False)
    figure.savefig(ROOT / "docs/two-quadratics.png", dpi=110)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    two_quadratics()
    lasso()
