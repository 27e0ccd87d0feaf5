"""Atoms of arrays of any shape: a few non-zeros, a bit an entry, or all entries."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import (
    DENSE,
    FLOAT64,
    INTP,
    SIGN,
    SPARSE,
    UINT8,
    UNSIGNED,
    Arrays,
    Atom,
    FloatArray,
    Shape,
    check,
    check_count,
    coerce,
    coerce_floats,
    index_dtype,
    split,
)

__all__ = ["DenseAtom", "SignAtom", "SparseAtom"]

_new, _set = object.__new__, object.__setattr__


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
        atoms = []
        for i in range(len(indices)):
            atom = _new(cls)  # half the time of the constructor
            _set(atom, "indices", indices[i : i + 1])
            _set(atom, "values", values[i : i + 1])
            _set(atom, "shape", shape)
            atoms.append(atom)
        return atoms

    @property
    def nbytes(self) -> int:
        """Total bytes of :meth:`to_arrays`."""
        width = index_dtype(math.prod(self.shape)).itemsize
        return self.indices.size * width + self.values.nbytes

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        array = np.zeros(self.shape)
        array.reshape(-1)[self.indices] = self.values
        return array

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``, touching the non-zeros only."""
        self._check_target(array)
        array.reshape(-1)[self.indices] += np.float64(weight) * self.values

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the atom with its values of this dtype."""
        if self.values.dtype == dtype:
            return self
        return type(self)(self.indices, self.values.astype(dtype), self.shape)

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>, reading the non-zeros only."""
        self._check_operand(array)
        # take, not reshape(-1)[...]: it copies nothing from an array in any order
        return float(self.values.astype(FLOAT64, copy=False) @ array.take(self.indices))

    @property
    def _code(self) -> int:
        return SPARSE

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        counts = [atom.indices.size for atom in atoms]
        dtype = index_dtype(max(math.prod(atom.shape) for atom in atoms))
        arrays: list[NDArray[Any]] = [
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
        indices = indices.astype(INTP)
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

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return np.where(self.bits, np.float64(self.high), np.float64(self.low))

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * atom``."""
        self._check_target(array)
        high, low = np.float64(weight * self.high), np.float64(weight * self.low)
        array += np.where(self.bits, high, low)

    @property
    def _code(self) -> int:
        return SIGN

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        packed = np.concatenate([np.packbits(atom.bits) for atom in atoms])
        levels = [level for atom in atoms for level in (atom.low, atom.high)]
        return [packed, np.array(levels, dtype=FLOAT64)]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        check_count("sign", arrays, 2)
        sizes = [math.prod(shape) for shape in shapes]
        stacked = split("bits", arrays[0], UINT8, [-(-size // 8) for size in sizes])
        check("levels", arrays[1], FLOAT64, 2 * len(shapes))
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
    """A point with no smaller form, e.g. of an l2 ball.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import DenseAtom
    >>> DenseAtom(np.array([0.5, 1.0])).dense()
    array([0.5, 1. ])
    """

    kind: ClassVar[str] = "dense"
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

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the atom with its entries of this dtype."""
        return (
            self if self.array.dtype == dtype else type(self)(self.array.astype(dtype))
        )

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array>."""
        self._check_operand(array)
        return float(np.vdot(self.array.astype(FLOAT64, copy=False), array))

    @property
    def _code(self) -> int:
        return DENSE

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the array itself, in its own shape."""
        return [self.array]

    @classmethod
    def from_arrays(
        cls, arrays: Arrays, shape: Shape, dtype: np.dtype[Any] = FLOAT64
    ) -> Self:
        """Rebuild the atom; ValueError unless one finite array of shape and dtype."""
        check_count(cls.kind, arrays, 1)
        if arrays[0].shape != tuple(shape):
            raise ValueError(f"expected shape {shape}, got {arrays[0].shape}")
        return cls._unstack([arrays[0].reshape(-1)], [tuple(shape)], dtype)[0]

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        return [np.concatenate([atom.array.reshape(-1) for atom in atoms])]

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
