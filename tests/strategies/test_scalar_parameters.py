"""Models whose parameters are single numbers, against the same model as a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray

from clients import (
    FedAvgGDClient,
    FedDRClient,
    FedFWClient,
    FedGiAClient,
    FirstOrderRFLClient,
    NaiveFrankWolfeClient,
    ProjectedFedAvgClient,
    ZerothOrderRFLClient,
)
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import LInfBall
from fedtrellis.manifolds import Euclidean
from fedtrellis.wire.arrays import array_record, record_arrays
from strategies import (
    FedAvgGD,
    FedDR,
    FedFW,
    FedGiA,
    FirstOrderRFL,
    NaiveFrankWolfe,
    ProjectedFedAvg,
    ZerothOrderRFL,
)

Array = NDArray[np.float64]
SCALES = (1.0, 0.5, 2.0)
CENTRES = np.array([[1.0, -2.0, 0.5], [0.3, 1.0, 2.0], [-1.5, 0.1, 1.0]])
BALL = LInfBall(1.0)


class Quadratic:
    """½ s ‖x − c‖² of an array or of layers, written as a user would write it."""

    num_examples = 4

    def __init__(self, index: int, size: int) -> None:
        self.scale, self.centre = SCALES[index], CENTRES[index, :size]

    def lipschitz(self) -> float:
        return self.scale

    def value(self, x: Any) -> float:
        layers = x if isinstance(x, list) else [x]
        flat = np.concatenate([np.ravel(layer) for layer in layers])
        return 0.5 * self.scale * float(np.sum((flat - self.centre) ** 2))

    def gradient(self, x: Any) -> Any:
        if isinstance(x, list):
            # a NumPy scalar for the first layer, which has no axes
            return [
                self.scale * (x[0] - self.centre[0]),
                self.scale * (x[1] - self.centre[1:]),
            ]
        return self.scale * (x - self.centre.reshape(x.shape))


Make = Callable[[int, Any], tuple[Any, Callable[[Context, Any], Any]]]
METHODS: dict[str, Make] = {
    "fedfw": lambda p, o: (
        FedFW(BALL, variant="plain", **o),
        lambda c, f: FedFWClient(c, f, BALL),
    ),
    "fedfw+": lambda p, o: (
        FedFW(BALL, variant="augmented", **o),
        lambda c, f: FedFWClient(c, f, BALL),
    ),
    "naive-frank-wolfe": lambda p, o: (
        NaiveFrankWolfe(BALL, **o),
        lambda c, f: NaiveFrankWolfeClient(c, f, BALL),
    ),
    "projected-fedavg": lambda p, o: (
        ProjectedFedAvg(BALL, **o),
        ProjectedFedAvgClient,
    ),
    "feddr": lambda p, o: (FedDR(BALL, **o), FedDRClient),
    "fedgia": lambda p, o: (
        FedGiA(hessian="diagonal", tolerance=0.0, **o),
        FedGiAClient,
    ),
    "fedavg-gd": lambda p, o: (FedAvgGD(step_size=0.1, **o), FedAvgGDClient),
    "first-order-rfl": lambda p, o: (
        FirstOrderRFL(Euclidean((p,)), **o),
        lambda c, f: FirstOrderRFLClient(c, f, Euclidean((p,))),
    ),
    "zeroth-order-rfl": lambda p, o: (
        ZerothOrderRFL(Euclidean((p,)), samples=4, **o),
        lambda c, f: ZerothOrderRFLClient(c, f, Euclidean((p,))),
    ),
}


def run(
    method: str, start: list[Array], objective: Callable[[int], Any]
) -> tuple[list[Array], list[Any]]:
    strategy, client = METHODS[method](
        sum(layer.size for layer in start), {"seed": 1, "client_evaluate_every": 2}
    )

    def client_fn(context: Context) -> Any:
        return client(context, objective(int(context.node_config["partition-id"])))

    # lost states, so that they are restored too
    grid = LocalGrid(client_app(client_fn), 3, encode=True, wipe=0.2)
    result = strategy.start(grid, array_record(start), num_rounds=6)
    assert not any(record.rejected for record in strategy.history)
    losses = [record.client_evaluation for record in strategy.history]
    return record_arrays(result.arrays), losses


@pytest.mark.parametrize("method", METHODS)
def test_scalar_parameters_are_entries_of_a_vector(method: str) -> None:
    for layers, flat in (
        ([np.array(0.25)], np.array([0.25])),
        ([np.array(0.25), np.array([0.5, -0.5])], np.array([0.25, 0.5, -0.5])),
    ):
        objective = partial(Quadratic, size=flat.size)
        model, losses = run(method, layers, objective)
        (expected,), alike = run(method, [flat], objective)
        assert [array.shape for array in model] == [layer.shape for layer in layers]
        assert not np.array_equal(expected, flat)
        assert np.array_equal(np.concatenate([a.ravel() for a in model]), expected)
        assert losses == alike


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
    (weight,), _ = run(
        "fedavg-gd", objectives[0].initial_point(), objectives.__getitem__
    )
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
