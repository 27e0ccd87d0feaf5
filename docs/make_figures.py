"""Make docs/convergence.png: the runs it shows, on a grid in this process.

Run it as ``python docs/make_figures.py`` in the root of the repository.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import sim  # noqa: E402
from fedtrellis.app.directory import read_config  # noqa: E402
from fedtrellis.objectives.reference import certified_minimum  # noqa: E402
from fedtrellis.server.callbacks import RoundRecord  # noqa: E402
from fedtrellis.server.plots import plot_convergence  # noqa: E402

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


def main() -> None:
    """Run all, draw, and print where each ends."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    experiment = sim.app.experiment({}, NODES)
    task, start = experiment.task, experiment.start_point()
    best = certified_minimum(task.objective(), experiment.domain, start, 1e-7)
    histories = {name: history(overrides) for name, overrides in RUNS.items()}
    plot_convergence(histories, ROOT / "docs/convergence.png", reference=best.value)
    for name, records in histories.items():
        last = records[-1].metrics
        print(
            f"{name}: F − F* = {last['loss'] - best.value:.4f}, "
            f"accuracy {last['accuracy']:.4f}"
        )


if __name__ == "__main__":
    main()
