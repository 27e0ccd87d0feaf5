"""Train the convolutional network that the task ``attack`` attacks on CIFAR-10.

From the repository's root::

    python -m scripts.train_cifar_cnn --data FOLDER --out cifar-cnn.onnx

FOLDER holds the batches of CIFAR-10's binary version. The file that is
written is what ``attack.classifier-path`` names; one seed makes one network.
It needs PyTorch, onnx and the extra ``onnx``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedtrellis.objectives.demonstrations import OnnxClassifier
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from tasks.base import data_path
from tasks.data.datasets import Examples, load_images

__all__ = ["augment", "fold", "main", "train", "write"]

_BATCH = 128
# Images are cut from themselves with so many black pixels on each side.
_BORDER = 4
_LARGEST_RATE = 0.2


def augment(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a copy of (d, channels, height, width), shifted by up to 4 pixels.

    Half of the images are mirrored.
    """
    count, channels, height, width = pixels.shape
    border = (_BORDER, _BORDER)
    padded = np.pad(pixels, ((0, 0), (0, 0), border, border))
    shifts = rng.integers(0, 2 * _BORDER + 1, (2, count, 1))
    rows = shifts[0] + np.arange(height)
    columns = shifts[1] + np.arange(width)
    mirrored = rng.random(count) < 0.5
    columns[mirrored] = columns[mirrored, ::-1]
    result: NDArray[np.uint8] = padded[
        np.arange(count)[:, None, None, None],
        np.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return result


def make_network() -> nn.Sequential:
    """Make the network, from PyTorch's global random state.

    Three convolutions of stride 2, 5 × 5, 3 × 3 and 3 × 3, each with batch
    normalisation and ReLU, and a dense layer. An attack asks for millions of outputs:
    with strides instead of maxima they cost a third. It maps (d, 3, 32, 32), pixels in
    [0, 1], to scores (d, 10).
    """
    layers: list[nn.Module] = []
    for before, after, size in ((3, 32, 5), (32, 64, 3), (64, 64, 3)):
        layers.append(nn.Conv2d(before, after, size, 2, size // 2, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def fold(network: nn.Sequential) -> list[NDArray[np.float16]]:
    """Return weights and biases of a trained network, layer by layer, in halves.

    In inference batch normalisation is an affine map of each channel, which is as well
    a part of the convolution before it. Halves hardly ever change the scores' order.
    """
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in network if isinstance(layer, nn.BatchNorm2d)]
    dense = network[-1]
    assert isinstance(dense, nn.Linear)
    tensors: list[torch.Tensor] = []
    for convolution, norm in zip(convolutions, norms, strict=True):
        assert norm.running_var is not None
        assert norm.running_mean is not None
        # γ (W x − m)/√(v + ε) + β = (s W) x + β − s m with s = γ/√(v + ε)
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        tensors.append(convolution.weight * scale[:, None, None, None])
        tensors.append(norm.bias - scale * norm.running_mean)
    tensors += [dense.weight, dense.bias]
    return [tensor.detach().numpy().astype(np.float16) for tensor in tensors]


def write(path: Path, weights: Sequence[NDArray[np.float16]]) -> None:
    """Write the network with these weights as an ONNX model that computes in float32.

    The weights are kept in half precision: the file is half as large.
    """
    node, real = onnx.helper.make_node, onnx.TensorProto.FLOAT
    nodes, tensors = [], []
    for k, array in enumerate(weights):
        tensors.append(onnx.numpy_helper.from_array(array, f"half-{k}"))
        nodes.append(node("Cast", [f"half-{k}"], [f"{k}"], to=real))
    last, count = "images", len(weights)
    for k in range(0, count - 2, 2):
        size = weights[k].shape[-1]
        how: Any = {"strides": [2, 2], "pads": [size // 2] * 4}
        nodes.append(node("Conv", [last, f"{k}", f"{k + 1}"], [f"conv-{k}"], **how))
        last = f"active-{k}"
        nodes.append(node("Relu", [f"conv-{k}"], [last]))
    nodes.append(node("Flatten", [last], ["flat"]))
    dense = ["flat", f"{count - 2}", f"{count - 1}"]
    nodes.append(node("Gemm", dense, ["scores"], transB=1))
    info = onnx.helper.make_tensor_value_info
    ends = info("images", real, ["n", 3, 32, 32]), info("scores", real, ["n", 10])
    graph = onnx.helper.make_graph(nodes, "cifar-cnn", [ends[0]], [ends[1]], tensors)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, str(path))


def train(examples: Examples, epochs: int, seed: int) -> nn.Sequential:
    """Train by stochastic gradients with momentum, the rate up and down once.

    Parameters
    ----------
    examples : Examples
        Pixels as bytes, of shape (d, 3, 32, 32).
    epochs : int
    seed : int
        Of the initial weights, the order and the augmentation.

    Returns
    -------
    torch.nn.Sequential
        In inference mode.
    """
    rng = generator(seed, "training")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make_network()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    count = len(examples.labels)
    optimizer = torch.optim.SGD(
        network.parameters(), _LARGEST_RATE, 0.9, weight_decay=5e-4, nesterov=True
    )
    steps = epochs * -(-count // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LARGEST_RATE, total_steps=steps
    )
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        order = rng.permutation(count)
        total = 0.0
        for first in range(0, count, _BATCH):
            rows = order[first : first + _BATCH]
            batch = _as_tensor(augment(examples.features[rows], rng))
            labels = torch.from_numpy(examples.labels[rows].astype(np.int64))
            loss = functional.cross_entropy(network(batch), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}/{epochs}: loss {total / count:.3f}, {seconds:.0f} s")
    network.eval()
    return network


def _as_tensor(pixels: NDArray[np.uint8]) -> Any:
    x = torch.from_numpy(pixels.astype(np.float32) / np.float32(255))
    return x.contiguous(memory_format=torch.channels_last)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the accuracy on the test batch and write the model.

    Returns
    -------
    int
        The exit status: 2 after a line on what is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_cifar_cnn",
        description="Train a convolutional network on CIFAR-10 for the task attack.",
    )
    parser.add_argument("--data", required=True, help="the folder of the batches")
    parser.add_argument("--out", required=True, help="the .onnx file to write")
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    given = parser.parse_args(arguments)
    try:
        out = Path(given.out).expanduser()
        if not out.parent.is_dir():
            raise FileNotFoundError(
                f"--out = {given.out!r}: there is no folder {out.parent.resolve()}"
            )
        if given.epochs < 1:
            raise SettingsError(f"--epochs {given.epochs} must be at least 1")
        # whatever training batches there are
        folder = data_path("--data", given.data, folder=True)
        examples = load_images("cifar10", folder, "--data", partial=True)
    except (SettingsError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    print(f"{len(examples.labels)} training images, {len(examples.test_labels)} others")
    write(out, fold(train(examples, given.epochs, given.seed)))
    classifier = OnnxClassifier(out, (3, 32, 32))
    scores = classifier.logits(examples.test_features / np.float32(255))
    accuracy = float(np.mean(scores.argmax(axis=1) == examples.test_labels))
    print(f"accuracy {accuracy:.4f} on the test batch; the model is in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
