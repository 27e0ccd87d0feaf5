"""Weights of samples and of classes, scales of columns, and how they are normalised.

With a weight s_i ≥ 0 of each sample the primal problem is

    P(w) = λ g(w) + (1/S) Σ s_i l_i(wᵀx_i),   S = Σ s_i,

so that whole weights are repeated rows, a weight of 0 leaves its row out, and twice all
weights is the same problem. With s̃_i = N s_i/S it is (1/N) Σ s̃_i l_i: everything stays
as it is without weights, with s̃_i l_i for l_i.

A class's weight multiplies those of its samples. ``"balanced"`` gives both sides of a
problem of two classes the same sum, as scikit-learn's ``class_weight="balanced"`` does:
s̃_i = N s_i/(2 S_y), S_y the sum over the samples of sample i's side. Where each of
several classes is separated from the rest, every such problem is balanced by itself.

A model of raw columns, an income in euros beside an age, is found as one of
standardised columns, x̃ = (x − m)/s, whose weights w̃ the penalty is on. In the columns'
own units it is w = w̃/s. What the means add to every score, −Σ m w, goes into the
weight of a constant column; where there is none a score has nothing to hold it, and
columns are scaled by their root mean square and not shifted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.encryption.fixed_point import Coding, Words
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

#: The rule that weighs classes by how many samples they have.
BALANCED = "balanced"
#: The least weight that is not 0: numbers that are encrypted have 40 fractional bits.
LIGHTEST = 1e-4
#: The weights of the classes, in the order of :func:`labels_of`; "balanced"; or none.
ClassRule = str | Sequence[float]

# The part of a sum that has to be left beside its heaviest terms.
_LEFT = 0.01


def labels_of(classes: int) -> tuple[float, ...]:
    """Return what labels may be: −1 and +1 of one problem, else 0 to C − 1."""
    return (-1.0, 1.0) if classes == 1 else tuple(map(float, range(classes)))


def targets_of(y: FloatArray, classes: int) -> FloatArray:
    """Labels as each class sees them, shape (C, n): +1 where it is the label, or −1.

    With one class the labels as they are.
    """
    if classes == 1:
        return y[None]
    return np.where(y == np.arange(classes)[:, None], 1.0, -1.0)


def shares(scores: FloatArray) -> FloatArray:
    """σ of each; with several columns, each class against the rest, over their sum."""
    found: FloatArray = scipy.special.expit(scores)
    if found.ndim == 2:
        total = found.sum(axis=1, keepdims=True)
        # where all are 0 no class is likelier than another
        even = np.full_like(found, 1.0 / found.shape[1])
        found = np.divide(found, total, out=even, where=total != 0.0)
    return found


def class_rule(given: str | Mapping[Any, Any] | None, classes: int) -> ClassRule:
    """Return C classes' weights as the clients agree on them; empty: there are none.

    ``"balanced"``, or weights by label, where a class that is not named has weight 1.
    A SettingsError: it is something else, or there is no such weight or class.
    """
    if given is None or given in ("", BALANCED):
        return given or ""
    if not isinstance(given, Mapping):
        allowed = "'balanced', or a mapping of labels to weights"
        raise SettingsError(f"class_weight = {given!r} is no rule; allowed: {allowed}")
    weights = dict.fromkeys(labels_of(classes), 1.0)
    for label, weight in given.items():
        if label not in weights:
            known = ", ".join(f"{one:g}" for one in weights)
            which = f"class {label!r}, which there is not"
            raise SettingsError(f"class_weight names {which}; allowed: {known}")
        number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not (number and isfinite(weight) and weight >= 0):
            given = f"class_weight = {weight!r} of class {label!r}"
            raise SettingsError(f"{given} must be a finite number from 0 on")
        weights[float(label)] = float(weight)
    if not any(weights.values()):
        raise SettingsError("class_weight is 0 of every class")
    return list(weights.values())


def weight_totals(
    s: FloatArray, y: FloatArray, classes: int, rule: ClassRule
) -> FloatArray:
    """Return the sums that weights are normalised by, over some of the samples.

    If balanced Σ s of each label, of shape (C,), of one problem (2,); else (Σ s c_y,).
    """
    if rule == BALANCED:
        return np.array([s[y == label].sum() for label in labels_of(classes)])
    return np.array([(s * _of_classes(y, classes, rule)).sum()])


def normalised(
    s: FloatArray,
    y: FloatArray,
    classes: int,
    rule: ClassRule,
    totals: FloatArray,
    N: int,
) -> FloatArray:
    """Return s̃ of some samples, for each of the problems: shape (C, n).

    ``totals`` are the sums of :func:`weight_totals` over all N samples.
    """
    if rule != BALANCED:
        own = s * _of_classes(y, classes, rule) * (N / totals[0])
        return np.tile(own, (classes, 1))
    S = totals.sum()
    rows = []
    for c in [1] if classes == 1 else range(classes):
        # N s/(2 S_y), S_y of the problem's two sides
        inside = y == labels_of(classes)[c]
        side = np.where(inside, totals[c], S - totals[c])
        rows.append(N * s / (2.0 * side))
    return np.stack(rows)


def _of_classes(y: FloatArray, classes: int, rule: ClassRule) -> FloatArray:
    """c_y: the weight of each sample's class."""
    found = np.ones_like(y)
    if not isinstance(rule, str):
        for label, weight in zip(labels_of(classes), rule, strict=True):
            found[y == label] = weight
    return found


def outweighed(weights: FloatArray, least: int) -> bool:
    """Whether a sum with such weights shows its heaviest terms.

    A sum of at least ``least`` ≥ 2 equal terms hides each of them; of unequal ones,
    whose ``weights`` are at least 0, it does if what comes beside the heaviest
    ``least`` − 1 has a hundredth of all weight.
    """
    total = float(weights.sum())
    if len(weights) < least:
        return total > 0.0
    rest = np.partition(weights, len(weights) - least)[: len(weights) - least + 1]
    return total > 0.0 and not float(rest.sum()) >= _LEFT * total


def check_weights(
    name: str, weights: NDArray[Any], n: int, lightest: float = LIGHTEST
) -> None:
    """Raise ValueError unless these are n weights, NaN where there is none."""
    if np.shape(weights) != (n,):
        raise ValueError(f"{name} have shape {np.shape(weights)}, expected {(n,)}")
    own = np.asarray(weights, dtype=np.float64)
    known = own[~np.isnan(own)]
    if not (np.isfinite(known) & (known >= 0.0)).all():
        raise ValueError(f"{name} must be finite numbers from 0 on")
    if ((known > 0.0) & (known < lightest)).any():
        why = "only their ratios count, multiply all of them by one number"
        raise ValueError(f"{name} must be 0 or at least {lightest:g}: {why}")


# ---------------------------------------------------------------- columns on one scale

#: Sums of a column: Σ x and Σ x².
STATISTICS = 2
#: Words of one number: multiples of 2^80, 2^40, … of it, from the top.
EXPONENTS = tuple(range(80, -121, -40))
PARTS = len(EXPONENTS)
#: Sums in a report, of each class: Σ l_i(z_i); Σ l_i*(−a_i) of α and of what is
#: proposed; and, for hidden sums, Σ a_i z_i of both.
SUMS, OPEN_SUMS = 5, 3
#: Fractional bits of a hidden sum, where no client's part is too large for them.
BITS = 40
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


def report_exponents(bits: int) -> tuple[int, int]:
    """Of a sum of losses beside one of so many bits: multiples of 1 and 2^-50 by 40."""
    return BITS - bits, BITS - bits - 50


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
        *,
        free: int,
    ) -> ColumnScales:
        """Find them from Σ x and Σ x² of each column, or from Σ s x and Σ s x².

        ``counts`` says of how many of the N samples some holder has the column, and
        ``weights`` Σ s of these; all have shape (p,). A column that not all samples
        have is not shifted: of the rest nobody could. What the means add goes to the
        free column, none: the last, if it is constant, and else to the first that is.
        """
        count: FloatArray = np.maximum(counts, 1)
        if weights is not None:
            count = np.where(weights > 0.0, weights, 1.0)
        mean, square = sums / count, np.maximum(squares / count, 0.0)
        # s² = Σ (x − m)²/N = Σ x²/N − m²
        variance = square - mean**2
        everywhere = counts == N
        constant = everywhere & (variance <= _SPREAD**2 * square) & (square > 0.0)
        first = free % constant.size if constant[free] else int(constant.argmax())
        first = first if constant.any() else -1
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
