"""The entries themselves: the form of an iterate where atoms are as large as points."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Changes, Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.corrective.projected import projected_steps
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["Entries"]

# Stands for "zero now" among shares, which are not above 1.
_ZERO = 2.0
# A float16 is within 2⁻¹¹ of what it stands for, and what is below its smallest
# number, 2⁻²⁴ of the largest change, is within that.
_ROUNDED = 1e-3
# A share of the diameter that is rounding of the float64 arithmetic.
_TOLERANCE = 1e-9


class Entries(Iterate, form="entries"):
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
    def at(cls, point: FloatArray, form: Form) -> Self:
        """The point itself."""
        return cls(point.astype(np.float64))

    def dense(self) -> FloatArray:
        """A copy of the entries."""
        return self._point.copy()

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """Projected steps, see :func:`projected_steps`, and what they change.

        A change travels as a float16 share of the largest one. What rounding takes from
        x is then a share of the step, 2⁻¹¹ of it, which shrinks as the steps do: it
        costs the limit no digit. The iterate is what both sides make of that.

        Returns
        -------
        list of ndarray
            Which entries changed: their flat indices (unsigned), or the bits of a mask
            (int8), whichever is smaller; their changes over the largest (float16, in
            [−1, 1], or 2 for an entry that is zero now); the largest (float64).
        """
        x = projected_steps(problem, domain, self._point, steps)
        old, new = self._point.reshape(-1), x.reshape(-1)
        change = new - old
        where = np.flatnonzero(change)
        largest = float(np.abs(change).max())
        shares = (change[where] / (largest or 1.0)).astype(np.float16)
        shares[new[where] == 0.0] = _ZERO
        places = where.astype(np.min_scalar_type(max(new.size - 1, 0)))
        if places.nbytes > (new.size + 7) // 8:
            places = np.packbits(change != 0.0).view(np.int8)
        return [places, shares, np.array([largest])]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Change the entries, and project what rounding has put outside of the set."""
        if len(arrays) != 3:
            raise ValueError(f"changed entries came in {len(arrays)} arrays")
        places, shares, largest = arrays
        where = self._where(places)
        if shares.dtype != np.float16 or shares.shape != where.shape:
            raise ValueError(
                f"{shares.size} changes of {shares.dtype} for {where.size}"
            )
        if largest.dtype != np.float64 or largest.shape != (1,) or largest[0] < 0.0:
            raise ValueError("the largest change is not one number from 0 on")
        values = shares.astype(np.float64)
        if not ((np.abs(values) <= 1.0) | (values == _ZERO)).all():
            raise ValueError("a change is larger than the largest")
        # x ← x + change
        point = self._point.copy()
        flat = point.reshape(-1)
        change = np.where(values == _ZERO, -flat[where], float(largest[0]) * values)
        flat[where] += change
        if domain.contains(point, 0.0):
            return type(self)(point)
        # rounding alone puts a point no farther outside than this
        far = _ROUNDED * float(np.linalg.norm(change))
        if domain.sparse_atoms:
            inside = domain.project_on(point, point != 0.0)
        else:
            inside = domain.project(point)
        distance = float(np.linalg.norm(inside - point))
        if not distance <= far + _TOLERANCE * domain.diameter(self.shape):
            raise ValueError(
                f"the point lies outside {domain!r}, at a distance of {distance:g}"
            )
        return type(self)(inside)

    def _where(self, places: NDArray[Any]) -> NDArray[np.intp]:
        """Flat indices of the entries that a message names; ValueError if none."""
        size = math.prod(self.shape)
        if places.ndim != 1 or places.dtype.kind not in "ui":
            raise ValueError("the places of the changes are not integers")
        if places.dtype == np.int8:
            if places.size != (size + 7) // 8:
                raise ValueError(f"a mask of {places.size} bytes for {size} entries")
            mask = np.unpackbits(places.view(np.uint8), count=size)
            return np.flatnonzero(mask)
        where = places.astype(np.intp)
        # what is too large for an intp is negative here
        if where.size and (
            where[0] < 0 or where[-1] >= size or (where[1:] <= where[:-1]).any()
        ):
            raise ValueError(f"the places are not increasing ones of {size} entries")
        return where

    def arrays(self) -> list[NDArray[Any]]:
        """[all entries]."""
        return [self._point.reshape(-1)]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        if len(arrays) != 1 or arrays[0].size != math.prod(shape):
            raise ValueError(f"the entries are not those of a point of shape {shape}")
        return cls(np.array(arrays[0], dtype=np.float64).reshape(shape))
