"""Train the convolutional network that the task ``attack`` attacks on CIFAR-10.

From the repository's root::

    python -m scripts.train_cifar_cnn --data FOLDER --out cifar-cnn.npz

FOLDER holds CIFAR-10's batches, in the Python or the binary version. The file that is
written is what ``attack.classifier-path`` names; one seed makes one network.
It needs PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from tasks.base import data_path
from tasks.data.datasets import Examples, load_images
from tasks.networks import (
    SHAPES,
    ConvolutionalClassifier,
    load_weights,
    make_classifier,
)

__all__ = ["augment", "fold", "main", "save_weights", "train"]

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


def fold(network: nn.Sequential) -> dict[str, NDArray[np.float32]]:
    """Return the weights, as ``cifar_cnn.SHAPES`` has them, of a trained network.

    In inference batch normalisation is an affine map of each channel, which is as well
    a part of the convolution before it.
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
    return {
        name: np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float32)
        for name, tensor in zip(SHAPES, tensors, strict=True)
    }


def save_weights(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a file that ``load_weights`` reads, under exactly this name.

    Weights are rounded to half precision, and what is then zero in them is packed: the
    file is half as large, and the scores' order hardly ever another.
    """
    rounded = {name: weights[name].astype(np.float16) for name in SHAPES}
    with path.open("wb") as stream:
        np.savez_compressed(
            stream,
            **{name: array.astype(np.float32) for name, array in rounded.items()},  # type: ignore[arg-type]
        )


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
        network = make_classifier(normalised=True)
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
    """Train, print the accuracy on the test batch and write the weights.

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
    parser.add_argument("--out", required=True, help="the .npz file to write")
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
    save_weights(out, fold(train(examples, given.epochs, given.seed)))
    classifier = ConvolutionalClassifier(load_weights(out))
    scores = classifier.logits(examples.test_features / np.float32(255))
    accuracy = float(np.mean(scores.argmax(axis=1) == examples.test_labels))
    print(f"accuracy {accuracy:.4f} on the test batch; weights in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
