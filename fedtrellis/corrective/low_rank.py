"""A product of thin factors: the form of an iterate in a nuclear-norm ball."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.entries import accelerated
from fedtrellis.corrective.iterate import Arrays, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["LowRank"]

# Directions that a round adds on either side.
_PAIRS = 2
# A singular value below this share of the largest is dropped.
_RANK_TOLERANCE = 1e-12
# How far columns may be from orthonormal: thousands of rounds of rounding.
_ORTHONORMAL = 1e-8


class LowRank(Iterate):
    """X = U diag(σ) Vᵀ with orthonormal columns and σ ≥ 0.

    Parameters
    ----------
    left : ndarray of float64, shape (m, r)
        U.
    values : ndarray of float64, shape (r,)
        σ.
    right : ndarray of float64, shape (n, r)
        V.
    """

    def __init__(self, left: FloatArray, values: FloatArray, right: FloatArray) -> None:
        self.left, self.values, self.right = left, values, right
        self.shape: Shape = (left.shape[0], right.shape[0])

    @classmethod
    def at(cls, point: FloatArray) -> Self:
        """A matrix by its singular value decomposition."""
        if not point.any():
            m, n = point.shape
            return cls(np.zeros((m, 0)), np.zeros(0), np.zeros((n, 0)))
        left, values, right = np.linalg.svd(point, full_matrices=False)
        rank = int((values > _RANK_TOLERANCE * values[0]).sum())
        return cls(left[:, :rank], values[:rank], right[:rank].T)

    def dense(self) -> FloatArray:
        """U diag(σ) Vᵀ."""
        return np.asarray((self.left * self.values) @ self.right.T)

    def corrections(
        self, problem: LocalProblem, domain: Domain, steps: int
    ) -> list[NDArray[Any]]:
        """Steps within the face that a few directions of the gradient widen.

        ::

            G = ∇L_i(X)
            U ← [U, left singular vectors of (I − U Uᵀ) G],  V likewise of G (I − V Vᵀ)
            minimise L_i(U S Vᵀ) over small S of the same ball, by accelerated steps
            S = P diag(σ) Qᵀ;  U ← U P,  V ← V Q

        Of G itself the oracle would return directions within the face once L_i is small
        there: its singular values are all the same on it.

        Returns
        -------
        list of ndarray
            The new columns of U and of V, then P, σ and Q, all float64.
        """
        x = self.dense()
        g = problem.gradient(x)
        new_left = _directions(g - self.left @ (self.left.T @ g), self.left)
        new_right = _directions((g - (g @ self.right) @ self.right.T).T, self.right)
        left = np.hstack([self.left, new_left])
        right = np.hstack([self.right, new_right])
        face = _Face(problem, left, right)
        start = np.zeros((left.shape[1], right.shape[1]))
        rank = self.values.size
        start[:rank, :rank] = np.diag(self.values)
        small = accelerated(face, domain.project, start, max(steps - 1, 1))
        p, values, q = np.linalg.svd(small, full_matrices=False)
        rank = int((values > _RANK_TOLERANCE * max(values[0], 1e-300)).sum())
        return [
            np.ascontiguousarray(new_left),
            np.ascontiguousarray(new_right),
            np.ascontiguousarray(p[:, :rank]),
            values[:rank],
            np.ascontiguousarray(q[:rank].T),
        ]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Widen the factors, then turn them."""
        if len(arrays) != 5:
            raise ValueError(f"corrections of low rank came in {len(arrays)} arrays")
        new_left, new_right, p, values, q = arrays
        for array, rows in (
            (new_left, self.shape[0]),
            (new_right, self.shape[1]),
            (p, self.values.size + _columns(new_left)),
            (q, self.values.size + _columns(new_right)),
        ):
            if array.dtype != np.float64 or array.ndim != 2 or len(array) != rows:
                raise ValueError(f"a factor of shape {array.shape} for {rows} rows")
        left = np.hstack([self.left, new_left]) @ p
        right = np.hstack([self.right, new_right]) @ q
        made = type(self)(left, np.array(values, dtype=np.float64), right)
        made._check(domain)
        return made

    def _check(self, domain: Domain) -> None:
        rank = self.values.size
        if self.values.shape != (rank,) or not (
            self.left.shape[1] == self.right.shape[1] == rank
        ):
            raise ValueError(
                f"{rank} singular values for {self.left.shape[1]} and "
                f"{self.right.shape[1]} columns"
            )
        for factor in (self.left, self.right):
            off = factor.T @ factor - np.eye(rank)
            if rank and not float(np.abs(off).max()) <= _ORTHONORMAL:
                raise ValueError("the columns of a factor are not orthonormal")
        # the set of these singular values, which the matrix has
        if rank and not domain.contains(np.diag(self.values), _ORTHONORMAL):
            raise ValueError(f"the matrix lies outside {domain!r}")

    def arrays(self) -> list[NDArray[Any]]:
        """[U, σ, V]."""
        return [self.left, self.values, self.right]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape) -> Self:
        """Inverse of :meth:`arrays`."""
        if len(arrays) != 3 or (len(arrays[0]), len(arrays[2])) != tuple(shape):
            raise ValueError(f"the factors are not those of a matrix of shape {shape}")
        return cls(*(np.array(array, dtype=np.float64) for array in arrays))


def _columns(array: NDArray[Any]) -> int:
    return array.shape[1] if array.ndim == 2 else 0


def _directions(matrix: FloatArray, known: FloatArray) -> FloatArray:
    """The leading left singular vectors, orthonormal to the columns that are known."""
    room = min(_PAIRS, *matrix.shape, len(known) - known.shape[1])
    if room <= 0 or not matrix.any():
        return np.zeros((len(known), 0))
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    found = left[:, :room][:, values[:room] > 0.0]
    # twice is enough (Parlett): the matrix was orthogonal to them up to rounding
    found = found - known @ (known.T @ found)
    return np.asarray(np.linalg.qr(found)[0])


class _Face:
    """L_i(U S Vᵀ) as a function of S."""

    def __init__(
        self, problem: LocalProblem, left: FloatArray, right: FloatArray
    ) -> None:
        self._problem, self._left, self._right = problem, left, right

    def _whole(self, small: FloatArray) -> FloatArray:
        return np.asarray(self._left @ small @ self._right.T)

    def value(self, small: FloatArray) -> float:
        return self._problem.value(self._whole(small))

    def gradient(self, small: FloatArray) -> FloatArray:
        return np.asarray(
            self._left.T @ self._problem.gradient(self._whole(small)) @ self._right
        )

    def bend(self, small: FloatArray, direction: FloatArray) -> float | None:
        return self._problem.bend(self._whole(small), self._whole(direction))
