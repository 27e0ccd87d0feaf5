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

__all__ = ["RandomSigns", "draw_signs", "sign_bits", "sign_rng", "signed"]

_INT64 = np.dtype(np.int64)
# Entries that are changed at once: what is beside the model is small, and in the cache.
_BLOCK = 2**15
# Row b has the signs of the bits of the byte b.
_SIGNS = 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - 1.0
# Bytes that are drawn at once, whole words of 32 bits.
_DRAWN = 2**14


def sign_rng(seed: int, stream: int) -> np.random.Generator:
    """Return the generator that the directions of a stream are drawn from."""
    return generator(seed, "random signs", stream)


def draw_signs(rng: np.random.Generator, size: int) -> NDArray[Any]:
    """Draw the bits of the next direction of {−1, 1}^size, as :func:`sign_bits`."""
    bits = np.empty(-(-size // 8), dtype=np.uint8)
    # what one call would draw, without the words of all of it beside
    for start in range(0, bits.size, _DRAWN):
        part = bits[start : start + _DRAWN]
        part[:] = np.frombuffer(rng.bytes(part.size), dtype=np.uint8)
    return bits


def sign_bits(seed: int, stream: int, size: int, count: int) -> Iterator[NDArray[Any]]:
    """Yield the bits of u_1, …, u_count of {−1, 1}^size, eight to a byte; 1 is +1.

    They derive from seed and stream alone, the same on every machine.
    """
    rng = sign_rng(seed, stream)
    for _ in range(count):
        yield draw_signs(rng, size)


def signed(
    bits: NDArray[Any], value: float, array: NDArray[Any], first: int = 0
) -> None:
    """Do ``array += value * u`` in place, u the signs of a whole direction's bits.

    Every entry is one addition, so that the result has the same bits everywhere. The
    array, in C order, may be a layer of the model: it begins at entry ``first`` of u.
    """
    flat = array.reshape(-1)
    # ±value for the eight bits of every byte
    table = (value * _SIGNS).astype(array.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        byte, bit = divmod(first + start, 8)
        stop = byte - (-(bit + block.size) // 8)
        moved = table.take(bits[byte:stop], axis=0).reshape(-1)
        block += moved[bit : bit + block.size]


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
    _code: ClassVar[int] = RANDOM
    seed: int
    stream: int
    scalars: FloatArray
    shape: Shape

    def __post_init__(self) -> None:
        coerce(self, "scalars", FLOAT64)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, one direction after the other.

        In the array's own dtype: a model of float32 gets the same bits on both sides.
        """
        self._check_target(array)
        size, scalars = math.prod(self.shape), self.scalars.tolist()
        drawn = sign_bits(self.seed, self.stream, size, len(scalars))
        for s, bits in zip(scalars, drawn, strict=True):
            signed(bits, weight * s, array)

    @property
    def _modulus(self) -> float | None:
        """|s_j| where it is the same for several scalars: then their signs suffice."""
        moduli = np.abs(self.scalars)
        alike = (
            moduli.size > 1 and moduli[0] > 0.0 and bool((moduli == moduli[0]).all())
        )
        return float(moduli[0]) if alike else None

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        # seed, stream, number of scalars, and words of 64 signs where the scalars
        # differ in these alone; and the scalars, or what they are but for signs
        head: list[int] = []
        scalars: list[FloatArray] = []
        for a in atoms:
            modulus, count = a._modulus, a.scalars.size
            if modulus is None:
                head += [a.seed, a.stream, count]
                scalars.append(a.scalars)
                continue
            bits = np.zeros(64 * -(-count // 64), dtype=bool)
            bits[:count] = a.scalars > 0.0
            head += [a.seed, a.stream, -count]
            head += np.packbits(bits).view("<i8").tolist()
            scalars.append(np.array([modulus]))
        return [np.array(head, dtype=_INT64), np.concatenate(scalars)]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        head, stacked = arrays
        if head.ndim != 1 or head.dtype != _INT64 or head.size < 3 * len(shapes):
            raise ValueError("the heads of random atoms are malformed")
        rows, start = [], 0
        for _ in shapes:
            row = head[start : start + 3].tolist()
            words = -(row[2] // 64) if len(row) == 3 and row[2] < 0 else 0
            start += 3 + words
            if start > head.size or row[0] < 0 or row[1] < 0:
                raise ValueError("a random atom has a negative seed or stream, or ends")
            rows.append((*row, head[start - words : start]))
        check("heads of random atoms", head, _INT64, start)
        counts = [count if count >= 0 else 1 for _, _, count, _ in rows]
        pieces = split("scalars of random atoms", stacked, FLOAT64, counts)
        return [
            cls(seed, stream, _signed_scalars(given, -count, words), shape)
            if count < 0
            else cls(seed, stream, given, shape)
            for (seed, stream, count, words), given, shape in zip(
                rows, pieces, shapes, strict=True
            )
        ]


def _signed_scalars(
    modulus: FloatArray, count: int, words: NDArray[np.int64]
) -> FloatArray:
    """Return ±modulus by the signs in some words."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8), count=count)
    made: FloatArray = np.where(bits == 1, modulus, -modulus)
    return made
