"""Balls around a domain hold all of it, and could not be smaller."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

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
from fedtrellis.domains.atoms import SparseAtom
from fedtrellis.domains.product import enclosing_ball
from fedtrellis.settings import SettingsError


class ReadmeBall(Domain):
    """The README's: Σ w_j |x_j| ≤ radius, with what a set cannot do without."""

    name = "weighted-l1-ball"

    def __init__(self, weights: NDArray[np.float64], radius: float) -> None:
        self.weights, self.radius = weights, radius

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        g = self._input(gradient, "gradient")
        j = int(np.argmax(np.abs(g) / self.weights))
        value = -np.sign(g[j]) * self.radius / self.weights[j]
        return SparseAtom(np.array([j]), np.array([value]), g.shape)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        return bool(self.weights @ np.abs(point) <= self.radius * (1 + tolerance))

    def project(self, point: ArrayLike) -> NDArray[np.float64]:
        raise NotImplementedError

    def diameter(self, shape: tuple[int, ...]) -> float:
        return float(2 * self.radius / self.weights.min())

    def centre(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)


Shape = tuple[int, ...]
Points = NDArray[np.float64]
VECTOR, MATRIX, SQUARE = (7,), (3, 5), (4, 4)

LOWER = np.array([-1.0, 0.0, -3.0, 2.0, -0.5, -2.0, 0.0])
UPPER = np.array([0.5, 1.0, 1.0, 4.0, 0.5, -1.0, 0.0])

INNER: dict[str, tuple[Domain, Shape]] = {
    "l1-vector": (L1Ball(2.5), VECTOR),
    "l1-matrix": (L1Ball(2.5), MATRIX),
    "l2-vector": (L2Ball(1.5), VECTOR),
    "l2-matrix": (L2Ball(1.5), MATRIX),
    "linf-vector": (LInfBall(0.7), VECTOR),
    "linf-matrix": (LInfBall(0.7), MATRIX),
    "box": (Box(LOWER, UPPER), VECTOR),
    "box-scalar": (Box(-2.0, 1.0), VECTOR),
    "simplex": (Simplex(3.0), VECTOR),
    "simplex-matrix": (Simplex(3.0), MATRIX),
    "k-support": (KSupportBall(3, 2.0), VECTOR),
    "k-support-matrix": (KSupportBall(2, 2.0), MATRIX),
    "k-support-low-rank": (KSupportBall(7, 2.0), MATRIX),
    "nuclear": (NuclearNormBall(4.0), MATRIX),
    "spectral": (SpectralNormBall(1.3), MATRIX),
    "birkhoff": (BirkhoffPolytope(), SQUARE),
    "group-l1": (GroupL1Ball(2.0, ((0, 1, 2), (3, 4), (5, 6))), VECTOR),
    "group-l1-size": (GroupL1Ball(2.0, 5), MATRIX),
    "product": (Product((L1Ball(1.0), NuclearNormBall(2.0)), ((3,), (2, 3))), (9,)),
    "product-unknown": (
        Product((L1Ball(1.0), SpectralNormBall(2.0)), ((1,), MATRIX)),
        (16,),
    ),
    "non-negative": (NonNegativeL1Ball(2.5), VECTOR),
    "capped": (CappedSimplex(0.7, 2.5), VECTOR),
    "weighted-l1": (WeightedL1Ball(0.5, 2.5), VECTOR),
    "weighted-l1-matrix": (
        WeightedL1Ball(np.linspace(2, 1, 15).reshape(3, 5), 2.0),
        MATRIX,
    ),
    "sorted-l1": (SortedL1Ball(0.5, 2.5), VECTOR),
    "sparse-group": (SparseGroupBall(2.0, ((0, 1, 2), (3, 4), (5, 6)), 0.3), VECTOR),
    "total-variation": (TotalVariationBall(2.0), MATRIX),
    "permutahedron": (Permutahedron(np.array([3.0, -1, 2, 0, 0, -4, 1])), VECTOR),
    "spectrahedron": (Spectrahedron(2.0), SQUARE),
    "weighted": (ReadmeBall(np.array([0.5, 2.0, 0.3]), 1.5), (3,)),
    "weighted-nested": (
        Product((ReadmeBall(np.array([0.5, 2.0]), 1.5), L2Ball(3.5)), ((2,), (4,))),
        (6,),
    ),
}

# Sets that say nothing of some norms. The largest entry is found by the oracle.
UNSAID = {"product-unknown", "weighted", "weighted-nested"}
SUPPORTED = {
    "l1-ball": set(INNER) - UNSAID - {"spectral"},
    "l2-ball": set(INNER) - UNSAID | {"product-unknown"},
    "linf-ball": set(INNER),
    "nuclear-norm-ball": {
        "l1-matrix", "l2-matrix", "nuclear", "spectral", "birkhoff", "simplex-matrix",
        "k-support-matrix", "k-support-low-rank", "weighted-l1-matrix", "spectrahedron",
    },
}  # fmt: skip

#: The point of the inner set where each ball's norm is largest is an extreme point in
#: one of these directions.
DIRECTIONS: dict[str, Callable[[Shape], list[Points]]] = {
    "l1-ball": lambda shape: [np.ones(shape)],
    "l2-ball": lambda shape: [np.ones(shape)],
    "linf-ball": lambda shape: list(np.eye(math.prod(shape)).reshape(-1, *shape)),
    "nuclear-norm-ball": lambda shape: [np.eye(shape[0], shape[-1])],
}


def extreme_points(domain: Domain, shape: Shape, directions: list[Points]) -> Points:
    rng = np.random.default_rng(0)
    found = [domain.lmo(s * d).dense() for d in directions for s in (1.0, -1.0)]
    # signs of one magnitude, and single entries, reach corners that chance may miss
    found += [domain.lmo(rng.choice([-1.0, 1.0], shape)).dense() for _ in range(300)]
    found += [domain.lmo(rng.standard_normal(shape)).dense() for _ in range(300)]
    return np.array(found)


PAIRS = [(name, key) for name, keys in SUPPORTED.items() for key in sorted(keys)]


@pytest.mark.parametrize(("name", "key"), PAIRS)
def test_the_ball_holds_the_domain_and_touches_it(name: str, key: str) -> None:
    domain, shape = INNER[key]
    ball = enclosing_ball(name, domain, shape)
    assert ball.name == name
    points = extreme_points(domain, shape, DIRECTIONS[name](shape))
    assert all(ball.contains(point) for point in points)
    rng = np.random.default_rng(1)
    for weights in rng.dirichlet(np.full(len(points), 0.05), size=100):
        inside = np.tensordot(weights, points, axes=1)
        assert domain.contains(inside, 1e-7)
        assert ball.contains(inside)
    smaller = type(ball)(ball.radius * (1 - 1e-6))  # type: ignore[attr-defined, call-arg]
    assert not all(smaller.contains(point) for point in points)


def test_unknown_kinds_and_vectors_for_a_ball_of_matrices_are_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean 'l1-ball'"):
        enclosing_ball("l1ball", L2Ball(1.0), VECTOR)
    with pytest.raises(SettingsError, match="is for matrices"):
        enclosing_ball("nuclear-norm-ball", L2Ball(1.0), VECTOR)
