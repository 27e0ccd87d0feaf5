"""Atoms: extreme points of convex sets, in the smallest form that determines them.

A linear minimisation oracle answers with an extreme point of its set: one signed
coordinate of an l1 ball, two singular vectors of a nuclear norm ball, a permutation
of the Birkhoff polytope. An :class:`Atom` holds that form; it is added to a dense
array in place, without becoming one, and it travels as a few small arrays.

On the wire every array costs some 250 bytes of envelope, so :func:`pack_atoms`
stacks many atoms: one array of kind codes, then one to three arrays for each kind
that occurs. What arrives comes from outside: :meth:`Atom.from_arrays` and
:func:`unpack_atoms` check all of it and allocate no more than a small multiple of
what came.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Atom",
    "DenseAtom",
    "PermutationAtom",
    "ProductAtom",
    "RankOneAtom",
    "SignAtom",
    "SparseAtom",
    "pack_atoms",
    "unpack_atoms",
]

Shape = tuple[int, ...]
FloatArray = NDArray[np.float64]
Arrays = Sequence[NDArray[Any]]

_FLOAT64 = np.dtype(np.float64)
_INTP = np.dtype(np.intp)
_UINT8 = np.dtype(np.uint8)
_UNSIGNED = [np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)]

# Kind codes on the wire, one byte an atom. From _PRODUCT on: a product whose parts
# have the shapes of layout number code - _PRODUCT; its parts' codes follow.
_SPARSE, _RAGGED, _RANK_ONE, _PERMUTATION, _SCALED, _SIGN, _DENSE, _PRODUCT = range(8)
_new, _set = object.__new__, object.__setattr__
_MAX_DEPTH = 16  # products nested deeper are refused, not left to Python's stack


class Atom(ABC):
    """One point of a convex set, in its smallest form.

    Atoms are immutable and may share memory with the arrays they were made from;
    nothing here writes to those. Two atoms are never compared by value.

    Attributes
    ----------
    kind : str
        Which form this is.
    shape : tuple of int
        Shape of the dense array the atom stands for.
    """

    __slots__ = ()

    kind: ClassVar[str]
    shape: Shape

    @abstractmethod
    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array of shape ``self.shape``."""

    @abstractmethod
    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom`` in place.

        Parameters
        ----------
        array : ndarray
            C-contiguous, of shape ``self.shape``.
        weight : float

        Raises
        ------
        ValueError
            The array has another shape or is not C-contiguous.
        """

    @abstractmethod
    def dot(self, array: NDArray[Any]) -> float:
        """Return the inner product <atom, array>, the sum over all entries."""

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that travel; :meth:`from_arrays` is the inverse."""
        return self._stack([self])

    @classmethod
    def from_arrays(cls, arrays: Arrays, shape: Shape) -> Self:
        """Rebuild an atom of a known shape from what :meth:`to_arrays` returned.

        Raises
        ------
        ValueError
            Anything malformed: number, dtype or length of the arrays, an index out
            of range, not a permutation, a value that is not finite.
        """
        return cls._unstack(arrays, [tuple(shape)])[0]

    @property
    def nbytes(self) -> int:
        """Total bytes of :meth:`to_arrays`."""
        return sum(array.nbytes for array in self.to_arrays())

    @property
    @abstractmethod
    def _code(self) -> int:
        """The kind code on the wire."""

    @classmethod
    @abstractmethod
    def _stack(cls, atoms: Sequence[Any]) -> list[NDArray[Any]]:
        """Concatenate the wire arrays of atoms of this class."""

    @classmethod
    @abstractmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        """Check the stacked arrays and rebuild one atom for each shape."""

    def _check_target(self, array: NDArray[Any]) -> None:
        # A reshape of an array that is not contiguous is a copy: the sum would be lost.
        if array.shape != self.shape or not array.flags.c_contiguous:
            raise ValueError(
                f"a {self.kind} atom of shape {self.shape} needs a C-contiguous array "
                f"of that shape, got shape {array.shape}, strides {array.strides}"
            )

    def _check_operand(self, array: NDArray[Any]) -> None:
        if array.shape != self.shape:
            raise ValueError(
                f"a {self.kind} atom of shape {self.shape} cannot be multiplied "
                f"with an array of shape {array.shape}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class SparseAtom(Atom):
    """A few non-zeros: ``dense.ravel()[indices] = values``, zero elsewhere.

    Parameters
    ----------
    indices : ndarray of intp
        Flat C-order indices, increasing, none twice.
    values : ndarray of float64
        One value for each index.
    shape : tuple of int
    """

    kind: ClassVar[str] = "sparse"
    indices: NDArray[np.intp]
    values: FloatArray
    shape: Shape

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple:
            raise TypeError(
                "SparseAtom(indices, values, shape): shape must be a tuple, "
                f"not a {type(self.shape).__name__}"
            )
        _coerce(self, "indices", _INTP)
        _coerce(self, "values", _FLOAT64)
        if self.indices.shape != self.values.shape or self.indices.ndim != 1:
            raise ValueError(
                f"a sparse atom needs one value for each index, got indices of shape "
                f"{self.indices.shape} and values of shape {self.values.shape}"
            )

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        array = np.zeros(self.shape)
        array.reshape(-1)[self.indices] = self.values
        return array

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, touching the non-zeros only."""
        self._check_target(array)
        array.reshape(-1)[self.indices] += weight * self.values

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>, reading the non-zeros only."""
        self._check_operand(array)
        # take, not reshape(-1)[...]: it copies nothing from an array in any order
        return float(self.values @ array.take(self.indices))

    @property
    def _code(self) -> int:
        return _SPARSE

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        counts = [atom.indices.size for atom in atoms]
        dtype = _index_dtype(max(math.prod(atom.shape) for atom in atoms))
        arrays: list[NDArray[Any]] = [
            np.concatenate([atom.indices for atom in atoms]).astype(dtype),
            np.concatenate([atom.values for atom in atoms]),
        ]
        if min(counts) != max(counts):
            arrays.append(np.array(counts, _index_dtype(max(counts) + 1)))
        return arrays

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        if len(arrays) not in (2, 3):
            raise ValueError(f"sparse atoms need 2 or 3 arrays, got {len(arrays)}")
        indices, values = arrays[:2]
        sizes = [math.prod(shape) for shape in shapes]
        _check("sparse values", values, _FLOAT64, None)
        _check("sparse indices", indices, _index_dtype(max(sizes)), values.size)
        number = len(shapes)
        if len(arrays) == 3:
            counts = _counts(arrays[2], number, values.size)
        elif values.size % number:
            raise ValueError(
                f"{values.size} sparse values do not divide among {number} atoms"
            )
        else:
            counts = [values.size // number] * number
        if len(set(sizes)) == 1:
            outside = indices.size > 0 and int(indices.max()) >= sizes[0]
        else:  # size - 1, as the size itself may not fit the dtype
            last = np.repeat([size - 1 for size in sizes], counts)
            outside = bool((indices > last.astype(indices.dtype)).any())
        if outside:
            raise ValueError("a sparse index is out of range for its atom's shape")
        stops = list(itertools.accumulate(counts))
        if max(counts) > 1:  # there is nothing to order in single entries
            rising = indices[1:] > indices[:-1]
            ends = np.array(stops[:-1], dtype=_INTP)
            rising[ends[(ends > 0) & (ends < values.size)] - 1] = True  # atom to atom
            if not rising.all():
                raise ValueError("the indices of a sparse atom must increase strictly")
        indices = indices.astype(_INTP)
        atoms = []
        start = 0
        for stop, shape in zip(stops, shapes, strict=True):
            atom = _new(cls)  # all is checked: half the time of the constructor
            _set(atom, "indices", indices[start:stop])
            _set(atom, "values", values[start:stop])
            _set(atom, "shape", shape)
            atoms.append(atom)
            start = stop
        return atoms


def _largest(vector: FloatArray) -> float:
    return float(np.abs(vector).max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class RankOneAtom(Atom):
    """The matrix ``left rightᵀ`` of shape (m, n); its scale is in ``left``."""

    kind: ClassVar[str] = "rank-one"
    left: FloatArray
    right: FloatArray
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        _coerce(self, "left", _FLOAT64)
        _coerce(self, "right", _FLOAT64)
        if self.left.ndim != 1 or self.right.ndim != 1:
            raise ValueError(
                f"a rank-one atom needs two vectors, got shapes "
                f"{self.left.shape} and {self.right.shape}"
            )
        object.__setattr__(self, "shape", (self.left.size, self.right.size))

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return np.multiply.outer(self.left, self.right)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * left rightᵀ``."""
        self._check_target(array)
        array += np.multiply.outer(weight * self.left, self.right)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array> = leftᵀ array right."""
        self._check_operand(array)
        return float(self.left @ (array @ self.right))

    @property
    def _code(self) -> int:
        return _RANK_ONE

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        left = np.concatenate([atom.left for atom in atoms])
        return [left, np.concatenate([atom.right for atom in atoms])]

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        _check_count("rank-one", arrays, 2)
        for shape in shapes:
            if len(shape) != 2:
                raise ValueError(f"a rank-one atom is a matrix, not of shape {shape}")
        left = _split("left vectors", arrays[0], _FLOAT64, [s[0] for s in shapes])
        right = _split("right vectors", arrays[1], _FLOAT64, [s[1] for s in shapes])
        for u, v in zip(left, right, strict=True):
            # Python's floats overflow to infinity without a warning
            if not math.isfinite(_largest(u) * _largest(v)):
                raise ValueError("the entries of a rank-one atom are not finite")
        return [cls(u, v) for u, v in zip(left, right, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class PermutationAtom(Atom):
    """A scaled permutation matrix: row i has ``scale`` in column ``columns[i]``."""

    kind: ClassVar[str] = "permutation"
    columns: NDArray[np.intp]
    scale: float = 1.0
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        _coerce(self, "columns", _INTP)
        if self.columns.ndim != 1:
            raise ValueError(
                f"a permutation atom needs a vector of columns, got shape "
                f"{self.columns.shape}"
            )
        object.__setattr__(self, "shape", (self.columns.size, self.columns.size))

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        array = np.zeros(self.shape)
        array[np.arange(self.columns.size), self.columns] = self.scale
        return array

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, touching one entry a row."""
        self._check_target(array)
        array[np.arange(self.columns.size), self.columns] += weight * self.scale

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array> = scale Σ_i array[i, columns[i]]."""
        self._check_operand(array)
        entries = array[np.arange(self.columns.size), self.columns]
        return self.scale * float(entries.sum(dtype=np.float64))

    @property
    def _code(self) -> int:
        return _PERMUTATION if self.scale == 1.0 else _SCALED

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        dtype = _index_dtype(max(atom.columns.size for atom in atoms))
        columns = np.concatenate([atom.columns for atom in atoms]).astype(dtype)
        if all(atom.scale == 1.0 for atom in atoms):
            return [columns]
        return [columns, np.array([atom.scale for atom in atoms])]

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        if len(arrays) not in (1, 2):
            raise ValueError(f"permutations need 1 or 2 arrays, got {len(arrays)}")
        for shape in shapes:
            if len(shape) != 2 or shape[0] != shape[1]:
                raise ValueError(f"a permutation is a square matrix, not {shape}")
        rows = [shape[0] for shape in shapes]
        stacked = _split("columns", arrays[0], _index_dtype(max(rows)), rows)
        scales = [1.0] * len(rows)
        if len(arrays) == 2:
            _check("scales", arrays[1], _FLOAT64, len(rows))
            scales = arrays[1].tolist()
        for columns in stacked:
            if not np.array_equal(np.sort(columns), np.arange(columns.size)):
                raise ValueError("the columns of a permutation must each occur once")
        return [cls(c.astype(_INTP), s) for c, s in zip(stacked, scales, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class SignAtom(Atom):
    """Two values, a bit an entry: ``high`` where ``bits`` is true, else ``low``."""

    kind: ClassVar[str] = "sign"
    bits: NDArray[np.bool_]
    low: float
    high: float
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        _coerce(self, "bits", np.dtype(np.bool_))
        object.__setattr__(self, "shape", self.bits.shape)

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return np.where(self.bits, np.float64(self.high), np.float64(self.low))

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``."""
        self._check_target(array)
        high, low = np.float64(weight * self.high), np.float64(weight * self.low)
        array += np.where(self.bits, high, low)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>."""
        self._check_operand(array)
        return float(np.vdot(self.dense(), array))

    @property
    def _code(self) -> int:
        return _SIGN

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        packed = np.concatenate([np.packbits(atom.bits) for atom in atoms])
        levels = [level for atom in atoms for level in (atom.low, atom.high)]
        return [packed, np.array(levels, dtype=_FLOAT64)]

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        _check_count("sign", arrays, 2)
        sizes = [math.prod(shape) for shape in shapes]
        stacked = _split("bits", arrays[0], _UINT8, [-(-size // 8) for size in sizes])
        _check("levels", arrays[1], _FLOAT64, 2 * len(shapes))
        levels = arrays[1].tolist()
        return [
            cls(
                np.unpackbits(packed, count=size).view(np.bool_).reshape(shape),
                low,
                high,
            )
            for packed, size, shape, low, high in zip(
                stacked, sizes, shapes, levels[::2], levels[1::2], strict=True
            )
        ]


@dataclass(frozen=True, slots=True, eq=False)
class DenseAtom(Atom):
    """A point with no smaller form, e.g. of an l2 ball."""

    kind: ClassVar[str] = "dense"
    array: FloatArray
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        _coerce(self, "array", _FLOAT64)
        object.__setattr__(self, "shape", self.array.shape)

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return self.array.copy()

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``."""
        self._check_target(array)
        array += weight * self.array

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>."""
        self._check_operand(array)
        return float(np.vdot(self.array, array))

    @property
    def _code(self) -> int:
        return _DENSE

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the array itself, in its own shape."""
        return [self.array]

    @classmethod
    def from_arrays(cls, arrays: Arrays, shape: Shape) -> Self:
        """Rebuild the atom; ValueError unless one finite float64 array of the shape."""
        _check_count(cls.kind, arrays, 1)
        if arrays[0].shape != tuple(shape):
            raise ValueError(f"expected shape {shape}, got {arrays[0].shape}")
        return cls._unstack([arrays[0].reshape(-1)], [tuple(shape)])[0]

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        return [np.concatenate([atom.array.reshape(-1) for atom in atoms])]

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        _check_count("dense", arrays, 1)
        sizes = [math.prod(shape) for shape in shapes]
        stacked = _split("dense entries", arrays[0], _FLOAT64, sizes)
        return [cls(a.reshape(s)) for a, s in zip(stacked, shapes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class ProductAtom(Atom):
    """The concatenation of its parts, each ravelled: a flat vector of all entries.

    Parameters
    ----------
    parts : tuple of Atom
        At least one, none of them empty; products may be nested.
    """

    kind: ClassVar[str] = "product"
    parts: tuple[Atom, ...]
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        sizes = [math.prod(part.shape) for part in self.parts]
        if not sizes or 0 in sizes:
            raise ValueError("a product atom needs parts, none of them empty")
        object.__setattr__(self, "shape", (sum(sizes),))

    def _slices(self, array: NDArray[Any]) -> Iterator[tuple[Atom, NDArray[Any]]]:
        start = 0
        for part in self.parts:
            stop = start + math.prod(part.shape)
            yield part, array[start:stop].reshape(part.shape)
            start = stop

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return np.concatenate([part.dense().reshape(-1) for part in self.parts])

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, part by part."""
        self._check_target(array)
        for part, block in self._slices(array):
            part.add_to(block, weight)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>, the sum over the parts."""
        self._check_operand(array)
        return sum(part.dot(block) for part, block in self._slices(array))

    @property
    def _code(self) -> int:
        return _PRODUCT

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        return pack_atoms(atoms)

    @classmethod
    def _unstack(cls, arrays: Arrays, shapes: Sequence[Shape]) -> list[Self]:
        atoms = unpack_atoms(arrays, shapes[0])
        products = [atom for atom in atoms if isinstance(atom, cls)]
        if len(atoms) != len(shapes) or len(products) != len(shapes):
            raise ValueError(f"expected {len(shapes)} product atoms")
        return products


_CLASSES: dict[int, tuple[type[Atom], int]] = {  # code: class, number of arrays
    _SPARSE: (SparseAtom, 2),
    _RAGGED: (SparseAtom, 3),
    _RANK_ONE: (RankOneAtom, 2),
    _PERMUTATION: (PermutationAtom, 1),
    _SCALED: (PermutationAtom, 2),
    _SIGN: (SignAtom, 2),
    _DENSE: (DenseAtom, 1),
}

# How a product is cut up: a leaf is the shape of an atom, a list is a product. On the
# wire, in int64: a leaf as (ndim, *shape), a product as (-number of parts, *parts).
_Layout = Shape | list["_Layout"]


def pack_atoms(atoms: Sequence[Atom]) -> list[NDArray[Any]]:
    """Stack atoms of one shape into a few self-describing arrays.

    Parameters
    ----------
    atoms : sequence of Atom
        All of one shape; kinds may be mixed, products cut up in different ways.

    Returns
    -------
    list of ndarray
        All one-dimensional: kind codes (uint8, one an atom, a product's parts behind
        it); with products among the atoms their layouts (int64); then, for each code
        that occurs, in increasing order, the wire arrays of its atoms concatenated.
        The parts of products are stacked with everything else of their kind, so the
        number of arrays does not grow with the number of atoms or of parts.

    Raises
    ------
    ValueError
        The atoms have different shapes, or more than 249 layouts.
    """
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
            layout: list[int] = []
            leaves = list(_flatten(atom, layout))
            codes.append(_PRODUCT + layouts.setdefault(tuple(layout), len(layouts)))
        for leaf in leaves:
            code = leaf._code
            codes.append(code)
            groups.setdefault(code, []).append(leaf)
    if len(layouts) > 256 - _PRODUCT:
        raise ValueError(f"{len(layouts)} ways to cut up products; at most 249 fit")
    arrays: list[NDArray[Any]] = []
    if layouts:
        arrays.append(np.array([i for layout in layouts for i in layout], np.int64))
    for code in sorted(groups):
        stacked = groups[code][0]._stack(groups[code])
        arrays.extend(stacked)
        if code == _SPARSE and len(stacked) == 3:
            codes = [_RAGGED if c == _SPARSE else c for c in codes]
    return [np.array(codes, dtype=_UINT8), *arrays]


def unpack_atoms(arrays: Arrays, shape: Shape) -> list[Atom]:
    """Rebuild the atoms that :func:`pack_atoms` stacked, bit for bit.

    Parameters
    ----------
    arrays : sequence of ndarray
        What arrived. Nothing in it is trusted.
    shape : tuple of int
        The shape every atom must have.

    Returns
    -------
    list of Atom
        They share memory with ``arrays``.

    Raises
    ------
    ValueError
        Anything malformed, with the reason.
    """
    shape = tuple(shape)
    if not arrays:
        raise ValueError("packed atoms need at least the array of kind codes")
    _check("kind codes", arrays[0], _UINT8, None)
    codes: list[int] = arrays[0].tolist()
    used = 1
    layouts: list[_Layout] = []
    if max(codes, default=0) >= _PRODUCT:
        if len(arrays) < 2:
            raise ValueError("the layouts of the product atoms are missing")
        layouts = _parse_layouts(arrays[1], shape)
        used = 2

    # First pass: which shapes does each kind of leaf have, in order?
    shapes: dict[int, list[Shape]] = {}
    position = 0
    while position < len(codes):
        leaf_shapes = [shape]
        if codes[position] >= _PRODUCT:
            if codes[position] - _PRODUCT >= len(layouts):
                raise ValueError(f"layout {codes[position] - _PRODUCT} does not exist")
            leaf_shapes = list(_leaf_shapes(layouts[codes[position] - _PRODUCT]))
            position += 1
        leaf_codes = codes[position : position + len(leaf_shapes)]
        if len(leaf_codes) < len(leaf_shapes) or max(leaf_codes) >= _PRODUCT:
            raise ValueError("the kind codes of a product's parts are incomplete")
        for code, leaf_shape in zip(leaf_codes, leaf_shapes, strict=True):
            shapes.setdefault(code, []).append(leaf_shape)
        position += len(leaf_codes)

    # Then each kind's arrays at once.
    leaves: dict[int, Iterator[Atom]] = {}
    for code in sorted(shapes):
        atom_class, count = _CLASSES[code]
        group = arrays[used : used + count]
        _check_count(atom_class.kind, group, count)
        leaves[code] = iter(atom_class._unstack(group, shapes[code]))
        used += count
    if used != len(arrays):
        raise ValueError(f"expected {used} arrays, got {len(arrays)}")

    # Second pass: put them back in order and into their products.
    stream = iter(codes)
    atoms: list[Atom] = []
    for code in stream:
        whole = code >= _PRODUCT
        atoms.append(
            _rebuild(layouts[code - _PRODUCT], leaves, stream)
            if whole
            else next(leaves[code])
        )
    return atoms


def _rebuild(
    layout: _Layout, leaves: Mapping[int, Iterator[Atom]], stream: Iterator[int]
) -> Atom:
    """Take an atom's leaves from the streams and put them into its products.

    A function of its own: a closure that calls itself would be a reference cycle, and
    keep every round's atoms in memory until the garbage collector comes by.
    """
    if isinstance(layout, list):
        return ProductAtom(tuple(_rebuild(part, leaves, stream) for part in layout))
    return next(leaves[next(stream)])


def _flatten(atom: Atom, layout: list[int], depth: int = 0) -> Iterator[Atom]:
    """Yield the leaves of an atom in order, appending its layout to ``layout``."""
    if not isinstance(atom, ProductAtom):
        layout += [len(atom.shape), *atom.shape]
        yield atom
        return
    if depth >= _MAX_DEPTH:
        raise ValueError(f"product atoms nested deeper than {_MAX_DEPTH}")
    layout.append(-len(atom.parts))
    for part in atom.parts:
        yield from _flatten(part, layout, depth + 1)


def _parse_layouts(numbers: NDArray[Any], shape: Shape) -> list[_Layout]:
    """Read the layouts; each must be a product of as many entries as ``shape``."""
    _check("product layouts", numbers, np.dtype(np.int64), None)
    stream: list[int] = numbers.tolist()
    position = 0

    def read(depth: int) -> tuple[_Layout, int]:
        nonlocal position
        if position >= len(stream) or depth > _MAX_DEPTH:
            raise ValueError("a product layout is cut short or nested too deeply")
        head = stream[position]
        position += 1
        if head < 0:
            parts = []
            size = 0
            for _ in range(-head):  # ends when the stream does, whatever head says
                part, part_size = read(depth + 1)
                parts.append(part)
                size += part_size
            return parts, size
        dims = tuple(stream[position : position + head])
        position += head
        if len(dims) < head or head > 32 or any(dim < 1 for dim in dims):
            raise ValueError(f"a product layout has a part of invalid shape {dims}")
        return dims, math.prod(dims)

    layouts: list[_Layout] = []
    while position < len(stream):
        layout, size = read(0)
        if not isinstance(layout, list) or (size,) != shape:
            raise ValueError(f"a product layout of {size} entries for shape {shape}")
        layouts.append(layout)
    return layouts


def _leaf_shapes(layout: _Layout) -> Iterator[Shape]:
    if isinstance(layout, list):
        for part in layout:
            yield from _leaf_shapes(part)
    else:
        yield layout


def _coerce(atom: Atom, name: str, dtype: np.dtype[Any]) -> None:
    # object.__setattr__ because the dataclass is frozen; skipped where nothing changes,
    # which is the case thousands of times a second.
    value = getattr(atom, name)
    if type(value) is not np.ndarray or value.dtype is not dtype:
        object.__setattr__(atom, name, np.asarray(value, dtype=dtype))


def _index_dtype(size: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype that holds size - 1."""
    if size > 2**32:
        return _UNSIGNED[3]
    return _UNSIGNED[(size > 2**8) + (size > 2**16)]


def _check_count(what: str, arrays: Arrays, count: int) -> None:
    if len(arrays) != count:
        raise ValueError(f"{what} atoms need {count} arrays, got {len(arrays)}")


def _check(
    what: str, array: NDArray[Any], dtype: np.dtype[Any], size: int | None
) -> None:
    """Raise ValueError unless a finite vector of this dtype and, if given, size."""
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(
            f"{what} must be a {dtype} vector, got {array.dtype}, shape {array.shape}"
        )
    if size is not None and array.size != size:
        raise ValueError(f"expected {size} {what}, got {array.size}")
    if dtype is _FLOAT64 and not np.isfinite(array).all():
        raise ValueError(f"{what} must be finite")


def _split(
    what: str, array: NDArray[Any], dtype: np.dtype[Any], sizes: Sequence[int]
) -> list[NDArray[Any]]:
    """Check a stacked array and cut it into pieces of the given sizes."""
    _check(what, array, dtype, sum(sizes))
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(array[start : start + size])
        start += size
    return pieces


def _counts(array: NDArray[Any], number: int, total: int) -> list[int]:
    """Check the numbers of non-zeros of ragged sparse atoms."""
    if array.dtype not in _UNSIGNED or array.shape != (number,):
        raise ValueError(
            f"counts must be {number} unsigned integers, got {array.dtype}, "
            f"shape {array.shape}"
        )
    counts: list[int] = array.tolist()
    if sum(counts) != total:
        raise ValueError(f"counts sum to {sum(counts)}, but {total} values came")
    return counts
