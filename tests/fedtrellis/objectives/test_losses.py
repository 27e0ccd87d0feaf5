"""Losses, conjugates and dual steps, against definitions and dense grids."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.objectives.losses import (
    LOSSES,
    DualLoss,
    Hinge,
    LogisticLoss,
    Poisson,
    SmoothedHinge,
    Squared,
    WeightedLoss,
    make_loss,
    weighted,
)

ALL: list[DualLoss] = [
    Hinge(),
    SmoothedHinge(),
    SmoothedHinge(0.1),
    LogisticLoss(),
    Squared(),
]
IDS = ["hinge", "smoothed-1", "smoothed-0.1", "logistic", "squared"]


def duals(loss: DualLoss, y: float, count: int) -> np.ndarray:
    if loss.labels == "signs":
        return y * np.linspace(0.0, 1.0, count)
    return np.linspace(-6.0, 6.0, count)


def one(value: float) -> np.ndarray:
    return np.array([value])


def dual_objective(
    loss: DualLoss,
    alpha: np.ndarray,
    start: float,
    z: float,
    curvature: float,
    y: float,
) -> np.ndarray:
    """−l*(−α) − z(α − start) − (curvature/2)(α − start)² for many α."""
    moved = alpha - start
    conjugate = loss.conjugate(alpha, np.full_like(alpha, y))
    return -conjugate - z * moved - 0.5 * curvature * moved**2


# -- values and conjugates


@pytest.mark.parametrize("loss", ALL, ids=IDS)
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_conjugate_is_the_supremum(loss: DualLoss, y: float) -> None:
    z = np.linspace(-60.0, 60.0, 240_001)
    values = loss.value(z, np.full_like(z, y))
    for alpha in duals(loss, y, 41):
        supremum = np.max(-alpha * z - values)
        found = loss.conjugate(one(alpha), one(y))[0]
        assert found == pytest.approx(supremum, abs=1e-6)


@pytest.mark.parametrize("loss", ALL, ids=IDS)
@settings(max_examples=100, deadline=None)
@given(
    z=st.floats(-30, 30),
    share=st.floats(0, 1),
    y=st.sampled_from([-1.0, 1.0]),
)
def test_fenchel_and_young(loss: DualLoss, z: float, share: float, y: float) -> None:
    value = loss.value(one(z), one(y))
    alpha = one(y * share)
    assert value + loss.conjugate(alpha, one(y)) >= -alpha * z - 1e-12
    u = loss.dual_point(one(z), one(y))
    assert loss.feasible(u, one(y)) == u
    equal = value + loss.conjugate(u, one(y)) + u * z
    assert abs(equal[0]) <= 1e-13 * (1.0 + z * z)


@pytest.mark.parametrize("loss", [a for a in ALL if a.labels == "signs"])
def test_the_conjugate_outside_its_domain(loss: DualLoss) -> None:
    y = np.array([1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    alpha = np.array([-0.1, 1.1, 0.1, -1e-13, -1.0 - 1e-13, 1.0 + 1e-9])
    conjugate = loss.conjugate(alpha, y)
    np.testing.assert_array_equal(np.isinf(conjugate), [1, 1, 1, 0, 0, 1])
    inside = loss.conjugate(np.array([0.0, -1.0]), np.array([1.0, -1.0]))
    np.testing.assert_array_equal(conjugate[3:5], inside)
    np.testing.assert_array_equal(
        loss.feasible(alpha, y), [0.0, 1.0, 0.0, 0.0, -1.0, 1.0]
    )


# -- steps


@pytest.mark.parametrize("loss", ALL, ids=IDS)
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 65.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_coordinate_step_is_the_best_on_a_grid(
    loss: DualLoss, q: float, y: float
) -> None:
    rng = np.random.default_rng(1)
    scale = 1.8
    grid = duals(loss, y, 20_001)
    for _ in range(20):
        start = float(rng.choice(grid)) / (1.0 if loss.labels == "signs" else 3.0)
        z = float(2.0 * rng.standard_normal())
        step = loss.coordinate_step(one(start), one(z), q, one(y), scale)
        values = dual_objective(loss, grid, start, z, q / scale, y)
        found = dual_objective(loss, one(start) + step, start, z, q / scale, y)[0]
        assert found >= values.max() - 1e-12
        assert found <= values.max() + 1e-5
        assert loss.feasible(one(start) + step, one(y)) == pytest.approx(
            start + step, abs=1e-15
        )


@pytest.mark.parametrize("loss", ALL, ids=IDS)
@pytest.mark.parametrize(("weight", "gamma"), [(1.0, 1.0), (0.25, 1.0), (1.0, 0.1)])
def test_the_theoretical_step_is_the_best_on_a_grid(
    loss: DualLoss, weight: float, gamma: float
) -> None:
    rng = np.random.default_rng(3)
    shares = np.linspace(0.0, 1.0, 20_001)
    for regularization in (1e-2, 3.0):
        for _ in range(10):
            y = float(rng.choice([-1.0, 1.0]))
            alpha, z = y * float(rng.random()), float(2.0 * rng.standard_normal())
            step = loss.theoretical_step(
                one(alpha), one(z), one(y), weight, gamma, regularization
            )[0]
            whole = weight * (loss.dual_point(one(z), one(y))[0] - alpha)
            points = alpha + shares * gamma * whole
            # with s c γ z (u − α), as its expansion has it
            values = dual_objective(loss, points, alpha, z, 1 / regularization, y)
            found = dual_objective(
                loss, one(alpha + gamma * step), alpha, z, 1 / regularization, y
            )[0]
            assert found >= values.max() - 1e-12
            assert found <= values.max() + 1e-6
            # s in [0, 1]
            assert min(0.0, whole) - 1e-15 <= step <= max(0.0, whole) + 1e-15


# -- Poisson

POISSON = Poisson()
COUNTS = [0.0, 1.0, 2.5, 300.0]


@pytest.mark.parametrize("y", COUNTS)
def test_poisson_s_value_and_conjugate_are_each_other_s_supremum(y: float) -> None:
    z = np.linspace(-40.0, 8.0, 480_001)
    values = POISSON.value(z, np.full_like(z, y))
    # half the deviance: nothing is lost where e^z = y
    assert values.min() == pytest.approx(0.0, abs=1e-6)
    for alpha in y - np.array([0.0, 1e-3, 0.5, 1.0, 7.0, 900.0]):
        supremum = np.max(-alpha * z - values)
        found = POISSON.conjugate(one(alpha), one(y))[0]
        assert found == pytest.approx(supremum, rel=1e-6, abs=1e-6)
    assert POISSON.conjugate(one(y + 0.1), one(y))[0] == np.inf
    assert POISSON.feasible(one(y + 0.1), one(y))[0] == y


@settings(max_examples=200, deadline=None)
@given(
    z=st.floats(-700.0, 700.0),
    mean=st.floats(0.0, 1e6),
    y=st.floats(0.0, 1e6),
    c=st.floats(1e-9, 1e9),
)
def test_poisson_s_coordinate_step_solves_its_equation(
    z: float, mean: float, y: float, c: float
) -> None:
    """ln m − z = c (y − m − α) for m = y − α − Δ, however large the numbers."""
    alpha = y - mean
    step = POISSON.coordinate_step(one(alpha), one(z), c, one(y), 1.0)[0]
    right = z + c * (y - alpha)
    found = y - alpha - step
    assert np.isfinite(found)
    if found > 1e-9 * max(1.0, y, mean):  # else m has no digits beside y
        size = max(1.0, abs(right), c * max(y, mean))
        assert abs(np.log(found) + c * found - right) <= 1e-6 * size


def test_poisson_s_labels_are_counts() -> None:
    loss = make_loss("poisson")
    loss.check_labels(np.array([0.0, 3.0, 2.5]))
    with pytest.raises(ValueError, match="label 1 is -1; .* finite and at least 0"):
        loss.check_labels(np.array([0.0, -1.0]))
    with pytest.raises(ValueError, match="infinite entries"):
        loss.check_labels(np.array([np.inf]))


# -- samples that count more or less than others

S = np.array([0.3, 1.0, 2.5, 7.0])


def labels_of(name: str) -> np.ndarray:
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    return signs + 2.0 if LOSSES[name].labels == "counts" else signs


@pytest.mark.parametrize("name", LOSSES)
def test_conjugate_and_step_are_those_of_the_weighted_function(name: str) -> None:
    """By the definition: s l is a function like any other."""
    y = labels_of(name)
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

    def risen(change: Any) -> np.ndarray:
        moved = -loss.conjugate(alpha + change, y) - z * change
        return np.asarray(moved - q / (2.0 * scale) * change**2)

    assert np.isfinite(risen(step)).all()
    for other in np.linspace(-1.0, 1.0, 201):
        assert (risen(step) >= risen(step + 1e-2 * other) - 1e-9).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_of_nothing_and_one_of_one(name: str) -> None:
    y, z = labels_of(name), np.array([0.3, -0.2, 700.0, -1.1])
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


# -- names and labels


@pytest.mark.parametrize("loss", ALL, ids=IDS)
def test_labels(loss: DualLoss) -> None:
    loss.check_labels(np.array([1.0, -1.0, 1.0]))
    loss.check_labels([1, -1])
    wrong: list[tuple[list[float], str]] = [([1.0, np.nan], "labels has NaN")]
    if loss.labels == "signs":
        wrong += [([0.0, 1.0], "label 0 is 0; .* must be -1 or")]
    else:
        loss.check_labels(np.array([0.3, 17.0]))
        wrong += [([np.inf], "infinite entries; all must be finite")]
    for labels, match in wrong:
        with pytest.raises(ValueError, match=match) as caught:
            loss.check_labels(np.array(labels))
        assert "\n" not in str(caught.value)
    for shaped in (np.ones((2, 2)), np.array(["a"])):
        with pytest.raises(ValueError, match="must have 1 axes|must be real numbers"):
            loss.check_labels(shaped)


@pytest.mark.parametrize(
    ("numbers", "match"),
    [((0.0, 1.0, 1.0), "weight is 0.0"), ((1.0, -1.0, 1.0), "gamma is -1.0")],
)
def test_steps_that_may_leave_the_domain(numbers: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Hinge().theoretical_step(one(0.0), one(0.0), one(1.0), *numbers)
