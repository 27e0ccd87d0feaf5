"""Spectral projected gradient steps on L_i, and the two forms that travel after them.

The entries of x themselves, and the two thin factors of a matrix.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Changes, Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.atoms import rounding
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.matrices import NuclearNormBall
from fedtrellis.domains.singular import SimilarPairs, kept_pairs
from fedtrellis.domains.vectors import L1Ball

__all__ = ["Entries", "Factors", "projected_steps"]

# Stands for "zero now" among shares, which are not above 1.
_ZERO = 2.0
# A float16 is within 2⁻¹¹ of what it stands for, and what is below its smallest
# number, 2⁻²⁴ of the largest change, is within that.
_ROUNDED = 1e-3
# A share of the diameter that is rounding of the float64 arithmetic.
_TOLERANCE = 1e-9
# From so many rows and columns on, a matrix is projected by the singular pairs that
# the projection keeps.
_LARGE = 128
# Steps of such matrices end where they promise this share of what the first did.
_ENOUGH = 1e-3


def projected_steps(
    problem: LocalProblem,
    domain: Domain,
    start: FloatArray,
    steps: int,
    project: Any = None,
    enough: float = 0.0,
) -> FloatArray:
    """So many spectral projected gradient steps; returns the last point.

    Fewer, once a step's slope ⟨g, d⟩ is at most ``enough`` of the first one's.

    ::

        g = ∇L_i(x);  J ← J ∪ support of LMO(g)
        d = P(x − g / M) − x,  P the projection onto the points of D that are 0 off J
        x ← x + γ d,  γ in [0, 1] by line search;  M ← dᵀ∇²L_i d / ‖d‖²

    J starts as the support of x, and grows by the oracle's answers, so that few entries
    change. Where atoms are not sparse J is everything.

    Source: Birgin, Martínez and Raydan, SIAM J. Optimization 2000, with the exact step
    of a quadratic; the growing face is ours. Each step takes one gradient.
    """
    project = project or domain.project
    x = start
    face = start != 0.0 if domain.sparse_atoms else None
    # M: at first by the curvature along the gradient, then along the last step
    bound: float | None = None
    last: tuple[FloatArray, FloatArray] | None = None
    diameter, steepest = domain.diameter(x.shape), 0.0
    if math.isinf(diameter):  # a first length, where nothing knows the curvature
        diameter = max(1.0, float(np.linalg.norm(x)))
    for _ in range(steps):
        g = problem.gradient(x)
        if not (diameter > 0.0 and g.any()):
            break  # there is nowhere to go
        if face is not None:
            face |= domain.lmo(g).dense() != 0.0
        if bound is None and last is not None:
            # nothing knows the curvature: that of the last step, by its gradients
            moved, change = x - last[0], g - last[1]
            length = float(np.vdot(moved, moved))
            if length == 0.0:
                break  # the last step was lost in the digits of x
            bound = float(np.vdot(moved, change)) / length
        if bound is None:
            bound = problem.bend(x, g)
        if bound is None or not bound > 0.0:
            # as far as D allows, or x's length, for the line search to shorten
            bound = float(np.linalg.norm(g)) / diameter
        step = max(bound, problem.penalty)
        target = x - g / step
        moved = project(target) if face is None else domain.project_on(target, face)
        d = moved - x
        slope = float(np.vdot(g, d))
        if not slope < enough * steepest:
            break
        steepest = steepest or slope
        gamma, bend = problem.line(x, d, slope)
        if gamma == 0.0:
            break
        last = (x, g) if bend is None else None
        bound = bend
        x = moved if gamma == 1.0 else x + gamma * d
    return x


class Entries(Iterate, form="entries"):
    """x as its entries; what travels are the ones that changed.

    For balls and boxes whose extreme points are dense: one atom of theirs takes as much
    room as x itself.
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
        where = _flat_indices(places, math.prod(self.shape))
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

    def arrays(self) -> list[NDArray[Any]]:
        """[all entries]."""
        return [self._point.reshape(-1)]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        if len(arrays) != 1 or arrays[0].size != math.prod(shape):
            raise ValueError(f"the entries are not those of a point of shape {shape}")
        return cls(np.array(arrays[0], dtype=np.float64).reshape(shape))


class Factors(Iterate, form="low-rank"):
    """X = A Bᵀ.

    Extreme points of the set have rank one, and there are endlessly many: weights over
    some of them would hardly ever be those of a minimiser. So a step is a projected
    one, which ends on the face it belongs to, and what travels are the two factors, of
    shapes (m, r) and (n, r) and the model's dtype.
    """

    def __init__(self, left: FloatArray, right: FloatArray) -> None:
        self.left, self.right, self.dtype = left, right, left.dtype
        self.shape: Shape = (left.shape[0], right.shape[0])

    @classmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """A matrix by its singular value decomposition, U √Σ and V √Σ."""
        point = point.astype(np.float64, copy=False)
        return cls._of_pairs(*kept_pairs(point), form)

    @classmethod
    def _of_pairs(
        cls, left: FloatArray, values: FloatArray, right: FloatArray, form: Form
    ) -> Self:
        root, dtype = np.sqrt(values), form.dtype
        a, b = (half.astype(dtype, copy=False) for half in (left * root, right * root))
        return cls(a, b)

    def dense(self) -> FloatArray:
        """A Bᵀ."""
        left = self.left.astype(np.float64, copy=False)
        right = self.right.astype(np.float64, copy=False)
        return np.asarray(left @ right.T)

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """[A, B] after :func:`projected_steps`, C-contiguous, of the model's dtype."""
        form, x = Form(domain, self.dtype), self.dense()
        if type(domain) is not NuclearNormBall or min(self.shape) < _LARGE:
            x = projected_steps(problem, domain, x, steps)
            found = type(self).at(x, form)
        else:
            pairs, ball = SimilarPairs(self.right), L1Ball(domain.radius)

            def project(target: FloatArray) -> FloatArray:
                left, values, right = pairs.of(target, ball.project)
                return np.asarray((left * values) @ right.T)

            x = projected_steps(problem, domain, x, steps, project, _ENOUGH)
            found = self._of_pairs(*pairs.of(x, np.asarray), form)
        return [np.ascontiguousarray(array) for array in found.arrays()]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """The factors that arrived, instead of those before."""
        form = Form(domain, self.dtype)
        made = type(self).of_arrays(arrays, self.shape, form)
        tolerance = rounding(self.dtype)
        if not domain.contains_product(made.left, made.right, tolerance):
            raise ValueError(f"the matrix lies outside {domain!r}")
        return made

    def arrays(self) -> list[NDArray[Any]]:
        """[A, B]."""
        return [self.left, self.right]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        if len(arrays) != 2:
            raise ValueError(f"a product of two factors came in {len(arrays)} arrays")
        for factor, rows in zip(arrays, shape, strict=True):
            if (
                factor.dtype != form.dtype
                or factor.ndim != 2
                or factor.shape != (rows, min(arrays[0].shape[-1], *shape))
            ):
                raise ValueError(
                    f"factors of shapes {arrays[0].shape} and {arrays[1].shape} for a "
                    f"matrix of shape {tuple(shape)}"
                )
        left, right = (np.ascontiguousarray(factor) for factor in arrays)
        return cls(left, right)


def _flat_indices(places: NDArray[Any], size: int) -> NDArray[np.intp]:
    """Of the entries that a message names; ValueError if they are none of so many."""
    if places.ndim != 1 or places.dtype.kind not in "ui":
        raise ValueError("the places of the changes are not integers")
    if places.dtype == np.int8:
        if places.size != (size + 7) // 8:
            raise ValueError(f"a mask of {places.size} bytes for {size} entries")
        return np.flatnonzero(np.unpackbits(places.view(np.uint8), count=size))
    # what is too large for an intp is negative here
    where = places.astype(np.intp)
    ends = np.concatenate([[-1], where, [size]])
    if (ends[1:] <= ends[:-1]).any():
        raise ValueError(f"the places are not increasing ones of {size} entries")
    return where
