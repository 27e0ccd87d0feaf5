"""Runs of the app's methods on split data, several at once, measured against P*."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import sim
from reproduce.common import Run, app_config
from tasks import HybridTask

__all__ = ["optimum_of", "perform_hybrid"]


def optimum_of(config: dict[str, Any], nodes: int) -> dict[str, float]:
    """P*, its certificate, and what a central solver took for it."""
    setup = sim.app.experiment(app_config(config), nodes)
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
    experiment = sim.app.experiment(app_config(run.config), run.nodes)
    strategy = experiment.strategy(
        evaluate_every=run.every, max_failed_rounds=experiment.config["rounds"]
    )
    failed = ""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            experiment.start(strategy)
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
