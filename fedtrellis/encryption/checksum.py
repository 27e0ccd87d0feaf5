"""A linear checksum modulo t that survives sums and integer multiples.

A ciphertext of 4096 slots holds v_1, ..., v_4095 and, in its last slot,

    s = Σ_j c_j v_j + w c_4096   (mod t),

with w = 1. The coefficients c come from the clients' secret and from the label, so
whoever has neither cannot make an s that fits. Adding ciphertexts of one label adds v,
w and s alike; an integer multiple multiplies all three. The term w c_4096 is what makes
the empty sum, a ciphertext of zeros that anybody can make, differ from a sum of shares
that are zero, and what ties the stated number of shares w to what was summed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fedtrellis.encryption.fixed_point import IntArray
from fedtrellis.wire.arrays import FloatArray

__all__ = ["Checksum"]

_LIMB = 20
_MASK = (1 << _LIMB) - 1
_LIMBS = 3
# labels have round numbers in them, so one is of use for a few moments only
_CACHED = 32


class Checksum:
    """The checksums of one key.

    Parameters
    ----------
    key : bytes
        Secret; the same in all clients.
    modulus : int
        t, a prime below 2^60.
    slots : int
        Number of slots including the checksum's, at most 4096, so that the sums of
        products of limbs stay below 2^53.
    """

    def __init__(self, key: bytes, modulus: int, slots: int) -> None:
        if modulus >= 1 << (_LIMB * _LIMBS) or slots > 4096:
            raise ValueError("the checksum would not be exact")
        self._key = key
        self._modulus = modulus
        self._slots = slots
        # a cache of each object, so that no secret outlives the cipher it is of
        self._coefficients: Callable[[str, int], tuple[FloatArray, int]] = lru_cache(
            maxsize=_CACHED
        )(self._derive)

    def _derive(self, label: str, terms: int) -> tuple[FloatArray, int]:
        """Limbs of c_1 ... c_4095, of shape (4095, 3), and c_4096."""
        text = label.encode()
        # everything before the label has a fixed length: no two inputs are alike
        stream = hashlib.shake_256(self._key + terms.to_bytes(8, "little") + text)
        words = np.frombuffer(stream.digest(8 * self._slots), dtype="<u8")
        # 64 bits for 58: no residue is likelier than 1.02 / t
        coefficients = (words % np.uint64(self._modulus)).astype(np.int64)
        return self._limbs(coefficients[:-1]).T.copy(), int(coefficients[-1])

    @staticmethod
    def _limbs(residues: IntArray) -> FloatArray:
        """Split numbers below 2^60 into three of 20 bits, of shape (3, n)."""
        parts = [(residues >> (_LIMB * i)) & _MASK for i in range(_LIMBS)]
        return np.stack(parts).astype(np.float64)

    def __call__(self, values: IntArray, weight: int, label: str, terms: int) -> int:
        """Return s of some data.

        Parameters
        ----------
        values : ndarray of int64, shape (slots − 1,)
            v, in (−t, t); only its residues modulo t count.
        weight : int
            w: how many shares were summed, with their factors.
        label : str
        terms : int
            What the shares were declared for; part of the label.

        Returns
        -------
        int
            In [0, t).
        """
        limbs, last = self._coefficients(label, terms)
        # values are centred, so this is their residue, five times faster than a %
        residues = values + self._modulus * (values < 0)
        # products of 40 bits, fewer than 2^12 of them: exact in float64
        products = self._limbs(residues) @ limbs
        total = weight * last
        for i in range(_LIMBS):
            for j in range(_LIMBS):
                total += int(products[i, j]) << (_LIMB * (i + j))
        return total % self._modulus
