"""Atoms: arithmetic against their dense form, the wire bit for bit, hostile input."""

import math
from collections.abc import Callable
from functools import partial
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
from fedtrellis.domains.atoms.base import DENSE, PRODUCT, RANDOM
from tests.harness import refused

Arrays = list[NDArray[Any]]


def random_atom(rng: np.random.Generator, shape: tuple[int, ...]) -> Atom:
    """An atom of any kind that fits the shape, products of products included."""
    kinds = ["sparse", "sign", "dense"]
    if len(shape) == 2:
        kinds.append("rank-one")
        kinds += ["permutation"] if shape[0] == shape[1] else []
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
    cut = int(rng.integers(1, size))
    shapes: list[tuple[int, ...]] = [(cut,), (size - cut,)]
    if cut % 2 == 0:
        shapes[0] = (2, cut // 2)
    return ProductAtom(tuple(random_atom(rng, part) for part in shapes))


shapes = st.sampled_from(
    [(1,), (7,), (300,), (4, 4), (3, 5), (2, 3, 4), (1, 1), (17, 17)]
)
seeds = st.integers(0, 2**32 - 1)


@given(seeds, shapes)
@settings(max_examples=200, deadline=None)
def test_all_is_as_with_the_dense_form(seed: int, shape: tuple[int, ...]) -> None:
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
    atoms = [atom, random_atom(rng, shape)]
    for ours, sent in zip(atoms, unpack_atoms(pack_atoms(atoms), shape), strict=True):
        assert sent.dense().tobytes() == ours.dense().tobytes()
    dense[...] = np.nan  # a new array: the atom must not notice
    assert np.isfinite(atom.dense()).all()


def u8(*values: int) -> NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def f8(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def i8(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


P, D, FOUR = PRODUCT, DENSE, f8(1, 2, 3, 4)
MALFORMED: list[tuple[type[Atom], Arrays, tuple[int, ...], str]] = [
    (SparseAtom, [], (5,), "need 2 or 3 arrays, got 0"),
    (SparseAtom, [u8(5), f8(1)], (5,), "out of range"),
    (SparseAtom, [u8(2, 1), f8(1, 2)], (5,), "increase strictly"),
    (SparseAtom, [u8(0, 1), f8(1, 2)], (1,), "out of range"),
    (SparseAtom, [u8(1), f8(np.nan)], (5,), "must be finite"),
    (SparseAtom, [u8(1), f8(1)], (500,), "must be a uint16 vector"),
    (SparseAtom, [np.array([2**63], np.uint64), f8(1)], (2**33,), "out of range"),
    (RankOneAtom, [f8(1, 2), f8(1, 2)], (2, 3), "expected 3 right vectors"),
    (RankOneAtom, [f8(1, np.nan), f8(1, 2, 3)], (2, 3), "left vectors must be"),
    (RankOneAtom, [f8(1, 2), f8(1, 2, 3)], (6,), "is a matrix"),
    (PermutationAtom, [u8(0, 1)], (3, 3), "expected 3 columns"),
    (PermutationAtom, [u8(0, 1, 1)], (3, 3), "must each occur once"),
    (PermutationAtom, [u8(0, 1, 2), f8(np.nan)], (3, 3), "need 1 arrays"),
    (PermutationAtom, [u8(0, 1, 2)], (3, 4), "is a square matrix"),
    (SignAtom, [u8(1), f8(1, np.nan)], (8,), "levels must be finite"),
    (SignAtom, [np.array([True]), f8(1, 2)], (8,), "bits must be a uint8 vector"),
    (DenseAtom, [f8(1, np.nan)], (2,), "entries must be finite"),
    (ProductAtom, [u8(D), FOUR], (4,), "expected 1 product atoms"),
    (ProductAtom, [u8(P, D, D)], (4,), "layouts of the product atoms are missing"),
    (ProductAtom, [u8(P, D, D), i8(-2, 1, 2, 1, -2), FOUR], (4,), "invalid shape"),
    (ProductAtom, [u8(P, D, D), i8(-(2**63), 1, 2), FOUR], (4,), "invalid shape"),
    (ProductAtom, [u8(P, D), i8(2**62, 1, 2), FOUR], (4,), "layout of 0 entries"),
    (ProductAtom, [u8(P, D), i8(*[-1] * 5000, 1, 4), FOUR], (4,), "invalid shape"),
    (ProductAtom, [u8(P, 0), i8(-1, 2, -2, -2), u8(1), f8(1)], (4,), "invalid shape"),
    (ProductAtom, [u8(P, 0), i8(-1, 2, 4, 0), u8(1), f8(1)], (0,), "invalid shape"),
    (ProductAtom, [u8(P, 0, 0), i8(-2, 1, 2, 1, 3), u8(1, 3), f8(1, 1)], (5,), "range"),
    (ProductAtom, [u8(P, D), i8(-1, 1, 4), FOUR], (2, 2), "4 entries for shape"),
    (ProductAtom, [u8(P, D, P, D), i8(-1, 1, 4), np.ones(8)], (4,), "expected 1"),
]
#: Beside those, a pack of several atoms: no kind.
PACKS: list[tuple[Arrays, str]] = [
    ([], "at least the array of kind codes"),
    ([f8(0)], "must be a uint8 vector"),
    ([u8(0, 0), u8(1), f8(1)], "do not divide among 2"),
    ([u8(0, 0), u8(1, 2, 3), f8(1, 2, 3)], "do not divide among 2"),
    ([u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), u8(1, 1)], "counts sum to 2"),
    ([u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), f8(2, 1)], "counts must be 2 unsigned"),
    ([u8(1, 1), u8(1, 1, 2), f8(1, 2, 3), u8(2, 1)], "increase strictly"),
    ([u8(1, 1), u8(0, 1, 2, 3, 4, 4), np.ones(6), u8(6, 0)], "increase strictly"),
    ([u8(4, 0), u8(0), f8(1)], "sign atoms need 2 arrays"),
    ([u8(255), i8(-1, 1, 5), np.ones(5)], "layout 248 does not exist"),
    ([u8(RANDOM), i8(1, 2), f8(1)], "heads of random atoms are malformed"),
    ([u8(RANDOM), i8(-1, 0, 1), f8(1)], "a negative seed"),
    ([u8(RANDOM), i8(0, 0, -65, 0), f8(1)], "or ends"),
]


@pytest.mark.parametrize(
    ("read", "arrays", "shape", "reason"),
    [
        *((kind.from_arrays, *rest) for kind, *rest in MALFORMED),
        *((partial(unpack_atoms, drawn=True), p, (5,), why) for p, why in PACKS),
    ],
)
def test_malformed_arrays_are_refused(
    read: Callable[..., Any], arrays: Arrays, shape: tuple[int, ...], reason: str
) -> None:
    refused(reason, lambda: read(arrays, shape), ValueError)


@pytest.mark.parametrize(("size", "dtype"), [(2**8, "u1"), (2**8 + 1, "u2")])
def test_an_index_has_the_fewest_bytes(size: int, dtype: str) -> None:
    atom = SparseAtom(np.array([size - 1]), np.ones(1), (size,))
    assert pack_atoms([atom])[1].dtype == dtype


def test_a_product_needs_parts_and_a_pack_a_code_for_each_way_to_cut() -> None:
    refused("needs parts, none of them empty", lambda: ProductAtom(()), ValueError)
    a = np.ones(251)
    cuts = [ProductAtom((DenseAtom(a[:k]), DenseAtom(a[k:]))) for k in range(1, 251)]
    assert len(unpack_atoms(pack_atoms(cuts[1:]), (251,))) == 249
    refused("250 ways", lambda: pack_atoms(cuts), ValueError)


@given(seeds, shapes)
@settings(max_examples=300, deadline=None)
def test_damaged_packs_raise_value_errors(seed: int, shape: tuple[int, ...]) -> None:
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
