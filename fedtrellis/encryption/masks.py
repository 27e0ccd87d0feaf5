r"""Sums that a server can read and their terms not: zero-sum masks.

Client k adds to each number of its own, an integer modulo 2^64,

    Σ_{j after k} PRF(k_kj, T) − Σ_{j before k} PRF(k_kj, T)   (mod 2^64)

over the other clients j that hold the same number's place. In the sum over all of them
every mask occurs with both signs (Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017, without its recovery of drop-outs: a
smaller sum is never made of what was meant for a larger one).

T is a hash of everything that the sum depends on, with a fresh nonce of each client in
it, see :func:`mask_tag`. So no mask is ever used for two different values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.fixed_point import FloatArray
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.labels import expand

__all__ = [
    "FRACTION_BITS",
    "Words",
    "add_masks",
    "as_words",
    "common_secret",
    "from_words",
    "mask_tag",
    "pair_words",
    "split_number",
    "whole_number",
]

Words = NDArray[np.uint64]

#: Fractional bits of what is hidden: a resolution of 2^-40.
FRACTION_BITS = 40
# Of the rest of a sum that is sent in two parts, see split_number.
_REST_BITS = 50


def mask_tag(
    run: bytes, phase: str, nonces: Sequence[bytes], inputs: Sequence[bytes]
) -> bytes:
    """Return T, 32 bytes, of a wave that all members of the agreement take part in.

    Parameters
    ----------
    run : bytes
        The agreement's digest.
    phase : str
    nonces : sequence of bytes
        Each member's, in the agreement's order.
    inputs : sequence of bytes
        Each member's digest of what it was sent.
    """
    return expand(run, "mask tag", phase, len(nonces), *nonces, *inputs)


def common_secret(secret: bytes, *known: bytes | str | int) -> bytes:
    """Return a pair's secret for a wave of which both know these items.

    If a server tells the two different things, their masks do not cancel, and the sum
    over all is noise: else its difference from an honest sum would be one client's.
    """
    return expand(secret, "known to both", *known)


def pair_words(secret: bytes, tag: bytes, count: int) -> Words:
    """PRF(k_ij, T): ``count`` words of an AES-256-CTR keystream."""
    stream = Keystream(expand(secret, "zero-sum mask", tag)).read(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def add_masks(
    words: Words,
    own: int,
    peers: Sequence[tuple[int, bytes, NDArray[np.int64]]],
    tag: bytes,
) -> None:
    """Add a client's masks to its numbers, in place.

    Parameters
    ----------
    words : ndarray of uint64, shape (n,)
    own : int
        Which member of the agreement this is.
    peers : sequence of (int, bytes, ndarray of int64)
        Of each other client: which member it is, the pair's secret, and where among
        the words stand those that it has too, in an order that both agree on.
    tag : bytes
        T.
    """
    for other, secret, where in peers:
        if not len(where):
            continue
        masks = pair_words(secret, tag, len(where))
        with np.errstate(over="ignore"):
            if own < other:
                words[where] += masks
            else:
                words[where] -= masks


def as_words(values: FloatArray, terms: int, bits: int = FRACTION_BITS) -> Words:
    """Round numbers to multiples of 2^-bits, as integers modulo 2^64.

    Raises
    ------
    ValueError
        One is not finite, or so large that a sum of ``terms`` of them may not fit.
    """
    limit = 2.0 ** (63 - bits) / terms
    largest = float(np.abs(values).max(initial=0.0))
    if not largest < limit:  # so is NaN
        raise ValueError(
            f"a number of size {largest:.3g} cannot be hidden in a sum of {terms}: the "
            f"limit is {limit:.3g}"
        )
    return np.rint(np.ldexp(values, bits)).astype(np.int64).view(np.uint64)


def from_words(words: Words, bits: int = FRACTION_BITS) -> FloatArray:
    """Inverse of :func:`as_words`, of a sum."""
    return np.ldexp(words.view(np.int64).astype(np.float64), -bits)


def split_number(values: FloatArray, terms: int) -> Words:
    """Numbers of any usual size as two words each: the whole part, and the rest.

    Raises
    ------
    ValueError
        As :func:`as_words`.
    """
    whole = np.rint(values)
    first = as_words(whole, terms, 0)  # refuses what is not finite
    return np.concatenate([first, as_words(values - whole, terms, _REST_BITS)])


def whole_number(words: Words) -> FloatArray:
    """Inverse of :func:`split_number`, of a sum."""
    whole, rest = np.split(words, 2)
    return from_words(whole, 0) + from_words(rest, _REST_BITS)
