"""Balls around a domain hold all of it, and could not be smaller."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Product,
    Simplex,
    SpectralNormBall,
)
from fedtrellis.domains.enclosing import ENCLOSING, enclosing_ball
from fedtrellis.settings import SettingsError

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
    "k-support": (KSupportBall(3, 2.0), VECTOR),
    "nuclear": (NuclearNormBall(4.0), MATRIX),
    "spectral": (SpectralNormBall(1.3), MATRIX),
    "birkhoff": (BirkhoffPolytope(), SQUARE),
    "group-l1": (GroupL1Ball(2.0, ((0, 1, 2), (3, 4), (5, 6))), VECTOR),
}

SUPPORTED = {
    "l1-ball": {
        "l1-vector", "l1-matrix", "l2-vector", "l2-matrix", "linf-vector",
        "linf-matrix", "box", "box-scalar", "simplex", "k-support", "birkhoff",
    },
    "l2-ball": set(INNER),
    "linf-ball": set(INNER),
    "nuclear-norm-ball": {
        "l1-matrix", "l2-matrix", "nuclear", "spectral", "birkhoff",
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


@pytest.mark.parametrize(
    ("name", "key", "radius"),
    [
        ("l1-ball", "box", 1 + 1 + 3 + 4 + 0.5 + 2 + 0),
        ("l2-ball", "box", math.sqrt(1 + 1 + 9 + 16 + 0.25 + 4 + 0)),
        ("linf-ball", "box", 4.0),
        ("l2-ball", "birkhoff", 2.0),  # a permutation of 4 has 4 ones
        ("l1-ball", "birkhoff", 4.0),
        ("nuclear-norm-ball", "birkhoff", 4.0),
        ("nuclear-norm-ball", "spectral", 3 * 1.3),  # three singular values of 1.3
        ("l1-ball", "l2-matrix", 1.5 * math.sqrt(15)),
        ("l1-ball", "k-support", 2 * math.sqrt(3)),
    ],
)
def test_radii_worked_out_by_hand(name: str, key: str, radius: float) -> None:
    ball = enclosing_ball(name, *INNER[key])
    assert ball.radius == pytest.approx(radius, rel=1e-14)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ENCLOSING)
def test_a_pair_that_is_not_supported_says_so_in_one_line(name: str) -> None:
    for key, (domain, shape) in INNER.items():
        if key in SUPPORTED[name]:
            continue
        with pytest.raises(SettingsError, match="outer-domain = ") as caught:
            enclosing_ball(name, domain, shape)
        assert "\n" not in str(caught.value)


def test_a_product_is_not_supported() -> None:
    domain = Product((L1Ball(1.0), L2Ball(1.0)), ((3,), (4,)))
    for name in ("l1-ball", "l2-ball", "linf-ball"):
        with pytest.raises(SettingsError, match="not available"):
            enclosing_ball(name, domain, VECTOR)


def test_unknown_kinds_and_vectors_for_a_ball_of_matrices_are_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean 'l1-ball'"):
        enclosing_ball("l1ball", L2Ball(1.0), VECTOR)
    with pytest.raises(SettingsError, match="is for matrices"):
        enclosing_ball("nuclear-norm-ball", L2Ball(1.0), VECTOR)
