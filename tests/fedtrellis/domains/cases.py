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

from fedtrellis import domains as d
from fedtrellis.domains import Domain
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
LAYERS = [d.L1Ball(1.0), d.BirkhoffPolytope(), d.Box(0, 1)]

EXAMPLES: list[tuple[Domain, Shape, type[Atom]]] = [
    (d.L1Ball(2.5), (6,), SparseAtom),
    (d.L1Ball(1.5), (2, 3), SparseAtom),
    (d.L2Ball(0.7), (6,), DenseAtom),
    (d.LInfBall(1.5), (5,), SignAtom),
    (d.Box(-0.5, 2.0), (5,), SignAtom),
    (d.Box(LOWER, UPPER), (4,), DenseAtom),
    (d.Box(-np.arange(9.0), 1.0), (9,), DenseAtom),
    (d.Simplex(3.0), (5,), SparseAtom),
    (d.KSupportBall(1, 2.0), (5,), SparseAtom),
    (d.KSupportBall(3, 2.0), (6,), SparseAtom),
    (d.KSupportBall(5, 2.0), (5,), SparseAtom),
    (d.NuclearNormBall(2.0), (4, 3), RankOneAtom),
    (d.SpectralNormBall(1.3), (3, 4), DenseAtom),
    (d.BirkhoffPolytope(), (4, 4), PermutationAtom),
    (d.GroupL1Ball(2.0, 2), (6,), SparseAtom),
    (d.GroupL1Ball(2.0, GROUPS), (2, 3), SparseAtom),
    (d.Product(LAYERS, [(3,), (2, 2), (2,)]), (9,), ProductAtom),
    (d.NonNegativeL1Ball(2.5), (5,), SparseAtom),
    (d.CappedSimplex(0.75, 2.0), (5,), SparseAtom),
    (d.CappedSimplex(0.5, 1.5), (2, 3), SparseAtom),
    (d.CappedSimplex(3.0, 2.0), (4,), SparseAtom),
    (d.WeightedL1Ball(1.0, 2.0), (5,), SparseAtom),
    (d.WeightedL1Ball(np.array([[2.0, 0.5], [1.0, 4.0]]), 1.5), (2, 2), SparseAtom),
    (d.SortedL1Ball(0.0, 2.0), (5,), SparseAtom),
    (d.SortedL1Ball(np.array([2.0, 1.5, 0.5, 0.0]), 2.0), (2, 2), SparseAtom),
    (d.SparseGroupBall(2.0, 2, 0.5), (6,), SparseAtom),
    (d.SparseGroupBall(2.0, 3, 0.0), (6,), SparseAtom),
    (d.SparseGroupBall(2.0, GROUPS, 0.2), (2, 3), SparseAtom),
    (d.TotalVariationBall(2.0), (6,), SignAtom),
    (d.TotalVariationBall(1.5), (2, 2), SignAtom),
    (d.Permutahedron(3.0), (4,), DenseAtom),
    (d.Permutahedron(np.array([-1.0, 3.0, 0.0, 0.0, 0.5])), (5,), DenseAtom),
    (d.Permutahedron(np.array([2.0, 0, 0, -1, 0, 0])), (2, 3), SparseAtom),
    (d.Spectrahedron(2.0), (4, 4), RankOneAtom),
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


def weights_of(domain: d.WeightedL1Ball, size: int) -> Array:
    if isinstance(domain.weights, float):  # j^s
        return np.arange(1.0, size + 1) ** domain.weights
    return np.ravel(domain.weights)


def sorted_weights(domain: d.SortedL1Ball, size: int) -> Array:
    if isinstance(domain.weights, float):
        steps = np.arange(size) / (size - 1)
        return np.asarray(1.0 + (domain.weights - 1.0) * steps)
    return domain.weights


def sorted_values(domain: d.Permutahedron, size: int) -> Array:
    if isinstance(domain.vector, float):
        return np.asarray(domain.vector * np.arange(size)[::-1] / (size - 1))
    return np.sort(domain.vector)[::-1]


def constraints(domain: Domain, x: Any) -> list[Any]:
    """The set's definition in CVXPY, from the definition and not from our formulas."""
    flat = cp.vec(x, order="C")
    match domain:
        case d.L1Ball():
            return [cp.norm1(flat) <= domain.radius]
        case d.L2Ball():
            return [cp.norm2(flat) <= domain.radius]
        case d.LInfBall():
            return [cp.norm_inf(flat) <= domain.radius]
        case d.Box():
            return [x >= domain.lower, x <= domain.upper]
        case d.Simplex():
            return [x >= 0, cp.sum(x) == domain.radius]
        case d.KSupportBall():  # the hull itself: x = Σ over supports S of z_S
            supports = list(itertools.combinations(range(flat.size), domain.k))
            pieces = [cp.Variable(domain.k) for _ in supports]
            total: list[Any] = [0] * flat.size
            for support, piece in zip(supports, pieces, strict=True):
                for place, i in enumerate(support):
                    total[i] = total[i] + piece[place]
            hull = [flat[i] == total[i] for i in range(flat.size)]
            return [*hull, sum(cp.norm2(piece) for piece in pieces) <= domain.radius]
        case d.NuclearNormBall():
            return [cp.normNuc(x) <= domain.radius]
        case d.SpectralNormBall():
            return [cp.sigma_max(x) <= domain.radius]
        case d.BirkhoffPolytope():
            return [x >= 0, cp.sum(x, axis=0) == 1, cp.sum(x, axis=1) == 1]
        case d.GroupL1Ball():  # d.SparseGroupBall among them
            groups: Any = domain.groups
            if isinstance(groups, int):
                groups = np.arange(flat.size).reshape(-1, groups).tolist()
            norm = sum(cp.norm2(flat[list(g)]) for g in groups)
            if isinstance(domain, d.SparseGroupBall):
                a = domain.share
                norm = (1 - a) * norm + a * cp.norm1(flat)
            return [norm <= domain.radius]
        case GroupMaxBall():  # of examples/own-domain
            size = domain.size
            parts = [flat[i : i + size] for i in range(0, flat.size, size)]
            return [sum(cp.norm_inf(part) for part in parts) <= domain.radius]
        case d.NonNegativeL1Ball():
            return [x >= 0, cp.sum(x) <= domain.radius]
        case d.CappedSimplex():
            return [x >= 0, x <= domain.cap, cp.sum(x) == domain.radius]
        case d.WeightedL1Ball():
            return [weights_of(domain, flat.size) @ cp.abs(flat) <= domain.radius]
        case d.SortedL1Ball():  # Σ_k (w_k − w_{k+1}) · (the k largest added up)
            w = sorted_weights(domain, flat.size)
            falls = w - np.append(w[1:], 0.0)
            sums = [cp.sum_largest(cp.abs(flat), k) for k in range(1, flat.size)]
            pairs = zip(falls, [*sums, cp.norm1(flat)], strict=True)
            return [sum(fall * total for fall, total in pairs) <= domain.radius]
        case d.TotalVariationBall():
            return [cp.abs(flat[0]) + cp.norm1(cp.diff(flat)) <= domain.radius]
        case d.Permutahedron():
            v = sorted_values(domain, flat.size)
            some = [cp.sum_largest(flat, k) <= v[:k].sum() for k in range(1, flat.size)]
            return [*some, cp.sum(flat) == v.sum()]
        case d.Spectrahedron():
            return [x == x.T, x >> 0, cp.trace(x) == domain.radius]
        case d.Product():
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
