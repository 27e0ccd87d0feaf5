"""Every LMO and projection against linprog, CVXPY and enumeration of the vertices."""

import importlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    CappedSimplex,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NonNegativeL1Ball,
    NuclearNormBall,
    Permutahedron,
    Product,
    Simplex,
    SortedL1Ball,
    SparseGroupBall,
    Spectrahedron,
    SpectralNormBall,
    TotalVariationBall,
    WeightedL1Ball,
)

# its functions are exported in a way that mypy cannot follow
cp: Any = importlib.import_module("cvxpy")

Array = NDArray[np.float64]
Shape = tuple[int, ...]

LOWER = np.array([-1.0, 0.0, 2.0, -3.0])
UPPER = np.array([1.0, 0.5, 2.0, 7.0])
CASES: list[tuple[Domain, Shape]] = [
    (L1Ball(2.5), (6,)),
    (L1Ball(2.5), (2, 3)),
    (L2Ball(0.7), (6,)),
    (LInfBall(1.5), (5,)),
    (Box(-0.5, 2.0), (5,)),
    (Box(LOWER, UPPER), (4,)),
    (Simplex(3.0), (5,)),
    (KSupportBall(1, 2.0), (5,)),
    (KSupportBall(2, 2.0), (5,)),
    (KSupportBall(3, 2.0), (6,)),
    (KSupportBall(5, 2.0), (5,)),
    (NuclearNormBall(2.0), (4, 3)),
    (SpectralNormBall(1.3), (3, 4)),
    (BirkhoffPolytope(), (4, 4)),
    (GroupL1Ball(2.0, 2), (6,)),
    (GroupL1Ball(2.0, [[0, 4], [1], [2, 3, 5]]), (6,)),
    (Product([L1Ball(1.0), BirkhoffPolytope(), Box(0, 1)], [(3,), (2, 2), (2,)]), (9,)),
    (NonNegativeL1Ball(2.5), (5,)),
    (CappedSimplex(0.75, 2.0), (5,)),
    (CappedSimplex(3.0, 2.0), (4,)),
    (WeightedL1Ball(1.0, 2.0), (5,)),
    (WeightedL1Ball(np.array([[2.0, 0.5], [1.0, 4.0]]), 1.5), (2, 2)),
    (SortedL1Ball(0.0, 2.0), (5,)),
    (SortedL1Ball(np.array([2.0, 1.5, 0.5, 0.0]), 2.0), (4,)),
    (SparseGroupBall(2.0, 2, 0.5), (6,)),
    (SparseGroupBall(2.0, [[0, 4], [1], [2, 3, 5]], 0.2), (6,)),
    (TotalVariationBall(2.0), (6,)),
    (TotalVariationBall(2.0), (2, 2)),
    (Permutahedron(3.0), (4,)),
    (Permutahedron(np.array([-1.0, 3.0, 0.0, 0.0, 0.5])), (5,)),
    (Spectrahedron(2.0), (4, 4)),
]
IDS = [f"{domain.name}-{i}" for i, (domain, _) in enumerate(CASES)]
all_cases = pytest.mark.parametrize(("domain", "shape"), CASES, ids=IDS)


def sorted_weights(domain: SortedL1Ball, size: int) -> Array:
    if isinstance(domain.weights, float):
        steps = np.arange(size) / (size - 1)
        return np.asarray(1.0 + (domain.weights - 1.0) * steps)
    return domain.weights


def sorted_values(domain: Permutahedron, size: int) -> Array:
    if isinstance(domain.vector, float):
        return np.asarray(domain.vector * np.arange(size)[::-1] / (size - 1))
    return np.sort(domain.vector)[::-1]


def constraints(domain: Domain, x: Any) -> list[Any]:
    """The set's definition in CVXPY, from the definition and not from our formulas."""
    flat = cp.vec(x, order="C")
    match domain:
        case L1Ball():
            return [cp.norm1(flat) <= domain.radius]
        case L2Ball():
            return [cp.norm2(flat) <= domain.radius]
        case LInfBall():
            return [cp.norm_inf(flat) <= domain.radius]
        case Box():
            return [x >= domain.lower, x <= domain.upper]
        case Simplex():
            return [x >= 0, cp.sum(x) == domain.radius]
        case KSupportBall():  # the hull itself: x = Σ over supports S of z_S
            supports = list(itertools.combinations(range(flat.size), domain.k))
            pieces = [cp.Variable(domain.k) for _ in supports]
            total: list[Any] = [0] * flat.size
            for support, piece in zip(supports, pieces, strict=True):
                for place, i in enumerate(support):
                    total[i] = total[i] + piece[place]
            hull = [flat[i] == total[i] for i in range(flat.size)]
            return [*hull, sum(cp.norm2(piece) for piece in pieces) <= domain.radius]
        case NuclearNormBall():
            return [cp.normNuc(x) <= domain.radius]
        case SpectralNormBall():
            return [cp.sigma_max(x) <= domain.radius]
        case BirkhoffPolytope():
            return [x >= 0, cp.sum(x, axis=0) == 1, cp.sum(x, axis=1) == 1]
        case GroupL1Ball():  # SparseGroupBall among them
            groups: Any = domain.groups
            if isinstance(groups, int):
                groups = np.arange(flat.size).reshape(-1, groups).tolist()
            norm = sum(cp.norm2(flat[list(g)]) for g in groups)
            if isinstance(domain, SparseGroupBall):
                a = domain.share
                norm = (1 - a) * norm + a * cp.norm1(flat)
            return [norm <= domain.radius]
        case NonNegativeL1Ball():
            return [x >= 0, cp.sum(x) <= domain.radius]
        case CappedSimplex():
            return [x >= 0, x <= domain.cap, cp.sum(x) == domain.radius]
        case WeightedL1Ball():
            weights = np.ravel(domain.weights)
            if isinstance(domain.weights, float):  # j^s
                weights = np.array(
                    [(j + 1) ** domain.weights for j in range(flat.size)]
                )
            return [weights @ cp.abs(flat) <= domain.radius]
        case SortedL1Ball():  # Σ_k (w_k − w_{k+1}) · (the k largest added up)
            w = sorted_weights(domain, flat.size)
            falls = w - np.append(w[1:], 0.0)
            sums = [cp.sum_largest(cp.abs(flat), k) for k in range(1, flat.size)]
            pairs = zip(falls, [*sums, cp.norm1(flat)], strict=True)
            return [sum(fall * total for fall, total in pairs) <= domain.radius]
        case TotalVariationBall():
            return [cp.abs(flat[0]) + cp.norm1(cp.diff(flat)) <= domain.radius]
        case Permutahedron():
            v = sorted_values(domain, flat.size)
            some = [cp.sum_largest(flat, k) <= v[:k].sum() for k in range(1, flat.size)]
            return [*some, cp.sum(flat) == v.sum()]
        case Spectrahedron():
            return [x == x.T, x >> 0, cp.trace(x) == domain.radius]
        case Product():
            result = []
            start = 0
            for part, shape in zip(domain.domains, domain.shapes, strict=True):
                stop = start + math.prod(shape)
                piece = cp.reshape(x[start:stop], shape, order="C")
                result += constraints(part, piece)
                start = stop
            return result
    raise NotImplementedError(domain)


def solve(objective: Any, domain: Domain, x: Any) -> Array:
    problem = cp.Problem(cp.Minimize(objective), constraints(domain, x))
    options = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    problem.solve(solver=cp.CLARABEL, **options)
    assert problem.status in ("optimal", "optimal_inaccurate")
    return np.asarray(x.value, dtype=np.float64)


def vertices(domain: Domain, shape: Shape) -> list[Array]:
    """Every extreme point of the polytopes."""
    size = math.prod(shape)
    match domain:
        case L1Ball():
            unit = np.eye(size).reshape(size, *shape)
            return [sign * domain.radius * e for e in unit for sign in (1.0, -1.0)]
        case LInfBall():
            corners = itertools.product((-domain.radius, domain.radius), repeat=size)
            return [np.array(corner) for corner in corners]
        case Box():
            bounds = zip(
                np.broadcast_to(domain.lower, shape),
                np.broadcast_to(domain.upper, shape),
                strict=True,
            )
            return [np.array(corner) for corner in itertools.product(*bounds)]
        case Simplex():
            return list(domain.radius * np.eye(size))
        case KSupportBall() if domain.k == 1:
            return vertices(L1Ball(domain.radius), shape)
        case BirkhoffPolytope():
            identity = np.eye(shape[0])
            return [identity[list(p)] for p in itertools.permutations(range(shape[0]))]
        case NonNegativeL1Ball():
            return [np.zeros(size), *(domain.radius * np.eye(size))]
        case CappedSimplex():
            full = min(domain.cap, domain.radius)
            count = int(domain.radius // full)
            entries = [full] * count + [domain.radius - count * full]
            entries = (entries + [0.0] * size)[:size]
            return [np.array(p) for p in set(itertools.permutations(entries))]
        case WeightedL1Ball():
            weights = np.broadcast_to(domain.weights, shape).ravel()
            if isinstance(domain.weights, float):
                weights = np.arange(1.0, size + 1) ** domain.weights
            ends = np.diag(domain.radius / weights).reshape(size, *shape)
            return [sign * end for end in ends for sign in (1.0, -1.0)]
        case SortedL1Ball():
            sums = np.cumsum(sorted_weights(domain, size))
            choices = itertools.product((-1.0, 0.0, 1.0), repeat=size)
            chosen = [(np.array(c), np.count_nonzero(c)) for c in choices if any(c)]
            return [domain.radius / sums[k - 1] * c for c, k in chosen]
        case TotalVariationBall():
            steps = np.triu(np.full((size, size), domain.radius)).reshape(size, *shape)
            return [sign * step for step in steps for sign in (1.0, -1.0)]
        case Permutahedron():
            values = sorted_values(domain, size).tolist()
            return [np.array(p) for p in set(itertools.permutations(values))]
    return []


POLYTOPES = [(domain, shape) for domain, shape in CASES if vertices(domain, shape)]
polytopes = pytest.mark.parametrize(("domain", "shape"), POLYTOPES)


def directions(shape: Shape) -> list[Array]:
    """Random, with ties, with zeros, single, constant and zero."""
    rng = np.random.default_rng(5)
    single = np.zeros(shape)
    single.flat[-1] = -2.0
    return [
        *rng.standard_normal((4, *shape)),
        *rng.integers(-1, 2, (6, *shape)).astype(float),
        single,
        np.ones(shape),
        -np.ones(shape),
        np.zeros(shape),
    ]


def points(domain: Domain, shape: Shape) -> list[Array]:
    """Inside, on the boundary, outside, far outside, with ties, and zero."""
    rng = np.random.default_rng(6)
    centre = domain.centre(shape)
    atom = domain.lmo(rng.standard_normal(shape)).dense()
    other = domain.lmo(rng.standard_normal(shape)).dense()
    return [
        0.8 * centre + 0.1 * atom + 0.1 * other,
        atom,
        0.5 * (atom + other),
        1.5 * atom - 0.5 * other,
        *rng.standard_normal((3, *shape)),
        *5.0 * rng.standard_normal((3, *shape)),
        *rng.integers(-3, 4, (3, *shape)).astype(float),
        np.zeros(shape),
    ]


@all_cases
def test_lmo_against_cvxpy(domain: Domain, shape: Shape) -> None:
    for gradient in directions(shape)[:8]:
        atom = domain.lmo(gradient)
        best = solve(cp.sum(cp.multiply(gradient, x := cp.Variable(shape))), domain, x)
        assert atom.shape == shape
        assert atom.dot(gradient) == pytest.approx(np.vdot(gradient, best), abs=1e-6)
        assert np.vdot(gradient, atom.dense()) == pytest.approx(atom.dot(gradient))


@polytopes
def test_lmo_against_every_vertex(domain: Domain, shape: Shape) -> None:
    corners = vertices(domain, shape)
    for gradient in directions(shape):
        atom = domain.lmo(gradient)
        values = [float(np.vdot(gradient, corner)) for corner in corners]
        assert atom.dot(gradient) == pytest.approx(min(values), abs=1e-13)
        assert any(np.array_equal(atom.dense(), corner) for corner in corners)


@pytest.mark.parametrize("seed", range(5))
def test_polytope_lmo_against_linprog(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 12
    g = rng.standard_normal((n, n))
    rows = np.kron(np.eye(n), np.ones(n))
    columns = np.kron(np.ones(n), np.eye(n))
    best = linprog(g.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.ones(2 * n))
    assert BirkhoffPolytope().lmo(g).dot(g) == pytest.approx(best.fun, abs=1e-9)

    flat = g.ravel()
    simplex = linprog(flat, A_eq=np.ones((1, n * n)), b_eq=[2.0])
    assert Simplex(2.0).lmo(g).dot(g) == pytest.approx(simplex.fun, abs=1e-9)
    l1 = linprog(  # x = a − b with a, b ≥ 0
        np.concatenate([flat, -flat]), A_ub=np.ones((1, 2 * n * n)), b_ub=[2.0]
    )
    assert L1Ball(2.0).lmo(g).dot(g) == pytest.approx(l1.fun, abs=1e-9)
    box = linprog(flat, bounds=(-0.5, 3.0))
    assert Box(-0.5, 3.0).lmo(g).dot(g) == pytest.approx(box.fun, abs=1e-9)


@all_cases
def test_projection_against_cvxpy(domain: Domain, shape: Shape) -> None:
    for point in points(domain, shape):
        before = point.copy()
        ours = domain.project(point)
        np.testing.assert_array_equal(point, before)
        assert ours.dtype == np.float64
        assert not np.shares_memory(ours, point)
        x = cp.Variable(shape)
        theirs = solve(cp.sum_squares(x - point), domain, x)
        np.testing.assert_allclose(ours, theirs, atol=5e-5)
        # and ours is no farther than the solver's, which is feasible to about 1e-8
        near = float(np.linalg.norm(theirs - point))
        assert np.linalg.norm(ours - point) <= near + 1e-7
        assert domain.contains(ours)


@all_cases
def test_contains_against_cvxpy(domain: Domain, shape: Shape) -> None:
    rng = np.random.default_rng(8)
    size = domain.diameter(shape)
    for point in 5.0 * rng.standard_normal((3, *shape)) + domain.centre(shape):
        x = cp.Variable(shape)
        boundary = solve(cp.sum_squares(x - point), domain, x)
        outward = point - boundary
        distance = np.linalg.norm(outward)
        assert domain.contains(boundary, 1e-6)
        # leaving along the normal by a thousandth of the set's size is noticed
        outside = boundary + 1e-3 * size * outward / distance
        assert not domain.contains(outside, 1e-6)
        assert domain.contains(0.5 * (boundary + domain.centre(shape)), 1e-6)


@polytopes
def test_diameter_against_all_pairs_of_vertices(domain: Domain, shape: Shape) -> None:
    pairs = itertools.combinations(vertices(domain, shape), 2)
    farthest = max(float(np.linalg.norm(a - b)) for a, b in pairs)
    assert domain.diameter(shape) == pytest.approx(farthest)


@all_cases
def test_diameter_against_pairs_of_atoms(domain: Domain, shape: Shape) -> None:
    rng = np.random.default_rng(9)
    diameter = domain.diameter(shape)
    farthest = 0.0
    for gradient in rng.standard_normal((300, *shape)):
        a, b = domain.lmo(gradient).dense(), domain.lmo(-gradient).dense()
        distance = float(np.linalg.norm(a - b))
        assert distance <= diameter * (1 + 1e-12)
        farthest = max(farthest, distance)
    assert farthest == pytest.approx(diameter)


@pytest.mark.parametrize(
    ("domain", "shape"),
    [(Simplex(2.0), (1,)), (BirkhoffPolytope(), (1, 1)), (Box(3.0, 3.0), (2,))],
)
def test_sets_of_one_point(domain: Domain, shape: Shape) -> None:
    assert domain.diameter(shape) == 0.0
    only = domain.centre(shape)
    for g in (np.ones(shape), -np.ones(shape)):
        np.testing.assert_array_equal(domain.lmo(g).dense(), only)
        np.testing.assert_allclose(domain.project(g), only, rtol=1e-15)
    assert domain.contains(only)
