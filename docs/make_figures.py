"""Make docs/convergence.png and docs/two-quadratics.png, on a grid in this process.

Run it as ``python docs/make_figures.py`` in the root of the repository.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
from flwr.app import ArrayRecord, Context  # noqa: E402

import sim  # noqa: E402
from clients import FedLMOClient, NaiveFrankWolfeClient  # noqa: E402
from fedtrellis import LocalGrid, client_app  # noqa: E402
from fedtrellis.app.command_line import read_config  # noqa: E402
from fedtrellis.domains import L1Ball  # noqa: E402
from fedtrellis.objectives import LeastSquares  # noqa: E402
from fedtrellis.objectives.reference import certified_minimum  # noqa: E402
from fedtrellis.server.callbacks import Callback, RoundRecord  # noqa: E402
from fedtrellis.server.records import plot_convergence  # noqa: E402
from strategies import FedLMO, NaiveFrankWolfe  # noqa: E402

mpl.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RUNS = {
    "FedFW, corrective": 'fedfw.variant="corrective"',
    "the same, half of the clients": "participation=0.5",
    "FedFW": 'fedfw.variant="plain"',
    "FedFW+": 'fedfw.variant="augmented"',
    "FedFW-sto": 'fedfw.variant="stochastic" fedfw.schedule="stochastic"',
}
ROUNDS, NODES = 500, 10


def history(overrides: str) -> list[RoundRecord]:
    """The history of one run with evaluations."""
    config = {"rounds": ROUNDS} | read_config([overrides])
    experiment = sim.app.experiment(config, NODES)
    strategy = experiment.strategy()
    experiment.start(strategy)
    return strategy.history


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
        strategy.start(LocalGrid(client_app(client), 2), start, num_rounds=ROUNDS // 5)
        axes.semilogy(np.maximum(curve.gaps, 1e-16), style, label=name)
        print(f"{name}: F − F* = {curve.gaps[-1]:.1e}")
    axes.set_xlabel("round")
    axes.set_ylabel("F(x) − F*")
    axes.legend(frameon=False)
    figure.savefig(ROOT / "docs/two-quadratics.png", dpi=110)


def main() -> None:
    """Run all, draw, and print where each ends."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    two_quadratics()
    experiment = sim.app.experiment({}, NODES)
    task, start = experiment.task, experiment.start_point()
    best = certified_minimum(task.objective(), experiment.domain, start, 1e-7)
    histories = {name: history(overrides) for name, overrides in RUNS.items()}
    curves = {name: [(records, best.value)] for name, records in histories.items()}
    plot_convergence(curves, ROOT / "docs/convergence.png")
    for name, records in histories.items():
        last = records[-1].metrics
        print(
            f"{name}: F − F* = {last['loss'] - best.value:.4f}, "
            f"accuracy {last['accuracy']:.4f}"
        )


if __name__ == "__main__":
    main()
