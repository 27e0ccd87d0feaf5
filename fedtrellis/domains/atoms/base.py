"""What every atom can do, its codes on the wire, and the checks of what arrives."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "Atom", "FloatArray", "Shape"]

Shape = tuple[int, ...]
FloatArray = NDArray[np.float64]
Arrays = Sequence[NDArray[Any]]

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INTP = np.dtype(np.intp)
UINT8 = np.dtype(np.uint8)
UNSIGNED = [np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)]

# Kind codes on the wire, one byte an atom. From PRODUCT on: a product whose parts
# have the shapes of layout number code - PRODUCT; its parts' codes follow.
SPARSE, RAGGED, RANK_ONE, PERMUTATION, SCALED, SIGN, DENSE, RANDOM, PRODUCT = range(9)


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

    def dot(self, array: NDArray[Any]) -> float:
        """Return the inner product <atom, array>, the sum over all entries."""
        self._check_operand(array)
        return float(np.vdot(self.dense(), array))

    def of_dtype(self, dtype: np.dtype[Any]) -> Self:
        """Return the atom with its entries rounded to float32, or as float64."""
        return self

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that travel; :meth:`from_arrays` is the inverse."""
        return self._stack([self])

    @classmethod
    def from_arrays(
        cls, arrays: Arrays, shape: Shape, dtype: np.dtype[Any] = FLOAT64
    ) -> Self:
        """Rebuild an atom of a known shape from what :meth:`to_arrays` returned.

        ``dtype`` is that of its entries.

        Raises
        ------
        ValueError
            Anything malformed: number, dtype or length of the arrays, an index out
            of range, not a permutation, a value that is not finite.
        """
        return cls._unstack(arrays, [tuple(shape)], dtype)[0]

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


def split(
    what: str, array: NDArray[Any], dtype: np.dtype[Any], sizes: Sequence[int]
) -> list[NDArray[Any]]:
    """Check a stacked array and cut it into pieces of the given sizes."""
    check(what, array, dtype, sum(sizes))
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(array[start : start + size])
        start += size
    return pieces
