"""Real numbers as integers modulo a prime, with room for a sum of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.settings import CodedError
from fedtrellis.wire.arrays import FloatArray

__all__ = [
    "FIELD_MODULUS",
    "MAX_TERMS",
    "PLAIN_MODULUS",
    "Coding",
    "EncryptionError",
    "FixedPoint",
    "IntArray",
    "RangeError",
    "RefusedError",
    "Words",
    "check_terms",
]

IntArray = NDArray[np.int64]
#: Integers modulo 2^64 or 2^32: uint64 or uint32.
Words = NDArray[np.unsignedinteger[Any]]

#: p of all ciphers but BFV: a prime, so that checksums modulo p can be trusted.
FIELD_MODULUS = 2**61 - 1

#: The plain modulus t of BFV: the largest prime of 58 bits with t ≡ 1 (mod 8192), so
#: that at degree 4096 there is one slot for each coefficient.
PLAIN_MODULUS = 288_230_376_151_130_113

#: The most shares of a sum: the noise of a BFV ciphertext bears so many, with two bits
#: in hand; see :mod:`fedtrellis.encryption.bfv`.
MAX_TERMS = 2**24


class EncryptionError(CodedError):
    """Something cannot be encrypted, or is not what an honest run would have made.

    The message is one line, and never has anything secret in it.
    """

    code = "encryption"


class RefusedError(EncryptionError):
    """A ciphertext is not the sum that was asked for.

    The text never says why: that would help whoever tries again.
    """

    code = "ciphertext"

    def __init__(
        self,
        text: str = "ciphertext was refused: it is not the sum that was asked for, "
        "under this key and label, of shares that nobody altered",
    ) -> None:
        super().__init__(text)


class RangeError(EncryptionError):
    """A value is too large to be hidden in a sum, or not finite.

    The text says nothing of its size, which is for its node alone.
    """

    code = "range"

    def __init__(self) -> None:
        super().__init__(
            "a value is not finite, or too large for the fixed point of a sum; clip "
            "the values, or scale the loss down"
        )


def check_terms(terms: int) -> int:
    """Return ``terms`` if a sum may have so many.

    Raises
    ------
    EncryptionError
        It is not an integer from 1 to ``MAX_TERMS``.
    """
    # bool is an int to Python, but True terms are a mistake
    if isinstance(terms, bool) or not isinstance(terms, int | np.integer):
        raise EncryptionError(f"terms = {terms!r} must be an integer")
    if not 1 <= terms <= MAX_TERMS:
        raise EncryptionError(f"terms = {terms} must be from 1 to {MAX_TERMS}")
    return int(terms)


@dataclass(frozen=True)
class FixedPoint:
    """Quantisation to multiples of 2^−bits, as integers within ±(p − 1)/2.

    Parameters
    ----------
    bits : int
        Fractional bits, 1 to 52.
    modulus : int
        p, odd and below 2^62.

    Raises
    ------
    EncryptionError
        A parameter is out of its range.
    """

    bits: int = 40
    modulus: int = FIELD_MODULUS

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= 52:
            raise EncryptionError(f"bits = {self.bits!r} must be from 1 to 52")
        if self.modulus % 2 == 0 or not 3 <= self.modulus < 2**62:
            raise EncryptionError(f"modulus = {self.modulus} must be odd, below 2^62")

    @property
    def scale(self) -> int:
        """2^bits: the integer that stands for 1."""
        return 1 << self.bits

    @property
    def resolution(self) -> float:
        """2^−bits; a value is off by at most half of it."""
        return math.ldexp(1.0, -self.bits)

    def bound(self, terms: int = 1) -> int:
        """Return the largest integer of which a sum of ``terms`` cannot wrap."""
        return (self.modulus - 1) // 2 // check_terms(terms)

    def limit(self, terms: int = 1) -> float:
        """Return the largest magnitude that :meth:`quantize` takes, rounded down."""
        bound = self.bound(terms)
        number = float(bound)
        if number > bound:  # Python compares an int and a float exactly
            number = math.nextafter(number, 0.0)
        return math.ldexp(number, -self.bits)

    def quantize(self, values: ArrayLike, terms: int = 1) -> IntArray:
        """Round values to the nearest integers in units of the resolution.

        Parameters
        ----------
        values : array_like of float64
            Of any shape.
        terms : int
            How many such values will be summed.

        Returns
        -------
        ndarray of int64
            Of the same shape; ties are rounded to even.

        Raises
        ------
        EncryptionError
            A value is not finite, or so large that a sum of ``terms`` like it might
            wrap around modulo p.
        """
        bound = self.bound(terms)
        array = np.asarray(values, dtype=np.float64)
        scale = float(self.scale)  # a power of two: exact
        largest = max(float(array.max()), -float(array.min())) if array.size else 0.0
        # a NaN compares as false, and what is infinite is not below 2^63 either
        if not (largest * scale < 2.0**63 and round(largest * scale) <= bound):
            self._refuse(array, terms)
        scaled = np.asarray(array * scale)
        return np.rint(scaled, out=scaled).astype(np.int64)

    def _refuse(self, array: FloatArray, terms: int) -> NoReturn:
        """Say why these values cannot be quantised."""
        count = int(array.size - np.isfinite(array).sum())
        if count:
            raise EncryptionError(
                f"{count} of {array.size} values are not finite and cannot be encrypted"
            )
        raise EncryptionError(
            f"a value of magnitude {float(np.max(np.abs(array))):.6g} is too large "
            f"to encrypt: with {terms} terms in a sum and {self.bits} fractional "
            f"bits at most {self.limit(terms):.6g} fits; scale the data down"
        )

    def check(self, integers: IntArray, terms: int = 1) -> None:
        """Raise unless these are integers of which a sum of ``terms`` has room.

        Raises
        ------
        EncryptionError
            They are no array of int64, or one is too large.
        """
        dtype = getattr(integers, "dtype", type(integers).__name__)
        if dtype != np.int64:
            raise EncryptionError(f"integers have dtype {dtype}, not int64")
        bound = self.bound(terms)
        if integers.size and not -bound <= integers.min() <= integers.max() <= bound:
            raise EncryptionError(f"an integer is beyond ±{bound}, with {terms} terms")

    def dequantize(self, integers: ArrayLike) -> FloatArray:
        """Inverse of :meth:`quantize`, up to its rounding.

        Parameters
        ----------
        integers : array_like of int64
            Within ±(p − 1)/2. Beyond 2^53 they are rounded to a float64.

        Returns
        -------
        ndarray of float64
        """
        array = np.asarray(integers, dtype=np.int64)
        return np.asarray(array.astype(np.float64) * self.resolution)


@dataclass(frozen=True)
class Coding:
    """Real numbers as multiples of 2^−bits, and these as integers modulo 2^word.

    Parameters
    ----------
    bits : int
        f, fractional bits; negative where a word has no room for whole numbers.
    word : int
        64 or 32.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.encryption.fixed_point import Coding
    >>> coding = Coding.of_range(10.0, 100, word=32)
    >>> coding.bits
    21
    >>> coding.values(coding.words(np.array([-0.5]), 100) + np.uint32(2**21))
    array([0.5])
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

        Raises
        ------
        RangeError
            One is not finite, or so large that a sum of ``terms`` of them may wrap.
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
