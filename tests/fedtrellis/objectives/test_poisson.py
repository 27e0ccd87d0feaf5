"""The Poisson loss against definitions, grids and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.objectives.losses import Poisson, make_loss

LOSS = Poisson()
COUNTS = [0.0, 1.0, 2.5, 300.0]


def one(value: float) -> np.ndarray:
    return np.array([value])


@pytest.mark.parametrize("y", COUNTS)
def test_value_and_conjugate_are_each_other_s_supremum(y: float) -> None:
    z = np.linspace(-40.0, 8.0, 480_001)
    values = LOSS.value(z, np.full_like(z, y))
    # half the deviance: nothing is lost where e^z = y
    assert values.min() == pytest.approx(0.0, abs=1e-6)
    for alpha in y - np.array([0.0, 1e-3, 0.5, 1.0, 7.0, 900.0]):
        supremum = np.max(-alpha * z - values)
        found = LOSS.conjugate(one(alpha), one(y))[0]
        assert found == pytest.approx(supremum, rel=1e-6, abs=1e-6)
    assert LOSS.conjugate(one(y + 0.1), one(y))[0] == np.inf
    assert LOSS.feasible(one(y + 0.1), one(y))[0] == y


@pytest.mark.parametrize("y", COUNTS)
def test_the_slope_is_the_derivative(y: float) -> None:
    z, h = np.linspace(-3.0, 3.0, 13), 1e-6
    labels = np.full(13, y)
    rise = LOSS.value(z + h, labels) - LOSS.value(z - h, labels)
    np.testing.assert_allclose(LOSS.slope(z, labels), rise / (2 * h), atol=1e-4)
    u = LOSS.dual_point(z, labels)
    # Fenchel and Young, with equality
    gap = LOSS.value(z, labels) + LOSS.conjugate(u, labels) + u * z
    assert np.abs(gap).max() <= 1e-11 * max(1.0, y)


@pytest.mark.parametrize("y", COUNTS)
@pytest.mark.parametrize("c", [0.0, 1e-4, 0.3, 40.0])
def test_the_coordinate_step_is_the_best_on_a_grid(y: float, c: float) -> None:
    rng = np.random.default_rng(0)
    means = np.geomspace(1e-8, 1e4, 200_001)
    for start in y - rng.exponential(2.0 * max(y, 1.0), 10):
        z = float(np.log(max(y, 1.0)) + 2.0 * rng.standard_normal())

        def dual(alpha: np.ndarray, start: float = start, z: float = z) -> np.ndarray:
            moved = alpha - start
            conjugate = LOSS.conjugate(alpha, np.full_like(alpha, y))
            return -conjugate - z * moved - 0.5 * c * moved**2

        step = LOSS.coordinate_step(one(start), one(z), c * 2.0, one(y), 2.0)
        best = dual(y - means).max()
        assert dual(one(start) + step)[0] >= best - 1e-9 * max(1.0, abs(best))


@settings(max_examples=200, deadline=None)
@given(
    z=st.floats(-700.0, 700.0),
    mean=st.floats(0.0, 1e6),
    y=st.floats(0.0, 1e6),
    c=st.floats(1e-9, 1e9),
)
def test_the_coordinate_step_solves_its_equation(
    z: float, mean: float, y: float, c: float
) -> None:
    """ln m − z = c (y − m − α) for m = y − α − Δ, however large the numbers."""
    alpha = y - mean
    step = LOSS.coordinate_step(one(alpha), one(z), c, one(y), 1.0)[0]
    right = z + c * (y - alpha)
    found = y - alpha - step
    assert np.isfinite(found)
    if found > 1e-9 * max(1.0, y, mean):  # else m has no digits beside y
        size = max(1.0, abs(right), c * max(y, mean))
        assert abs(np.log(found) + c * found - right) <= 1e-6 * size


def test_labels_are_counts() -> None:
    loss = make_loss("poisson")
    loss.check_labels(np.array([0.0, 3.0, 2.5]))
    with pytest.raises(ValueError, match="label 1 is -1; .* finite and at least 0"):
        loss.check_labels(np.array([0.0, -1.0]))
    with pytest.raises(ValueError, match="infinite entries"):
        loss.check_labels(np.array([np.inf]))
