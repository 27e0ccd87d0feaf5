"""What the definitions promise: nearest points, tangents, retractions, geodesics."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedtrellis.manifolds import (
    Euclidean,
    FixedRank,
    Grassmann,
    Manifold,
    Oblique,
    Product,
    Sphere,
    Stiefel,
)

Array = NDArray[np.float64]

SMOOTH: list[Manifold] = [
    Sphere((6,)),
    Sphere((2, 3), 0.5),
    Sphere((2,), 30.0),
    Oblique((4, 3)),
    Oblique((1, 3)),
    Stiefel((6, 3)),
    Stiefel((3, 3)),
    Stiefel((4, 3)),
    Stiefel((5, 1)),
    Grassmann((7, 3)),
    Grassmann((4, 3)),
    Grassmann((5, 1)),
    Euclidean((2, 3)),
    Product([Stiefel((5, 2)), Sphere((2, 2), 3.0), Oblique((3, 2)), Euclidean((4,))]),
]
CASES: list[Manifold] = [
    *SMOOTH,
    FixedRank((5, 4), 2),
    FixedRank((4, 6), 1),
    FixedRank((16, 12), 2),
    FixedRank((3, 4), 3),
    Product([FixedRank((4, 4), 1), Sphere((3,))]),
]


def ids(manifold: Manifold) -> str:
    return f"{manifold.name}-{'x'.join(map(str, manifold.shape))}"


all_cases = pytest.mark.parametrize("manifold", CASES, ids=ids)
with_exponential = pytest.mark.parametrize("manifold", SMOOTH, ids=ids)
few = settings(max_examples=40, deadline=None)


def violation(manifold: Manifold, x: Array) -> float:
    """How far the definition's equations are from holding, relative to their size."""
    match manifold:
        case Sphere():
            return abs(float(np.linalg.norm(x)) / manifold.radius - 1.0)
        case Oblique():
            return float(np.abs(np.linalg.norm(x, axis=0) - 1.0).max())
        case Stiefel() | Grassmann():
            return float(np.abs(x.T @ x - np.eye(x.shape[1])).max())
        case FixedRank():
            sigma = np.linalg.svd(x, compute_uv=False)
            return float(max(sigma[manifold.rank :], default=0.0) / max(sigma[0], 1e-9))
        case Product():
            worst, start = 0.0, 0
            for part in manifold.parts:
                stop = start + math.prod(part.shape)
                piece = x[start:stop].reshape(part.shape)
                worst, start = max(worst, violation(part, piece)), stop
            return worst
        case Euclidean():
            return 0.0
    raise NotImplementedError(manifold)


def draw_point(data: st.DataObject, shape: tuple[int, ...]) -> Array:
    """Floats of all sizes, or small integers: zeros, ties, dependent columns."""
    smooth = st.floats(-100, 100, allow_subnormal=False)
    ties = st.integers(-2, 2).map(float)
    elements = data.draw(st.sampled_from([smooth, ties]))
    return data.draw(arrays(np.float64, shape, elements=elements))


@all_cases
@few
@given(data=st.data())
def test_projection_is_on_the_manifold_and_idempotent(
    manifold: Manifold, data: st.DataObject
) -> None:
    x = draw_point(data, manifold.shape)
    y = manifold.project(x)
    size = max(1.0, float(np.abs(y).max()))
    assert violation(manifold, y) <= 1e-13
    np.testing.assert_allclose(manifold.project(y), y, atol=1e-12 * size)
    assert manifold.contains(y, 1e-12)


@all_cases
@few
@given(data=st.data())
def test_no_point_is_nearer_than_the_projection(
    manifold: Manifold, data: st.DataObject
) -> None:
    x = draw_point(data, manifold.shape)
    y = manifold.project(x)
    distance = float(np.linalg.norm(x - y))
    assert manifold.distance_to(x) == pytest.approx(distance, abs=1e-12)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    others = [manifold.random_point(rng) for _ in range(20)]
    steps = manifold.random_tangent(y, rng, 20)
    for size in (1e-3, 0.1, 1.0):  # and points near the projection, all around it
        others += list(manifold.retract(y, size * steps))
        others += list(manifold.project(x + size * rng.standard_normal(steps.shape)))
    nearest = min(float(np.linalg.norm(x - other)) for other in others)
    assert distance <= nearest + 1e-11 * max(1.0, distance)


@all_cases
def test_tangent_projection_is_an_orthogonal_projection(manifold: Manifold) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        x = manifold.random_point(rng)
        u, v = rng.standard_normal((2, *manifold.shape))
        pu, pv = manifold.project_tangent(x, np.stack([u, v]))
        np.testing.assert_allclose(manifold.project_tangent(x, pu), pu, atol=1e-13)
        # linear, and self-adjoint: <Pu, v> = <u, Pv> = <Pu, Pv>
        np.testing.assert_allclose(
            manifold.project_tangent(x, 2.0 * u - 3.0 * v),
            2.0 * pu - 3.0 * pv,
            atol=1e-12,
        )
        inner = pytest.approx(float(np.vdot(pu, pv)), abs=1e-12)
        assert np.vdot(pu, v) == inner
        assert np.vdot(u, pv) == inner
        # what is left is orthogonal to the tangent space
        tangents = manifold.random_tangent(x, rng, 20)
        normal = v - pv
        assert np.abs(tangents.reshape(20, -1) @ normal.reshape(-1)).max() <= 1e-12


@all_cases
def test_tangent_projection_is_the_derivative_of_the_projection(
    manifold: Manifold,
) -> None:
    rng = np.random.default_rng(2)
    step = 1e-5
    for _ in range(10):
        x = manifold.random_point(rng)
        v = rng.standard_normal(manifold.shape)
        if isinstance(manifold, Grassmann):
            # the projection moves bases too, not only subspaces: v horizontal
            v = manifold.project_tangent(x, v)
        there, back = manifold.project(np.stack([x + step * v, x - step * v]))
        derivative = (there - back) / (2.0 * step)
        np.testing.assert_allclose(
            derivative, manifold.project_tangent(x, v), atol=1e-6
        )


@pytest.mark.parametrize("shape", [(7, 3), (4, 3), (5, 1)])
def test_grassmann_tangents_are_the_gradients_of_functions_of_subspaces(
    shape: tuple[int, int],
) -> None:
    rng = np.random.default_rng(3)
    grassmann, stiefel = Grassmann(shape), Stiefel(shape)
    a = rng.standard_normal((shape[0], shape[0]))
    a = a + a.T
    x = grassmann.random_point(rng)
    gradient = 2.0 * a @ x  # of tr(xᵀax), which is that of xq too
    np.testing.assert_allclose(
        grassmann.project_tangent(x, gradient),
        stiefel.project_tangent(x, gradient),
        atol=1e-12,
    )
    v = grassmann.random_tangent(x, rng, 5)
    assert np.abs(x.T @ v).max() <= 1e-14


@all_cases
def test_retraction_is_of_first_order(manifold: Manifold) -> None:
    rng = np.random.default_rng(4)
    x = manifold.random_point(rng)
    v = manifold.random_tangent(x, rng, 1)[0]
    np.testing.assert_allclose(manifold.retract(x, 0.0 * v), x, atol=1e-14)
    times = np.geomspace(1e-2, 1e-4, 7)
    points = manifold.retract(x, times.reshape(-1, *[1] * v.ndim) * v)
    errors = np.array(
        [np.linalg.norm(y - x - t * v) for t, y in zip(times, points, strict=True)]
    )
    if manifold.dimension in (0, math.prod(manifold.shape)):
        assert errors.max() <= 1e-15
    else:
        slope = np.polyfit(np.log(times), np.log(errors), 1)[0]
        assert slope == pytest.approx(2.0, abs=0.05)
    assert max(violation(manifold, y) for y in points) <= 1e-14


@with_exponential
def test_retraction_agrees_with_the_geodesic_to_second_order(
    manifold: Manifold,
) -> None:
    rng = np.random.default_rng(5)
    x = manifold.random_point(rng)
    v = manifold.random_tangent(x, rng, 1)[0]
    v /= max(1e-300, float(np.linalg.norm(v)))
    times = np.geomspace(0.3, 3e-3, 7)
    steps = times.reshape(-1, *[1] * v.ndim) * v
    gaps = manifold.retract(x, steps) - manifold.exponential(x, steps)
    errors = np.linalg.norm(gaps.reshape(len(times), -1), axis=1)
    if errors.max() > 1e-14:
        slope = np.polyfit(np.log(times), np.log(errors), 1)[0]
        assert slope == pytest.approx(3.0, abs=0.1)
    else:
        assert manifold.dimension in (0, math.prod(manifold.shape))


@with_exponential
@few
@given(data=st.data())
def test_exponential_stays_on_the_manifold(
    manifold: Manifold, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    x = manifold.random_point(rng)
    v = manifold.project_tangent(x, draw_point(data, manifold.shape))
    length = data.draw(st.sampled_from([0.0, 1e-200, 1e-9, 1e-4, 1.0, 100.0]))
    y = manifold.exponential(x, length * v)
    assert violation(manifold, y) <= 1e-13
    if length <= 1e-200:
        np.testing.assert_allclose(y, x, atol=1e-14)


@with_exponential
def test_exponential_is_a_geodesic(manifold: Manifold) -> None:
    rng = np.random.default_rng(6)
    h = 1e-4
    for _ in range(5):
        x = manifold.random_point(rng)
        v = manifold.random_tangent(x, rng, 1)[0]

        def curve(t: float, x: Array = x, v: Array = v) -> Array:
            return manifold.exponential(x, t * v)

        def velocity(t: float) -> Array:
            return (curve(t + h) - curve(t - h)) / (2.0 * h)

        np.testing.assert_allclose(curve(0.0), x, atol=1e-14)
        np.testing.assert_allclose(velocity(0.0), v, atol=1e-5)
        for t in (0.3, 1.0, 1.7):
            y, w = curve(t), velocity(t)
            # tangent, of constant speed, and with an acceleration that is normal
            np.testing.assert_allclose(manifold.project_tangent(y, w), w, atol=1e-6)
            assert np.linalg.norm(w) == pytest.approx(np.linalg.norm(v), rel=1e-6)
            acceleration = (curve(t + h) - 2.0 * y + curve(t - h)) / h**2
            tangential = manifold.project_tangent(y, acceleration)
            assert np.abs(tangential).max() <= 1e-5
            # going on from there is the same curve
            np.testing.assert_allclose(
                manifold.exponential(y, 0.5 * w), curve(t + 0.5), atol=1e-5
            )


@pytest.mark.parametrize("radius", [1.0, 0.1, 8.0])
def test_sphere_in_closed_form(radius: float) -> None:
    manifold = Sphere((3,), radius)
    x = np.array([radius, 0.0, 0.0])
    for angle in (0.0, 1e-8, 0.1, 1.0, math.pi, 5.0):
        v = np.array([0.0, radius * angle, 0.0])
        on_circle = radius * np.array([math.cos(angle), math.sin(angle), 0.0])
        np.testing.assert_allclose(
            manifold.exponential(x, v), on_circle, atol=1e-15 * radius
        )
        retracted = manifold.retract(x, v)
        at = math.atan(angle)
        np.testing.assert_allclose(
            retracted, radius * np.array([math.cos(at), math.sin(at), 0.0]), rtol=1e-14
        )
    np.testing.assert_allclose(
        manifold.project([0.0, 3.0, -4.0]), [0.0, 0.6 * radius, -0.8 * radius]
    )
    np.testing.assert_allclose(manifold.project_tangent(x, [1.0, 2.0, 3.0]), [0, 2, 3])


def test_the_choice_where_several_points_are_nearest() -> None:
    np.testing.assert_array_equal(
        Sphere((2, 2), 3.0).project(np.zeros((2, 2))), [[3.0, 0.0], [0.0, 0.0]]
    )
    np.testing.assert_array_equal(
        Oblique((3, 2)).project([[0.0, 0.0], [0.0, -2.0], [0.0, 0.0]]),
        [[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]],
    )
    np.testing.assert_array_equal(
        Stiefel((3, 1)).project(np.zeros((3, 1))), [[1.0], [0.0], [0.0]]
    )
    # a tie of singular values: one of them, always the same
    tie = FixedRank((3, 3), 1).project(np.eye(3))
    np.testing.assert_array_equal(tie, FixedRank((3, 3), 1).project(np.eye(3)))
    assert np.linalg.norm(np.eye(3) - tie) == pytest.approx(math.sqrt(2.0))
    # a matrix of smaller rank stays what it is
    low = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 0.0])
    for rank in (1, 2, 3):
        np.testing.assert_allclose(
            FixedRank((3, 3), rank).project(low), low, atol=1e-14
        )
    assert FixedRank((9, 9), 2).contains(np.zeros((9, 9)))


@pytest.mark.parametrize("size", [1e-160, 1e-320, 1e155, 4e307])
def test_lengths_whose_squares_are_no_floats(size: float) -> None:
    x = size * np.array([3.0, -4.0])
    unit = [0.6, -0.8]
    units = [unit, [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    accuracy = 1e-14 if size > 1e-300 else 1e-3
    np.testing.assert_allclose(Sphere((2,)).project(x), unit, rtol=accuracy)
    mixed = np.stack([x, [1.0, 0.0], [0.0, 0.0], [5e-324, 0.0]])
    np.testing.assert_allclose(Sphere((2,)).project(mixed), units, rtol=accuracy)
    columns = Oblique((2, 4)).project(mixed.T)
    np.testing.assert_allclose(columns.T, units, rtol=accuracy)


@all_cases
def test_a_thousand_steps_stay_on_the_manifold(manifold: Manifold) -> None:
    rng = np.random.default_rng(7)
    x = manifold.random_point(rng)
    y = x
    geodesics = manifold in SMOOTH
    for _ in range(1000):
        x = manifold.retract(x, 0.1 * manifold.random_tangent(x, rng, 1)[0])
        if geodesics:
            y = manifold.exponential(y, 0.1 * manifold.random_tangent(y, rng, 1)[0])
    assert violation(manifold, x) <= 1e-13
    assert violation(manifold, y) <= 1e-13


@all_cases
def test_random_tangents_are_standard_normal_there(manifold: Manifold) -> None:
    rng = np.random.default_rng(8)
    x = manifold.random_point(rng)
    count = 20_000
    v = manifold.random_tangent(x, rng, count)
    np.testing.assert_allclose(manifold.project_tangent(x, v), v, atol=1e-12)
    flat = v.reshape(count, -1)
    # the covariance of a standard normal vector in a subspace is its projection
    size = flat.shape[1]
    basis = np.eye(size).reshape(size, *manifold.shape)
    projection = manifold.project_tangent(x, basis).reshape(size, size)
    covariance = flat.T @ flat / count
    assert np.abs(covariance - projection).max() <= 6.0 * math.sqrt(2.0 / count)
    assert np.abs(flat.mean(axis=0)).max() <= 6.0 / math.sqrt(count)
    again = manifold.random_tangent(x, np.random.default_rng(8), 1)
    other = manifold.random_tangent(x, np.random.default_rng(8), 1)
    np.testing.assert_array_equal(again, other)
