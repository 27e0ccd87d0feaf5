"""Atoms: arithmetic against their dense form, the wire bit for bit, hostile input."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
    pack_atoms,
    unpack_atoms,
)

Arrays = list[NDArray[Any]]


def random_atom(rng: np.random.Generator, shape: tuple[int, ...]) -> Atom:
    """An atom of any kind that fits the shape, products of products included."""
    kinds = ["sparse", "sign", "dense"]
    if len(shape) == 2:
        kinds.append("rank-one")
        kinds += ["permutation", "scaled"] if shape[0] == shape[1] else []
    size = math.prod(shape)
    if len(shape) == 1 and size > 1:
        kinds.append("product")
    kind = rng.choice(kinds)
    if kind == "sparse":
        count = int(rng.integers(0, min(size, 4) + 1))
        indices = np.sort(rng.choice(size, count, replace=False))
        return SparseAtom(indices, rng.standard_normal(count), shape)
    if kind == "sign":
        low, high = np.sort(rng.standard_normal(2))
        return SignAtom(rng.random(shape) < 0.5, float(low), float(high))
    if kind == "dense":
        return DenseAtom(rng.standard_normal(shape))
    if kind == "rank-one":
        m, n = shape
        return RankOneAtom(rng.standard_normal(m), rng.standard_normal(n))
    if kind == "permutation":
        return PermutationAtom(rng.permutation(shape[0]))
    if kind == "scaled":
        return PermutationAtom(rng.permutation(shape[0]), float(rng.standard_normal()))
    cut = int(rng.integers(1, size))
    shapes: list[tuple[int, ...]] = [(cut,), (size - cut,)]
    if cut % 2 == 0:
        shapes[0] = (2, cut // 2)
    return ProductAtom(tuple(random_atom(rng, part) for part in shapes))


def assert_same_array(a: NDArray[Any], b: NDArray[Any]) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()  # bits: −0.0 is not 0.0 here


def assert_same(a: Atom, b: Atom) -> None:
    assert type(a) is type(b)
    assert a.shape == b.shape
    if isinstance(a, ProductAtom) and isinstance(b, ProductAtom):
        assert len(a.parts) == len(b.parts)
        for part, other in zip(a.parts, b.parts, strict=True):
            assert_same(part, other)
        return
    for name in type(a).__dataclass_fields__:  # type: ignore[attr-defined]
        value, other_value = getattr(a, name), getattr(b, name)
        if isinstance(value, np.ndarray):
            assert_same_array(value, other_value)
        else:
            assert type(value) is type(other_value)
            assert value == other_value


shapes = st.sampled_from(
    [(1,), (7,), (300,), (4, 4), (3, 5), (2, 3, 4), (1, 1), (17, 17)]
)
seeds = st.integers(0, 2**32 - 1)


@given(seeds, shapes)
@settings(max_examples=200, deadline=None)
def test_arithmetic_agrees_with_the_dense_form(
    seed: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    atom = random_atom(rng, shape)
    array = rng.standard_normal(shape)
    dense = atom.dense()
    assert dense.dtype == np.float64
    assert dense.shape == atom.shape == shape
    total = array.copy()
    atom.add_to(total, -0.37)
    np.testing.assert_allclose(total, array - 0.37 * dense, rtol=1e-14, atol=1e-14)
    assert atom.dot(array) == pytest.approx(float((dense * array).sum()), abs=1e-11)
    fortran = np.asfortranarray(array)
    assert atom.dot(fortran) == pytest.approx(atom.dot(array), abs=1e-11)
    dense[...] = np.nan  # a new array: the atom must not notice
    assert np.isfinite(atom.dense()).all()


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (2**8, np.uint8),
        (2**8 + 1, np.uint16),
        (2**16, np.uint16),
        (2**16 + 1, np.uint32),
        (2**32, np.uint32),
        (2**32 + 1, np.uint64),
    ],
)
def test_indices_travel_in_the_smallest_dtype(size: int, dtype: type) -> None:
    atom = SparseAtom(np.array([0, size - 1]), np.array([1.0, -0.0]), (size,))
    indices, _ = atom.to_arrays()
    assert indices.dtype == dtype
    assert indices.tolist() == [0, size - 1]
    assert_same(atom, SparseAtom.from_arrays(atom.to_arrays(), (size,)))


def test_the_number_of_arrays_does_not_grow_with_atoms_or_parts() -> None:
    def product(parts: int) -> ProductAtom:
        part = SparseAtom(np.array([3]), np.array([1.0]), (50,))
        matrix = RankOneAtom(np.ones(4), np.ones(3))
        return ProductAtom((part, matrix) * parts)

    assert len(pack_atoms([product(1)])) == 6
    assert len(pack_atoms([product(20)] * 30)) == 6


def test_add_to_refuses_what_it_would_miss() -> None:
    atom = SparseAtom(np.array([1]), np.array([1.0]), (2, 3))
    for array in (np.zeros((2, 3), order="F"), np.zeros((2, 6))[:, ::2], np.zeros(6)):
        with pytest.raises(ValueError, match="C-contiguous"):
            atom.add_to(array)
    with pytest.raises(ValueError, match="shape"):
        atom.dot(np.zeros(6))


def test_constructors_refuse_the_wrong_dimensions() -> None:
    with pytest.raises(ValueError, match="one value for each index"):
        SparseAtom(np.array([1, 2]), np.array([1.0]), (3,))
    with pytest.raises(ValueError, match="vectors"):
        RankOneAtom(np.ones((2, 2)), np.ones(2))
    with pytest.raises(ValueError, match="columns"):
        PermutationAtom(np.ones((2, 2), np.intp))
    with pytest.raises(ValueError, match="parts"):
        ProductAtom(())


def u8(*values: int) -> NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def f8(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def i8(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


MALFORMED: list[tuple[type[Atom], Sequence[NDArray[Any]], tuple[int, ...]]] = [
    (SparseAtom, [], (5,)),
    (SparseAtom, [u8(1)], (5,)),
    (SparseAtom, [u8(1), f8(1), f8(1)], (5,)),
    (SparseAtom, [u8(1), f8(1), u8(2)], (5,)),
    (SparseAtom, [u8(1), f8(1), u8(1), u8(1)], (5,)),
    (SparseAtom, [u8(1), f8(1, 2)], (5,)),
    (SparseAtom, [u8(5), f8(1)], (5,)),
    (SparseAtom, [u8(2, 1), f8(1, 2)], (5,)),
    (SparseAtom, [u8(1, 1), f8(1, 2)], (5,)),
    (SparseAtom, [u8(0, 1), f8(1, 2)], (1,)),
    (SparseAtom, [u8(1), f8(np.nan)], (5,)),
    (SparseAtom, [u8(1), f8(np.inf)], (5,)),
    (SparseAtom, [np.array([1]), f8(1)], (5,)),
    (SparseAtom, [np.array([-1], np.int8), f8(1)], (5,)),
    (SparseAtom, [u8(1), f8(1)], (500,)),
    (SparseAtom, [u8(1), np.ones(1, np.float32)], (5,)),
    (SparseAtom, [u8(1), np.ones(1, ">f8")], (5,)),
    (SparseAtom, [u8(1)[None], f8(1)], (5,)),
    (SparseAtom, [u8(1), np.array(["x"])], (5,)),
    (SparseAtom, [np.array([2**63], np.uint64), f8(1)], (2**33,)),
    (SparseAtom, [u8(0), f8(1)], (0,)),
    (RankOneAtom, [f8(1, 2)], (2, 3)),
    (RankOneAtom, [f8(1, 2), f8(1, 2)], (2, 3)),
    (RankOneAtom, [f8(1, 2, 3), f8(1, 2)], (2, 3)),
    (RankOneAtom, [f8(1, np.nan), f8(1, 2, 3)], (2, 3)),
    (RankOneAtom, [f8(1, 2), f8(1, 2, -np.inf)], (2, 3)),
    (RankOneAtom, [f8(1, 2), f8(1, 2, 3)], (6,)),
    (RankOneAtom, [f8(1, 2)[:, None], f8(1, 2, 3)], (2, 3)),
    (RankOneAtom, [f8(1, 2), np.ones(3, np.float32)], (2, 3)),
    (PermutationAtom, [], (3, 3)),
    (PermutationAtom, [u8(0, 1)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 1)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 3)], (3, 3)),
    (PermutationAtom, [np.arange(3)], (3, 3)),
    (PermutationAtom, [np.arange(3, dtype=np.uint16)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2), f8(np.nan)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2), f8(1, 2)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2), f8(1), f8(1)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2)], (3, 4)),
    (PermutationAtom, [u8(0, 1, 2)], (3,)),
    (SignAtom, [u8(1)], (8,)),
    (SignAtom, [u8(1), f8(1, 2)], (9,)),
    (SignAtom, [u8(1, 1), f8(1, 2)], (8,)),
    (SignAtom, [u8(1), f8(1, 2, 3)], (8,)),
    (SignAtom, [u8(1), f8(1, np.nan)], (8,)),
    (SignAtom, [np.array([True]), f8(1, 2)], (8,)),
    (DenseAtom, [], (2,)),
    (DenseAtom, [f8(1)], (2,)),
    (DenseAtom, [f8(1, 2)[None]], (2,)),
    (DenseAtom, [f8(1, np.nan)], (2,)),
    (DenseAtom, [np.ones(2, np.float32)], (2,)),
    (DenseAtom, [np.ones(2, complex)], (2,)),
    (ProductAtom, [], (4,)),
    (ProductAtom, [u8(5), f8(1, 2, 3, 4)], (4,)),  # no product
    (ProductAtom, [u8(8, 6, 6)], (4,)),  # no layout
    (ProductAtom, [u8(8, 6, 6), i8(), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, 3), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, -2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(1, 4), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(-2, 1, 2, 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(9, 6, 6), i8(-2, 1, 2, 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 8, 6), i8(-2, 1, 2, 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, 2), f8(1, 2, 3)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, 2)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, 2), f8(1, 2, 3, 4), f8()], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-(2**63), 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(2**62, 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(*[-1] * 5000, 1, 4), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 0), i8(-1, 2, -2, -2), u8(1), f8(1)], (4,)),
    (ProductAtom, [u8(8, 0), i8(-1, 2, 4, 0), u8(1), f8(1)], (0,)),
    (ProductAtom, [u8(8, 0, 0), i8(-2, 1, 2, 1, 3), u8(2, 0), f8(1, 1)], (5,)),
    (ProductAtom, [u8(8, 0, 0), i8(-2, 1, 2, 1, 3), u8(1, 3), f8(1, 1)], (5,)),
    (ProductAtom, [u8(8, 6), u8(1, 4), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(-1, 1, 4), f8(1, 2, 3, 4)], (2, 2)),
    (
        ProductAtom,
        [u8(8, 6, 8, 6), i8(-1, 1, 4), f8(1, 2, 3, 4, 1, 2, 3, 4)],
        (4,),
    ),  # two of them
]


@pytest.mark.parametrize(("kind", "arrays", "shape"), MALFORMED)
def test_malformed_arrays_are_refused(
    kind: type[Atom], arrays: Sequence[NDArray[Any]], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        kind.from_arrays(arrays, shape)


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [f8(0)],
        [u8(0)[None]],
        [u8(0)],
        [u8(0), u8(1)],
        [u8(0, 0), u8(1), f8(1)],
        [u8(0, 0), u8(1, 2, 3), f8(1, 2, 3)],
        [u8(0), u8(1), f8(1), f8(1)],
        [u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), u8(1, 1)],
        [u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), u8(3)],
        [u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), f8(2, 1)],
        [u8(1, 1), u8(1, 1, 2), f8(1, 2, 3), u8(2, 1)],
        [u8(1, 1), u8(0, 1, 2, 3, 4, 4), f8(1, 2, 3, 4, 5, 6), u8(6, 0)],
        [u8(4, 0), u8(0), f8(1)],
        [u8(255), i8(-1, 1, 5), f8(1, 2, 3, 4, 5)],
    ],
)
def test_malformed_packs_are_refused(arrays: Arrays) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack_atoms(arrays, (5,))


def test_a_rank_one_pack_whose_product_overflows_is_refused() -> None:
    atom = RankOneAtom(np.array([1.0, -2e200]), np.array([0.5, 1e200]))
    with pytest.raises(ValueError, match="rank-one atom are not finite"):
        unpack_atoms(pack_atoms([atom]), (2, 2))


@given(seeds, shapes)
@settings(max_examples=300, deadline=None)
def test_damaged_packs_never_raise_anything_but_value_error(
    seed: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    arrays = pack_atoms([random_atom(rng, shape) for _ in range(3)])
    victim = int(rng.integers(len(arrays)))
    array = arrays[victim].copy()
    damage = int(rng.integers(5))
    if damage == 0 and array.size:
        array.reshape(-1).view(np.uint8)[rng.integers(array.nbytes)] ^= 1 << int(
            rng.integers(8)
        )
    elif damage == 1:
        array = array[:-1]
    elif damage == 2:
        array = np.append(array, array[:1])
    elif damage == 3:
        array = array.astype(rng.choice(["f4", "i8", "u1", "O", "U3"]))
    arrays[victim] = array
    if damage == 4:
        del arrays[victim]
    try:
        atoms = unpack_atoms(arrays, shape)
    except ValueError:
        return
    for atom in atoms:
        assert atom.shape == shape
        assert np.isfinite(atom.dense()).all()


def test_layouts_have_a_limit() -> None:
    def cut(i: int) -> Atom:
        parts = (np.ones(i + 1), np.ones(399 - i))
        return ProductAtom(tuple(DenseAtom(part) for part in parts))

    atoms = [cut(i) for i in range(248)]
    for atom, other in zip(atoms, unpack_atoms(pack_atoms(atoms), (400,)), strict=True):
        assert_same(atom, other)
    with pytest.raises(ValueError, match="249 ways"):
        pack_atoms([*atoms, cut(248)])
