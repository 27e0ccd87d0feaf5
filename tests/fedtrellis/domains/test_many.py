"""Oracles of many gradients at once, and atoms that are packed when somebody looks."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.domains import (
    Box,
    Domain,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    Simplex,
)
from fedtrellis.domains.atoms import (
    SparseAtom,
)

DOMAINS = [
    L1Ball(2.0),
    LInfBall(0.5),
    Simplex(3.0),
    Box(-1.0, 2.0),
    L2Ball(1.5),
    KSupportBall(2, 1.0),
]


def gradients(shape: tuple[int, ...]) -> np.ndarray:
    """Some random, some full of ties, some zero."""
    rng = np.random.default_rng(3)
    many = rng.standard_normal((12, *shape))
    many[3:9] = rng.integers(-1, 2, (6, *shape))
    many[9] = 0.0
    return many


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (300,)])
def test_many_gradients_have_the_atoms_of_each(
    domain: Domain, shape: tuple[int, ...]
) -> None:
    many = gradients(shape)
    found = domain.lmo_many(many)
    alone = [domain.lmo(gradient) for gradient in many]
    for atom, expected in zip(found, alone, strict=True):
        assert type(atom) is type(expected)
        assert atom.shape == expected.shape
        np.testing.assert_array_equal(atom.dense(), expected.dense())
        assert atom.nbytes == sum(a.nbytes for a in expected.to_arrays())
        for ours, theirs in zip(atom.to_arrays(), expected.to_arrays(), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("domain", DOMAINS[:3], ids=lambda domain: domain.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_gradient_that_is_not_finite_is_refused(domain: Domain, bad: float) -> None:
    many = gradients((5,))
    many[2, 4] = bad
    with pytest.raises(ValueError, match="must be finite"):
        domain.lmo_many(many)


def test_the_l1_ball_judges_a_single_entry_as_any_point() -> None:
    ball = L1Ball(2.0)
    for value in (2.0, -2.0, 2.0 + 1e-9, 2.1, np.nan, np.inf, 0.0):
        atom = SparseAtom(np.array([1]), np.array([value]), (4,))
        assert ball.contains_atom(atom) == ball.contains(atom.dense())
