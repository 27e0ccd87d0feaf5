"""Sets that are others for some values, and the spectrahedron's eigenvectors."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.domains import (
    CappedSimplex,
    Domain,
    GroupL1Ball,
    L1Ball,
    Permutahedron,
    Simplex,
    SortedL1Ball,
    SparseGroupBall,
    Spectrahedron,
    TotalVariationBall,
    WeightedL1Ball,
)

Array = NDArray[np.float64]
SIZE = 40
HALVES = np.repeat([1.0, 0.0], SIZE // 2)

PAIRS: list[tuple[Domain, Domain]] = [
    (WeightedL1Ball(0.0, 2.0), L1Ball(2.0)),
    (WeightedL1Ball(np.full(SIZE, 4.0), 2.0), L1Ball(0.5)),
    (SortedL1Ball(1.0, 2.0), L1Ball(2.0)),
    (SparseGroupBall(2.0, 4, 0.0), GroupL1Ball(2.0, 4)),
    (SparseGroupBall(2.0, 1, 0.7), L1Ball(2.0)),  # a group an entry
    (CappedSimplex(5.0, 2.0), Simplex(2.0)),
    (CappedSimplex(1.0, SIZE / 2), Permutahedron(HALVES)),
    (Permutahedron(2.0 * np.eye(SIZE)[0]), Simplex(2.0)),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda d: str(d)[:25])
def test_two_names_of_one_set(one: Domain, other: Domain) -> None:
    rng = np.random.default_rng(0)
    for x in (*rng.standard_normal((10, SIZE)), *10 * rng.standard_normal((10, SIZE))):
        assert one.lmo(x).dot(x) == pytest.approx(other.lmo(x).dot(x), rel=1e-12)
        np.testing.assert_allclose(one.project(x), other.project(x), atol=1e-12)
        for point in (x, other.project(x), 1.001 * other.project(x)):
            assert one.contains(point) == other.contains(point)
    shape = (SIZE,)
    assert one.diameter(shape) == pytest.approx(other.diameter(shape))
    for norm in ("l1", "l2", "linf"):
        expected = other.largest_norm(norm, shape)
        assert one.largest_norm(norm, shape) == pytest.approx(expected)


def test_total_variation_is_the_l1_norm_of_the_differences() -> None:
    rng = np.random.default_rng(1)
    domain, ball = TotalVariationBall(2.0), L1Ball(2.0)
    sums = np.tril(np.ones((SIZE, SIZE)))  # x = sums @ differences
    for g in rng.standard_normal((20, SIZE)):
        step = sums @ ball.lmo(sums.T @ g).dense()
        np.testing.assert_array_equal(domain.lmo(g).dense(), step)
        inside = sums @ ball.project(g)
        assert domain.contains(inside)
        assert domain.norm(inside) == pytest.approx(ball.radius)


def test_sparser_atoms_with_a_larger_share() -> None:
    g = np.random.default_rng(2).standard_normal((20, 60))
    counts = [
        sum(SparseGroupBall(1.0, 20, share).lmo(row).values.size for row in g)
        for share in (0.0, 0.3, 0.6, 0.9, 0.999)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 20 * 20
    assert counts[-1] == 20


def test_arrays_that_a_set_was_made_from_may_change() -> None:
    weights = np.array([3.0, 2.0])
    sets = [WeightedL1Ball(weights, 1.0), SortedL1Ball(weights, 1.0)]
    permuted = Permutahedron(weights[::-1])
    weights[:] = 1.0
    assert not any(domain.contains([0.0, 0.6]) for domain in sets)
    assert permuted == Permutahedron(np.array([3.0, 2.0]))  # the order says nothing
    assert permuted.contains([2.5, 2.5])
    assert WeightedL1Ball(np.ones(2), 1.0) != WeightedL1Ball(1.0, 1.0)


def symmetric(rng: np.random.Generator, n: int, rank: int, sign: float) -> Array:
    factor = rng.standard_normal((n, rank))
    result: Array = sign * factor @ factor.T
    return result


@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize(("rank", "sign"), [(1, -1.0), (3, 1.0), (3, -1.0), (50, 1.0)])
def test_spectrahedron_lmo_against_all_eigenvalues(
    n: int, rank: int, sign: float
) -> None:
    rng = np.random.default_rng(7)
    g = symmetric(rng, n, rank, sign)
    skew = rng.standard_normal((n, n))
    lowest = np.linalg.eigvalsh(g)[0]
    domain = Spectrahedron(2.0)
    # <A, X> = 0 for A = −Aᵀ: the symmetric part counts
    for gradient in (g, g + (skew - skew.T)):
        atom = domain.lmo(gradient)
        size = float(np.linalg.norm(g))
        assert atom.dot(gradient) == pytest.approx(
            2.0 * lowest, abs=1e-12 * size + 1e-13
        )
        assert domain.contains_atom(atom, 1e-13)
        np.testing.assert_array_equal(domain.lmo(gradient).left, atom.left)
    zero = domain.lmo(np.zeros((n, n)))
    assert domain.contains(zero.dense())


def test_the_spectrahedron_refuses_what_is_not_symmetric_or_not_psd() -> None:
    domain = Spectrahedron(1.0)
    assert domain.contains([[0.5, 0.5], [0.5, 0.5]])
    assert not domain.contains([[0.5, 0.5], [0.4, 0.5]])
    assert not domain.contains([[0.5, 0.6], [0.6, 0.5]])  # eigenvalue −0.1
    assert not domain.contains([[0.5, 0.0], [0.0, 0.4]])
    # the nearest point to a matrix is that to its symmetric part
    x = np.random.default_rng(0).standard_normal((5, 5))
    np.testing.assert_allclose(domain.project(x), domain.project(0.5 * (x + x.T)))
