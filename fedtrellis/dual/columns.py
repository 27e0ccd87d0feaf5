"""Columns of raw data on one scale: means and scales from sums over all holders.

A model of raw columns, an income in euros beside an age, is found as one of
standardised columns, x̃ = (x − m)/s, whose weights w̃ the penalty is on. In the columns'
own units it is w = w̃/s. What the means add to every score, −Σ m w, goes into the
weight of a constant column; where there is none a score has nothing to hold it, and
columns are scaled by their root mean square and not shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.encryption.fixed_point import Coding, Words
from fedtrellis.wire.arrays import FloatArray

#: Sums of a column: Σ x and Σ x².
STATISTICS = 2
#: Words of one number: multiples of 2^80, 2^40, … of it, from the top.
EXPONENTS = tuple(range(80, -121, -40))
PARTS = len(EXPONENTS)
#: Of a sum of losses: multiples of 1, and of 2^-50.
REPORT = (0, -50)
# A column whose deviation is below this part of its size counts as constant.
_SPREAD = 1e-6


def in_parts(
    values: FloatArray, terms: int, exponents: Sequence[int] = EXPONENTS
) -> Words:
    """Return numbers of any size in words that can be masked, shape (PARTS, …).

    From 2^-120 to 10^42 / ``terms``, to float64's own precision; with other exponents
    from half the last one's multiple to 2^63 of the first one's. A RangeError: one is
    not finite or larger.
    """
    rest = np.asarray(values, dtype=np.float64)
    parts = []
    for exponent in exponents:
        whole = np.rint(np.ldexp(rest, -exponent))
        parts.append(Coding(0).words(whole, terms))
        rest = rest - np.ldexp(whole, exponent)
    return np.stack(parts)


def of_parts(words: Words, exponents: Sequence[int] = EXPONENTS) -> FloatArray:
    """Return the inverse of :func:`in_parts`, of a sum."""
    numbers = [
        np.ldexp(Coding(0).values(part), exponent)
        for part, exponent in zip(words, exponents, strict=True)
    ]
    total: FloatArray = np.sum(numbers, axis=0)
    return total


@dataclass(frozen=True)
class ColumnScales:
    """What columns are shifted by, m, and divided by, s above 0; both of shape (p,).

    A column that is not shifted has m = 0. The weight of the column ``constant``, where
    ``value`` stands, takes what the means add; −1: there is none, and all m are 0.
    """

    means: FloatArray
    scales: FloatArray
    constant: int = -1
    value: float = 1.0

    @classmethod
    def of(
        cls,
        sums: FloatArray,
        squares: FloatArray,
        counts: NDArray[np.int64],
        N: int,
        weights: FloatArray | None = None,
    ) -> ColumnScales:
        """Find them from Σ x and Σ x² of each column, or from Σ s x and Σ s x².

        ``counts`` says of how many of the N samples some holder has the column, and
        ``weights`` Σ s of these; all have shape (p,). A column that not all samples
        have is not shifted: of the rest nobody could.
        """
        count: FloatArray = np.maximum(counts, 1)
        if weights is not None:
            count = np.where(weights > 0.0, weights, 1.0)
        mean, square = sums / count, np.maximum(squares / count, 0.0)
        # s² = Σ (x − m)²/N = Σ x²/N − m²
        variance = square - mean**2
        everywhere = counts == N
        constant = everywhere & (variance <= _SPREAD**2 * square) & (square > 0.0)
        first = int(constant.argmax()) if constant.any() else -1
        shifted = everywhere & ~constant & (square > 0.0) & (first >= 0)
        scales = np.sqrt(np.where(shifted, variance, square))
        value = float(mean[first]) if first >= 0 else 1.0
        means = np.where(shifted, mean, 0.0)
        return cls(means, np.where(scales > 0.0, scales, 1.0), first, value)

    def raw(self, weights: FloatArray) -> FloatArray:
        """Return raw columns' weights, (p,) or (p, C), from standardised ones'."""
        own = (-1,) + (1,) * (np.ndim(weights) - 1)
        # Σ w̃ (x − m)/s = Σ (w̃/s) x − Σ (w̃/s) m
        raw: FloatArray = weights / self.scales.reshape(own)
        if self.constant >= 0:
            raw[self.constant] -= self.means @ raw / self.value
        return raw


class Shifted:
    """(x − m)/s of sparse rows, which stay sparse.

    ``features`` are x/s, of shape (n, p), ``shifts`` m/s, of shape (G, p), one row for
    each kind of row, and ``kinds`` says which of them is each row's.
    """

    def __init__(
        self, features: Any, shifts: FloatArray, kinds: NDArray[np.int64]
    ) -> None:
        self.features, self.shifts, self.kinds = features, shifts, kinds
        self.shape = features.shape

    def __getitem__(self, rows: Any) -> Shifted:
        return Shifted(self.features[rows], self.shifts, self.kinds[rows])

    def __matmul__(self, weights: FloatArray) -> FloatArray:
        """(X − M[kinds]) w."""
        product: FloatArray = self.features @ weights
        return product - (self.shifts @ weights)[self.kinds]

    @property
    def T(self) -> Any:  # noqa: N802
        """To be multiplied by numbers a of the rows: Xᵀa − Mᵀ(Σ a of each kind)."""
        n, p = self.shape
        ones = np.ones(n), self.kinds, np.arange(n + 1)
        of_kind = scipy.sparse.csr_array(ones, shape=(n, len(self.shifts))).T

        def product(numbers: FloatArray) -> FloatArray:
            crossed: FloatArray = self.shifts.T @ (of_kind @ numbers)
            return np.asarray(self.features.T @ numbers - crossed)

        return scipy.sparse.linalg.LinearOperator(
            (p, n), matvec=product, matmat=product, dtype=np.float64
        )

    def squared_norms(self) -> FloatArray:
        """‖x − m‖² = ‖x‖² − 2 xᵀm + ‖m‖² of every row."""
        squares = np.asarray(self.features.multiply(self.features).sum(axis=1)).ravel()
        crossed = np.asarray(self.features @ self.shifts.T)
        crossed = crossed[np.arange(len(self.kinds)), self.kinds]
        own = np.square(self.shifts).sum(axis=1)[self.kinds]
        norms: FloatArray = squares - 2.0 * crossed + own
        return norms
