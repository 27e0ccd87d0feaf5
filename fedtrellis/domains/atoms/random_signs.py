"""Sums of random sign vectors, which a seed and a few scalars determine.

No oracle answers with one: it is how a model travels that changes along random
directions only (:mod:`fedtrellis.zeroth_order`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import (
    FLOAT64,
    RANDOM,
    Arrays,
    Atom,
    FloatArray,
    Shape,
    check,
    coerce,
    split,
)
from fedtrellis.random import generator

__all__ = ["RandomSigns", "sign_bits", "signed"]

_INT64 = np.dtype(np.int64)
# Entries that are changed at once: a block of float64 of 2 MiB stays in the cache.
_BLOCK = 2**18


def sign_bits(seed: int, stream: int, size: int, count: int) -> Iterator[NDArray[Any]]:
    """Yield the bits of u_1, …, u_count of {−1, 1}^size, eight to a byte; 1 is +1.

    Parameters
    ----------
    seed, stream : int
        That the bits derive from; the same on every machine.
    size, count : int

    Yields
    ------
    ndarray of uint8, shape (⌈size/8⌉,)
    """
    rng = generator(seed, "random signs", stream)
    for _ in range(count):
        yield np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8)


def signed(bits: NDArray[Any], value: float, array: NDArray[Any]) -> None:
    """Do ``array += value * u`` in place, u the signs of the bits.

    Every entry is one addition, so that the result has the same bits everywhere.
    """
    flat = array.reshape(-1)
    plus = np.array([-value, value], dtype=array.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        ones = np.unpackbits(bits[start // 8 :], count=block.size)
        block += plus[ones]


@dataclass(frozen=True, slots=True, eq=False)
class RandomSigns(Atom):
    """Σ_j s_j u_j, with u_j of {−1, 1}^p drawn from a seed and the number of a stream.

    Parameters
    ----------
    seed, stream : int
        Not negative.
    scalars : ndarray of float64, shape (m,)
        s_1, …, s_m.
    shape : tuple of int
        Of p entries.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import RandomSigns
    >>> atom = RandomSigns(seed=0, stream=1, scalars=np.array([0.5]), shape=(4,))
    >>> np.abs(atom.dense()).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    kind: ClassVar[str] = "random"
    seed: int
    stream: int
    scalars: FloatArray
    shape: Shape

    def __post_init__(self) -> None:
        coerce(self, "scalars", FLOAT64)

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        array = np.zeros(self.shape)
        self.add_to(array)
        return array

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, one direction after the other.

        In the array's own dtype: a model of float32 gets the same bits on both sides.
        """
        self._check_target(array)
        size, scalars = math.prod(self.shape), self.scalars.tolist()
        drawn = sign_bits(self.seed, self.stream, size, len(scalars))
        for s, bits in zip(scalars, drawn, strict=True):
            signed(bits, weight * s, array)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>."""
        self._check_operand(array)
        return float(np.vdot(self.dense(), array))

    @property
    def nbytes(self) -> int:
        """Seed, stream, number of scalars, and these: 24 bytes and 8 each."""
        return 24 + self.scalars.nbytes

    @property
    def _code(self) -> int:
        return RANDOM

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        head = [[a.seed, a.stream, a.scalars.size] for a in atoms]
        return [
            np.array(head, dtype=_INT64).reshape(-1),
            np.concatenate([a.scalars for a in atoms]),
        ]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        head, stacked = arrays
        check("heads of random atoms", head, _INT64, 3 * len(shapes))
        if head.size and int(head.min()) < 0:
            raise ValueError("a random atom has a negative seed, stream or count")
        rows = head.reshape(-1, 3).tolist()
        counts = [count for _, _, count in rows]
        pieces = split("scalars of random atoms", stacked, FLOAT64, counts)
        return [
            cls(seed, stream, scalars, shape)
            for (seed, stream, _), scalars, shape in zip(
                rows, pieces, shapes, strict=True
            )
        ]
