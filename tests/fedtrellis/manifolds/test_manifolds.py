"""The contract of every manifold: one line of a table each, and what only one has."""

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis import manifolds
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
from fedtrellis.wire.arrays import Layout
from tests.fedtrellis.domains.cases import draw_point

Array = NDArray[np.float64]

PARTS = (Stiefel((5, 2)), Sphere((2, 2), 3.0), Oblique((3, 2)), Euclidean((4,)))
#: Each with its dimension.
EXAMPLES: list[tuple[Manifold, int]] = [
    (Sphere((6,)), 5),
    (Sphere((4, 3)), 11),
    (Sphere((2, 3, 4), 0.5), 23),
    (Oblique((4, 3)), 9),
    (Oblique((1, 3)), 0),
    (Stiefel((6, 3)), 12),
    (Stiefel((4, 3)), 6),
    (Stiefel((3, 3)), 3),
    (Grassmann((7, 3)), 12),
    (FixedRank((4, 6), 1), 9),
    (FixedRank((16, 12), 2), 52),
    (FixedRank((3, 4), 3), 12),
    (Euclidean((2, 3)), 6),
    (Product(PARTS), 7 + 3 + 4 + 4),
    (Product([FixedRank((8, 8), 1), Product([Sphere((3,))])]), 15 + 2),
]
CASES = [manifold for manifold, _ in EXAMPLES]
DIMENSIONS = {id(manifold): dimension for manifold, dimension in EXAMPLES}
few = settings(max_examples=25, deadline=None)


def label(manifold: Manifold) -> str:
    return f"{manifold.name}-{'x'.join(map(str, manifold.shape))}"


every = pytest.mark.parametrize("manifold", CASES, ids=label)


def random_tangents(
    manifold: Manifold, x: Array, rng: np.random.Generator, count: int
) -> Array:
    normal = rng.standard_normal((count, *manifold.shape))
    return manifold.project_tangent(x, normal)


def violation(manifold: Manifold, x: Array) -> float:
    """How far the definition's equations are from holding, relative to their size."""
    match manifold:
        case Sphere():
            return abs(float(np.linalg.norm(x)) / manifold.radius - 1.0)
        case Oblique():
            return float(np.abs(np.linalg.norm(x, axis=0) - 1.0).max())
        case Stiefel():
            return float(np.abs(x.T @ x - np.eye(x.shape[1])).max())
        case FixedRank():
            sigma = np.linalg.svd(x, compute_uv=False)
            return float(max(sigma[manifold.rank :], default=0.0) / max(sigma[0], 1e-9))
        case Product():
            pieces = Layout(tuple(part.shape for part in manifold.parts)).layers(x)
            return max(map(violation, manifold.parts, pieces))
        case Euclidean():
            return 0.0
    raise NotImplementedError(manifold)


@every
@few
@given(data=st.data())
def test_the_projection_is_on_the_manifold_and_no_point_is_nearer(
    manifold: Manifold, data: st.DataObject
) -> None:
    x = draw_point(data, manifold.shape)
    y = manifold.project(x)
    size = max(1.0, float(np.abs(y).max()))
    assert violation(manifold, y) <= 1e-13
    np.testing.assert_allclose(manifold.project(y), y, atol=1e-12 * size)
    assert manifold.contains(y, 1e-12)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    others = [manifold.random_point(rng) for _ in range(20)]
    steps = random_tangents(manifold, y, rng, 20)
    for size in (1e-3, 0.1, 1.0):  # and points near the projection, all around it
        others += list(manifold.retract(y, size * steps))
        others += list(manifold.project(x + size * rng.standard_normal(steps.shape)))
    distance = float(np.linalg.norm(x - y))
    nearest = min(float(np.linalg.norm(x - other)) for other in others)
    assert distance <= nearest + 1e-11 * max(1.0, distance)


@pytest.mark.parametrize(("manifold", "dimension"), EXAMPLES, ids=map(label, CASES))
def test_the_tangent_projection(manifold: Manifold, dimension: int) -> None:
    """It is linear, symmetric, of rank dim, and the projection's derivative."""
    rng = np.random.default_rng(1)
    size = math.prod(manifold.shape)
    basis = np.eye(size).reshape(size, *manifold.shape)
    x = manifold.random_point(rng)
    matrix = manifold.project_tangent(x, basis).reshape(size, size)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    np.testing.assert_allclose(matrix @ matrix, matrix, atol=1e-13)
    assert np.linalg.matrix_rank(matrix, tol=1e-8) == dimension
    assert np.trace(matrix) == pytest.approx(dimension)
    for _ in range(10):
        v = rng.standard_normal(manifold.shape)
        pv = manifold.project_tangent(x, v)
        np.testing.assert_allclose(pv.reshape(-1), v.reshape(-1) @ matrix, atol=1e-12)
        if isinstance(manifold, Grassmann):
            v = pv  # the projection moves bases too, not only subspaces
            np.testing.assert_allclose(x.T @ v, 0.0, atol=1e-12)
        there, back = manifold.project(np.stack([x + 1e-5 * v, x - 1e-5 * v]))
        np.testing.assert_allclose((there - back) / 2e-5, pv, atol=1e-6)


@every
def test_shapes_and_batches(manifold: Manifold) -> None:
    rng, shape = np.random.default_rng(1), manifold.shape
    x = manifold.random_point(rng)
    points = np.stack([manifold.random_point(rng) for _ in range(4)])
    v = random_tangents(manifold, x, rng, 1)[0]
    vectors = random_tangents(manifold, x, rng, 4)
    manifold.check_shape(shape)

    def same(batch: Array, loop: list[Array]) -> None:
        assert batch.shape == (4, *shape)
        assert batch.dtype == np.float64
        assert batch.flags.writeable
        np.testing.assert_allclose(batch, np.stack(loop), rtol=0.0, atol=2e-14)

    for size in (1e-4, 1.0):  # off the manifold, near and far
        off = points + size * rng.standard_normal(points.shape)
        same(manifold.project(off), [manifold.project(a) for a in off])
    drawn = np.random.default_rng(2).standard_normal((4, *shape))
    tangents = random_tangents(manifold, x, np.random.default_rng(2), 4)
    np.testing.assert_array_equal(tangents, manifold.project_tangent(x, drawn))
    tangents = manifold.project_tangent(points, vectors)
    moved = manifold.project(points + tangents)
    np.testing.assert_array_equal(manifold.retract(points, tangents), moved)
    for function in (manifold.project_tangent, manifold.retract):
        assert function(x, v).shape == shape
        same(function(x, vectors), [function(x, b) for b in vectors])
        each = zip(points, tangents, strict=True)
        same(function(points, tangents), [function(a, b) for a, b in each])
        # one vector for many points is no tangent at them; the shapes must work
        same(function(points, v), [function(a, v) for a in points])
        assert function(x[None], v).shape == (1, *shape)


@every
def test_contains(manifold: Manifold) -> None:
    rng = np.random.default_rng(3)
    x = manifold.random_point(rng)
    assert manifold.contains(np.stack([x, manifold.project(-x)]), 1e-13)
    v = rng.standard_normal(manifold.shape)
    normal = v - manifold.project_tangent(x, v)
    for distance in (1e-6, 1e-3, 1.0):
        if DIMENSIONS[id(manifold)] != math.prod(manifold.shape):
            outside = x + distance * normal
            assert not manifold.contains(outside)
            assert not manifold.contains(np.stack([x, outside]))
            assert manifold.contains(outside, 1e3 * distance)


@every
def test_arrays_that_do_not_fit(manifold: Manifold) -> None:
    rng = np.random.default_rng(5)
    x, shape = manifold.random_point(rng), manifold.shape
    wrong = [np.zeros(s) for s in ((*shape, 2), (2, 3, *shape), (0, *shape))]
    broken = [
        np.where(np.arange(x.size) == 0, bad, x.ravel()) for bad in (np.nan, -np.inf)
    ]
    for array in (*wrong, *(one.reshape(shape) for one in broken)):
        fits = array.shape == shape
        says = ".* finite" if fits else f".*{re.escape(str(array.shape))}"
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (manifold.project, (array,)),
            (manifold.project_tangent, (array, x)),
            (manifold.project_tangent, (x, array)),
            (manifold.retract, (x, array)),
        ]
        if fits:
            assert manifold.contains(array) is False
        else:
            calls.append((manifold.contains, (array,)))
            calls.append((manifold.check_shape, (array.shape,)))
        for call, arguments in calls:
            with pytest.raises(ValueError, match=f"^{manifold.name}{says}") as caught:
                call(*arguments)
            assert "\n" not in str(caught.value)
    two, three = np.stack([x] * 2), np.stack([x] * 3)
    with pytest.raises(ValueError, match="2 points and 3 vectors do not pair up"):
        manifold.retract(two, three)


@every
def test_repr_equality_hash_and_pickle(manifold: Manifold) -> None:
    assert eval(repr(manifold), {**vars(manifolds)}) == manifold
    copy = pickle.loads(pickle.dumps(manifold))
    assert (copy, copy.shape, hash(copy)) == (manifold, manifold.shape, hash(manifold))
    assert [manifold == other for other in CASES].count(True) == 1


# -- what only one has


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


def test_a_product_is_its_parts_as_a_layout_joins_them() -> None:
    rng = np.random.default_rng(9)
    product = Product(PARTS)
    layout = Layout(tuple(part.shape for part in PARTS))
    assert product.shape == layout.point_shape
    points = [part.random_point(rng) for part in PARTS]
    vectors = [rng.standard_normal(part.shape) for part in PARTS]
    for method, arguments in (
        ("project", [vectors]),
        ("project_tangent", [points, vectors]),
        ("retract", [points, vectors]),
    ):
        result = getattr(product, method)(*map(layout.point, arguments))
        each = zip(PARTS, *arguments, strict=True)
        joined = [getattr(part, method)(*rest) for part, *rest in each]
        np.testing.assert_array_equal(result, layout.point(joined))
    assert product.contains(layout.point(points))
    # each part is held to its own size: a huge one does not hide a small one's fault
    wrong = [points[0], points[1] * 1.001, points[2], 1e12 * points[3]]
    assert not product.contains(layout.point(wrong))


# -- names and parameters

BAD_PARAMETERS: list[tuple[Callable[[], Manifold], str]] = [
    *(
        (lambda r=r: Sphere((3,), r), rf"sphere: radius must be .* got {r!r}")
        for r in (0.0, np.nan, np.inf, "ten", True)
    ),
    *(
        (lambda s=s: Sphere(s), "sphere: shape must be positive integers, got")
        for s in ((), (0,), (2.0,), 5, "34", None, (True,))
    ),
    *(
        (lambda c=c: c((3,)), rf"{c.name}: shape must be two positive.* got \(3,\)")
        for c in (Oblique, Stiefel)
    ),
    (lambda: Stiefel((2, 3)), r"as many rows as columns, got \(2, 3\)"),
    (lambda: FixedRank((4, 3), 4), r"rank must be at most 3 for shape \(4, 3\), got 4"),
    (lambda: FixedRank((4, 3), 0), "rank must be an integer of at least 1, got 0"),
    (lambda: Product([]), r"parts must be one manifold or more, got \[\]"),
    (lambda: Product(["sphere"]), "one manifold or more"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("make", "says"), BAD_PARAMETERS)
def test_parameters_out_of_range(make: Callable[[], Manifold], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
