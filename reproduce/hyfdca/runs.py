"""Runs of the app's methods on split data, several at once, measured against P*."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

import sim
from reproduce.common import Run, app_config, perform
from tasks import HybridTask

__all__ = ["LAST", "last_accuracy", "last_loss", "optimum_of", "perform_hybrid"]

#: Evaluations at a run's end that a loss and an accuracy are the mean of.
LAST = 5


def optimum_of(config: dict[str, Any], nodes: int) -> dict[str, float]:
    """P*, its certificate, and what a central solver took for it."""
    task = sim.app.experiment(app_config(config), nodes).task
    assert isinstance(task, HybridTask)
    task.num_examples()  # the data is loaded before the clock starts
    began = time.perf_counter()
    best = task.optimum()
    return {
        "value": best.value,
        "gap": best.gap,
        "seconds": time.perf_counter() - began,
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
        (both so far); and ``failed``, the reason if it diverged.
    """
    patient = run.config | {"max-failed-rounds": run.config["rounds"]}
    with np.errstate(over="ignore", invalid="ignore"):
        found = perform(replace(run, config=patient, curve=True))
    curve = found.get("curve", {})
    lists = {k: curve.get(k, []) for k in ("round", "loss", "trips", "seconds")}
    lists["accuracy"] = curve.get("accuracy", curve.get("train-accuracy", []))
    return {"failed": found.get("failed", ""), **lists}


def last_loss(result: dict[str, Any]) -> float:
    """Mean of the last five losses that were evaluated; infinite for a failed run."""
    losses = result["loss"][-LAST:]
    mean = np.inf if result["failed"] or not losses else float(np.mean(losses))
    return mean if np.isfinite(mean) else np.inf


def last_accuracy(result: dict[str, Any]) -> float:
    """Mean of the last five accuracies that were evaluated."""
    return float(np.mean(result["accuracy"][-LAST:] or [0.0]))
