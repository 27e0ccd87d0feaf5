"""Whether an atom is a point of a set: the dense array's answer, at the atom's cost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from fedtrellis.domains import (
    Box,
    Domain,
    GroupL1Ball,
    L1Ball,
    L2Ball,
    LInfBall,
    Permutahedron,
    Product,
    Simplex,
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
from tests.fedtrellis.domains.cases import CASES, EXAMPLES, Shape, all_cases
from tests.fedtrellis.domains.test_atoms import random_atom

few = settings(max_examples=60, deadline=None)


def scaled(atom: Atom, factor: float) -> Atom:
    match atom:
        case SparseAtom():
            return SparseAtom(atom.indices, factor * atom.values, atom.shape)
        case RankOneAtom():
            return RankOneAtom(factor * atom.left, atom.right)
        case PermutationAtom():
            return PermutationAtom(atom.columns, factor * atom.scale)
        case SignAtom():
            return SignAtom(atom.bits, factor * atom.low, factor * atom.high)
        case ProductAtom():
            return ProductAtom(tuple(scaled(part, factor) for part in atom.parts))
    return DenseAtom(factor * atom.dense())


@all_cases
def test_what_the_oracle_returns_is_a_member_and_a_multiple_is_not(
    domain: Domain, shape: Shape
) -> None:
    for gradient in np.random.default_rng(0).standard_normal((20, *shape)):
        atom = domain.lmo(gradient)
        assert domain.contains_atom(atom)
        for factor in (1e6, 1 + 1e-6, np.nan, np.inf, -np.inf, 1e300):
            with np.errstate(invalid="ignore", over="ignore"):
                other = scaled(atom, factor)
            assert not domain.contains_atom(other), factor


@all_cases
def test_an_atom_of_another_shape_is_refused_and_nothing_is_raised(
    domain: Domain, shape: Shape
) -> None:
    larger = (shape[0] + 1, *shape[1:])
    assert not domain.contains_atom(DenseAtom(np.full(larger, 1e6)))
    assert not domain.contains_atom(DenseAtom(np.zeros((0,))))
    assert not domain.contains_atom(SparseAtom(np.array([0]), np.array([1e6]), larger))


@all_cases
@given(data=st.data())
@few
def test_atoms_of_all_kinds_and_sets_get_the_answer_of_their_dense_array(
    domain: Domain, shape: Shape, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    others = [other for other, its in CASES if its == shape]
    atom = random_atom(rng, shape)
    if data.draw(st.booleans()):
        atom = data.draw(st.sampled_from(others)).lmo(rng.standard_normal(shape))
    atom = scaled(atom, data.draw(st.sampled_from([1.0, 0.1, 1e-3, 3.0])))
    assert atom.shape == shape
    assert domain.contains_atom(atom) == domain.contains(atom.dense())


def test_parts_that_are_cut_otherwise_are_judged_by_their_entries() -> None:
    domain = Product([L1Ball(1.0), Simplex(1.0)], [(2,), (2,)])
    one = SparseAtom(np.array([0]), np.array([1.0]), (1,))
    inside = ProductAtom((one, SparseAtom(np.array([1]), np.array([1.0]), (3,))))
    outside = ProductAtom((one, SparseAtom(np.array([0]), np.array([1.0]), (3,))))
    assert domain.contains_atom(inside)  # (1, 0 | 1, 0) after the cut
    assert not domain.contains_atom(outside)  # (1, 1 | 0, 0)


def test_a_ball_that_says_more_is_asked_for_all_entries() -> None:
    class Half(L2Ball):
        def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
            return super().contains(point, tolerance) and np.min(point) >= 0.0

    for value in (1.0, -1.0):
        atom = SparseAtom(np.array([1]), np.array([value]), (3,))
        assert Half(2.0).contains_atom(atom) == (value > 0.0)


def test_a_value_that_no_entry_has_does_not_count() -> None:
    bits = np.ones(3, dtype=bool)
    for domain in (LInfBall(1.0), Box(-1.0, 1.0)):
        assert domain.contains_atom(SignAtom(bits, -7.0, 1.0))
        assert domain.contains_atom(SignAtom(~bits, -1.0, 7.0))
        assert not domain.contains_atom(SignAtom(bits, -1.0, 7.0))


# of the others an atom is all entries, or all have to be sorted
SMALL = [
    (domain, shape)
    for domain, shape, atom in EXAMPLES
    if atom is not DenseAtom and not isinstance(domain, Permutahedron)
]


@pytest.mark.parametrize(("domain", "shape"), SMALL, ids=lambda x: str(x)[:30])
def test_no_dense_array_is_made(
    domain: Domain, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    extreme = domain.lmo(np.random.default_rng(0).standard_normal(shape))

    def dense(self: Any) -> Any:
        raise AssertionError("made dense")

    for kind in (SparseAtom, RankOneAtom, PermutationAtom, SignAtom, ProductAtom):
        monkeypatch.setattr(kind, "dense", dense)
    assert domain.contains_atom(extreme)
    assert not domain.contains_atom(scaled(extreme, 1e6))


def test_few_values_are_added_up_by_group() -> None:
    # ‖(3, 4)‖ + ‖12‖ = 17, in groups that are far apart in a large array
    domain = GroupL1Ball(17.0, 1000)
    atom = SparseAtom(np.array([5, 900, 999_000]), np.array([3.0, 4, 12]), (10**6,))
    assert domain.contains_atom(atom)
    assert not domain.contains_atom(scaled(atom, 1.001))
