"""Noise that adds up to noise: integers of the discrete Gaussian, drawn exactly."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.symmetric import Keystream

#: The largest deviation of :func:`discrete_normal`, whose integers fit into 64 bits.
MOST_DEVIATION = 2**25


class _Bits:
    """Random integers and coins from a keystream, seeded by the operating system."""

    def __init__(self) -> None:
        self._stream = Keystream(secrets.token_bytes(32))

    def below(self, bound: int, count: int) -> NDArray[np.uint64]:
        """Integers that are uniform in [0, bound), bound at most 2^63."""
        last = 2**64 // bound * bound - 1  # the words beyond it would favour some
        found: NDArray[np.uint64] = np.empty(0, np.uint64)
        while (missing := count - found.size) > 0:
            words = np.frombuffer(self._stream.read(8 * missing), np.uint64)
            words = words[words <= np.uint64(last)]
            found = np.append(found, words % np.uint64(bound))
        return found

    def coins(self, numerators: NDArray[np.uint64], denominator: int) -> Any:
        """Coins that are true with probability exp(−n/d), exactly, where n ≤ d."""
        result = np.zeros(numerators.size, bool)
        left, k = np.arange(numerators.size), 1
        while left.size:
            # heads with probability n/(dk), until the first tails, at an odd throw
            heads = self.below(denominator * k, left.size) < numerators[left]
            result[left[~heads]] = k % 2 == 1
            left, k = left[heads], k + 1
        return result


def discrete_normal(deviation: int, count: int) -> NDArray[np.int64]:
    """Integers of the discrete Gaussian, exactly: P(x) ∝ exp(−x²/(2σ²)).

    Where σ is large, a sum of m of them is a discrete Gaussian of deviation σ√m but for
    10 m exp(−2π²σ²/2), and as private as the continuous one: ½(Δ/σ)²-zCDP.

    ``deviation`` is σ, from 1 to 2^25; values beyond 32σ, of probability e^−512, are
    left out. Randomness is from the operating system's generator for keys.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
    NeurIPS 2020, arXiv 2004.00010, algorithms 1 to 3; for sums, Kairouz, Liu, Steinke,
    "The Distributed Discrete Gaussian Mechanism", ICML 2021, arXiv 2102.06387.
    """
    if not 1 <= deviation <= MOST_DEVIATION:
        raise ValueError(f"deviation = {deviation} must be from 1 to {MOST_DEVIATION}")
    bits, result = _Bits(), np.empty(count, np.int64)
    left = np.arange(count)
    while left.size:
        y, kept = _discrete_laplace(deviation, left.size, bits)
        # with exp(−(|y| − σ)²/(2σ²)), its whole part first
        offset = np.abs(np.abs(y) - deviation).astype(np.uint64)
        kept &= offset <= np.uint64(32 * deviation)
        square = np.where(kept, offset, np.uint64(0)) ** np.uint64(2)
        whole, rest = np.divmod(square, np.uint64(2 * deviation**2))
        for k in range(int(whole.max()) if whole.size else 0):
            (some,) = np.nonzero(kept & (whole > k))
            kept[some] = bits.coins(np.ones(some.size, np.uint64), 1)
        (some,) = np.nonzero(kept)
        kept[some] = bits.coins(rest[some], 2 * deviation**2)
        result[left[kept]] = y[kept]
        left = left[~kept]
    return result


def _discrete_laplace(
    scale: int, count: int, bits: _Bits
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Integers with P(y) ∝ exp(−|y|/scale), and which of them count."""
    u = bits.below(scale, count)
    kept = bits.coins(u, scale)
    v = np.zeros(count, np.int64)
    (going,) = np.nonzero(kept)
    while going.size:
        going = going[bits.coins(np.ones(going.size, np.uint64), 1)]
        v[going] += 1
    x = u.astype(np.int64) + scale * v
    minus = bits.below(2, count) == 1
    kept &= ~(minus & (x == 0))  # or zero would count twice
    return np.where(minus, -x, x), kept
