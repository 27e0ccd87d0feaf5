"""Real numbers as integers modulo a power of two, with room for a sum of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.settings import CodedError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Integers modulo 2^64 or 2^32: uint64 or uint32.
Words = NDArray[np.unsignedinteger[Any]]

#: The most shares of a sum, which the noise of a BFV ciphertext bears.
MAX_TERMS = 2**24


class EncryptionError(CodedError):
    """Something cannot be encrypted, or is not what an honest run would have made.

    The message is one line, by default the class's, and never has anything secret.
    """

    code = "encryption"
    text = "this cannot be encrypted"

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


class RefusedError(EncryptionError):
    """A ciphertext is not the sum that was asked for, for a reason that stays here."""

    code = "ciphertext"
    text = (
        "ciphertext was refused: it is not the sum that was asked for, under this key "
        "and label"
    )


class RangeError(EncryptionError):
    """A value is too large to be hidden, or not finite; its size is for its node."""

    code = "range"
    text = (
        "a value is not finite, or too large for the fixed point of a sum; clip the "
        "values, or scale the loss down"
    )


@dataclass(frozen=True)
class Coding:
    """Real numbers as multiples of 2^−bits, and these as integers modulo 2^word.

    ``bits`` is f, negative where a word has no room for whole numbers; ``word`` is 64
    or 32.
    """

    bits: int = 40
    word: int = 64

    @classmethod
    def of_range(cls, largest: float, terms: int, word: int = 64) -> Coding:
        """The finest one in which a sum of ``terms`` numbers within ±largest fits."""
        # terms (largest 2^f + 1/2) < 2^(word − 1)
        room = (2.0 ** (word - 1) - 1.0) / terms - 0.5
        bits = math.floor(math.log2(room) - math.log2(largest))
        return cls(min(bits, 1000), word)

    @property
    def dtype(self) -> type[np.uint64] | type[np.uint32]:
        """Of the words."""
        return np.uint64 if self.word == 64 else np.uint32

    def integers(self, values: FloatArray, terms: int) -> IntArray:
        """Round numbers to integers in units of 2^−bits.

        A RangeError: one is not finite, or a sum of ``terms`` of them may wrap.
        """
        with np.errstate(over="ignore"):
            scaled = np.rint(np.ldexp(np.asarray(values, np.float64), self.bits))
        largest = float(np.abs(scaled).max(initial=0.0))
        if not largest * terms < 2.0 ** (self.word - 1):  # so is NaN
            raise RangeError
        return scaled.astype(np.int64)

    def words(self, values: FloatArray, terms: int) -> Words:
        """As :meth:`integers`, modulo 2^word."""
        return self.wrapped(self.integers(values, terms))

    def wrapped(self, integers: IntArray) -> Words:
        """Integers modulo 2^word."""
        words: Words = integers.view(np.uint64).astype(self.dtype, copy=False)
        return words

    def values(self, words: Words) -> FloatArray:
        """The numbers that a sum of words stands for, float64."""
        signed = np.int64 if self.word == 64 else np.int32
        return np.ldexp(words.view(signed).astype(np.float64), -self.bits)
