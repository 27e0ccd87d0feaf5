"""Losses, conjugates and dual steps, against definitions and dense grids."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.objectives.losses import (
    LOSSES,
    Hinge,
    LogisticLoss,
    Poisson,
    SmoothedHinge,
    Squared,
    WeightedLoss,
    make_loss,
)

WEIGHT = 2.5
POISSON = Poisson()
PLAIN: dict[str, Any] = {
    "hinge": Hinge(),
    "smoothed-1": SmoothedHinge(),
    "smoothed-0.1": SmoothedHinge(0.1),
    "logistic": LogisticLoss(),
    "squared": Squared(),
}
#: With those of samples that count more than others: s l is a function like any other.
ALL = PLAIN | {
    f"{WEIGHT} {name}": WeightedLoss(PLAIN[name], np.array([WEIGHT]))
    for name in ("hinge", "logistic", "squared")
}
every = pytest.mark.parametrize("loss", ALL.values(), ids=ALL)
plain = pytest.mark.parametrize("loss", PLAIN.values(), ids=PLAIN)


def of_signs(loss: Any) -> bool:
    return bool(getattr(loss, "loss", loss).labels == "signs")


def weight_of(loss: Any) -> float:
    return WEIGHT if isinstance(loss, WeightedLoss) else 1.0


def duals(loss: Any, y: float, count: int) -> np.ndarray:
    if of_signs(loss):
        return weight_of(loss) * y * np.linspace(0.0, 1.0, count)
    return weight_of(loss) * np.linspace(-6.0, 6.0, count)


def one(value: float) -> np.ndarray:
    return np.array([value])


def dual_objective(
    loss: Any, alpha: np.ndarray, start: float, z: float, curvature: float, y: float
) -> np.ndarray:
    """−l*(−α) − z(α − start) − (curvature/2)(α − start)² for many α."""
    moved = alpha - start
    conjugate = loss.conjugate(alpha, np.full_like(alpha, y))
    return np.asarray(-conjugate - z * moved - 0.5 * curvature * moved**2)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        *itertools.product(ALL.values(), (-1.0, 1.0)),
        *((POISSON, count) for count in (0.0, 2.5, 300.0)),
    ],
)
def test_the_conjugate_is_the_supremum(loss: Any, y: float) -> None:
    counts = loss is POISSON
    z = np.linspace(-40.0, 8.0, 480_001) if counts else np.linspace(-60, 60, 240_001)
    values = loss.value(z, np.full_like(z, y))
    alphas = y - np.array([0.0, 1e-3, 0.5, 1, 7, 900]) if counts else duals(loss, y, 41)
    for alpha in alphas:
        found = loss.conjugate(one(alpha), one(y))[0]
        assert found == pytest.approx(np.max(-alpha * z - values), rel=1e-6, abs=1e-6)
    if counts:  # half the deviance: nothing is lost where e^z = y
        assert values.min() == pytest.approx(0.0, abs=1e-6)
        assert loss.conjugate(one(y + 0.1), one(y))[0] == np.inf
        assert loss.feasible(one(y + 0.1), one(y))[0] == y


@every
@settings(max_examples=100, deadline=None)
@given(z=st.floats(-30, 30), share=st.floats(0, 1), y=st.sampled_from([-1.0, 1.0]))
def test_fenchel_and_young(loss: Any, z: float, share: float, y: float) -> None:
    value = loss.value(one(z), one(y))
    alpha = one(weight_of(loss) * y * share)
    assert value + loss.conjugate(alpha, one(y)) >= -alpha * z - 1e-12
    u = loss.dual_point(one(z), one(y))
    assert loss.feasible(u, one(y)) == pytest.approx(u, rel=1e-15)
    equal = value + loss.conjugate(u, one(y)) + u * z
    assert abs(equal[0]) <= 1e-12 * (1.0 + z * z)


@pytest.mark.parametrize("loss", [a for a in PLAIN.values() if of_signs(a)])
def test_the_conjugate_outside_its_domain(loss: Any) -> None:
    y = np.array([1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    alpha = np.array([-0.1, 1.1, 0.1, -1e-13, -1.0 - 1e-13, 1.0 + 1e-9])
    conjugate = loss.conjugate(alpha, y)
    np.testing.assert_array_equal(np.isinf(conjugate), [1, 1, 1, 0, 0, 1])
    inside = loss.conjugate(np.array([0.0, -1.0]), np.array([1.0, -1.0]))
    np.testing.assert_array_equal(conjugate[3:5], inside)
    nearest = [0.0, 1.0, 0.0, 0.0, -1.0, 1.0]
    np.testing.assert_array_equal(loss.feasible(alpha, y), nearest)


@every
@pytest.mark.parametrize("q", [0.0, 0.3, 65.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_a_coordinate_step_is_the_best_on_a_grid(loss: Any, q: float, y: float) -> None:
    rng = np.random.default_rng(1)
    scale = 1.8
    grid = duals(loss, y, 20_001)
    for _ in range(20):
        start = float(rng.choice(grid)) / (1.0 if of_signs(loss) else 3.0)
        z = float(2.0 * rng.standard_normal())
        step = loss.coordinate_step(one(start), one(z), q, one(y), scale)
        values = dual_objective(loss, grid, start, z, q / scale, y)
        found = dual_objective(loss, one(start) + step, start, z, q / scale, y)[0]
        assert values.max() - 1e-12 <= found <= values.max() + 4e-5
        inside = loss.feasible(one(start) + step, one(y))
        assert inside == pytest.approx(start + step, abs=1e-15)


@plain
@pytest.mark.parametrize(("weight", "gamma"), [(1.0, 1.0), (0.25, 0.1)])
def test_the_theoretical_step_is_best(loss: Any, weight: float, gamma: float) -> None:
    rng = np.random.default_rng(3)
    shares = np.linspace(0.0, 1.0, 20_001)
    for regularization in (1e-2, 3.0) * 10:
        y = float(rng.choice([-1.0, 1.0]))
        alpha, z = y * float(rng.random()), float(2.0 * rng.standard_normal())
        numbers = weight, gamma, regularization
        step = loss.theoretical_step(one(alpha), one(z), one(y), *numbers)[0]
        whole = weight * (loss.dual_point(one(z), one(y))[0] - alpha)
        # with s c γ z (u − α), as its expansion has it
        points = np.append(alpha + shares * gamma * whole, alpha + gamma * step)
        values = dual_objective(loss, points, alpha, z, 1 / regularization, y)
        best = values[:-1].max()
        assert best - 1e-12 <= values[-1] <= best + 1e-6
        # s in [0, 1]
        assert min(0.0, whole) - 1e-15 <= step <= max(0.0, whole) + 1e-15


@settings(max_examples=200, deadline=None)
@given(
    z=st.floats(-700.0, 700.0),
    mean=st.floats(0.0, 1e6),
    y=st.floats(0.0, 1e6),
    c=st.floats(1e-9, 1e9),
)
def test_poisson_s_coordinate_step(z: float, mean: float, y: float, c: float) -> None:
    """ln m − z = c (y − m − α) for m = y − α − Δ, however large the numbers."""
    alpha = y - mean
    step = POISSON.coordinate_step(one(alpha), one(z), c, one(y), 1.0)[0]
    right = z + c * (y - alpha)
    found = y - alpha - step
    assert np.isfinite(found)
    if found > 1e-9 * max(1.0, y, mean):  # else m has no digits beside y
        size = max(1.0, abs(right), c * max(y, mean))
        assert abs(np.log(found) + c * found - right) <= 1e-6 * size


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_of_nothing(name: str) -> None:
    y, z, zero = np.array([1.0]), np.array([700.0]), np.zeros(1)
    none = WeightedLoss(make_loss(name), zero)
    assert none.value(z, y) == none.slope(z, y) == none.conjugate(zero, y) == 0.0
    assert none.conjugate(zero + 0.1, y) == np.inf
    assert none.coordinate_step(zero, z, 1.0, y, 1.0) == none.feasible(z, y) == 0.0


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="label 1 is not allowed: .* at least 0"):
        POISSON.check_labels(np.array([0.0, -1.0]))
