"""The entries themselves: the form of an iterate where atoms are as large as points."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Iterate
from fedtrellis.corrective.problem import LocalProblem
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
        """Accelerated projected gradient steps, started anew where momentum is wrong.

        ::

            x⁺ = P_D(v − ∇L_i(v) / M),  v⁺ = x⁺ + ((t − 1)/t⁺) (x⁺ − x)

        with M by backtracking from the curvature along the gradient.

        Source: Beck and Teboulle, SIAM J. Imaging Sciences 2009; O'Donoghue and Candès,
        Foundations of Computational Mathematics 2015 (the gradient restart).

        Returns
        -------
        list of ndarray
            Either the flat indices (unsigned) and values (float64) of the entries that
            changed, or all entries, whichever is smaller.
        """
        x = accelerated(problem, domain.project, self.dense(), steps)
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


def accelerated(
    problem: Any, project: Any, start: FloatArray, steps: int
) -> FloatArray:
    """So many accelerated projected gradient steps; returns the last point.

    Parameters
    ----------
    problem : object
        With ``value(x)``, ``gradient(x)`` and ``bend(x, direction)``, the curvature
        along a direction over its squared length (None where nothing knows it).
    project : callable
        The projection onto the set.
    start : ndarray
        In the set.
    steps : int
        Each takes one gradient.
    """
    x, v, t = start, start, 1.0
    bound = 0.0  # M; 0: not known yet
    for _ in range(steps):
        g = problem.gradient(v)
        length = float(np.vdot(g, g))
        if length == 0.0:
            return v
        if not bound:
            bend = problem.bend(v, g)
            bound = bend if bend and bend > 0.0 else math.sqrt(length)
        here = problem.value(v)
        while True:
            moved = project(v - g / bound)
            step = moved - v
            size = float(np.vdot(step, step))
            # L(x⁺) ≤ L(v) + ⟨∇L(v), x⁺ − v⟩ + (M/2) ‖x⁺ − v‖², give or take rounding
            promised = here + float(np.vdot(g, step)) + 0.5 * bound * size
            if problem.value(moved) <= promised + 1e-14 * (1.0 + abs(here)):
                break
            bound *= 2.0
        if float(np.vdot(v - moved, moved - x)) > 0.0:
            t = 1.0  # the momentum points uphill: forget it
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * t * t))
        v = moved + ((t - 1.0) / following) * (moved - x)
        x, t = moved, following
    return x
