"""Runs of the app's methods on split data, several at once, measured against P*."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

import sim
from fedtrellis.wire.arrays import Layout, array_record, record_arrays
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Run
from tasks import HybridTask

__all__ = ["optimum_of", "perform_hybrid"]


def optimum_of(config: dict[str, Any], nodes: int) -> dict[str, float]:
    """P*, its certificate, and what a central solver took for it."""
    setup = sim.make_setup(sim.default_config() | config, nodes)
    task = setup.task
    assert isinstance(task, HybridTask)
    task.num_examples()  # the data is loaded before the clock starts
    began = time.perf_counter()
    best = task.optimum()
    seconds = time.perf_counter() - began
    return {
        "value": best.value,
        "gap": best.gap,
        "seconds": seconds,
        "samples": task.num_examples(),
        "features": task.shapes()[0][0],
        **task.metrics([best.w]),
    }


def perform_hybrid(run: Run) -> dict[str, Any]:
    """Perform a run.

    Returns
    -------
    dict
        Lists by evaluated round: ``round``, ``loss`` P(w), ``accuracy`` on the test
        samples (on the training samples where there are none), ``trips``, ``seconds``
        (both so far); and ``failed``, the reason if it ended with an error.
    """
    config = sim.default_config() | run.config
    setup = sim.make_setup(config, run.nodes)
    task = setup.task
    assert isinstance(task, HybridTask)
    layout = Layout(tuple(task.shapes()))
    grid = LocalGrid(sim.client_app, run.nodes, seed=setup.run.seed, run_config=config)
    strategy = sim.make_strategy(
        setup, evaluate_every=run.every, max_failed_rounds=setup.run.rounds
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(sim.evaluate(setup, layout, record_arrays(arrays)))

    failed = ""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            strategy.start(
                grid,
                array_record([np.zeros(layout.shapes[0])]),
                num_rounds=setup.run.rounds,
                evaluate_fn=evaluate,
            )
        except (RuntimeError, FloatingPointError) as error:  # it diverged
            failed = str(error)
    result: dict[str, Any] = {"failed": failed}
    lists: dict[str, list[float]] = {
        name: [] for name in ("round", "loss", "accuracy", "trips", "seconds")
    }
    trips, seconds = 0, 0.0
    for record in strategy.history:
        trips += record.round_trips if record.round else 0
        seconds += record.seconds
        if not record.evaluation:
            continue
        accuracy = record.evaluation.get("accuracy")
        if accuracy is None:
            accuracy = record.evaluation["train-accuracy"]
        for name, value in (
            ("round", record.round),
            ("loss", record.evaluation["loss"]),
            ("accuracy", accuracy),
            ("trips", trips),
            ("seconds", seconds),
        ):
            lists[name].append(value)
    return result | lists
