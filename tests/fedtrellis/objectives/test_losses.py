"""Losses, conjugates and dual steps, against definitions and dense grids."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.objectives.losses import (
    LOSSES,
    CrossEntropy,
    DualLoss,
    Hinge,
    LogisticLoss,
    SmoothedHinge,
    Squared,
    make_loss,
)
from fedtrellis.settings import SettingsError

ALL: list[DualLoss] = [
    Hinge(),
    SmoothedHinge(),
    SmoothedHinge(0.1),
    LogisticLoss(),
    Squared(),
]
IDS = ["hinge", "smoothed-1", "smoothed-0.1", "logistic", "squared"]
SMOOTH, SMOOTH_IDS = ALL[1:], IDS[1:]


def duals(loss: DualLoss, y: float, count: int) -> np.ndarray:
    """Dual variables over the domain, or a wide part of it."""
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
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_loss_is_its_biconjugate(loss: DualLoss, y: float) -> None:
    alpha = duals(loss, y, 200_001)
    conjugates = loss.conjugate(alpha, np.full_like(alpha, y))
    for z in np.linspace(-4.0, 4.0, 33):
        biconjugate = np.max(-alpha * z - conjugates)
        assert loss.value(one(z), one(y))[0] == pytest.approx(biconjugate, abs=1e-7)


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


@pytest.mark.parametrize(
    "loss", [LogisticLoss(), Squared()], ids=["logistic", "squared"]
)
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_curvature_is_the_steepest_that_the_slope_gets(
    loss: LogisticLoss | Squared, y: float
) -> None:
    z = np.linspace(-4.0, 4.0, 1601)  # 0, where the logistic loss bends most, is there
    slopes = loss.slope(z, np.full_like(z, y))
    np.testing.assert_array_equal(0.0 - slopes, loss.dual_point(z, np.full_like(z, y)))
    steepest = np.max(np.diff(slopes) / np.diff(z))
    assert steepest == pytest.approx(loss.curvature, rel=1e-5)


@pytest.mark.parametrize(
    "loss", [LogisticLoss(), Squared()], ids=["logistic", "squared"]
)
def test_a_total_is_the_sum_over_the_examples_and_keeps_scores(
    loss: LogisticLoss | Squared,
) -> None:
    rng = np.random.default_rng(0)
    y, scores = rng.choice([-1.0, 1.0], 40), 2.0 * rng.standard_normal((40, 3))
    before = scores.copy()
    # many points at once: the labels go down the first axis
    totals = loss.total(scores, y[:, None])
    expected = [
        sum(loss.value(one(z), one(b))[0] for z, b in zip(column, y, strict=True))
        for column in scores.T
    ]
    np.testing.assert_allclose(totals, expected, rtol=1e-13)
    np.testing.assert_array_equal(scores, before)
    slopes = loss.slope(scores, y[:, None])
    np.testing.assert_array_equal(scores, before)
    # in the memory of the scores they are the same
    np.testing.assert_array_equal(loss.slope(scores, y[:, None], scores), slopes)


def test_the_cross_entropy_of_two_classes_is_the_logistic_loss() -> None:
    rng = np.random.default_rng(1)
    z, y = 3.0 * rng.standard_normal(50), np.arange(50) % 2
    signs: np.ndarray = 2.0 * y - 1.0
    pairs: np.ndarray = np.stack([np.zeros(50), z], axis=1)
    entropy, logistic = CrossEntropy(), LogisticLoss()
    np.testing.assert_allclose(entropy.value(pairs, y), logistic.value(z, signs))
    slopes = entropy.slope(pairs, y)
    np.testing.assert_allclose(slopes[:, 1], logistic.slope(z, signs), atol=1e-15)
    np.testing.assert_allclose(slopes.sum(axis=1), 0.0, atol=1e-15)
    in_place = entropy.slope(pairs, y, pairs)
    assert in_place is pairs
    np.testing.assert_array_equal(in_place, slopes)


@pytest.mark.parametrize("loss", SMOOTH, ids=SMOOTH_IDS)
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_dual_point_is_minus_the_derivative(loss: DualLoss, y: float) -> None:
    # away from where the parabola of the smoothed hinge begins and ends
    z = np.linspace(-4.03, 4.04, 300)
    labels = np.full_like(z, y)
    step = 1e-5
    slope = (loss.value(z + step, labels) - loss.value(z - step, labels)) / (2 * step)
    near = np.abs(slope + loss.dual_point(z, labels)) < 1e-8
    assert near.mean() > 0.99
    assert np.abs(slope + loss.dual_point(z, labels)).max() < 1e-3


def test_the_dual_point_of_the_hinge() -> None:
    y = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    z = np.array([0.5, 1.0, 1.5, -0.5, -1.0, 2.0])
    np.testing.assert_array_equal(Hinge().dual_point(z, y), [1, 0, 0, -1, 0, -1])


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


def test_the_squared_loss_has_all_duals() -> None:
    alpha, y = np.array([-7.0, 0.0, 3.0]), np.array([0.5, 2.0, -1.0])
    np.testing.assert_array_equal(Squared().feasible(alpha, y), alpha)
    np.testing.assert_allclose(Squared().conjugate(alpha, y), [28.0, 0.0, 7.5])


def test_the_smoothed_hinge_tends_to_the_hinge() -> None:
    rng = np.random.default_rng(0)
    y, z = rng.choice([-1.0, 1.0], 100), 3 * rng.standard_normal(100)
    sharp = Hinge().value(z, y)
    near = SmoothedHinge(1e-9).value(z, y)
    assert np.abs(near - sharp).max() <= 1e-9
    alpha = y * rng.random(100)
    steps = [
        loss.coordinate_step(alpha, z, 2.0, y, 3.0)
        for loss in (Hinge(), SmoothedHinge(1e-9))
    ]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-8)


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


def test_the_closed_forms() -> None:
    rng = np.random.default_rng(2)
    n, scale = 200, 1.797
    y, z = rng.choice([-1.0, 1.0], n), 2.0 * rng.standard_normal(n)
    q, alpha = 10.0 * rng.random(n), y * rng.random(n)
    expected = y * np.clip(scale * (1 - y * z) / q + y * alpha, 0, 1) - alpha
    np.testing.assert_allclose(
        Hinge().coordinate_step(alpha, z, q, y, scale), expected, atol=1e-14
    )
    # the paper's algorithm 5
    paper = y * np.maximum(0, np.minimum(1, scale * (1 - y * z) + y * alpha)) - alpha
    np.testing.assert_allclose(
        Hinge().coordinate_step(alpha, z, 1.0, y, scale), paper, atol=1e-14
    )
    g = 0.4
    inner = (1 - y * z - g * y * alpha) / (q / scale + g) + y * alpha
    np.testing.assert_allclose(
        SmoothedHinge(g).coordinate_step(alpha, z, q, y, scale),
        y * np.clip(inner, 0, 1) - alpha,
        atol=1e-14,
    )
    labels = rng.standard_normal(n)
    np.testing.assert_allclose(
        Squared().coordinate_step(alpha, z, q, labels, scale),
        (labels - z - alpha) / (1 + q / scale),
        atol=1e-14,
    )


def test_a_sample_of_zeros() -> None:
    y = np.array([1.0, -1.0, 1.0, -1.0])
    alpha = y * np.array([0.0, 0.25, 1.0, 0.5])
    z, q = np.zeros(4), np.zeros(4)
    with np.errstate(all="raise"):
        step = Hinge().coordinate_step(alpha, z, q, y, 2.0)
        np.testing.assert_array_equal(alpha + step, y)
        # the slope is 0 where yz = 1: nothing moves
        np.testing.assert_array_equal(
            Hinge().coordinate_step(alpha, y, q, y, 2.0), np.zeros(4)
        )
        step = SmoothedHinge(2.0).coordinate_step(alpha, z, q, y, 2.0)
        np.testing.assert_allclose(alpha + step, 0.5 * y)
        step = LogisticLoss().coordinate_step(alpha, z, q, y, 2.0)
        np.testing.assert_allclose(alpha + step, 0.5 * y)
        step = Squared().coordinate_step(alpha, z, q, 3 * y, 2.0)
        np.testing.assert_allclose(alpha + step, 3 * y)


@settings(max_examples=300, deadline=None)
@given(
    beta=st.floats(0, 1),
    z=st.floats(-1e4, 1e4),
    exponent=st.floats(-12, 12),
    y=st.sampled_from([-1.0, 1.0]),
)
def test_the_logistic_step_solves_its_equation(
    beta: float, z: float, exponent: float, y: float
) -> None:
    loss, c = LogisticLoss(), 10.0**exponent
    alpha = one(y * beta)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        step = loss.coordinate_step(alpha, one(z), c, one(y), 1.0)
    new = float((y * (alpha + step))[0])
    assert 0.0 <= new <= 1.0

    def slope(b: float) -> float:
        """The derivative, which falls with b, and is ±inf at the ends."""
        if b <= 0.0 or b >= 1.0:
            return np.inf if b <= 0.0 else -np.inf
        return float(np.log1p(-b) - np.log(b) - y * z - c * (b - beta))

    # the zero lies within 2e-14 of it
    assert slope(new - 2e-14) >= 0.0
    assert slope(new + 2e-14) <= 0.0


def test_the_logistic_loss_does_not_overflow() -> None:
    loss, y = LogisticLoss(), np.array([1.0, 1.0])
    z = np.array([-1e4, 1e4])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(loss.value(z, y), [1e4, 0.0])
        np.testing.assert_array_equal(loss.dual_point(z, y), [1.0, 0.0])
        np.testing.assert_array_equal(loss.conjugate(np.array([0.0, 1.0]), y), [0, 0])
        step = loss.coordinate_step(np.array([0.5, 0.5]), z, 1.0, y, 1.0)
    np.testing.assert_allclose(step, [0.5, -0.5])


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


def test_the_theoretical_step_of_the_hinge() -> None:
    # s = λ(y − z)/(c γ (u − α)), in [0, 1]
    loss, y = Hinge(), np.array([1.0, 1.0, 1.0])
    alpha, z = np.array([0.0, 0.5, 0.25]), np.array([0.2, 0.9, 3.0])
    step = loss.theoretical_step(alpha, z, y, 0.5, 1.0, 0.1)
    np.testing.assert_allclose(step, [0.08, 0.01, -0.125])
    # nothing to go for
    step = loss.theoretical_step(y, np.zeros(3), y, 0.5, 1.0, 0.1)
    np.testing.assert_array_equal(step, np.zeros(3))


@pytest.mark.parametrize(
    ("weight", "gamma", "regularization", "match"),
    [
        (0.0, 1.0, 1.0, "weight is 0.0"),
        (1.5, 1.0, 1.0, "weight is 1.5"),
        (1.0, -1.0, 1.0, "gamma is -1.0"),
        (1.0, 1.0, 0.0, "regularization is 0.0"),
    ],
)
def test_steps_that_may_leave_the_domain(
    weight: float, gamma: float, regularization: float, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        Hinge().theoretical_step(
            one(0.0), one(0.0), one(1.0), weight, gamma, regularization
        )


@pytest.mark.parametrize("name", LOSSES)
def test_single_coordinate_ascent_never_lowers_the_dual(name: str) -> None:
    loss = make_loss(name, 0.5)
    rng = np.random.default_rng(4)
    features = rng.standard_normal((40, 6))
    features[3] = 0.0
    y = rng.choice([-1.0, 1.0], 40)
    if loss.labels == "counts":
        y = y + 1.0
    regularization, n = 0.1, 40
    alpha, w = np.zeros(40), np.zeros(6)

    def dual() -> float:
        return float(-0.5 * regularization * w @ w - loss.conjugate(alpha, y).mean())

    values = [dual()]
    for i in rng.integers(0, n, 1200):
        z, q = features[i] @ w, features[i] @ features[i]
        scale = regularization * n
        part = slice(i, i + 1)
        step = loss.coordinate_step(alpha[part], one(z), q, y[part], scale)[0]
        alpha[i] += step
        w += step * features[i] / scale
        values.append(dual())
    assert all(after >= before - 1e-13 for before, after in pairwise(values))
    primal = 0.5 * regularization * w @ w + loss.value(features @ w, y).mean()
    assert -1e-13 <= primal - values[-1] <= 0.05 * primal


# -- names and labels


def test_names() -> None:
    assert list(LOSSES) == ["hinge", "smoothed-hinge", "logistic", "squared", "poisson"]
    for name, kind in LOSSES.items():
        assert kind.name == name
        assert isinstance(make_loss(name), kind)
        assert make_loss(name) == make_loss(name)
    assert make_loss("smoothed-hinge", 0.3) == SmoothedHinge(0.3)
    with pytest.raises(SettingsError, match="did you mean 'hinge'"):
        make_loss("hing")
    with pytest.raises(ValueError, match="smoothing is 0.0"):
        make_loss("smoothed-hinge", 0.0)


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
