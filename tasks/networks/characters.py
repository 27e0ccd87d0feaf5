"""A small transformer on characters (needs the extra ``torch``)."""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["HEADS", "CharacterTransformer", "make_transformer", "train"]

#: Attention heads of a block; the width is a multiple of it.
HEADS = 4
# of Adam, where a network is trained before the clients have it
_RATE, _BATCH = 3e-3, 64


class _Block(nn.Module):
    """x ← x + attention(norm(x)); x ← x + perceptron(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.joined = nn.Linear(width, width, bias=False)
        self.before_perceptron = nn.LayerNorm(width)
        self.wider = nn.Linear(width, 4 * width)
        self.narrower = nn.Linear(4 * width, width)

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
        wider = nn.functional.gelu(self.wider(self.before_perceptron(x)))
        perceptron: Tensor = self.narrower(wider)
        return x + perceptron


class CharacterTransformer(nn.Module):
    """Scores of the next symbol behind every symbol of a passage.

    Parameters
    ----------
    symbols : int
        Of the alphabet.
    context : int
        The most symbols of a passage.
    width : int
        A multiple of :data:`HEADS`.
    blocks : int
        Of attention and perceptron, each behind a layer norm.
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


def make_transformer(
    symbols: int, context: int, width: int, blocks: int, seed: int
) -> CharacterTransformer:
    """Make a transformer with the same initial weights in every process.

    Embeddings are normal of standard deviation 0.02, the rest is PyTorch's default
    initialisation, whose global state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CharacterTransformer(symbols, context, width, blocks)


def train(model: nn.Module, text: NDArray[np.int64], steps: int, seed: int) -> None:
    """Train a transformer in place, by Adam on mini-batches of passages, on the CPU.

    Parameters
    ----------
    model : torch.nn.Module
    text : ndarray of int64 of shape (d, length + 1)
        Each symbol but the first is what should follow those before.
    steps : int
    seed : int
        Draws the mini-batches.
    """
    data = torch.as_tensor(text)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (_BATCH,), generator=draw)]
        optimizer.zero_grad()
        scores = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores, batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
