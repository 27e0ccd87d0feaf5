"""Tangent spaces, retractions and geodesics against pymanopt's."""

from typing import Any

import numpy as np
import pytest
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

theirs: Any = pytest.importorskip("pymanopt.manifolds")

PAIRS: list[tuple[Manifold, Any]] = [
    (Sphere((6,)), theirs.Sphere(6)),
    (Sphere((4, 3)), theirs.Sphere(4, 3)),
    (Oblique((5, 3)), theirs.Oblique(5, 3)),
    (Stiefel((6, 3)), theirs.Stiefel(6, 3, retraction="polar")),
    (Stiefel((64, 4)), theirs.Stiefel(64, 4, retraction="polar")),
    (Stiefel((4, 3)), theirs.Stiefel(4, 3, retraction="polar")),
    (Stiefel((3, 3)), theirs.Stiefel(3, 3, retraction="polar")),
    (Stiefel((5, 1)), theirs.Stiefel(5, 1, retraction="polar")),
    (Grassmann((6, 3)), theirs.Grassmann(6, 3)),
    (Grassmann((64, 4)), theirs.Grassmann(64, 4)),
    (Grassmann((4, 3)), theirs.Grassmann(4, 3)),
    (Grassmann((5, 1)), theirs.Grassmann(5, 1)),
    (Euclidean((3, 2)), theirs.Euclidean(3, 2)),
]
pairs = pytest.mark.parametrize(
    ("ours", "other"), PAIRS, ids=[f"{m.name}-{i}" for i, (m, _) in enumerate(PAIRS)]
)
SIZES = (1e-9, 1e-4, 0.1, 1.0, 3.0)


@pairs
def test_tangent_space(ours: Manifold, other: Any) -> None:
    rng = np.random.default_rng(0)
    assert ours.dimension == other.dim
    for _ in range(5):
        x = ours.random_point(rng)
        v = rng.standard_normal(ours.shape)
        expected = other.projection(x, v)
        np.testing.assert_allclose(ours.project_tangent(x, v), expected, atol=1e-13)


@pairs
def test_retraction(ours: Manifold, other: Any) -> None:
    rng = np.random.default_rng(1)
    x = ours.random_point(rng)
    for v in ours.random_tangent(x, rng, 5):
        for size in SIZES:
            np.testing.assert_allclose(
                ours.retract(x, size * v), other.retraction(x, size * v), atol=1e-13
            )


@pairs
def test_exponential(ours: Manifold, other: Any) -> None:
    rng = np.random.default_rng(2)
    x = ours.random_point(rng)
    tangents = ours.random_tangent(x, rng, 5)
    for size in SIZES:
        batch = ours.exponential(x, size * tangents)
        for v, y in zip(tangents, batch, strict=True):
            expected = other.exp(x, size * v)
            if isinstance(ours, Grassmann):  # theirs is another basis of the subspace
                np.testing.assert_allclose(y @ y.T, expected @ expected.T, atol=1e-12)
            else:
                np.testing.assert_allclose(y, expected, atol=1e-11)


@pytest.mark.parametrize("ours", [Grassmann((6, 2)), Grassmann((7, 3))])
def test_grassmann_exponential_against_the_logarithm(ours: Grassmann) -> None:
    rng = np.random.default_rng(3)
    other = theirs.Grassmann(*ours.shape)
    x = ours.random_point(rng)
    for v in 0.2 * ours.random_tangent(x, rng, 10):
        y = ours.exponential(x, v)
        np.testing.assert_allclose(other.log(x, y), v, atol=1e-12)
        assert other.dist(x, y) == pytest.approx(np.linalg.norm(v), abs=1e-7)


@pytest.mark.parametrize(
    ("shape", "rank"), [((6, 5), 2), ((5, 8), 1), ((20, 30), 3), ((4, 4), 4)]
)
def test_fixed_rank(shape: tuple[int, int], rank: int) -> None:
    rng = np.random.default_rng(4)
    ours, other = FixedRank(shape, rank), theirs.FixedRankEmbedded(*shape, rank)
    assert ours.dimension == other.dim
    for _ in range(5):
        x = ours.random_point(rng)
        factors = ours.factors(x)
        v = rng.standard_normal(shape)
        tangent = other.projection(factors, v)
        left, middle, right = other.embedding(factors, tangent)
        expected = left @ middle @ right.T
        mine = ours.project_tangent(x, v)
        np.testing.assert_allclose(mine, expected, atol=1e-12)
        u, s, vt = other.retraction(factors, tangent)
        np.testing.assert_allclose(ours.retract(x, mine), (u * s) @ vt, atol=1e-11)


def test_product() -> None:
    rng = np.random.default_rng(5)
    parts = [Stiefel((5, 2)), Sphere((4,)), Oblique((3, 2))]
    ours = Product(parts)
    other = theirs.Product(
        [
            theirs.Stiefel(5, 2, retraction="polar"),
            theirs.Sphere(4),
            theirs.Oblique(3, 2),
        ]
    )
    assert ours.dimension == other.dim

    def split(flat: Array) -> list[Array]:
        return [
            piece.reshape(part.shape)
            for part, piece in zip(parts, np.split(flat, [10, 14]), strict=True)
        ]

    x = ours.random_point(rng)
    v = ours.random_tangent(x, rng, 1)[0]
    for mine, reference in (
        (ours.retract(x, v), other.retraction(split(x), split(v))),
        (ours.exponential(x, v), other.exp(split(x), split(v))),
    ):
        for a, b in zip(split(mine), reference, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
