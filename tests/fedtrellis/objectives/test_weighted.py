"""Losses of samples that count more or less than others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.objectives.losses import LOSSES, WeightedLoss, make_loss, weighted

Array = NDArray[np.float64]
S = np.array([0.3, 1.0, 2.5, 7.0])


def labels(name: str) -> Array:
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    return signs + 2.0 if LOSSES[name].labels == "counts" else signs


@pytest.mark.parametrize("name", LOSSES)
def test_conjugate_and_step_are_those_of_the_weighted_function(name: str) -> None:
    """By the definition: s l is a function like any other."""
    y = labels(name)
    loss = WeightedLoss(make_loss(name), S)
    z = np.array([0.3, -0.2, 0.9, -1.1])
    grid = np.linspace(-12.0, 12.0, 240_001)
    alpha = loss.feasible(S * 0.4 * np.sign(y), y)
    for i in range(4):
        # l*(−α) = max over t of −αt − l(t)
        one = S[i] * make_loss(name).value(grid, np.full_like(grid, y[i]))
        sup = (-alpha[i] * grid - one).max()
        assert loss.conjugate(alpha, y)[i] == pytest.approx(sup, abs=1e-6)
    assert (loss.value(z, y) == S * make_loss(name).value(z, y)).all()
    assert (loss.dual_point(z, y) == S * make_loss(name).dual_point(z, y)).all()
    # Fenchel and Young: l(z) + l*(−u) = −uz at the dual point
    u = loss.dual_point(z, y)
    assert loss.value(z, y) + loss.conjugate(u, y) == pytest.approx(-u * z, abs=1e-12)
    q, scale = np.array([0.5, 2.0, 1.0, 3.0]), 4.0
    step = loss.coordinate_step(alpha, z, q, y, scale)

    def risen(change: Any) -> Array:
        moved = -loss.conjugate(alpha + change, y) - z * change
        return np.asarray(moved - q / (2.0 * scale) * change**2)

    assert np.isfinite(risen(step)).all()
    for other in np.linspace(-1.0, 1.0, 201):
        assert (risen(step) >= risen(step + 1e-2 * other) - 1e-9).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_of_nothing_and_one_of_one(name: str) -> None:
    y, z = labels(name), np.array([0.3, -0.2, 700.0, -1.1])
    none = WeightedLoss(make_loss(name), np.zeros(4))
    zero = np.zeros(4)
    for found in (none.value(z, y), none.slope(z, y), none.dual_point(z, y)):
        assert (found == 0.0).all()
    assert (none.feasible(z, y) == 0.0).all()
    assert (none.conjugate(zero, y) == 0.0).all()
    assert (none.conjugate(zero + 0.1, y) == np.inf).all()
    assert (none.coordinate_step(zero, z, 1.0, y, 1.0) == 0.0).all()
    plain = make_loss(name)
    assert weighted(plain, None) is plain
