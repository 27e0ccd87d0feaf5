"""A small run of every item of the zeroth-order Riemannian paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.wire.arrays import Layout
from fedtrellis.zeroth_order import evaluator
from reproduce.__main__ import folder_of
from reproduce.common import (
    Run,
    app_config,
    perform,
    read_config,
)
from reproduce.zeroth_order import attack
from reproduce.zeroth_order.estimators import DATA, STEP, variants
from tasks import make_task

HERE = folder_of("zeroth-order")


def test_the_variants_are_the_formulas() -> None:
    """One step each, written again for the same random numbers."""
    config = sim.app.default_config() | {
        "kernel-pca.dataset": "iris",
        "kernel-pca.components": 2,
    }
    task = make_task("kernel-pca", config, 1, 0)
    manifold = task.manifold()
    assert manifold is not None
    values = evaluator(task.objective(), Layout(tuple(task.shapes())))
    x = task.initial_point()[0]
    m, mu = DATA["Iris"]["m"], 1e-4

    def polar(y: Any) -> Any:
        left, _, right = np.linalg.svd(y, full_matrices=False)
        return left @ right

    def gradient(directions: Any) -> Any:
        total = np.zeros(x.shape)
        for u in directions:
            total += (task.value([polar(x + mu * u)]) - task.value([x])) / mu * u
        return total / len(directions)

    steps = variants(values, manifold, m)
    w = np.random.default_rng(3).standard_normal((m, *x.shape))
    spheric = w / np.linalg.norm(w.reshape(m, -1), axis=1)[:, None, None]
    product = np.swapaxes(x[None], 1, 2) @ w
    tangent = w - x @ (product + np.swapaxes(product, 1, 2)) / 2.0
    expected = {
        "(7), projection": polar(x - STEP * x.size * gradient(spheric)),
        "(6), polar": polar(x - STEP * gradient(tangent)),
    }
    for name, point in expected.items():
        moved = steps[name](x, np.random.default_rng(3))
        np.testing.assert_allclose(moved, point, atol=1e-8)
    # retractions agree to second order: μ² in G, the step's square here
    moved = steps["(6), exponential"](x, np.random.default_rng(3))
    step = np.linalg.norm(moved - x)
    assert np.linalg.norm(moved - expected["(6), polar"]) < step**2


def test_a_run_can_stop_on_any_metric_and_keep_its_point() -> None:
    config = read_config(HERE / "attack.toml") | attack.DIGITS | {"rounds": 40}
    run = Run(
        (), config, nodes=4, stop=3.0, metric="loss", curve=True, every=2, point=True
    )
    result = perform(run)
    curve = result["curve"]
    assert result["passed"]
    assert curve["loss"][-1] <= 3.0 < min(curve["loss"][:-1])
    assert curve["round"] == list(range(0, curve["round"][-1] + 1, 2))
    assert curve["bytes"][-1] == result["bytes"] > result["bytes-up"] > 0
    assert np.linalg.norm(result["point"]) == pytest.approx(1.0)
    task = make_task("attack", app_config(config), 4, 0)
    assert task.value([np.array(result["point"])]) == pytest.approx(result["loss"])


@pytest.mark.slow
def test_the_attacked_network_is_as_good_as_the_page_says() -> None:
    pytest.importorskip("torch")
    from tasks.data.datasets import load_images
    from tasks.networks import ConvolutionalClassifier, load_weights

    folder = Path(os.environ.get("FEDTRELLIS_DATA", "")) / "cifar10"
    if not list(folder.glob("test_batch*")):
        pytest.skip("FEDTRELLIS_DATA names no folder with cifar10/test_batch")
    assert attack.WEIGHTS.stat().st_size < 300_000
    network = ConvolutionalClassifier(load_weights(attack.WEIGHTS))
    examples = load_images("cifar10", folder, "--data", partial=True)
    scores = network.logits(examples.test_features / np.float32(255))
    accuracy = np.mean(scores.argmax(axis=1) == examples.test_labels)
    # other processors round otherwise, which moves single images
    assert accuracy == pytest.approx(0.717, abs=0.002)
    assert "71.7 %" in (HERE / "details.md").read_text(encoding="utf-8")
