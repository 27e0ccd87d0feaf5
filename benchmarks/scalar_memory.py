"""The memory of training by scalars beside that of inference, each in its own process.

A perceptron of p parameters, float32, a mini-batch of 16 examples: (a) PyTorch's own
forward pass without gradients; (b) a client of ``zeroth-order-sgd`` with a
``TorchForward``, τ = 1, m = 10, and the model's update from scalars; (c) the same with
everything that a message takes, on a ``LocalGrid``. What is measured is the resident
memory at its peak, less what the process had before there was a model. And the first
two for the transformer of the task ``characters``, with the client of a run config.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict

import sim
from clients import ZerothOrderSGDClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.app.experiment import Experiment
from fedtrellis.domains.atoms import RandomSigns
from fedtrellis.wire.arrays import Layout
from strategies import ZerothOrderSGD

from .report import Aim, Comparison

__all__ = ["FULL", "QUICK", "compare"]

#: Width and number of layers.
Size = tuple[int, int]
QUICK: tuple[Size, ...] = ((250, 16),)
FULL: tuple[Size, ...] = ((250, 16), (500, 40))

_AIM = 1.2
_WAYS = ("inference", "client", "messages")
_RUN_WAYS = ("run-inference", "run-client")
#: Width and blocks of the transformer, and how many parameters it has about.
_TRANSFORMER: Size = (128, 5)


def _status(name: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def _measure(way: str, width: int, depth: int) -> None:
    """Print the bytes at the peak, in a process of its own."""
    import torch
    from torch import Tensor, nn

    from fedtrellis.objectives.torch_forward import TorchForward

    torch.set_num_threads(1)
    data = torch.randn(16, width), torch.zeros(16, width)

    def made(width: int, depth: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width, bias=False), nn.Tanh()]
        return nn.Sequential(*layers)

    def inference(model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            for _ in range(11):
                float(nn.functional.mse_loss(model(x), y))

    def objective(width: int, depth: int, x: Tensor, y: Tensor) -> TorchForward:
        with torch.device("meta"):
            model = made(width, depth)
        return TorchForward(model, nn.MSELoss(), (x, y))

    def client(width: int, depth: int, x: Tensor, y: Tensor) -> None:
        f = objective(width, depth, x, y)
        layout = Layout(tuple(f.shapes), "float32")
        context = Context(0, 0, {"partition-id": 0}, RecordDict(), {})
        strategy = ZerothOrderSGD(samples=10, batch_size=8)
        said = strategy.instruction(1, "0")
        point: Any = np.full(layout.size, 0.01, np.float32)
        for server_round in (1, 2):
            a_client = ZerothOrderSGDClient(context, f)
            a_client.fit(layout.layers(point), said | {"server-round": server_round})
            atom = RandomSigns(0, server_round, 1e-6 * np.ones(10), point.shape)
            atom.add_to(point)

    def messages(width: int, depth: int, x: Tensor, y: Tensor) -> None:
        f = objective(width, depth, x, y)
        app = client_app(lambda context: ZerothOrderSGDClient(context, f))
        start = ArrayRecord([np.full(shape, 0.01, np.float32) for shape in f.shapes])
        strategy = ZerothOrderSGD(samples=10, batch_size=8, step_size=1e-6)
        strategy.start(LocalGrid(app, 1), start, num_rounds=2)

    def run(width: int, depth: int, x: Tensor, y: Tensor) -> None:
        if way == "inference":
            inference(made(width, depth), x, y)
        elif way == "client":
            client(width, depth, x, y)
        else:
            messages(width, depth, x, y)

    # what libraries take when they are used for the first time
    small = data[0][:, :20], data[1][:, :20]
    inference(made(20, 2), *small)
    run(20, 2, *small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _status("VmRSS")
    run(width, depth, *data)
    print(_status("VmHWM") - before)


def _of_a_run(width: int, blocks: int) -> Experiment:
    """The experiment of a run config with a transformer."""
    return sim.app.experiment(
        {
            "method": "zeroth-order-sgd",
            "task": "characters",
            "dtype": "float32",
            "characters.width": width,
            "characters.blocks": blocks,
            "zeroth-order-sgd.batch-size": 8,
        },
        4,
    )


def _measure_run(way: str, width: int, blocks: int) -> None:
    """As :func:`_measure`, of the client of a run config."""
    import torch

    torch.set_num_threads(1)

    def run(experiment: Experiment) -> None:
        task: Any = experiment.task
        if way == "run-inference":
            model = task._make_model()
            text = torch.zeros((8, task.context), dtype=torch.long)
            loss = torch.nn.CrossEntropyLoss()
            with torch.no_grad():
                for _ in range(11):
                    float(loss(model(text), text))
            return
        context = Context(0, 0, {"partition-id": 0}, RecordDict(), {})
        parts = task.client_parts(0)
        client = experiment.client(context, parts, experiment.domain)
        made = Layout(experiment.layout.shapes, "float32")
        point: Any = np.full(made.size, 0.01, np.float32)
        strategy: Any = experiment.strategy()
        said = strategy.instruction(1, "0")
        client.fit(made.layers(point), said | {"server-round": 1})

    run(_of_a_run(16, 1))  # what libraries take when they are used for the first time
    experiment = _of_a_run(width, blocks)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _status("VmRSS")
    run(experiment)
    print(_status("VmHWM") - before)


def _peak(way: str, size: Size) -> int:
    """The bytes at the peak of a process that goes one of the ways."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, way, *map(str, size)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(done.stdout.splitlines()[-1]))


def compare(sizes: tuple[Size, ...]) -> Comparison:
    """The peaks of the three, at each size."""
    result = Comparison(
        "scalar-memory",
        "resident memory at its peak, of inference and of training by scalars",
        __doc__.split("\n\n")[1].replace("\n", " "),
    )
    for width, depth in sizes:
        found = {way: _peak(way, (width, depth)) for way in _WAYS}
        ratio = {way: found[way] / found["inference"] for way in _WAYS}
        row: dict[str, Any] = {"parameters": width * width * depth}
        row |= {f"{way}, MB": round(found[way] / 1e6, 1) for way in _WAYS}
        row |= {f"{way} / inference": round(ratio[way], 2) for way in _WAYS[1:]}
        result.rows.append(row)
        result.aims.append(
            Aim(
                f"p = {width * width * depth}: a client at most {_AIM} of inference",
                f"{ratio['client']:.2f}",
                ratio["client"] <= _AIM,
            )
        )
    shapes = _of_a_run(*_TRANSFORMER).layout.shapes
    p = sum(int(np.prod(shape)) for shape in shapes)
    inference, client = (_peak(way, _TRANSFORMER) for way in _RUN_WAYS)
    of_a_run: dict[str, Any] = {"parameters": p}
    of_a_run["inference, MB"] = round(inference / 1e6, 1)
    of_a_run["client, MB"] = round(client / 1e6, 1)
    of_a_run["client / inference"] = round(client / inference, 2)
    result.rows.append(of_a_run)
    result.aims.append(
        Aim(
            f"characters, p = {p}: a run's client at most {_AIM} of inference",
            f"{client / inference:.2f}",
            client <= _AIM * inference,
        )
    )
    return result


if __name__ == "__main__":
    way, size = sys.argv[1], (int(sys.argv[2]), int(sys.argv[3]))
    (_measure_run if way in _RUN_WAYS else _measure)(way, *size)
