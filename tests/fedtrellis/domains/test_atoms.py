"""Atoms: arithmetic against their dense form, the wire bit for bit, hostile input."""

import math
from collections.abc import Callable, Sequence
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
def test_arithmetic_and_the_wire_agree_with_the_dense_form(
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


MALFORMED: list[tuple[type[Atom], Sequence[NDArray[Any]], tuple[int, ...]]] = [
    (SparseAtom, [], (5,)),
    (SparseAtom, [u8(5), f8(1)], (5,)),
    (SparseAtom, [u8(2, 1), f8(1, 2)], (5,)),
    (SparseAtom, [u8(0, 1), f8(1, 2)], (1,)),
    (SparseAtom, [u8(1), f8(np.nan)], (5,)),
    (SparseAtom, [u8(1), f8(1)], (500,)),
    (SparseAtom, [np.array([2**63], np.uint64), f8(1)], (2**33,)),
    (RankOneAtom, [f8(1, 2), f8(1, 2)], (2, 3)),
    (RankOneAtom, [f8(1, np.nan), f8(1, 2, 3)], (2, 3)),
    (RankOneAtom, [f8(1, 2), f8(1, 2, 3)], (6,)),
    (PermutationAtom, [u8(0, 1)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 1)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2), f8(np.nan)], (3, 3)),
    (PermutationAtom, [u8(0, 1, 2)], (3, 4)),
    (SignAtom, [u8(1), f8(1, np.nan)], (8,)),
    (SignAtom, [np.array([True]), f8(1, 2)], (8,)),
    (DenseAtom, [f8(1, np.nan)], (2,)),
    (ProductAtom, [u8(5), f8(1, 2, 3, 4)], (4,)),  # no product
    (ProductAtom, [u8(8, 6, 6)], (4,)),  # no layout
    (ProductAtom, [u8(8, 6, 6), i8(-2, 1, 2, 1, -2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6, 6), i8(-(2**63), 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(2**62, 1, 2), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 6), i8(*[-1] * 5000, 1, 4), f8(1, 2, 3, 4)], (4,)),
    (ProductAtom, [u8(8, 0), i8(-1, 2, -2, -2), u8(1), f8(1)], (4,)),
    (ProductAtom, [u8(8, 0), i8(-1, 2, 4, 0), u8(1), f8(1)], (0,)),
    (ProductAtom, [u8(8, 0, 0), i8(-2, 1, 2, 1, 3), u8(1, 3), f8(1, 1)], (5,)),
    (ProductAtom, [u8(8, 6), i8(-1, 1, 4), f8(1, 2, 3, 4)], (2, 2)),
    (ProductAtom, [u8(8, 6, 8, 6), i8(-1, 1, 4), np.ones(8)], (4,)),  # two of them
]
#: Beside those, a pack of several atoms: no kind.
PACKS: list[Arrays] = [
    [],
    [f8(0)],
    [u8(0, 0), u8(1), f8(1)],
    [u8(0, 0), u8(1, 2, 3), f8(1, 2, 3)],
    [u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), u8(1, 1)],
    [u8(1, 1), u8(1, 2, 1), f8(1, 2, 3), f8(2, 1)],
    [u8(1, 1), u8(1, 1, 2), f8(1, 2, 3), u8(2, 1)],
    [u8(1, 1), u8(0, 1, 2, 3, 4, 4), f8(1, 2, 3, 4, 5, 6), u8(6, 0)],
    [u8(4, 0), u8(0), f8(1)],
    [u8(255), i8(-1, 1, 5), f8(1, 2, 3, 4, 5)],
]


@pytest.mark.parametrize(
    ("read", "arrays", "shape"),
    [
        *((kind.from_arrays, arrays, shape) for kind, arrays, shape in MALFORMED),
        *((unpack_atoms, pack, (5,)) for pack in PACKS),
    ],
)
def test_malformed_arrays_are_refused(
    read: Callable[..., Any], arrays: Arrays, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(arrays, shape)


def test_a_product_needs_parts() -> None:
    with pytest.raises(ValueError, match="needs parts, none of them empty"):
        ProductAtom(())


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
