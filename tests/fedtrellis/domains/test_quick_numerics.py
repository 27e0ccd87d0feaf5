"""The ways that are quick at some sizes against the plain ones, on awkward input."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedtrellis.domains import L1Ball, Simplex, SpectralNormBall
from fedtrellis.domains.numerics import (
    project_simplex,
)

Array = NDArray[np.float64]


def exact_threshold(values: Array, radius: float) -> Fraction:
    """θ in rational numbers: of the largest k with v_k > (Σ_{i≤k} v_i − radius)/k."""
    total, theta = Fraction(0), None
    for k, value in enumerate(sorted(map(Fraction, values), reverse=True), start=1):
        total += value
        candidate = (total - Fraction(radius)) / k
        if theta is None or value > candidate:
            theta = candidate
    assert theta is not None
    return theta


sizes = st.one_of(
    st.floats(0.0, 1.0, allow_subnormal=False),
    st.integers(0, 3).map(float),  # ties and zeros
    st.floats(-300.0, 0.0).map(lambda power: 10.0**power),
    st.floats(0.0, 12.0).map(lambda power: 10.0**power),
)


@given(
    values=arrays(np.float64, st.integers(1, 40), elements=sizes),
    radius=st.floats(-9.0, 9.0).map(lambda power: 10.0**power),
)
@settings(max_examples=300, deadline=None)
def test_thresholds_against_rational_numbers(values: Array, radius: float) -> None:
    shifted = values - values.max()
    exact = exact_threshold(shifted, radius)
    # what a sum of so many numbers from −radius to 0 may be off by, over their number
    bound = 1e-14 * radius
    # θ is what the largest entry, 0 after the shift, has lost
    assert abs(-project_simplex(values, radius).max() - exact) <= bound


def sorted_projection(vector: Array, radius: float) -> Array:
    """The projection onto the simplex as Duchi and others have it, in figure 1."""
    descending = np.sort(vector)[::-1]
    thresholds = (np.cumsum(descending) - radius) / np.arange(1, vector.size + 1)
    theta = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    projection: Array = np.maximum(vector - theta, 0.0)
    return projection


LONG = 25_000


@pytest.mark.parametrize("radius", [1e-3, 1.0, 300.0, 1e4])
def test_long_vectors_against_sorting(radius: float) -> None:
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random(LONG) < 0.01, 1.0, 1e-3)
    for vector in (
        rng.standard_normal(LONG),
        rng.standard_cauchy(LONG),
        sparse * rng.standard_normal(LONG),
        rng.integers(-2, 3, LONG).astype(float),
        np.ones(LONG),
        np.zeros(LONG),
        -np.geomspace(1e-12, 1e12, LONG),
    ):
        expected = sorted_projection(vector - vector.max(), radius)
        ours = Simplex(radius).project(vector)
        np.testing.assert_allclose(ours, expected, atol=1e-12 * radius)
        assert math.fsum(ours) == pytest.approx(radius, rel=1e-12)
        magnitudes = np.abs(vector)
        ball = L1Ball(radius).project(vector)
        if magnitudes.sum() > radius:
            expected = sorted_projection(magnitudes - magnitudes.max(), radius)
            expected = np.copysign(expected, vector)
        else:
            expected = vector
        np.testing.assert_allclose(ball, expected, atol=1e-12 * radius)


SHAPES = [(1, 1), (3, 80), (70, 64), (200, 70), (70, 200), (260, 256)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 1e4, 1e5, 1e9, math.inf])
def test_polar_factor(shape: tuple[int, int], condition: float) -> None:
    rng = np.random.default_rng(3)
    left, values, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    values = np.geomspace(1.0, 1.0 / min(condition, 1e9), len(values))
    if condition == math.inf:
        values[len(values) // 2 :] = 0.0
    for scale in (1e-250, 1e-3, 1.0, 1e250):
        x = scale * ((left * values) @ right)
        q = SpectralNormBall(1.0).lmo(-x).dense()
        # feasible, and the best: <X, Q> = Σ σ_i
        assert np.linalg.norm(q, 2) <= 1.0 + 1e-14
        assert np.vdot(x / scale, q) == pytest.approx(values.sum(), rel=1e-13)
        gram = q.T @ q if shape[0] >= shape[1] else q @ q.T
        np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-13)
        if condition <= 1e5:
            np.testing.assert_allclose(q, left @ right, atol=1e-10)
            if shape[0] >= shape[1]:
                np.testing.assert_allclose(q, scipy.linalg.polar(x)[0], atol=1e-10)
