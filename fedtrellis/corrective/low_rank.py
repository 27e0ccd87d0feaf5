"""A product of thin factors: the form of an iterate in a nuclear-norm ball."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Changes, Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.corrective.projected import projected_steps
from fedtrellis.domains.atoms import rounding
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["LowRank"]

# A singular value below this share of the largest is rounding.
_RANK_TOLERANCE = 1e-13


class LowRank(Iterate, form="low-rank"):
    """X = A Bᵀ.

    Extreme points of the set have rank one, and there are endlessly many: weights over
    some of them would hardly ever be those of a minimiser. So a step is a projected
    one, which ends on the face it belongs to, and what travels are the two factors.

    Parameters
    ----------
    left : ndarray of float64 or float32, shape (m, r)
        A.
    right : ndarray of the same dtype, shape (n, r)
        B.
    """

    def __init__(self, left: FloatArray, right: FloatArray) -> None:
        self.left, self.right, self.dtype = left, right, left.dtype
        self.shape: Shape = (left.shape[0], right.shape[0])

    @classmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """A matrix by its singular value decomposition, U √Σ and V √Σ."""
        point = point.astype(np.float64, copy=False)
        left, values, right = np.linalg.svd(point, full_matrices=False)
        rank = int((values > _RANK_TOLERANCE * values[0]).sum())
        root = np.sqrt(values[:rank])
        a, b = left[:, :rank] * root, right[:rank].T * root
        dtype = form.dtype
        return cls(a.astype(dtype, copy=False), b.astype(dtype, copy=False))

    def dense(self) -> FloatArray:
        """A Bᵀ."""
        left = self.left.astype(np.float64, copy=False)
        right = self.right.astype(np.float64, copy=False)
        return np.asarray(left @ right.T)

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """Projected steps, see :func:`projected_steps`.

        Returns
        -------
        list of ndarray
            A and B, C-contiguous, of the model's dtype.
        """
        x = projected_steps(problem, domain, self.dense(), steps)
        found = type(self).at(x, Form(domain, dtype=self.dtype))
        return [np.ascontiguousarray(array) for array in found.arrays()]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """The factors that arrived, in place of those before."""
        form = Form(domain, dtype=self.dtype)
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
