"""``TorchObjective`` and rounds with it against bare PyTorch (extra ``torch``)."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from clients import LocalSGDClient
from fedtrellis.random import generator
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.local_grid import LocalGrid
from strategies import LocalSGD

from .report import Comparison, Spread, at_most, in_turns, ratios
from .traffic import app_of

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FULL", "QUICK", "Size", "compare"]

_CLIENTS, _STEPS, _STEP_SIZE, _BATCH = 10, 2, 0.05, 64
# Seconds of calls that are timed together.
_BLOCK = 0.05


@dataclass(frozen=True)
class Size:
    """How long it is measured.

    Parameters
    ----------
    gradients : int
        Repetitions of blocks of gradients.
    blocks, rounds : int
        Blocks of rounds of the network, and rounds in one.
    examples : int
        Images of a client.
    """

    gradients: int
    blocks: int
    rounds: int
    examples: int


QUICK = Size(gradients=7, blocks=3, rounds=1, examples=128)
FULL = Size(gradients=15, blocks=7, rounds=2, examples=600)


def compare(size: Size) -> Iterator[Comparison]:
    """Gradients and rounds of a network, each against bare loops."""
    if importlib.util.find_spec("torch") is None:
        yield Comparison("torch", "PyTorch", "Skipped: needs the extra torch.")
        return
    import torch

    torch.set_num_threads(1)
    yield _gradients(size)
    yield _rounds(size)


# ---------------------------------------------------------------------------- gradients


def _models() -> list[tuple[str, nn.Module, Tensor, Tensor]]:
    """Name, model, inputs and labels, from few operations to many."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    perceptron = nn.Sequential(
        *(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()),
        nn.Linear(100, 10),
    )
    made = [
        ("linear, p = 650, 18 examples", nn.Linear(64, 10), (18, 64)),
        ("perceptron, p = 89,610, 128 examples", perceptron, (128, 784)),
        ("network, p = 80,202, 64 images", _network(), (_BATCH, 1, 28, 28)),
    ]
    return [
        (name, model, torch.randn(shape), torch.randint(0, 10, shape[:1]))
        for name, model, shape in made
    ]


def _network() -> nn.Module:
    """A small convolutional network for images of 28 × 28."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


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


def _gradients(size: Size) -> Comparison:
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
        found = in_turns(sides, size.gradients, warm_up=1)
        ratio = ratios(*found.values())
        result.rows.append({"model": name, **found, "ratio": ratio})
        result.aims.append(at_most(name, ratio, 1.15))
    return result


def _agree(ours: NDArray[Any], theirs: Tensor) -> None:
    expected = theirs.detach().numpy()
    error = float(np.abs(ours - expected).max() / max(1.0, np.abs(expected).max()))
    if not error <= 1e-5:
        raise AssertionError(f"TorchObjective and bare PyTorch differ by {error:g}")


# ------------------------------------------------------------------------------- rounds


class _PlainLoop:
    """FedAvg of a network as a PyTorch user writes it: data sets, a module and SGD.

    The mini-batches are those that fedtrellis' rule draws.
    """

    def __init__(self, datasets: list[Any], model: nn.Module) -> None:
        self.datasets, self.model = datasets, copy.deepcopy(model)
        self.mean = [p.detach().clone() for p in self.model.parameters()]
        self.round = 0

    def run(self, rounds: int) -> None:
        """Run some more rounds."""
        import torch
        from torch.nn import CrossEntropyLoss

        loss, parameters = CrossEntropyLoss(), list(self.model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=_STEP_SIZE)
        for _ in range(rounds):
            self.round += 1
            total = [torch.zeros_like(p) for p in parameters]
            for client, data in enumerate(self.datasets):
                with torch.no_grad():
                    for p, value in zip(parameters, self.mean, strict=True):
                        p.copy_(value)
                rng = generator(0, "mini-batch", str(client), self.round)
                for _ in range(_STEPS):
                    rows = rng.choice(len(data), _BATCH, replace=False, shuffle=False)
                    inputs, labels = data[rows]
                    optimizer.zero_grad()
                    loss(self.model(inputs), labels).backward()
                    optimizer.step()
                with torch.no_grad():
                    for part, p in zip(total, parameters, strict=True):
                        part += p
            self.mean = [part / len(self.datasets) for part in total]


class _Alternate(Callback):
    """Runs a block of the plain loop after every block of rounds; CPU seconds."""

    def __init__(self, rounds: int, plain: _PlainLoop) -> None:
        self.rounds, self.plain = rounds, plain
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Start the clock."""
        self._began = time.process_time()

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
        """Stop the clock at a block's end, and let the other side run its block."""
        if record.round % self.rounds:
            return
        now = time.process_time()
        self.ours.append((now - self._began) / self.rounds)
        self.plain.run(self.rounds)
        self._began = time.process_time()
        self.theirs.append((self._began - now) / self.rounds)


def _rounds(size: Size) -> Comparison:
    import torch
    from torch.nn import CrossEntropyLoss
    from torch.utils.data import DataLoader, TensorDataset

    from fedtrellis.objectives.torch_objective import TorchObjective

    torch.manual_seed(0)
    model, shape = _network(), (size.examples, 1, 28, 28)
    # what images show takes no time
    datasets = [
        TensorDataset(torch.rand(shape), torch.randint(0, 10, shape[:1]))
        for _ in range(_CLIENTS)
    ]
    objectives = [
        TorchObjective(
            model, CrossEntropyLoss(), DataLoader(data, _BATCH), device="cpu"
        )
        for data in datasets
    ]
    plain = _PlainLoop(datasets, model)
    turns = _Alternate(size.rounds, plain)
    strategy = LocalSGD(
        local_steps=_STEPS,
        step_size=_STEP_SIZE,
        step_schedule="constant",
        batch_fraction=_BATCH / size.examples,
        callbacks=[turns],
    )

    grid = LocalGrid(app_of(LocalSGDClient, objectives), _CLIENTS)
    start = ArrayRecord([p.detach().numpy() for p in model.parameters()])
    ended = strategy.start(grid, start, num_rounds=(size.blocks + 1) * size.rounds)
    ours = [array.reshape(-1) for array in ended.arrays.to_numpy_ndarrays()]
    theirs = torch.cat([part.reshape(-1) for part in plain.mean])
    _agree(np.concatenate(ours), theirs)
    # the first block is warm-up
    sides = [Spread(tuple(side[1:]), "ms") for side in (turns.ours, turns.theirs)]
    ratio = ratios(*sides)
    return Comparison(
        "torch-rounds",
        "A round of a convolutional network on LocalGrid against a plain PyTorch loop",
        f"LocalSGD. {_CLIENTS} clients with {size.examples} images of noise "
        f"each, all in every round, {_STEPS} local steps on mini-batches of {_BATCH}, "
        "float32; the same model to 1e-5. CPU time of one thread, blocks of rounds by "
        "turns; median (min – max).",
        [{"fedtrellis": sides[0], "plain": sides[1], "ratio": ratio}],
        [at_most("a round", ratio, 1.1)],
    )
