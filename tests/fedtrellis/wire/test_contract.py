"""Every method over both transports: messages as bytes, and nodes asked directly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.wire.local_grid import LocalGrid

TASKS = {
    "split": "hybrid-svm",
    "manifold": "kernel-pca",
    "whole": "linear-regression",
    "domain": "lasso",
}
#: What the tasks or this few nodes need.
PLAIN = {
    "hyfdca.exposed": "accept",
    "hyfdca.tolerance": 0.0,
    "hyfdca.encryption": "none",
    "hyfdca.secure-sum": False,  # its masks are secret, and round differently each time
    "fedgia.tolerance": 0.0,
    "feddr.local-step-size": 1e-5,
    "projected-fedavg.local-step-size": 1e-5,
}
NODES, ROUNDS = 4, 4


def run(method: str, dtype: str, **options: Any) -> tuple[Any, Any, LocalGrid]:
    """A method on its defaults."""
    entry = sim.app.registry.methods[method]
    config = {**sim.app.default_config(), "method": method, "dtype": dtype}
    space = entry.strategy.space
    config |= {"task": TASKS[space], "client-evaluate-every": 2 * (space != "split")}
    config |= {
        key: value for key, value in PLAIN.items() if key.startswith(f"{method}.")
    }
    experiment = sim.app.experiment(config, NODES)
    strategy, grid = experiment.strategy(), experiment.grid(**options)
    result = strategy.start(grid, experiment.initial_arrays(), num_rounds=ROUNDS)
    grid.close()
    if clients := strategy.history[-1].client_evaluation:  # whose loss is F
        loss = experiment.evaluate(result.arrays.to_numpy_ndarrays())["loss"]
        near = 1e-12 if dtype == "float64" else 1e-5
        assert clients["loss"] == pytest.approx(loss, rel=near)
    return strategy.history, result.arrays.to_numpy_ndarrays(), grid


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (name, dtype)
        for name, entry in sim.app.registry.methods.items()
        for dtype in ("float64", "float32")
        if dtype in entry.strategy.dtypes
    ],
)
def test_transports(method: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history, model, grid = run(method, dtype, encode=True)
    assert grid.bytes_up > 0
    kinds: set[str] = set()
    push = LocalGrid.push_messages

    def noted(self: LocalGrid, messages: Any) -> list[str]:
        wave = list(messages)
        kinds.update(message.metadata.message_type for message in wave)
        return push(self, wave)

    monkeypatch.setattr(LocalGrid, "push_messages", noted)
    for options in ({}, {"workers": 2}, {"batched": True}):
        ours, found, direct = run(method, dtype, **options)
        assert kinds == {"query.hello"}  # no message was made of anything else
        assert direct.bytes_up == 0
        for one, other in zip(model, found, strict=True):
            if "batched" in options:
                rtol, atol = (1e-9, 1e-12) if dtype == "float64" else (1e-5, 1e-7)
                np.testing.assert_allclose(other, one, rtol=rtol, atol=atol)
            else:
                np.testing.assert_array_equal(other, one)
        for a, b in zip(history, ours, strict=True):
            assert (a.sampled, a.used, a.rejected) == (b.sampled, b.used, b.rejected)
            assert a.round_trips == b.round_trips
            assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
