"""``TorchObjective`` against bare PyTorch (extra ``torch``)."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .report import Comparison, at_most, in_turns, ratios

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FULL", "QUICK", "compare"]

# Seconds of calls that are timed together.
_BLOCK = 0.05
#: Repetitions of blocks of gradients.
QUICK, FULL = 7, 15


def compare(repetitions: int) -> Iterator[Comparison]:
    """Gradients of three models, each against a bare loop."""
    if importlib.util.find_spec("torch") is None:
        yield Comparison("torch", "PyTorch", "Skipped: needs the extra torch.")
        return
    import torch

    torch.set_num_threads(1)
    yield _gradients(repetitions)


def _models() -> list[tuple[str, nn.Module, Tensor, Tensor]]:
    """Name, model, inputs and labels, from few operations to many."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    perceptron = nn.Sequential(
        *(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()),
        nn.Linear(100, 10),
    )
    network = nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    made = [
        ("linear, p = 650, 18 examples", nn.Linear(64, 10), (18, 64)),
        ("perceptron, p = 89,610, 128 examples", perceptron, (128, 784)),
        ("network, p = 80,202, 64 images", network, (64, 1, 28, 28)),
    ]
    return [
        (name, model, torch.randn(shape), torch.randint(0, 10, shape[:1]))
        for name, model, shape in made
    ]


def _block(call: Callable[[], object]) -> Callable[[], float]:
    """What measures the CPU seconds of a call, as a mean of many."""
    call()
    began = time.process_time()
    call()
    calls = max(1, round(_BLOCK / max(time.process_time() - began, 1e-6)))

    def measure() -> float:
        began = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - began) / calls

    return measure


def _gradients(repetitions: int) -> Comparison:
    import torch
    from torch.nn import CrossEntropyLoss

    from fedtrellis.objectives.torch_objective import TorchObjective

    result = Comparison(
        "torch",
        "TorchObjective.gradient against zero_grad, forward, backward",
        "The same model and examples, float32, on the CPU; layers as NumPy arrays in "
        "and out. CPU time of one thread, blocks by turns; median (min – max).",
    )
    loss = CrossEntropyLoss()
    for name, model, inputs, labels in _models():
        ours = TorchObjective(model, loss, (inputs, labels), device="cpu")
        x = ours.initial_point()

        def gradient(f: TorchObjective = ours, x: list[Any] = x) -> object:
            return f.gradient(x)

        def bare(
            model: nn.Module = model, inputs: Tensor = inputs, labels: Tensor = labels
        ) -> None:
            model.zero_grad()
            loss(model(inputs), labels).backward()

        bare()
        _agree(
            np.concatenate([g.reshape(-1) for g in ours.gradient(x)]),
            torch.cat([p.grad.reshape(-1) for p in model.parameters()]),  # type: ignore[union-attr]
        )
        sides = {"gradient": _block(gradient), "bare": _block(bare)}
        found = in_turns(sides, repetitions, warm_up=1)
        ratio = ratios(*found.values())
        result.rows.append({"model": name, **found, "ratio": ratio})
        result.aims.append(at_most(name, ratio, 1.15))
    return result


def _agree(ours: NDArray[Any], theirs: Tensor) -> None:
    expected = theirs.detach().numpy()
    error = float(np.abs(ours - expected).max() / max(1.0, np.abs(expected).max()))
    if not error <= 1e-5:
        raise AssertionError(f"TorchObjective and bare PyTorch differ by {error:g}")
