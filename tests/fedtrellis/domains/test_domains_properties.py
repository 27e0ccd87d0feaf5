"""What holds for every convex set, on many sizes, scales and awkward inputs."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence

from fedtrellis.domains import (
    BirkhoffPolytope,
    CappedSimplex,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    NonNegativeL1Ball,
    NuclearNormBall,
    Permutahedron,
    Simplex,
    SortedL1Ball,
    SparseGroupBall,
    Spectrahedron,
    SpectralNormBall,
    TotalVariationBall,
    WeightedL1Ball,
)
from tests.fedtrellis.domains.cases import Shape, all_cases

Array = NDArray[np.float64]

few = settings(max_examples=40, deadline=None)


def draw_point(data: st.DataObject, shape: Shape) -> Array:
    """Floats of all sizes, or small integers, which tie."""
    smooth = st.floats(-100, 100, allow_subnormal=False)
    ties = st.integers(-3, 3).map(float)
    elements = data.draw(st.sampled_from([smooth, ties]))
    return data.draw(arrays(np.float64, shape, elements=elements))


@all_cases
@given(data=st.data())
@few
def test_lmo_is_feasible_and_minimal(
    domain: Domain, shape: Shape, data: st.DataObject
) -> None:
    gradient = draw_point(data, shape)
    atom = domain.lmo(gradient)
    assert atom.shape == shape
    assert domain.contains(atom.dense())
    feasible = domain.project(draw_point(data, shape))
    slack = 1e-9 * (1 + np.abs(gradient).max()) * (1 + np.abs(feasible).sum())
    assert atom.dot(gradient) <= np.vdot(gradient, feasible) + slack
    np.testing.assert_array_equal(domain.lmo(gradient.copy()).dense(), atom.dense())
    # so is the gap: non-negative on the set, zero at the atom
    assert domain.gap(gradient, feasible) >= -slack
    assert domain.gap(gradient, atom.dense()) == pytest.approx(0.0, abs=slack)


@all_cases
@given(data=st.data())
@few
def test_projection_is_the_nearest_point(
    domain: Domain, shape: Shape, data: st.DataObject
) -> None:
    x, y = draw_point(data, shape), draw_point(data, shape)
    p, q = domain.project(x), domain.project(y)
    assert domain.contains(p)
    scale = 1 + np.abs(x).max() + np.abs(y).max()
    # nearest: <x − p, s − p> ≤ 0 for every s in D, worst at s = lmo(p − x)
    normal = x - p
    assert domain.lmo(-normal).dot(normal) - np.vdot(normal, p) <= 1e-9 * scale**2
    np.testing.assert_allclose(domain.project(p), p, atol=1e-9)  # idempotent
    distance = np.linalg.norm(x - y)
    assert np.linalg.norm(p - q) <= distance + 1e-9 * scale  # non-expansive


@all_cases
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-3, 1e3, 1e6, 1e9])
def test_projection_at_every_scale(domain: Domain, shape: Shape, scale: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        x = scale * rng.standard_normal(shape)
        p = domain.project(x)
        assert domain.contains(p)
        normal = x - p
        excess = domain.lmo(-normal).dot(normal) - float(np.vdot(normal, p))
        reach = max(domain.diameter(shape), float(np.linalg.norm(p)))
        size = float(np.linalg.norm(normal)) * reach
        assert excess <= 1e-9 * size + 1e-15 * scale**2 * (scale > 1)


@pytest.mark.parametrize(
    ("domain", "shape"),
    [
        (L1Ball(3.0), (2000,)),
        (Simplex(3.0), (2000,)),
        (KSupportBall(40, 3.0), (2000,)),
        (GroupL1Ball(3.0, 20), (2000,)),
        (NuclearNormBall(9.0), (120, 100)),
        (NuclearNormBall(9.0), (40, 100)),
        (SpectralNormBall(1.0), (60, 40)),
        (BirkhoffPolytope(), (60, 60)),
        (NonNegativeL1Ball(3.0), (2000,)),
        (CappedSimplex(0.3, 3.0), (2000,)),
        (WeightedL1Ball(0.5, 3.0), (2000,)),
        (SortedL1Ball(0.5, 3.0), (2000,)),
        (SparseGroupBall(3.0, 20, 0.3), (2000,)),
        (TotalVariationBall(3.0), (2000,)),
        (Permutahedron(3.0), (2000,)),
        (Spectrahedron(3.0), (60, 60)),
    ],
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_projection_of_larger_points(
    domain: Domain, shape: Shape, scale: float
) -> None:
    x = scale * np.random.default_rng(4).standard_normal(shape)
    p = domain.project(x)
    assert domain.contains(p, 1e-11)
    normal = x - p
    excess = domain.lmo(-normal).dot(normal) - float(np.vdot(normal, p))
    assert excess <= 1e-10 * (1 + np.linalg.norm(normal) * domain.diameter(shape))
    np.testing.assert_allclose(domain.project(p), p, atol=1e-10)


# Overflow: the sums and squares of these are not finite.
@all_cases
@pytest.mark.filterwarnings("error")
def test_enormous_and_tiny_entries(domain: Domain, shape: Shape) -> None:
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(shape)
    for scale in (1e300, 1e-300):
        atom = domain.lmo(scale * direction)
        np.testing.assert_allclose(
            atom.dense(), domain.lmo(direction).dense(), atol=1e-12
        )
    assert domain.contains(domain.project(1e-300 * direction))
    assert domain.contains(domain.project(1e300 * direction))
    assert not domain.contains(1e300 * direction)


@pytest.mark.parametrize("shape", [(100, 100), (300, 120), (120, 300)])
@pytest.mark.parametrize("rank", [1, 3, 1000])
def test_nuclear_lmo_is_as_good_as_the_full_decomposition(
    shape: tuple[int, int], rank: int
) -> None:
    rng = np.random.default_rng(7)
    m, n = shape
    rank = min(rank, m, n)
    g = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    sigma = np.linalg.svd(g, compute_uv=False)[0]
    domain = NuclearNormBall(2.0)
    atom = domain.lmo(g)
    assert atom.dot(g) == pytest.approx(-2.0 * sigma, rel=1e-12)
    assert np.linalg.norm(atom.left) == pytest.approx(2.0, rel=1e-14)
    assert np.linalg.norm(atom.right) == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_array_equal(domain.lmo(g).left, atom.left)


def test_nuclear_lmo_with_equal_singular_values_and_at_zero() -> None:
    domain = NuclearNormBall(1.0)
    for n in (5, 150):
        assert domain.lmo(np.eye(n)).dot(np.eye(n)) == pytest.approx(-1.0)
        zero = domain.lmo(np.zeros((n, n + 1)))
        assert domain.contains(zero.dense())
        assert np.linalg.norm(zero.dense()) == pytest.approx(1.0)


def test_nuclear_lmo_where_a_constant_start_would_be_orthogonal() -> None:
    rng = np.random.default_rng(2)
    g = rng.standard_normal((130, 140))
    g -= g.mean(axis=0)
    g -= g.mean(axis=1, keepdims=True)
    sigma = np.linalg.svd(g, compute_uv=False)[0]
    assert NuclearNormBall(1.0).lmo(g).dot(g) == pytest.approx(-sigma, rel=1e-12)


@pytest.mark.parametrize("shape", [(6, 5), (110, 120)])
def test_nuclear_lmo_fixes_the_sign(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    for g in rng.standard_normal((10, *shape)):
        for gradient in (g, -g, -g[::-1]):
            left = NuclearNormBall(1.0).lmo(gradient).left
            assert left[np.abs(left).argmax()] < 0.0


@pytest.mark.parametrize("failure", ["wrong", "not converged"])
def test_nuclear_lmo_falls_back_if_lanczos_fails(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def broken(matrix: Array, **options: object) -> tuple[Array, Array, Array]:
        nonlocal calls
        calls += 1
        if failure == "not converged":
            raise ArpackNoConvergence("no", np.empty(0), np.empty((0, 0)))
        u, s, v = np.linalg.svd(matrix, full_matrices=False)  # the second triple,
        wrong = u[:, 1] + 1e-6 * u[:, 0]  # and that not quite
        return wrong[:, None], s[1:2], v[1:2]

    monkeypatch.setattr("scipy.sparse.linalg.svds", broken)
    g = np.random.default_rng(2).standard_normal((100, 110))
    sigma = np.linalg.svd(g, compute_uv=False)[0]
    assert NuclearNormBall(1.0).lmo(g).dot(g) == pytest.approx(-sigma, rel=1e-13)
    assert calls == 1


def test_birkhoff_projection_of_points_just_outside() -> None:
    rng = np.random.default_rng(0)
    domain = BirkhoffPolytope()
    for n in (2, 3, 8, 30):
        vertex = np.eye(n)[rng.permutation(n)]
        for scale in (1e-1, 1e-4, 1e-8, 1e-11):
            x = vertex + scale * rng.standard_normal((n, n))
            p = domain.project(x)
            assert domain.contains(p, 1e-12)
            normal = x - p
            excess = domain.lmo(-normal).dot(normal) - float(np.vdot(normal, p))
            assert excess <= 1e-12


@pytest.mark.filterwarnings("error")
def test_birkhoff_projection_where_entries_hardly_leave_zero() -> None:
    """Steps of a run: near the answer every Newton step takes entries to and from 0."""
    domain = BirkhoffPolytope()
    for point in np.load(Path(__file__).with_name("birkhoff_hard.npy")):
        projected = domain.project(point)
        assert domain.contains(projected, 1e-9)
        # ⟨x − P(x), s − P(x)⟩ ≤ 0 for all s in D
        assert domain.gap(projected - point, projected) <= 1e-8


def test_birkhoff_projection_of_the_largest_floats() -> None:
    rng = np.random.default_rng(0)
    domain = BirkhoffPolytope()
    largest = np.finfo(np.float64).max
    for _ in range(5):
        signs = np.where(rng.random((6, 6)) < 0.7, largest, -largest)
        assert domain.contains(domain.project(signs))


def test_k_support_norm_between_l1_and_l2() -> None:
    rng = np.random.default_rng(0)
    for x in (*rng.standard_normal((20, 7)), np.zeros(7), np.ones(7)):
        norms = [KSupportBall(k, 1.0).norm(x) for k in range(1, 8)]
        assert norms[0] == pytest.approx(np.abs(x).sum())
        assert norms[-1] == pytest.approx(math.sqrt(x @ x))
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(norms))
        # the dual norm is the l2 norm of the k largest: <x, s> ≤ ‖x‖ for all atoms s
        for k, norm in enumerate(norms, start=1):
            u = KSupportBall(k, 1.0).lmo(-x).dense()
            assert x @ u <= norm + 1e-12
