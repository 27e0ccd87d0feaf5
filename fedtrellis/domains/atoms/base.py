"""Atoms of arrays of any shape and of matrices, and the checks of what arrives."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
FloatArray = NDArray[np.float64]
Arrays = Sequence[NDArray[Any]]

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INTP = np.dtype(np.intp)
UINT8 = np.dtype(np.uint8)
UNSIGNED = [np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)]

# Kind codes on the wire, one byte an atom. From PRODUCT on: a product whose parts
# have the shapes of layout number code - PRODUCT; its parts' codes follow.
SPARSE, RAGGED, RANK_ONE, PERMUTATION, SIGN, DENSE, RANDOM, PRODUCT = range(8)


class Atom(ABC):
    """One point of a convex set, in its smallest form.

    Atoms are immutable and may share memory with the arrays they were made from;
    nothing here writes to those. Two atoms are never compared by value. Their entries
    are float64, or float32 for a model of that (:meth:`of_dtype`), which is how they
    travel; single numbers are float64, and so is all arithmetic with them.

    Attributes
    ----------
    kind : str
        Which form this is.
    shape : tuple of int
        Shape of the dense array the atom stands for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import L1Ball
    >>> atom = L1Ball(2.0).lmo(np.array([1.0, -3.0]))
    >>> point = np.zeros(2)
    >>> atom.add_to(point, 0.5)
    >>> point
    array([0., 1.])
    """

    __slots__ = ()

    kind: ClassVar[str]
    shape: Shape
    _code: ClassVar[int]  # on the wire
    _floats: ClassVar[tuple[str, ...]] = ()  # attributes that are arrays of entries

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array of shape ``self.shape``."""
        array = np.zeros(self.shape)
        self.add_to(array)
        return array

    @abstractmethod
    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom`` in place.

        ValueError unless the array is C-contiguous and of shape ``self.shape``.
        """

    def dot(self, array: NDArray[Any]) -> float:
        """Return the inner product <atom, array>, the sum over all entries."""
        self._check_operand(array)
        return float(np.vdot(self.dense(), array))

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the atom with its entries rounded to float32, or as float64."""
        for name in self._floats:
            if getattr(self, name).dtype != dtype:
                break
        else:
            return self
        changed = {name: getattr(self, name).astype(dtype) for name in self._floats}
        return replace(self, **changed)  # type: ignore[type-var]

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that travel; :meth:`from_arrays` is the inverse."""
        return self._stack([self])

    @classmethod
    def from_arrays(
        cls, arrays: Arrays, shape: Shape, dtype: np.dtype[Any] = FLOAT64
    ) -> Self:
        """Rebuild an atom of a known shape from what :meth:`to_arrays` returned.

        ``dtype`` is that of its entries. ValueError for anything malformed: number,
        dtype or length of the arrays, an index out of range, not a permutation, a value
        that is not finite.
        """
        return cls._unstack(arrays, [tuple(shape)], dtype)[0]

    @property
    def nbytes(self) -> int:
        """Total bytes of :meth:`to_arrays`."""
        return sum(array.nbytes for array in self.to_arrays())

    def _wire(self) -> Sequence[NDArray[Any]]:
        """Return the vectors that stand for this atom."""
        raise NotImplementedError

    @classmethod
    def _stack(cls, atoms: Sequence[Any]) -> list[NDArray[Any]]:
        """Concatenate the wire arrays of atoms of this class."""
        pieces = zip(*(atom._wire() for atom in atoms), strict=True)
        return [np.concatenate(each) for each in pieces]

    @classmethod
    @abstractmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
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


def rounding(dtype: np.dtype[Any]) -> float:
    """Return the share of a set's size by which a point of it may seem to lie outside.

    1e-9 for entries of float64; float32 rounds by 6e-8 of each.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import rounding
    >>> rounding(np.dtype('float32')) > rounding(np.dtype('float64'))
    True
    """
    return 1e-9 if dtype.itemsize == FLOAT64.itemsize else 1e-6


def coerce(atom: Atom, name: str, dtype: np.dtype[Any]) -> None:
    """Make an attribute of a frozen atom an array of this dtype."""
    # object.__setattr__ because the dataclass is frozen; skipped where nothing changes,
    # which is the case thousands of times a second.
    value = getattr(atom, name)
    if type(value) is not np.ndarray or value.dtype is not dtype:
        object.__setattr__(atom, name, np.asarray(value, dtype=dtype))


def coerce_floats(atom: Atom, name: str) -> None:
    """Make an attribute of a frozen atom an array of float64, or leave it float32."""
    value = getattr(atom, name)
    if type(value) is not np.ndarray or value.dtype is not FLOAT32:
        coerce(atom, name, FLOAT64)


def index_dtype(size: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype that holds size - 1."""
    if size > 2**32:
        return UNSIGNED[3]
    return UNSIGNED[(size > 2**8) + (size > 2**16)]


def check_count(what: str, arrays: Arrays, count: int) -> None:
    """Raise ValueError unless so many arrays came."""
    if len(arrays) != count:
        raise ValueError(f"{what} atoms need {count} arrays, got {len(arrays)}")


def check(
    what: str, array: NDArray[Any], dtype: np.dtype[Any], size: int | None
) -> None:
    """Raise ValueError unless a finite vector of this dtype and, if given, size."""
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(
            f"{what} must be a {dtype} vector, got {array.dtype}, shape {array.shape}"
        )
    if size is not None and array.size != size:
        raise ValueError(f"expected {size} {what}, got {array.size}")
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what} must be finite")


def cut(flat: NDArray[Any], shapes: Iterable[Shape]) -> Iterator[NDArray[Any]]:
    """Yield the pieces of flat vectors, the last axis, as views in their own shapes."""
    start, lead = 0, flat.shape[:-1]
    for shape in shapes:
        stop = start + math.prod(shape)
        yield flat[..., start:stop].reshape((*lead, *shape))
        start = stop


def split(
    what: str, array: NDArray[Any], dtype: np.dtype[Any], sizes: Sequence[int]
) -> list[NDArray[Any]]:
    """Check a stacked array and cut it into pieces of the given sizes."""
    check(what, array, dtype, sum(sizes))
    stops = itertools.accumulate(sizes)
    return [array[stop - n : stop] for n, stop in zip(sizes, stops, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class SparseAtom(Atom):
    """A few non-zeros: ``dense.ravel()[indices] = values``, zero elsewhere.

    Parameters
    ----------
    indices : ndarray of intp
        Flat C-order indices, increasing, none twice.
    values : ndarray of float64 or float32
        One value for each index.
    shape : tuple of int

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import SparseAtom
    >>> atom = SparseAtom(np.array([1]), np.array([-2.0]), (3,))
    >>> atom.dense()
    array([ 0., -2.,  0.])
    """

    kind: ClassVar[str] = "sparse"
    _code: ClassVar[int] = SPARSE
    _floats: ClassVar[tuple[str, ...]] = ("values",)
    indices: NDArray[np.intp]
    values: FloatArray
    shape: Shape

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple:
            raise TypeError(
                "SparseAtom(indices, values, shape): shape must be a tuple, "
                f"not a {type(self.shape).__name__}"
            )
        coerce(self, "indices", INTP)
        coerce_floats(self, "values")
        if self.indices.shape != self.values.shape or self.indices.ndim != 1:
            raise ValueError(
                f"a sparse atom needs one value for each index, got indices of shape "
                f"{self.indices.shape} and values of shape {self.values.shape}"
            )

    @classmethod
    def singles(
        cls, indices: NDArray[np.intp], values: FloatArray, shape: Shape
    ) -> list[Self]:
        """Return an atom of one entry for each of the indices, which share memory."""
        stops = range(1, len(indices) + 1)
        return cls._cut(indices, values, stops, itertools.repeat(shape))

    @classmethod
    def _cut(
        cls,
        indices: NDArray[np.intp],
        values: FloatArray,
        stops: Sequence[int],
        shapes: Iterable[Shape],
    ) -> list[Self]:
        """Cut checked arrays into atoms."""
        ends = zip([0, *stops[:-1]], stops, shapes, strict=False)
        return [cls._of(indices[a:b], values[a:b], shape) for a, b, shape in ends]

    @classmethod
    def _of(cls, indices: NDArray[np.intp], values: FloatArray, shape: Shape) -> Self:
        """An atom of checked arrays, in half the time of the constructor."""
        atom, put = object.__new__(cls), object.__setattr__
        put(atom, "indices", indices)
        put(atom, "values", values)
        put(atom, "shape", shape)
        return atom

    @property
    def nbytes(self) -> int:
        """Total bytes of :meth:`to_arrays`."""
        width = index_dtype(math.prod(self.shape)).itemsize
        return self.indices.size * width + self.values.nbytes

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, touching the non-zeros only."""
        self._check_target(array)
        array.reshape(-1)[self.indices] += np.float64(weight) * self.values

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>, reading the non-zeros only."""
        self._check_operand(array)
        # take, not reshape(-1)[...]: it copies nothing from an array in any order
        return float(self.values.astype(FLOAT64, copy=False) @ array.take(self.indices))

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        arrays: list[NDArray[Any]]
        if len(atoms) == 1:
            (atom,) = atoms
            dtype = index_dtype(math.prod(atom.shape))
            # read-only, so that nobody has to copy them again
            arrays = [atom.indices.astype(dtype), atom.values.copy()]
            for array in arrays:
                array.setflags(write=False)
            return arrays
        counts = [atom.indices.size for atom in atoms]
        dtype = index_dtype(max(math.prod(atom.shape) for atom in atoms))
        arrays = [
            np.concatenate([atom.indices for atom in atoms]).astype(dtype),
            np.concatenate([atom.values for atom in atoms]),
        ]
        if min(counts) != max(counts):
            arrays.append(np.array(counts, index_dtype(max(counts) + 1)))
        return arrays

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        if len(arrays) not in (2, 3):
            raise ValueError(f"sparse atoms need 2 or 3 arrays, got {len(arrays)}")
        indices, values = arrays[:2]
        sizes = [math.prod(shape) for shape in shapes]
        if (
            len(arrays) == 2
            and values.shape == indices.shape == (1,)
            and values.dtype == dtype
            and indices.dtype == index_dtype(sizes[0])
            and len(sizes) == 1
            and int(indices[0]) < sizes[0]
            and math.isfinite(values[0])
        ):  # the most frequent of answers
            return [cls._of(indices.astype(INTP), values, shapes[0])]
        check("sparse values", values, dtype, None)
        check("sparse indices", indices, index_dtype(max(sizes)), values.size)
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
            ends = np.array(stops[:-1], dtype=INTP)
            rising[ends[(ends > 0) & (ends < values.size)] - 1] = True  # atom to atom
            if not rising.all():
                raise ValueError("the indices of a sparse atom must increase strictly")
        return cls._cut(indices.astype(INTP), values, stops, shapes)


@dataclass(frozen=True, slots=True, eq=False)
class SignAtom(Atom):
    """Two values, a bit an entry: ``high`` where ``bits`` is true, else ``low``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import SignAtom
    >>> SignAtom(np.array([True, False]), -1.0, 2.0).dense()
    array([ 2., -1.])
    """

    kind: ClassVar[str] = "sign"
    _code: ClassVar[int] = SIGN
    bits: NDArray[np.bool_]
    low: float
    high: float
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        coerce(self, "bits", np.dtype(np.bool_))
        object.__setattr__(self, "shape", self.bits.shape)

    def levels(self) -> FloatArray:
        """Return the values that occur: ``low``, ``high`` or both."""
        low = [] if self.bits.all() else [self.low]
        high = [self.high] if self.bits.any() else []
        return np.array(low + high, dtype=FLOAT64)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``."""
        self._check_target(array)
        high, low = np.float64(weight * self.high), np.float64(weight * self.low)
        array += np.where(self.bits, high, low)

    def _wire(self) -> Sequence[NDArray[Any]]:
        return np.packbits(self.bits), np.array([self.low, self.high], dtype=FLOAT64)

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        check_count("sign", arrays, 2)
        sizes = [-(-math.prod(shape) // 8) for shape in shapes]
        stacked = split("bits", arrays[0], UINT8, sizes)
        check("levels", arrays[1], FLOAT64, 2 * len(shapes))
        atoms = []
        for packed, shape, levels in zip(
            stacked, shapes, arrays[1].reshape(-1, 2).tolist(), strict=True
        ):
            bits = np.unpackbits(packed, count=math.prod(shape)).view(np.bool_)
            atoms.append(cls(bits.reshape(shape), *levels))
        return atoms


@dataclass(frozen=True, slots=True, eq=False)
class DenseAtom(Atom):
    """A point with no smaller form, e.g. of an l2 ball.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import DenseAtom
    >>> DenseAtom(np.array([0.5, 1.0])).dense()
    array([0.5, 1. ])
    """

    kind: ClassVar[str] = "dense"
    _code: ClassVar[int] = DENSE
    _floats: ClassVar[tuple[str, ...]] = ("array",)
    array: FloatArray
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        coerce_floats(self, "array")
        object.__setattr__(self, "shape", self.array.shape)

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return self.array.astype(FLOAT64)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``."""
        self._check_target(array)
        array += np.float64(weight) * self.array

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>."""
        self._check_operand(array)
        return float(np.vdot(self.array.astype(FLOAT64, copy=False), array))

    def _wire(self) -> Sequence[NDArray[Any]]:
        return [self.array.reshape(-1)]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        check_count("dense", arrays, 1)
        sizes = [math.prod(shape) for shape in shapes]
        stacked = split("dense entries", arrays[0], dtype, sizes)
        return [cls(a.reshape(s)) for a, s in zip(stacked, shapes, strict=True)]


def _counts(array: NDArray[Any], number: int, total: int) -> list[int]:
    """Check the numbers of non-zeros of ragged sparse atoms."""
    if array.dtype not in UNSIGNED or array.shape != (number,):
        raise ValueError(
            f"counts must be {number} unsigned integers, got {array.dtype}, "
            f"shape {array.shape}"
        )
    counts: list[int] = array.tolist()
    if sum(counts) != total:
        raise ValueError(f"counts sum to {sum(counts)}, but {total} values came")
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class RankOneAtom(Atom):
    """The matrix ``left rightᵀ`` of shape (m, n); its scale is in ``left``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import RankOneAtom
    >>> RankOneAtom(np.array([1.0, 2.0]), np.array([3.0, 4.0])).dense()
    array([[3., 4.],
           [6., 8.]])
    """

    kind: ClassVar[str] = "rank-one"
    _code: ClassVar[int] = RANK_ONE
    _floats: ClassVar[tuple[str, ...]] = ("left", "right")
    left: FloatArray
    right: FloatArray
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        coerce_floats(self, "left")
        coerce_floats(self, "right")
        if self.left.ndim != 1 or self.right.ndim != 1:
            raise ValueError(
                f"a rank-one atom needs two vectors, got shapes "
                f"{self.left.shape} and {self.right.shape}"
            )
        object.__setattr__(self, "shape", (self.left.size, self.right.size))

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * left rightᵀ``."""
        self._check_target(array)
        array += np.multiply.outer(np.float64(weight) * self.left, self.right)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array> = leftᵀ array right."""
        self._check_operand(array)
        right = self.right.astype(FLOAT64, copy=False)
        return float(self.left @ (array @ right))

    def _wire(self) -> Sequence[NDArray[Any]]:
        return self.left, self.right

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        check_count("rank-one", arrays, 2)
        for shape in shapes:
            if len(shape) != 2:
                raise ValueError(f"a rank-one atom is a matrix, not of shape {shape}")
        left = split("left vectors", arrays[0], dtype, [s[0] for s in shapes])
        right = split("right vectors", arrays[1], dtype, [s[1] for s in shapes])
        atoms = [cls(u, v) for u, v in zip(left, right, strict=True)]
        for atom in atoms:
            u, v = (np.abs(w).max(initial=0.0) for w in (atom.left, atom.right))
            # Python's floats overflow to infinity without a warning
            if not math.isfinite(float(u) * float(v)):
                raise ValueError("the entries of a rank-one atom are not finite")
        return atoms


@dataclass(frozen=True, slots=True, eq=False)
class PermutationAtom(Atom):
    """A permutation matrix: row i has 1 in column ``columns[i]``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import PermutationAtom
    >>> PermutationAtom(np.array([1, 0])).dense()
    array([[0., 1.],
           [1., 0.]])
    """

    kind: ClassVar[str] = "permutation"
    _code: ClassVar[int] = PERMUTATION
    columns: NDArray[np.intp]
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        coerce(self, "columns", INTP)
        if self.columns.ndim != 1:
            raise ValueError(
                f"a permutation atom needs a vector of columns, got shape "
                f"{self.columns.shape}"
            )
        object.__setattr__(self, "shape", (self.columns.size, self.columns.size))

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, touching one entry a row."""
        self._check_target(array)
        array[np.arange(self.columns.size), self.columns] += weight

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array> = Σ_i array[i, columns[i]]."""
        self._check_operand(array)
        entries = array[np.arange(self.columns.size), self.columns]
        return float(entries.sum(dtype=np.float64))

    def _wire(self) -> Sequence[NDArray[Any]]:
        # those of a larger atom beside it are wider, and so is what is stacked
        return [self.columns.astype(index_dtype(self.columns.size))]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        check_count("permutation", arrays, 1)
        for shape in shapes:
            if len(shape) != 2 or shape[0] != shape[1]:
                raise ValueError(f"a permutation is a square matrix, not {shape}")
        rows = [shape[0] for shape in shapes]
        stacked = split("columns", arrays[0], index_dtype(max(rows)), rows)
        for columns in stacked:
            if not np.array_equal(np.sort(columns), np.arange(columns.size)):
                raise ValueError("the columns of a permutation must each occur once")
        return [cls(columns.astype(INTP)) for columns in stacked]
