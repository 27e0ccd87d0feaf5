"""Directions of {−1, 1}^p that server and clients draw alike, from seeds alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.random_signs import draw_signs, sign_rng, signed
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray

__all__ = [
    "START",
    "PooledSigns",
    "StreamedSigns",
    "from_pool",
    "mark_of",
    "pool_choice",
]

#: The property by which a client announces the model that its objective begins at.
START = "start"


class StreamedSigns:
    """The directions of a run's round of p entries: the same for all clients."""

    def __init__(self, seed: int, stream: int, size: int) -> None:
        self._rng, self._size = sign_rng(seed, stream), size

    def draw(self) -> NDArray[Any]:
        """Return the next direction's bits, uint8 of shape (⌈p/8⌉,)."""
        return draw_signs(self._rng, self._size)


class PooledSigns:
    """Some of the K directions of a run's pool, each of p entries, in turn."""

    def __init__(self, seed: int, indices: Sequence[int], size: int) -> None:
        self._seed, self._left, self._size = seed, list(indices), size

    def draw(self) -> NDArray[Any]:
        """Return the next direction's bits, uint8 of shape (⌈p/8⌉,)."""
        rng = generator(self._seed, "pool of signs", int(self._left.pop(0)))
        return draw_signs(rng, self._size)


def pool_choice(
    seed: int, client: str, server_round: int, count: int, pool: int
) -> NDArray[np.int64]:
    """Draw which directions of a pool a client takes, with replacement: (count,)."""
    rng = generator(seed, "choice of the pool", client, server_round)
    return rng.integers(pool, size=count)


def from_pool(start: FloatArray, weights: FloatArray, seed: int) -> FloatArray:
    """Return x_0 + Σ_j a_j u_j in x_0's dtype, the same bits on every machine.

    ``weights`` is a, of shape (K,); what is 0 costs nothing.
    """
    point = np.array(start, order="C")
    used = np.flatnonzero(weights)
    drawn = PooledSigns(seed, used.tolist(), point.size)
    for weight in weights[used].tolist():
        signed(drawn.draw(), weight, point)
    return point


def mark_of(arrays: Sequence[NDArray[Any]]) -> str:
    """Return a digest of a model's numbers, the same whatever they are held in."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()[:32]
