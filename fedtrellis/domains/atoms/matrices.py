"""Atoms of matrices: rank one, and permutations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import (
    FLOAT64,
    INTP,
    PERMUTATION,
    RANK_ONE,
    SCALED,
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

__all__ = ["PermutationAtom", "RankOneAtom"]


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

    def dense(self) -> FloatArray:
        """Return the atom as a new float64 array."""
        return np.multiply.outer(self.left.astype(FLOAT64, copy=False), self.right)

    def add_to(self, array: NDArray[Any], weight: float = 1.0) -> None:
        """Do ``array += weight * left rightᵀ``."""
        self._check_target(array)
        array += np.multiply.outer(np.float64(weight) * self.left, self.right)

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the atom with its vectors of this dtype."""
        if self.left.dtype == dtype and self.right.dtype == dtype:
            return self
        return type(self)(self.left.astype(dtype), self.right.astype(dtype))

    def dot(self, array: NDArray[Any]) -> float:
        """Return <atom, array> = leftᵀ array right."""
        self._check_operand(array)
        right = self.right.astype(FLOAT64, copy=False)
        return float(self.left @ (array @ right))

    @property
    def _code(self) -> int:
        return RANK_ONE

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        left = np.concatenate([atom.left for atom in atoms])
        return [left, np.concatenate([atom.right for atom in atoms])]

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
        for u, v in zip(left, right, strict=True):
            # Python's floats overflow to infinity without a warning
            if not math.isfinite(_largest(u) * _largest(v)):
                raise ValueError("the entries of a rank-one atom are not finite")
        return [cls(u, v) for u, v in zip(left, right, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class PermutationAtom(Atom):
    """A scaled permutation matrix: row i has ``scale`` in column ``columns[i]``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains.atoms import PermutationAtom
    >>> PermutationAtom(np.array([1, 0])).dense()
    array([[0., 1.],
           [1., 0.]])
    """

    kind: ClassVar[str] = "permutation"
    columns: NDArray[np.intp]
    scale: float = 1.0
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        coerce(self, "columns", INTP)
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
        return PERMUTATION if self.scale == 1.0 else SCALED

    @classmethod
    def _stack(cls, atoms: Sequence[Self]) -> list[NDArray[Any]]:
        dtype = index_dtype(max(atom.columns.size for atom in atoms))
        columns = np.concatenate([atom.columns for atom in atoms]).astype(dtype)
        if all(atom.scale == 1.0 for atom in atoms):
            return [columns]
        return [columns, np.array([atom.scale for atom in atoms])]

    @classmethod
    def _unstack(
        cls, arrays: Arrays, shapes: Sequence[Shape], dtype: np.dtype[Any]
    ) -> list[Self]:
        if len(arrays) not in (1, 2):
            raise ValueError(f"permutations need 1 or 2 arrays, got {len(arrays)}")
        for shape in shapes:
            if len(shape) != 2 or shape[0] != shape[1]:
                raise ValueError(f"a permutation is a square matrix, not {shape}")
        rows = [shape[0] for shape in shapes]
        stacked = split("columns", arrays[0], index_dtype(max(rows)), rows)
        scales = [1.0] * len(rows)
        if len(arrays) == 2:
            check("scales", arrays[1], FLOAT64, len(rows))
            scales = arrays[1].tolist()
        for columns in stacked:
            if not np.array_equal(np.sort(columns), np.arange(columns.size)):
                raise ValueError("the columns of a permutation must each occur once")
        return [cls(c.astype(INTP), s) for c, s in zip(stacked, scales, strict=True)]


def _largest(vector: FloatArray) -> float:
    return float(np.abs(vector).max(initial=0.0))
