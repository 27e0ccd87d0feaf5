"""Weights of samples and of classes, and how they are normalised.

With a weight s_i ≥ 0 of each sample the primal problem is

    P(w) = λ g(w) + (1/S) Σ s_i l_i(wᵀx_i),   S = Σ s_i,

so that whole weights are repeated rows, a weight of 0 leaves its row out, and twice all
weights is the same problem. With s̃_i = N s_i/S it is (1/N) Σ s̃_i l_i: everything stays
as it is without weights, with s̃_i l_i for l_i.

A class's weight multiplies those of its samples. ``"balanced"`` gives both sides of a
problem of two classes the same sum, as scikit-learn's ``class_weight="balanced"`` does:
s̃_i = N s_i/(2 S_y), S_y the sum over the samples of sample i's side. Where each of
several classes is separated from the rest, every such problem is balanced by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
