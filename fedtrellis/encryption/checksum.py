"""Two secret linear functions of a vector over a prime field.

    s_a = Σ_j c_aj x_j   (mod p),   a = 1, 2,

with coefficients c that are the keystream of a key which nobody but the clients has.
They are linear, so the checksum of a sum is the sum of the checksums. Whoever does not
know c changes a vector and its checksums consistently with a probability of about
p^−2, as long as the change is not a multiple of p: who uses them keeps all entries
within ±(p − 1)/2, where no two integers are congruent.
"""

from __future__ import annotations

from operator import mul

import numpy as np

from fedtrellis.encryption.fixed_point import IntArray
from fedtrellis.encryption.keystream import Keystream

__all__ = ["CHECKS", "MOST_VALUES", "checksums"]

#: How many checksums a vector has.
CHECKS = 2

#: Products of two limbs are below 2^32, and so many of them are exact in float64.
MOST_VALUES = 2**20

_UNSIGNED, _SIGNED = np.dtype("<u2"), np.dtype("<i2")
_LIMB = 16
_LIMBS = 4  # of 64 bits
_CHUNK = 2**13  # the limbs of so many coefficients fit into a core's cache
# 2^(16 (i + j)): what the product of limbs i and j counts
_WEIGHTS = [1 << (_LIMB * (i + j)) for j in range(_LIMBS) for i in range(_LIMBS)]


def checksums(values: IntArray, key: bytes, modulus: int) -> list[int]:
    """Return the checksums of a vector.

    Parameters
    ----------
    values : ndarray of int64, shape (n,)
        x, at most 2^20 of them.
    key : bytes
        Of 32 bytes; the coefficients are the words of 64 bits of its keystream, c_1j
        and c_2j in turn. No residue of them is likelier than 1.13 / p.
    modulus : int
        p, a prime of at most 61 bits.

    Returns
    -------
    list of int
        s_1 and s_2, in [0, p).
    """
    if values.size > MOST_VALUES or modulus.bit_length() > 61:
        raise ValueError("the checksums would not be exact")
    stream = Keystream(key)
    products = np.zeros((_LIMBS, CHECKS * _LIMBS))
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK].astype("<i8", order="C", copy=False)
        words = stream.read(8 * CHECKS * part.size)
        coefficients = np.frombuffer(words, _UNSIGNED).reshape(part.size, -1)
        limbs = part.view(_UNSIGNED).reshape(-1, _LIMBS).astype(np.float64)
        # x = l_0 + 2^16 l_1 + 2^32 l_2 + 2^48 l_3, and l_3 has the sign
        limbs[:, -1] = part.view(_SIGNED)[_LIMBS - 1 :: _LIMBS]
        products += limbs.T @ coefficients.astype(np.float64)
    # one row for each checksum, ordered as the weights
    exact = products.T.astype(np.int64).reshape(CHECKS, -1).tolist()
    return [sum(map(mul, row, _WEIGHTS)) % modulus for row in exact]
