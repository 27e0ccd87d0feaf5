"""Make docs/convergence.png: the runs it shows, on a grid in this process.

Run it as ``python docs/make_figures.py`` in the root of the repository.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from flwr.app import ArrayRecord, MetricRecord  # noqa: E402

import sim  # noqa: E402
from fedtrellis.app.directory import read_config  # noqa: E402
from fedtrellis.objectives.reference import certified_minimum  # noqa: E402
from fedtrellis.server.callbacks import RoundRecord  # noqa: E402
from fedtrellis.server.plots import plot_convergence  # noqa: E402
from fedtrellis.wire.arrays import Layout, array_record, record_arrays  # noqa: E402
from fedtrellis.wire.local_grid import LocalGrid  # noqa: E402

RUNS = {
    "FedFW": 'variant="plain"',
    "FedFW+": 'variant="augmented"',
    "FedFW, half of the clients": "participation=0.5",
    "FedFW-sto": 'variant="stochastic" schedule="stochastic"',
}
ROUNDS, NODES = 500, 10


def history(overrides: str) -> list[RoundRecord]:
    """The history of one run with evaluations."""
    config = sim.app.default_config() | {"rounds": ROUNDS} | read_config([overrides])
    setup = sim.app.experiment(config, NODES)
    layout = Layout(tuple(setup.task.shapes()))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(sim.evaluate(setup, layout, record_arrays(arrays)))

    strategy = sim.make_strategy(setup)
    strategy.start(
        LocalGrid(sim.client_app, NODES, run_config=config),
        array_record(setup.task.initial_point()),
        num_rounds=ROUNDS,
        evaluate_fn=evaluate,
    )
    return strategy.history


def main() -> None:
    """Run all, draw, and print where each ends."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    setup = sim.app.experiment(sim.app.default_config(), NODES)
    start = setup.task.initial_point()[0]
    best = certified_minimum(setup.task.objective(), setup.domain, start, 1e-7)
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
