"""PyTorch models of the task ``classification`` (needs the extra ``torch``)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

__all__ = ["make_model"]


def make_model(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Make a model with the same initial weights in every process.

    Parameters
    ----------
    name : {"dnn", "cnn", "small-cnn"}
        ``dnn``: one hidden layer of 20 for 60 features, two of 100 for images;
        ``cnn``: 5 × 5 convolutions with 32 and 64 channels, each with a 2 × 2 maximum,
        and a hidden layer of 128; without padding 28 × 28 pixels come down to
        64 · 4 · 4 = 1024 features; ``small-cnn``: 5 × 5 convolutions with 8 and 16
        channels, each by steps of 2 pixels, and no hidden layer, for a pass in a
        fiftieth of the time. ReLU throughout.
    shape : tuple of int
        Of an example: (features,) or (channels, height, width).
    classes : int
    seed : int
        For PyTorch's default initialisation; its global state is left as it was.

    Returns
    -------
    torch.nn.Module
        Maps float32 (d, *shape) to scores (d, classes).

    Notes
    -----
    The sizes of ``dnn`` and ``cnn`` are those of the experiments of FedFW, arXiv
    2408.10090.
    """
    # Only the CPU's generator is used: the same weights with and without a GPU.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        makers = {"dnn": _dnn, "cnn": _cnn, "small-cnn": _small_cnn}
        return makers[name](shape, classes)


def _dnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    inputs = int(torch.Size(shape).numel())
    widths = [inputs, 20, classes] if len(shape) == 1 else [inputs, 100, 100, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    channels, *sides = shape
    # Each stage: 4 pixels off by the convolution, then half.
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * height * width, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    channels, *sides = shape
    # each stage: 4 pixels off, then every other
    height, width = (((side - 3) // 2 - 3) // 2 for side in sides)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * height * width, classes),
    )
