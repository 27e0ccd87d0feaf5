"""Networks in PyTorch (extra ``torch``); imported where used, as that takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make models with the same weights in every process, with and without a GPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_model(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Make a model with the same initial weights in every process.

    ``dnn``: one hidden layer of 20 for rows, two of 100 for images; ``cnn``: 5 × 5
    convolutions with 32 and 64 channels, each with a 2 × 2 maximum, and a hidden layer
    of 128; ``small-cnn``: 5 × 5 convolutions with 8 and 16 channels, each by steps of 2
    pixels, and no hidden layer, for a pass in a fiftieth of the time. ReLU throughout,
    no padding. The first two are as in the experiments of FedFW, arXiv 2408.10090.

    It maps float32 (d, ``*shape``) to scores (d, ``classes``); the shape is
    (features,) or (channels, height, width).
    """
    widths, hidden, step = {
        "dnn": ((), (20,) if len(shape) == 1 else (100, 100), 1),
        "cnn": ((32, 64), (128,), 1),
        "small-cnn": ((8, 16), (), 2),
    }[name]
    layers: list[nn.Module] = []
    channels, *sides = shape
    with seeded(seed):
        for width in widths:
            layers += [nn.Conv2d(channels, width, 5, stride=step), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if step == 1 else []
            # 4 pixels off, and the largest of two or every other of the rest
            channels, sides = width, [(side - 5 + step) // 2 for side in sides]
        layers.append(nn.Flatten())
        for before, after in pairwise([channels * prod(sides), *hidden, classes]):
            layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# -- a transformer on characters

HEADS = 4  #: Attention heads of a block; the width is a multiple of it.
# of Adam, where a network is trained before the clients have it
_RATE, _BATCH = 3e-3, 64


class _Block(nn.Module):
    """x ← x + attention(norm(x)); x ← x + perceptron(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.joined = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        split = self.queries_keys_values(self.before_attention(x))
        # (d, length, 3 · width) → 3 of (d, heads, length, width of a head)
        heads = split.reshape(count, length, 3, HEADS, width // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        # softmax(Q Kᵀ / √width of a head), by what stands before alone
        scores = q @ k.transpose(-2, -1) / sqrt(width // HEADS)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        attended = (weights @ v).transpose(1, 2).reshape(count, length, width)
        x = x + self.joined(attended)
        return x + self.perceptron(x)  # type: ignore[no-any-return]


class CharacterTransformer(nn.Module):
    """Scores of the next symbol behind every symbol of a passage.

    Of an alphabet of ``symbols``, in a passage of at most ``context``; ``blocks`` of
    attention and perceptron, each behind a layer norm; ``width`` is a multiple of
    :data:`HEADS`. Embeddings start normal of standard deviation 0.02, the rest as is
    PyTorch's default.
    """

    def __init__(self, symbols: int, context: int, width: int, blocks: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        nn.init.normal_(self.symbols.weight, std=0.02)
        self.blocks = nn.ModuleList([_Block(width) for _ in range(blocks)])
        self.before_scores = nn.LayerNorm(width)
        self.scores = nn.Linear(width, symbols, bias=False)

    def forward(self, passages: Tensor) -> Tensor:
        """Return scores (d, symbols, length) for passages of int64 (d, length)."""
        x = self.symbols(passages) + self.places[: passages.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.before_scores(x))
        # the classes' axis is where CrossEntropyLoss has it
        return scores.transpose(1, 2)


def train(model: nn.Module, text: NDArray[np.int64], steps: int, seed: int) -> None:
    """Train a transformer in place, by Adam on mini-batches drawn by the seed.

    In ``text``, (d, length + 1), each symbol should follow those before it.
    """
    data = torch.as_tensor(text)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (_BATCH,), generator=draw)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
