"""TorchForward: the function of TorchObjective, without weights of its own."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients import ZerothOrderSGDClient
from fedtrellis.domains.atoms.packing import StreamedSigns, signed
from tests.harness import grid_of, play

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from fedtrellis.objectives.torch_forward import TorchForward  # noqa: E402
from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402
from strategies import ZerothOrderSGD  # noqa: E402


class Tied(nn.Module):
    """A little of everything: weights shared by two layers, others read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + self.attention(h, h, h)[0]
        made: Tensor = self.head(self.block(h)).mean(dim=1)
        return made


def normalised() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(4)
    layer(3.0 + torch.randn(20, 4))
    model = nn.Sequential(nn.Linear(6, 4), layer, nn.ReLU(), nn.Linear(4, 7))
    model[3].bias.requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "tied": (Tied, True),
    "normalised": (normalised, False),
}


def problem(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    make, tokens = MODELS[name]
    inputs = torch.randint(7, (12, 6)) if tokens else torch.randn(12, 6)
    return make(), (inputs, torch.randint(7, (12,)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_function_of_torch_objective(name: str, dtype: Any) -> None:
    """Bit for bit, at x and at x + v, with a mini-batch; and x stays as it is."""
    model, data = problem(name)
    options: dict[str, Any] = {"l2": 0.1, "weight": 0.5, "batch_size_limit": 5}
    loss = nn.CrossEntropyLoss()
    full = TorchObjective(model, loss, data, **options)
    forward = TorchForward(model, loss, data, **options)
    assert forward.shapes == full.shapes
    layers = [layer.astype(dtype) for layer in full.initial_point()]
    x = np.concatenate([layer.reshape(-1) for layer in layers])
    bits = StreamedSigns(0, 1, x.size).draw()
    moved = x.copy()
    signed(bits, 0.01, moved)
    for layer in layers:
        layer.flags.writeable = False
    at = forward.values_shifted(
        layers, [None, lambda first, block: signed(bits, 0.01, block, first)]
    )
    assert at[0] == pytest.approx(full.value(x), rel=1e-12)
    assert at[1] == pytest.approx(full.value(moved), rel=1e-12)
    assert abs(at[1] - at[0]) > 1e-5
    assert np.array_equal(x, np.concatenate([layer.reshape(-1) for layer in layers]))
    few = [
        f.values(np.stack([x, moved]), np.random.default_rng(3), batch_size=4)
        for f in (full, forward)
    ]
    assert np.allclose(few[0], few[1], rtol=1e-5)
    assert not np.allclose(few[0], at)
    assert forward.metrics(x) == full.metrics(x)


def large(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, bias=False), nn.Tanh()]
    return nn.Sequential(*layers)


def test_a_client_takes_the_memory_of_inference() -> None:
    """At p = 10⁶: beside the model one layer, one direction's bits, and blocks."""
    width, depth = 250, 16
    data = (torch.randn(4, width), torch.zeros(4, width))
    forward = TorchForward(large(width, depth), nn.MSELoss(), data)
    size = forward.shape[0]
    assert size == 10**6
    start = [np.zeros(shape, np.float32) for shape in forward.shapes]
    peaks: list[float] = []

    class Watched(ZerothOrderSGDClient):
        def fit(
            self, parameters: list[NDArray[Any]], config: dict[str, Any]
        ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
            tracemalloc.start()
            answer = super().fit(parameters, config)
            peaks.append(tracemalloc.get_traced_memory()[1] / (4.0 * size))
            tracemalloc.stop()
            return answer

    strategy = ZerothOrderSGD(samples=3, batch_size=2, step_size=1e-4)
    play(strategy, grid_of(Watched, [forward]), start, 2)
    assert len(peaks) == 2
    # a direction has p/8 bytes, 3 % of the model
    assert max(peaks) < 0.2
