"""A PyTorch module whose parameter is a single number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients import FedAvgGDClient
from strategies import FedAvgGD
from tests.harness import grid_of, play


def test_a_module_with_a_scalar_parameter_is_trained() -> None:
    torch = pytest.importorskip("torch")
    from fedtrellis.objectives.torch_objective import TorchObjective

    class Scale(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, inputs: Any) -> Any:
            return self.weight * inputs

    inputs = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 1.0]])
    targets = inputs * np.array([[3.0], [2.0], [-1.0]])
    objectives = [
        TorchObjective(Scale(), torch.nn.functional.mse_loss, pair, device="cpu")
        for pair in zip(inputs, targets, strict=True)
    ]
    grid = grid_of(FedAvgGDClient, objectives, encode=True, wipe=0.2)
    strategy = FedAvgGD(step_size=0.1, seed=1, client_evaluate_every=2)
    (weight,) = play(strategy, grid, objectives[0].initial_point(), 6).arrays
    assert weight.shape == ()
    # x_i ← x_i − γ_k 2 mean(inputs²) (x_i − factor), five times in each of six rounds
    x = 1.0
    for t in range(6):
        ends = []
        for squares, factor in zip(np.mean(inputs**2, axis=1), (3, 2, -1), strict=True):
            w = x
            for k in range(5 * t + 1, 5 * t + 6):
                w -= 0.1 / np.log2(k + 1) * 2.0 * squares * (w - factor)
            ends.append(w)
        x = float(np.mean(ends))
    assert float(weight) == pytest.approx(x, rel=1e-12)
