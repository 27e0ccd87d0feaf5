"""Parameters, shapes, batches, equality, the registry: the manifolds' public edge."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis import manifolds
from fedtrellis.manifolds import (
    MANIFOLDS,
    Euclidean,
    FixedRank,
    Grassmann,
    Manifold,
    Oblique,
    Product,
    Sphere,
    Stiefel,
    make_manifold,
)
from fedtrellis.wire.arrays import Layout

Array = NDArray[np.float64]

PARTS = (Stiefel((5, 2)), Sphere((2, 2), 3.0), Oblique((3, 2)), Euclidean((4,)))
EXAMPLES: list[tuple[Manifold, int]] = [
    (Sphere((6,)), 5),
    (Sphere((2, 3, 4), 0.5), 23),
    (Oblique((4, 3)), 9),
    (Stiefel((6, 3)), 12),
    (Stiefel((3, 3)), 3),
    (Stiefel((5, 1)), 4),
    (Grassmann((6, 2)), 8),
    (Grassmann((5, 1)), 4),
    (FixedRank((5, 4), 2), 14),
    (FixedRank((12, 9), 2), 38),
    (FixedRank((3, 4), 3), 12),
    (Euclidean((2, 3)), 6),
    (Product(PARTS), 7 + 3 + 4 + 4),
    (Product([FixedRank((8, 8), 1), Product([Sphere((3,))])]), 15 + 2),
]
examples = pytest.mark.parametrize(
    ("manifold", "dimension"),
    EXAMPLES,
    ids=[f"{manifold.name}-{i}" for i, (manifold, _) in enumerate(EXAMPLES)],
)


def exponential_is_closed(manifold: Manifold) -> bool:
    if isinstance(manifold, Product):
        return all(exponential_is_closed(part) for part in manifold.parts)
    return not isinstance(manifold, FixedRank)


@examples
def test_dimension_is_the_rank_of_the_tangent_projection(
    manifold: Manifold, dimension: int
) -> None:
    x = manifold.random_point(np.random.default_rng(0))
    size = math.prod(manifold.shape)
    basis = np.eye(size).reshape(size, *manifold.shape)
    matrix = manifold.project_tangent(x, basis).reshape(size, size)
    assert manifold.dimension == dimension
    assert np.linalg.matrix_rank(matrix, tol=1e-8) == dimension
    assert np.trace(matrix) == pytest.approx(dimension)


@examples
def test_shapes_and_batches(manifold: Manifold, dimension: int) -> None:
    rng = np.random.default_rng(1)
    shape = manifold.shape
    x = manifold.random_point(rng)
    points = np.stack([manifold.random_point(rng) for _ in range(4)])
    v = manifold.random_tangent(x, rng, 1)[0]
    vectors = manifold.random_tangent(x, rng, 4)
    assert x.shape == shape
    assert vectors.shape == (4, *shape)
    manifold.check_shape(shape)

    def same(batch: Array, loop: list[Array]) -> None:
        assert batch.shape == (4, *shape)
        assert batch.dtype == np.float64
        assert batch.flags.writeable
        np.testing.assert_allclose(batch, np.stack(loop), rtol=0.0, atol=2e-14)

    # off the manifold, near and far
    for size in (1e-4, 1.0):
        off = points + size * rng.standard_normal(points.shape)
        same(manifold.project(off), [manifold.project(a) for a in off])
        distances = manifold.distance_to(off)
        assert distances.shape == (4,)
        np.testing.assert_allclose(
            distances, [manifold.distance_to(a) for a in off], atol=1e-14
        )
        assert manifold.distance_to(off[0]).shape == ()
    tangents = manifold.project_tangent(points, vectors)
    maps = [manifold.project_tangent, manifold.retract]
    if exponential_is_closed(manifold):
        maps.append(manifold.exponential)
    for function in maps:
        assert function(x, v).shape == shape
        same(function(x, vectors), [function(x, b) for b in vectors])
        same(
            function(points, tangents),
            [function(a, b) for a, b in zip(points, tangents, strict=True)],
        )
        # one vector for many points is no tangent at them; the shapes must work
        if function != manifold.exponential:
            same(function(points, v), [function(a, v) for a in points])
        # a batch of one is a batch
        assert function(x[None], v).shape == (1, *shape)


@examples
def test_arguments_are_left_alone(manifold: Manifold, dimension: int) -> None:
    rng = np.random.default_rng(2)
    x, v = manifold.random_point(rng), rng.standard_normal(manifold.shape)
    tangent = manifold.project_tangent(x, v)
    arrays = (x, v, tangent)
    for array in arrays:
        array.flags.writeable = False
    results = [
        manifold.project(x),
        manifold.project(v),
        manifold.project_tangent(x, v),
        manifold.retract(x, tangent),
    ]
    if exponential_is_closed(manifold):
        results.append(manifold.exponential(x, tangent))
    for result in results:
        assert not any(np.shares_memory(result, array) for array in arrays)
        result += 1.0
    # Fortran order, float32 and lists are read for what they are
    expected = manifold.project(v)
    np.testing.assert_allclose(
        manifold.project(np.asfortranarray(v)), expected, atol=1e-14
    )
    np.testing.assert_allclose(manifold.project(v.tolist()), expected, atol=1e-14)
    np.testing.assert_allclose(
        manifold.project(v.astype(np.float32)), expected, atol=1e-5
    )


@examples
def test_contains(manifold: Manifold, dimension: int) -> None:
    rng = np.random.default_rng(3)
    x = manifold.random_point(rng)
    assert manifold.contains(x, 1e-13)
    assert manifold.contains(np.stack([x, manifold.project(-x)]), 1e-13)
    assert manifold.distance_to(x) <= 1e-14 * max(1.0, float(np.linalg.norm(x)))
    full = dimension == math.prod(manifold.shape)
    v = rng.standard_normal(manifold.shape)
    normal = v - manifold.project_tangent(x, v)
    for distance in (1e-6, 1e-3, 1.0):
        if not full:
            outside = x + distance * normal
            assert not manifold.contains(outside)
            assert not manifold.contains(np.stack([x, outside]))
            assert manifold.contains(outside, 1e3 * distance)
            assert manifold.distance_to(outside) > 0.0
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken.flat[-1] = bad
        assert manifold.contains(broken) is False


def test_distance_by_hand() -> None:
    assert Sphere((2,), 2.0).distance_to([3.0, 4.0]) == pytest.approx(3.0)
    np.testing.assert_allclose(
        Sphere((2,), 2.0).distance_to([[3.0, 4.0], [0.0, 0.0]]), [3.0, 2.0]
    )
    assert Oblique((2, 2)).distance_to([[3.0, 1.0], [4.0, 0.0]]) == pytest.approx(4.0)
    # σ = 3, 2: √((3 − 1)² + (2 − 1)²)
    stiefel = Stiefel((3, 2)).distance_to(np.diag([3.0, 2.0, 0.0])[:, :2])
    assert stiefel == pytest.approx(math.sqrt(5.0))
    assert FixedRank((3, 3), 1).distance_to(np.diag([3.0, 2.0, 1.0])) == pytest.approx(
        math.sqrt(5.0)
    )
    assert Euclidean((3,)).distance_to([1.0, 2.0, 3.0]) == 0.0
    assert Sphere((1,)).distance_to([1e200]) == pytest.approx(1e200)


@examples
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(
    manifold: Manifold, dimension: int, bad: float
) -> None:
    x = manifold.random_point(np.random.default_rng(4))
    broken = x.copy()
    broken.flat[0] = bad
    calls: list[Callable[[], Any]] = [
        lambda: manifold.project(broken),
        lambda: manifold.project(np.stack([x, broken])),
        lambda: manifold.distance_to(broken),
        lambda: manifold.project_tangent(broken, x),
        lambda: manifold.project_tangent(x, broken),
        lambda: manifold.retract(x, broken),
        lambda: manifold.exponential(x, broken),
        lambda: manifold.random_tangent(broken, np.random.default_rng(0), 1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"{manifold.name}: the .* finite") as e:
            call()
        assert "\n" not in str(e.value)


@examples
def test_shapes_that_do_not_fit(manifold: Manifold, dimension: int) -> None:
    rng = np.random.default_rng(5)
    x = manifold.random_point(rng)
    for shape in ((*manifold.shape, 2), (2, 3, *manifold.shape), (0, *manifold.shape)):
        array = np.zeros(shape)
        calls: list[tuple[Callable[..., Any], tuple[Array, ...]]] = [
            (manifold.project, (array,)),
            (manifold.contains, (array,)),
            (manifold.distance_to, (array,)),
            (manifold.project_tangent, (array, x)),
            (manifold.project_tangent, (x, array)),
            (manifold.retract, (x, array)),
            (manifold.exponential, (x, array)),
        ]
        for call, arguments in calls:
            with pytest.raises(ValueError, match="expected") as caught:
                call(*arguments)
            message = str(caught.value)
            assert "\n" not in message
            assert message.startswith(manifold.name)
            assert str(shape) in message
        with pytest.raises(ValueError, match="has no points of shape"):
            manifold.check_shape(shape)
    two, three = np.stack([x] * 2), np.stack([x] * 3)
    for function in (manifold.project_tangent, manifold.retract, manifold.exponential):
        with pytest.raises(ValueError, match="2 points and 3 vectors do not pair up"):
            function(two, three)
    with pytest.raises(ValueError, match="has no points of shape"):
        manifold.random_tangent(two, rng, 3)
    for count in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="count must be an integer of at least 1"):
            manifold.random_tangent(x, rng, count)  # type: ignore[arg-type]


def test_fixed_rank_has_no_exponential() -> None:
    manifold = FixedRank((4, 3), 2)
    x = manifold.random_point(np.random.default_rng(6))
    with pytest.raises(NotImplementedError, match="fixed-rank has no closed form"):
        manifold.exponential(x, np.zeros((4, 3)))
    with pytest.raises(NotImplementedError, match="fixed-rank"):
        Product([Euclidean((1,)), manifold]).exponential(np.ones(13), np.zeros(13))


@pytest.mark.parametrize("manifold", [Stiefel((4, 2)), Grassmann((4, 2))])
def test_tangents_too_long_for_the_exponential(manifold: Manifold) -> None:
    x = manifold.random_point(np.random.default_rng(7))
    with pytest.raises(ValueError, match="up to 1e\\+06, got 1e\\+07"):
        manifold.exponential(x, np.full((4, 2), 1e7))


def test_fixed_rank_factors() -> None:
    rng = np.random.default_rng(8)
    manifold = FixedRank((6, 5), 2)
    x = np.stack([manifold.random_point(rng) for _ in range(3)])
    u, s, vt = manifold.factors(x)
    assert (u.shape, s.shape, vt.shape) == ((3, 6, 2), (3, 2), (3, 2, 5))
    np.testing.assert_allclose(manifold.from_factors(u, s, vt), x, atol=1e-14)
    one = manifold.factors(x[0])
    assert [a.shape for a in one] == [(6, 2), (2,), (2, 5)]
    np.testing.assert_allclose(manifold.from_factors(*one), x[0], atol=1e-14)
    np.testing.assert_allclose(one[0].T @ one[0], np.eye(2), atol=1e-14)
    assert one[1][0] >= one[1][1] > 0.0
    with pytest.raises(ValueError, match=r"expected \(6, 2\), \(2,\) and \(2, 5\)"):
        manifold.from_factors(u, s[0], vt)
    with pytest.raises(ValueError, match="finite"):
        manifold.factors(np.full((6, 5), np.nan))


def test_product_against_its_parts_as_a_layout_joins_them() -> None:
    rng = np.random.default_rng(9)
    product = Product(PARTS)
    layout = Layout(tuple(part.shape for part in PARTS))
    assert product.shape == layout.point_shape
    points = [part.random_point(rng) for part in PARTS]
    vectors = [rng.standard_normal(part.shape) for part in PARTS]
    x, v = layout.point(points), layout.point(vectors)

    def joined(method: str, *arguments: list[Array]) -> Array:
        each = zip(PARTS, *arguments, strict=True)
        return layout.point([getattr(part, method)(*rest) for part, *rest in each])

    for method, arguments, flat in (
        ("project", [vectors], [v]),
        ("project_tangent", [points, vectors], [x, v]),
        ("retract", [points, vectors], [x, v]),
    ):
        result = getattr(product, method)(*flat)
        np.testing.assert_array_equal(result, joined(method, *arguments))
    tangents = [
        p.project_tangent(a, b) for p, a, b in zip(PARTS, points, vectors, strict=True)
    ]
    np.testing.assert_array_equal(
        product.exponential(x, layout.point(tangents)),
        joined("exponential", points, tangents),
    )
    distances = [p.distance_to(b) for p, b in zip(PARTS, vectors, strict=True)]
    assert product.distance_to(v) == pytest.approx(np.linalg.norm(distances))
    assert product.contains(x)
    # each part is held to its own size: a huge one does not hide a small one's fault
    wrong = [points[0], points[1] * 1.001, points[2], 1e12 * points[3]]
    assert not product.contains(layout.point(wrong))


@examples
def test_repr_equality_hash_and_pickle(manifold: Manifold, dimension: int) -> None:
    copy = eval(repr(manifold), {**vars(manifolds)})
    assert copy == manifold
    assert copy.shape == manifold.shape
    assert hash(copy) == hash(manifold)
    assert pickle.loads(pickle.dumps(manifold)) == manifold
    assert [manifold == other for other, _ in EXAMPLES].count(True) == 1
    with pytest.raises(AttributeError):
        manifold.shape = (1,)


BAD_PARAMETERS: list[tuple[Callable[[], Manifold], str]] = [
    *(
        (lambda r=r: Sphere((3,), r), rf"sphere: radius must be .* got {r!r}")
        for r in (0.0, -1.0, np.nan, np.inf, "ten", None, True)
    ),
    *(
        (lambda s=s: Sphere(s), "sphere: shape must be positive integers, got")
        for s in ((), (0,), (3, -1), (2.0,), 5, "34", None, (True,))
    ),
    *(
        (lambda c=c: c((3,)), rf"{c.name}: shape must be two positive.* got \(3,\)")
        for c in (Oblique, Stiefel, Grassmann)
    ),
    (lambda: Oblique((3, 0)), r"two positive integers, got \(3, 0\)"),
    (lambda: Euclidean((0,)), r"positive integers, got \(0,\)"),
    (lambda: Stiefel((2, 3)), r"as many rows as columns, got \(2, 3\)"),
    (lambda: Grassmann((2, 3)), r"as many rows as columns, got \(2, 3\)"),
    (lambda: FixedRank((2, 3, 4), 1), "two positive integers"),
    (lambda: FixedRank((4, 3), 4), r"rank must be at most 3 for shape \(4, 3\), got 4"),
    (lambda: FixedRank((4, 3), 0), "rank must be an integer of at least 1, got 0"),
    (lambda: FixedRank((4, 3), 1.5), "rank must be an int"),  # type: ignore[arg-type]
    (lambda: Product([]), r"parts must be one manifold or more, got \[\]"),
    (lambda: Product(["sphere"]), "one manifold or more"),  # type: ignore[list-item]
    (lambda: Product(Sphere((2,))), "one manifold or more"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "says"), BAD_PARAMETERS)
def test_parameters_out_of_range(make: Callable[[], Manifold], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_registry() -> None:
    assert set(MANIFOLDS) == {
        "sphere",
        "oblique",
        "stiefel",
        "grassmann",
        "fixed-rank",
        "euclidean",
        "product",
    }
    assert all(cls.__name__ in manifolds.__all__ for cls in MANIFOLDS.values())
    assert make_manifold("sphere", (3, 2)) == Sphere((3, 2), 1.0)
    assert make_manifold("sphere", [3], radius=2) == Sphere((3,), 2.0)  # type: ignore[arg-type]
    assert make_manifold("oblique", (3, 2)) == Oblique((3, 2))
    assert make_manifold("stiefel", (3, 2)) == Stiefel((3, 2))
    assert make_manifold("grassmann", (3, 2)) == Grassmann((3, 2))
    assert make_manifold("fixed-rank", (3, 2), rank=1) == FixedRank((3, 2), 1)
    assert make_manifold("euclidean", (3,)) == Euclidean((3,))
    assert make_manifold("product", (24,), parts=PARTS) == Product(PARTS)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "says"),
    [
        ("torus", (3,), {}, "unknown manifold 'torus'; allowed: sphere, oblique"),
        ("sphere", (3,), {"rank": 2}, "sphere takes radius besides the shape; got r"),
        ("sphere", (3,), {"radius": -1}, "radius must be"),
        ("stiefel", (3, 2), {"radius": 1}, "no parameters besides the shape; got rad"),
        ("stiefel", (3,), {}, "two positive integers"),
        ("fixed-rank", (3, 2), {}, "takes rank besides the shape; got none"),
        ("fixed-rank", (3, 2), {"rank": 3}, "at most 2"),
        ("product", (3,), {}, "takes parts besides the shape; got none"),
        ("product", (3,), {"parts": PARTS}, r"no points of shape \(3,\)"),
    ],
)
def test_make_manifold_says_what_is_allowed(
    name: str, shape: tuple[int, ...], parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make_manifold(name, shape, **parameters)
    assert "\n" not in str(caught.value)
