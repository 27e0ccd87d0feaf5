"""The entries themselves: the form of an iterate where atoms are as large as points."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.corrective.projected import projected_steps
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["Entries"]


class Entries(Iterate):
    """x as its entries; what travels are the ones that changed.

    For balls and boxes whose extreme points are dense: one atom of theirs takes as much
    room as x itself.

    Parameters
    ----------
    point : ndarray of float64
        x; not copied.
    """

    def __init__(self, point: FloatArray) -> None:
        self._point, self.shape = point, point.shape

    @classmethod
    def at(
        cls, point: FloatArray, domain: Domain, correction: str | None = None
    ) -> Self:
        """The point itself."""
        return cls(point.copy())

    def dense(self) -> FloatArray:
        """A copy of the entries."""
        return self._point.copy()

    def corrections(
        self, problem: LocalProblem, domain: Domain, steps: int
    ) -> list[NDArray[Any]]:
        """Projected steps, see :func:`projected_steps`.

        Returns
        -------
        list of ndarray
            Either the flat indices (unsigned) and values (float64) of the entries that
            changed, or all entries, whichever is smaller.
        """
        x = projected_steps(problem, domain, self._point, steps)
        old, new = self._point.reshape(-1), x.reshape(-1)
        changed = np.flatnonzero(old != new)
        indices = changed.astype(np.min_scalar_type(max(new.size - 1, 0)))
        if indices.nbytes + 8 * indices.size >= x.nbytes:
            return [new]
        return [indices, new[changed]]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Overwrite the entries that changed."""
        if len(arrays) not in (1, 2):
            raise ValueError(f"changed entries came in {len(arrays)} arrays")
        values = arrays[-1]
        size = math.prod(self.shape)
        if values.dtype != np.float64 or values.ndim != 1:
            raise ValueError("the entries are not a vector of float64")
        point = self._point.copy()
        if len(arrays) == 1:
            if values.size != size:
                raise ValueError(f"{values.size} entries for a point of {size}")
            point = values.reshape(self.shape).copy()
        else:
            indices = arrays[0]
            if indices.dtype.kind != "u" or indices.shape != values.shape:
                raise ValueError("the indices of the entries do not fit them")
            if indices.size and int(indices.max()) >= size:
                raise ValueError(f"an index lies outside a point of {size} entries")
            point.reshape(-1)[indices] = values
        if not domain.contains(point):
            raise ValueError(f"the point lies outside {domain!r}")
        return type(self)(point)

    def arrays(self) -> list[NDArray[Any]]:
        """[all entries]."""
        return [self._point.reshape(-1)]

    @classmethod
    def of_arrays(
        cls,
        arrays: Arrays,
        shape: Shape,
        domain: Domain,
        correction: str | None = None,
    ) -> Self:
        """Inverse of :meth:`arrays`."""
        if len(arrays) != 1 or arrays[0].size != math.prod(shape):
            raise ValueError(f"the entries are not those of a point of shape {shape}")
        return cls(np.array(arrays[0], dtype=np.float64).reshape(shape))
