"""A line for each set: the shape of its points, the kind of its atoms; definitions."""

import importlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

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
from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
)
from owndomain.domain import GroupMaxBall

# its functions are exported in a way that mypy cannot follow
cp: Any = importlib.import_module("cvxpy")

Array = NDArray[np.float64]
Shape = tuple[int, ...]

GROUPS = [[0, 4], [1], [2, 3, 5]]
LOWER = np.array([-1.0, 0.0, 2.0, -3.0])
UPPER = np.array([1.0, 0.5, 2.0, 7.0])
LAYERS = [L1Ball(1.0), BirkhoffPolytope(), Box(0, 1)]

EXAMPLES: list[tuple[Domain, Shape, type[Atom]]] = [
    (L1Ball(2.5), (6,), SparseAtom),
    (L1Ball(1.5), (2, 3), SparseAtom),
    (L2Ball(0.7), (6,), DenseAtom),
    (LInfBall(1.5), (5,), SignAtom),
    (Box(-0.5, 2.0), (5,), SignAtom),
    (Box(LOWER, UPPER), (4,), DenseAtom),
    (Box(-np.arange(9.0), 1.0), (9,), DenseAtom),
    (Simplex(3.0), (5,), SparseAtom),
    (KSupportBall(1, 2.0), (5,), SparseAtom),
    (KSupportBall(2, 2.0), (5,), SparseAtom),
    (KSupportBall(3, 2.0), (6,), SparseAtom),
    (KSupportBall(5, 2.0), (5,), SparseAtom),
    (NuclearNormBall(2.0), (4, 3), RankOneAtom),
    (SpectralNormBall(1.3), (3, 4), DenseAtom),
    (BirkhoffPolytope(), (4, 4), PermutationAtom),
    (GroupL1Ball(2.0, 2), (6,), SparseAtom),
    (GroupL1Ball(2.0, GROUPS), (2, 3), SparseAtom),
    (Product(LAYERS, [(3,), (2, 2), (2,)]), (9,), ProductAtom),
    (Product([L1Ball(1.0), NuclearNormBall(2.0)], [(3,), (3, 2)]), (9,), ProductAtom),
    (NonNegativeL1Ball(2.5), (5,), SparseAtom),
    (CappedSimplex(0.75, 2.0), (5,), SparseAtom),
    (CappedSimplex(0.5, 1.5), (2, 3), SparseAtom),
    (CappedSimplex(3.0, 2.0), (4,), SparseAtom),
    (WeightedL1Ball(1.0, 2.0), (5,), SparseAtom),
    (WeightedL1Ball(np.array([[2.0, 0.5], [1.0, 4.0]]), 1.5), (2, 2), SparseAtom),
    (WeightedL1Ball(np.array([0.25, 3.0, 0.5, 1, 2]), 2.5), (5,), SparseAtom),
    (SortedL1Ball(0.0, 2.0), (5,), SparseAtom),
    (SortedL1Ball(np.array([2.0, 1.5, 0.5, 0.0]), 2.0), (2, 2), SparseAtom),
    (SparseGroupBall(2.0, 2, 0.5), (6,), SparseAtom),
    (SparseGroupBall(2.0, 3, 0.0), (6,), SparseAtom),
    (SparseGroupBall(2.0, GROUPS, 0.2), (2, 3), SparseAtom),
    (TotalVariationBall(2.0), (6,), SignAtom),
    (TotalVariationBall(1.5), (2, 2), SignAtom),
    (Permutahedron(3.0), (4,), DenseAtom),
    (Permutahedron(np.array([-1.0, 3.0, 0.0, 0.0, 0.5])), (5,), DenseAtom),
    (Permutahedron(np.array([2.0, 0, 0, -1, 0, 0])), (2, 3), SparseAtom),
    (Spectrahedron(2.0), (4, 4), RankOneAtom),
]
IDS = [f"{domain.name}-{i}" for i, (domain, _, _) in enumerate(EXAMPLES)]
examples = pytest.mark.parametrize(("domain", "shape", "atom"), EXAMPLES, ids=IDS)

CASES = [(domain, shape) for domain, shape, _ in EXAMPLES]
all_cases = pytest.mark.parametrize(("domain", "shape"), CASES, ids=IDS)


def draw_point(data: st.DataObject, shape: Shape) -> Array:
    smooth = st.floats(-100, 100, allow_subnormal=False)
    ties = st.integers(-3, 3).map(float)
    elements = data.draw(st.sampled_from([smooth, ties]))
    return data.draw(arrays(np.float64, shape, elements=elements))


def weights_of(domain: WeightedL1Ball, size: int) -> Array:
    if isinstance(domain.weights, float):  # j^s
        return np.arange(1.0, size + 1) ** domain.weights
    return np.ravel(domain.weights)


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
        case GroupMaxBall():  # of examples/own-domain
            size = domain.size
            parts = [flat[i : i + size] for i in range(0, flat.size, size)]
            return [sum(cp.norm_inf(part) for part in parts) <= domain.radius]
        case NonNegativeL1Ball():
            return [x >= 0, cp.sum(x) <= domain.radius]
        case CappedSimplex():
            return [x >= 0, x <= domain.cap, cp.sum(x) == domain.radius]
        case WeightedL1Ball():
            return [weights_of(domain, flat.size) @ cp.abs(flat) <= domain.radius]
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
            ends = np.cumsum([math.prod(shape) for shape in domain.shapes])[:-1]
            places = np.split(np.arange(flat.size), ends)
            return [
                constraint
                for part, shape, own in zip(
                    domain.domains, domain.shapes, places, strict=True
                )
                for constraint in constraints(
                    part, cp.reshape(x[own[0] : own[-1] + 1], shape, order="C")
                )
            ]
    raise NotImplementedError(domain)


def solve(objective: Any, domain: Domain, x: Any) -> Array:
    problem = cp.Problem(cp.Minimize(objective), constraints(domain, x))
    options = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    problem.solve(solver=cp.CLARABEL, **options)
    assert problem.status in ("optimal", "optimal_inaccurate")
    return np.asarray(x.value, dtype=np.float64)


def vertices(domain: Domain, shape: Shape) -> list[Array]:
    """Every extreme point of the polytopes; of what else there is, none."""
    size = math.prod(shape)
    unit = np.eye(size)
    found: Any = []
    match domain:
        case L1Ball():
            found = [*domain.radius * unit, *-domain.radius * unit]
        case KSupportBall() if domain.k == 1:
            found = [*domain.radius * unit, *-domain.radius * unit]
        case LInfBall():
            found = itertools.product((-domain.radius, domain.radius), repeat=size)
        case Box():
            bounds = (np.broadcast_to(b, shape) for b in (domain.lower, domain.upper))
            found = itertools.product(*zip(*bounds, strict=True))
        case Simplex():
            found = domain.radius * unit
        case BirkhoffPolytope():
            rows = itertools.permutations(np.eye(shape[0]))
            found = [np.array(permuted) for permuted in rows]
        case NonNegativeL1Ball():
            found = [np.zeros(size), *domain.radius * unit]
        case CappedSimplex():
            full = min(domain.cap, domain.radius)
            count = int(domain.radius // full)
            entries = [full] * count + [domain.radius - count * full]
            found = set(itertools.permutations((entries + [0.0] * size)[:size]))
        case WeightedL1Ball():
            ends = np.diag(domain.radius / weights_of(domain, size))
            found = [*ends, *-ends]
        case SortedL1Ball():
            sums = np.cumsum(sorted_weights(domain, size))
            for signs in itertools.product((-1.0, 0.0, 1.0), repeat=size):
                if k := np.count_nonzero(signs):
                    found.append(domain.radius / sums[k - 1] * np.array(signs))
        case TotalVariationBall():
            steps = np.triu(np.full((size, size), domain.radius))
            found = [*steps, *-steps]
        case Permutahedron():
            found = set(itertools.permutations(sorted_values(domain, size).tolist()))
    return [np.array(vertex).reshape(shape) for vertex in found]
