"""Products of atoms, sums of random signs, and many atoms stacked into a few arrays.

A product travels as its parts, packed. No oracle answers with a sum of random signs: it
is how a model travels that changes along random directions only
(:mod:`fedtrellis.zeroth_order`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import (
    DENSE,
    FLOAT64,
    PERMUTATION,
    PRODUCT,
    RAGGED,
    RANDOM,
    RANK_ONE,
    SIGN,
    SPARSE,
    UINT8,
    Arrays,
    Atom,
    DenseAtom,
    FloatArray,
    PermutationAtom,
    RankOneAtom,
    Shape,
    SignAtom,
    SparseAtom,
    check,
    check_count,
    coerce,
    cut,
    split,
)
from fedtrellis.random import generator


@dataclass(frozen=True, slots=True, eq=False)
class ProductAtom(Atom):
    """The concatenation of its parts, each ravelled: a flat vector of all entries.

    Parameters
    ----------
    parts : tuple of Atom
        At least one, none of them empty. Of a product among them its parts are taken.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import DenseAtom, ProductAtom
    >>> ProductAtom((DenseAtom(np.ones(1)), DenseAtom(np.zeros(2)))).dense()
    array([1., 0., 0.])
    """

    kind: ClassVar[str] = "product"
    _code: ClassVar[int] = PRODUCT
    parts: tuple[Atom, ...]
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        parts: list[Atom] = []
        for part in self.parts:
            parts += part.parts if isinstance(part, ProductAtom) else [part]
        object.__setattr__(self, "parts", tuple(parts))
        sizes = [math.prod(part.shape) for part in parts]
        if not sizes or 0 in sizes:
            raise ValueError("a product atom needs parts, none of them empty")
        object.__setattr__(self, "shape", (sum(sizes),))

    def _slices(self, array: NDArray[Any]) -> Iterator[tuple[Atom, NDArray[Any]]]:
        shapes = [part.shape for part in self.parts]
        return zip(self.parts, cut(array, shapes), strict=True)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, part by part."""
        self._check_target(array)
        for part, block in self._slices(array):
            part.add_to(block, weight)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>, the sum over the parts."""
        self._check_operand(array)
        return sum(part.dot(block) for part, block in self._slices(array))

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the product of the parts with entries of this dtype."""
        return type(self)(tuple(part.of_dtype(dtype) for part in self.parts))

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        return pack_atoms(atoms)

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        atoms = unpack_atoms(arrays, shapes[0], dtype)
        products = [atom for atom in atoms if isinstance(atom, cls)]
        if len(atoms) != len(shapes) or len(products) != len(shapes):
            raise ValueError(f"expected {len(shapes)} product atoms")
        return products


_INT64 = np.dtype(np.int64)
# Entries that are changed at once: what is beside the model is small, and in the cache.
_BLOCK = 2**15
# Row b has the signs of the bits of the byte b.
_SIGNS = 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - 1.0
# Bytes that are drawn at once, whole words of 32 bits.
_DRAWN = 2**14


def draw_signs(rng: np.random.Generator, size: int) -> NDArray[Any]:
    """Draw the bits of a direction u of {−1, 1}^size, eight to a byte; 1 is +1."""
    bits = np.empty(-(-size // 8), dtype=np.uint8)
    # what one call would draw, without the words of all of it beside
    for start in range(0, bits.size, _DRAWN):
        part = bits[start : start + _DRAWN]
        part[:] = np.frombuffer(rng.bytes(part.size), dtype=np.uint8)
    return bits


class StreamedSigns:
    """The directions u_1, u_2, … of p entries of a stream, such as a run's round.

    They derive from seed and stream alone, the same on every machine.
    """

    def __init__(self, seed: int, stream: int, size: int) -> None:
        self._rng, self._size = generator(seed, "random signs", stream), size

    def draw(self) -> NDArray[Any]:
        """Return the next direction's bits, uint8 of shape (⌈p/8⌉,)."""
        return draw_signs(self._rng, self._size)


class PooledSigns:
    """Some of the K directions of a run's pool, each of p entries, in turn."""

    def __init__(self, seed: int, indices: Sequence[int], size: int) -> None:
        self._seed, self._left, self._size = seed, list(indices), size

    def draw(self) -> NDArray[Any]:
        """As :meth:`StreamedSigns.draw`."""
        rng = generator(self._seed, "pool of signs", int(self._left.pop(0)))
        return draw_signs(rng, self._size)


def signed(
    bits: NDArray[Any], value: float, array: NDArray[Any], first: int = 0
) -> None:
    """Do ``array += value * u`` in place, u the signs of a whole direction's bits.

    Every entry is one addition, so that the result has the same bits everywhere. The
    array, in C order, may be a layer of the model: it begins at entry ``first`` of u.
    """
    flat = array.reshape(-1)
    # ±value for the eight bits of every byte
    table = (value * _SIGNS).astype(array.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        byte, bit = divmod(first + start, 8)
        stop = byte - (-(bit + block.size) // 8)
        moved = table.take(bits[byte:stop], axis=0).reshape(-1)
        block += moved[bit : bit + block.size]


@dataclass(frozen=True, slots=True, eq=False)
class RandomSigns(Atom):
    """Σ_j s_j u_j, with u_j of {−1, 1}^p drawn from a seed and the number of a stream.

    Parameters
    ----------
    seed, stream : int
        Not negative.
    scalars : ndarray of float64, shape (m,)
        s_1, …, s_m.
    shape : tuple of int
        Of p entries.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import RandomSigns
    >>> atom = RandomSigns(seed=0, stream=1, scalars=np.array([0.5]), shape=(4,))
    >>> np.abs(atom.dense()).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    kind: ClassVar[str] = "random"
    _code: ClassVar[int] = RANDOM
    seed: int
    stream: int
    scalars: FloatArray
    shape: Shape

    def __post_init__(self) -> None:
        coerce(self, "scalars", FLOAT64)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, one direction after the other.

        In the array's own dtype: a model of float32 gets the same bits on both sides.
        """
        self._check_target(array)
        size, scalars = math.prod(self.shape), self.scalars.tolist()
        u = StreamedSigns(self.seed, self.stream, size)
        for s in scalars:
            signed(u.draw(), weight * s, array)

    @property
    def _modulus(self) -> float | None:
        """|s_j| where it is the same for several scalars: then their signs suffice."""
        moduli = np.abs(self.scalars)
        alike = (
            moduli.size > 1 and moduli[0] > 0.0 and bool((moduli == moduli[0]).all())
        )
        return float(moduli[0]) if alike else None

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        # seed, stream, number of scalars, and words of 64 signs where the scalars
        # differ in these alone; and the scalars, or what they are but for signs
        head: list[int] = []
        scalars: list[FloatArray] = []
        for a in atoms:
            modulus, count = a._modulus, a.scalars.size
            if modulus is None:
                head += [a.seed, a.stream, count]
                scalars.append(a.scalars)
                continue
            bits = np.zeros(64 * -(-count // 64), dtype=bool)
            bits[:count] = a.scalars > 0.0
            head += [a.seed, a.stream, -count]
            head += np.packbits(bits).view("<i8").tolist()
            scalars.append(np.array([modulus]))
        return [np.array(head, dtype=_INT64), np.concatenate(scalars)]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        head, stacked = arrays
        if head.ndim != 1 or head.dtype != _INT64 or head.size < 3 * len(shapes):
            raise ValueError("the heads of random atoms are malformed")
        rows, start = [], 0
        for _ in shapes:
            row = head[start : start + 3].tolist()
            words = -(row[2] // 64) if len(row) == 3 and row[2] < 0 else 0
            start += 3 + words
            if start > head.size or row[0] < 0 or row[1] < 0:
                raise ValueError("a random atom has a negative seed or stream, or ends")
            rows.append((*row, head[start - words : start]))
        check("heads of random atoms", head, _INT64, start)
        counts = [count if count >= 0 else 1 for _, _, count, _ in rows]
        pieces = split("scalars of random atoms", stacked, FLOAT64, counts)
        return [
            cls(seed, stream, _signed_scalars(given, -count, words), shape)
            if count < 0
            else cls(seed, stream, given, shape)
            for (seed, stream, count, words), given, shape in zip(
                rows, pieces, shapes, strict=True
            )
        ]


def _signed_scalars(
    modulus: FloatArray, count: int, words: NDArray[np.int64]
) -> FloatArray:
    """Return ±modulus by the signs in some words."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8), count=count)
    made: FloatArray = np.where(bits == 1, modulus, -modulus)
    return made


_CLASSES: dict[int, tuple[type[Atom], int]] = {  # code: class, number of arrays
    SPARSE: (SparseAtom, 2),
    RAGGED: (SparseAtom, 3),
    RANK_ONE: (RankOneAtom, 2),
    PERMUTATION: (PermutationAtom, 1),
    SIGN: (SignAtom, 2),
    DENSE: (DenseAtom, 1),
    RANDOM: (RandomSigns, 2),
}


_SPARSE_ALONE = np.array([SPARSE], dtype=UINT8)
_SPARSE_ALONE.setflags(write=False)


def pack_atoms(atoms: Sequence[Atom]) -> list[NDArray[Any]]:
    """Stack atoms of one shape into a few self-describing arrays.

    Kinds may be mixed, products cut up in different ways. The arrays are vectors: kind
    codes (uint8, one an atom, a product's parts behind it); with products among the
    atoms their layouts (int64); then, for each code that occurs, in increasing order,
    the wire arrays of its atoms concatenated. The parts of products are stacked with
    everything else of their kind, so the number of arrays does not grow with the number
    of atoms or of parts. ValueError for atoms of different shapes, or of more than 249
    layouts.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import SparseAtom, pack_atoms, unpack_atoms
    >>> atom = SparseAtom(np.array([1]), np.array([-2.0]), (3,))
    >>> (again,) = unpack_atoms(pack_atoms([atom]), (3,))
    >>> again.dense()
    array([ 0., -2.,  0.])
    """
    if len(atoms) == 1 and isinstance(atoms[0], SparseAtom):  # the most frequent
        return [_SPARSE_ALONE, *SparseAtom._stack([atoms[0]])]
    codes: list[int] = []
    layouts: dict[tuple[int, ...], int] = {}
    groups: dict[int, list[Atom]] = {}
    for atom in atoms:
        if atom.shape != atoms[0].shape:
            raise ValueError(
                f"atoms packed together must have one shape, got {atoms[0].shape} "
                f"and {atom.shape}"
            )
        leaves = [atom]
        if isinstance(atom, ProductAtom):
            leaves = list(atom.parts)
            layout = (
                -len(leaves),
                *(n for a in leaves for n in (len(a.shape), *a.shape)),
            )
            codes.append(PRODUCT + layouts.setdefault(layout, len(layouts)))
        for leaf in leaves:
            code = leaf._code
            codes.append(code)
            groups.setdefault(code, []).append(leaf)
    if len(layouts) > 256 - PRODUCT:
        raise ValueError(f"{len(layouts)} ways to cut up products; at most 249 fit")
    arrays: list[NDArray[Any]] = []
    if layouts:
        arrays.append(np.array([i for layout in layouts for i in layout], np.int64))
    for code in sorted(groups):
        stacked = groups[code][0]._stack(groups[code])
        arrays.extend(stacked)
        if code == SPARSE and len(stacked) == 3:
            codes = [RAGGED if c == SPARSE else c for c in codes]
    return [np.array(codes, dtype=UINT8), *arrays]


def unpack_atoms(
    arrays: Arrays, shape: Shape, dtype: np.dtype[Any] = FLOAT64, *, drawn: bool = False
) -> list[Atom]:
    """Rebuild the atoms that :func:`pack_atoms` stacked, bit for bit.

    Nothing of what arrived is trusted: ValueError for anything malformed, with the
    reason. Every atom must be of this shape, with entries of ``dtype``, float64 or
    float32; they share memory with ``arrays``. ``drawn`` says whether
    :class:`RandomSigns` are taken: eight bytes of one cost as many operations as the
    shape has entries.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import SparseAtom, pack_atoms, unpack_atoms
    >>> atom = SparseAtom(np.array([1]), np.array([-2.0]), (3,))
    >>> len(unpack_atoms(pack_atoms([atom, atom]), (3,)))
    2
    """
    shape = tuple(shape)
    if not arrays:
        raise ValueError("packed atoms need at least the array of kind codes")
    check("kind codes", arrays[0], UINT8, None)
    codes: list[int] = arrays[0].tolist()
    if codes == [SPARSE] and len(arrays) == 3:  # the most frequent of answers
        return list(SparseAtom._unstack(arrays[1:], [shape], dtype))
    if RANDOM in codes and not drawn:
        raise ValueError("random atoms are not taken here")
    used = 1
    layouts: list[list[Shape]] = []
    if max(codes, default=0) >= PRODUCT:
        if len(arrays) < 2:
            raise ValueError("the layouts of the product atoms are missing")
        layouts = _parse_layouts(arrays[1], shape)
        used = 2

    # First pass: which shapes does each kind of leaf have, in order?
    shapes: dict[int, list[Shape]] = {}
    position = 0
    while position < len(codes):
        leaf_shapes = [shape]
        if codes[position] >= PRODUCT:
            if codes[position] - PRODUCT >= len(layouts):
                raise ValueError(f"layout {codes[position] - PRODUCT} does not exist")
            leaf_shapes = layouts[codes[position] - PRODUCT]
            position += 1
        leaf_codes = codes[position : position + len(leaf_shapes)]
        if len(leaf_codes) < len(leaf_shapes) or max(leaf_codes) >= PRODUCT:
            raise ValueError("the kind codes of a product's parts are incomplete")
        for code, leaf_shape in zip(leaf_codes, leaf_shapes, strict=True):
            shapes.setdefault(code, []).append(leaf_shape)
        position += len(leaf_codes)

    # Then each kind's arrays at once.
    leaves: dict[int, Iterator[Atom]] = {}
    for code in sorted(shapes):
        atom_class, count = _CLASSES[code]
        group = arrays[used : used + count]
        check_count(atom_class.kind, group, count)
        leaves[code] = iter(atom_class._unstack(group, shapes[code], dtype))
        used += count
    if used != len(arrays):
        raise ValueError(f"expected {used} arrays, got {len(arrays)}")

    # Second pass: put them back in order and into their products.
    stream = iter(codes)
    atoms: list[Atom] = []
    for code in stream:
        if code >= PRODUCT:
            parts = [next(leaves[next(stream)]) for _ in layouts[code - PRODUCT]]
            atoms.append(ProductAtom(tuple(parts)))
        else:
            atoms.append(next(leaves[code]))
    return atoms


def _parse_layouts(numbers: NDArray[Any], shape: Shape) -> list[list[Shape]]:
    """Read how products are cut up: (−number of parts, then (ndim, *shape) of each).

    Each must be a product of as many entries as ``shape``.
    """
    check("product layouts", numbers, np.dtype(np.int64), None)
    stream = iter(numbers.tolist())
    layouts: list[list[Shape]] = []
    for head in stream:
        parts: list[Shape] = []
        while len(parts) < -head:
            ndim = next(stream, -1)  # ends when the stream does, whatever head says
            dims = tuple(itertools.islice(stream, max(ndim, 0)))
            if not 0 <= ndim <= 32 or len(dims) < ndim or min(dims, default=1) < 1:
                raise ValueError(f"a product layout has a part of invalid shape {dims}")
            parts.append(dims)
        size = sum(map(math.prod, parts))
        if head >= 0 or (size,) != shape:
            raise ValueError(f"a product layout of {size} entries for shape {shape}")
        layouts.append(parts)
    return layouts
