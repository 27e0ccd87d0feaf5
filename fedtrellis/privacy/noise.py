"""Random numbers that nobody can draw again."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

__all__ = ["SecretNoise"]


class SecretNoise:
    """Noise from the operating system's generator for keys, never from a run's seed.

    A run's seed is public: whoever knows it could take the noise off again.

    Parameters
    ----------
    seed : int, optional
        For tests: reproducible numbers, which **void every guarantee**.

    Notes
    -----
    A normal number is half the sum of four, each Φ⁻¹ of 53 random bits, so that what a
    single floating-point sample gives away of its bits is hidden (Holohan, Braghin,
    "Secure Random Sampling in Differential Privacy", 2021, as Opacus does it). What is
    left of Mironov's attack on floating-point noise ("On Significance of the Least
    Significant Bits for Differential Privacy", CCS 2012) is not analysed: ε is that of
    real numbers.

    Examples
    --------
    >>> from fedtrellis.privacy import SecretNoise
    >>> bool(abs(SecretNoise().normal((10_000,)).mean()) < 0.1)
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self._rng = None if seed is None else np.random.default_rng(seed)

    def uniform(self, shape: tuple[int, ...]) -> FloatArray:
        """Numbers in (0, 1), float64, each (k + 1/2)/2⁵³ of a random k.

        Parameters
        ----------
        shape : tuple of int
        """
        count = int(np.prod(shape))
        data = self._rng.bytes(8 * count) if self._rng else os.urandom(8 * count)
        bits: NDArray[np.uint64] = np.frombuffer(data, dtype=np.uint64) >> np.uint64(11)
        # below 2⁵³ − 1/2, which would round up to 1
        numbers: FloatArray = np.minimum((bits + 0.5) / 2.0**53, 1.0 - 2.0**-53)
        return numbers.reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> FloatArray:
        """Standard normal numbers, float64.

        Parameters
        ----------
        shape : tuple of int
        """
        # a run without noise need not load it
        from scipy.special import ndtri

        total = np.zeros(shape)
        for _ in range(4):
            total += ndtri(self.uniform(shape))
        return total / 2.0

    def gumbel(self, shape: tuple[int, ...]) -> FloatArray:
        """Standard Gumbel numbers −log(−log u), float64.

        Parameters
        ----------
        shape : tuple of int
        """
        numbers: FloatArray = -np.log(-np.log(self.uniform(shape)))
        return numbers
