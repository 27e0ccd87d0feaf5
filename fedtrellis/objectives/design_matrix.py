"""The data matrix of a linear model and its products."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedtrellis.objectives.checks import Array, IntArray, check_examples, is_sparse
from fedtrellis.objectives.symmetric import largest_eigenvalue, symmetric_operator

# Most columns of a factor that multiplies a dense A from the left, transposed.
NARROW = 128

# Gathering a column of a dense A costs about as much as multiplying by this many.
_GATHERED = 32


class DesignMatrix:
    """The d × p data matrix A of a linear model, dense or CSR, and its products.

    Parameters
    ----------
    matrix : ndarray or scipy.sparse.csr_array
        As returned by :func:`~fedtrellis.objectives.checks.check_examples`.
    intercept : bool
        Whether A has one more column, of ones, which is never stored.
    """

    def __init__(self, matrix: Any, *, intercept: bool = False) -> None:
        self.matrix, self._is_dense = matrix, not is_sparse(matrix)
        self.intercept = intercept
        self.shape: tuple[int, int] = (matrix.shape[0], matrix.shape[1] + intercept)

    def of_dtype(self, dtype: np.dtype[Any]) -> DesignMatrix:
        """Return a copy with entries of another dtype."""
        return DesignMatrix(self.matrix.astype(dtype), intercept=self.intercept)

    def rows(self, rows: IntArray | None) -> DesignMatrix:
        """Return the rows named (a copy), or this very object for None."""
        if rows is None:
            return self
        return DesignMatrix(self.matrix[rows], intercept=self.intercept)

    def like(self, matrix: Any, name: str) -> DesignMatrix:
        """Return other data for the same model; ``name`` is what errors call them.

        Raises
        ------
        ValueError
            They are no finite matrix, or have another number of columns.
        """
        other = DesignMatrix(check_examples(name, matrix), intercept=self.intercept)
        if other.shape[1] != self.shape[1]:
            raise ValueError(
                f"{name} has shape {other.matrix.shape}; "
                f"it must have {self.matrix.shape[1]} columns"
            )
        return other

    def apply(self, x: Array) -> Array:
        """Return A x, for x of shape (p,) or (p, c)."""
        if not self.intercept:
            return self._product(x)
        scores = self._product(x[:-1])
        scores += x[-1]
        return scores

    def apply_to_few(self, x: Array) -> Array:
        """Return A x, from the columns of a dense A that x needs where these are few.

        The difference of two atoms has a few entries that are not 0. It differs from
        :meth:`apply` by rounding.
        """
        needed = np.flatnonzero(x if x.ndim == 1 else x.any(axis=1))
        columns = self.matrix.shape[1]
        last = bool(len(needed)) and needed[-1] == columns  # the intercept
        if is_sparse(self.matrix) or _GATHERED * len(needed) > columns:
            return self.apply(x)
        stored = needed[:-1] if last else needed
        scores: Array = self.matrix[:, stored] @ x[stored]
        if last:
            scores += x[-1]
        return scores

    def _product(self, x: Array) -> Array:
        """Return A x for the columns of A that are stored."""
        product: Array
        if self._goes_left(x):
            # for small arrays dot takes two thirds of what @ does
            product = np.ascontiguousarray(x.T).dot(self.matrix.T).T
        else:
            product = self.matrix @ x
        return product

    def _goes_left(self, factor: Array) -> bool:
        """Whether (factorᵀ Aᵀ)ᵀ is faster: a BLAS likes a narrow factor on the left."""
        return self._is_dense and factor.ndim == 2 and factor.shape[1] <= NARROW

    def adjoint(self, y: Array) -> Array:
        """Return Aᵀ y, for y of shape (d,) or (d, c)."""
        left = self._goes_left(y)
        product: Array = y.T.dot(self.matrix).T if left else self.matrix.T @ y
        if not self.intercept:
            return product
        whole = np.empty((self.shape[1], *y.shape[1:]), product.dtype)
        whole[:-1] = product
        whole[-1] = np.add.reduce(y, axis=0)
        return whole

    def gram(self) -> Array:
        """Return AᵀA, a dense p × p matrix."""
        product = self.matrix.T @ self.matrix
        gram: Array = product.toarray() if is_sparse(product) else product
        if not self.intercept:
            return gram
        # [F 1]ᵀ[F 1] = [[FᵀF, Fᵀ1], [1ᵀF, d]]
        sums = np.asarray(self.matrix.sum(axis=0), dtype=np.float64).ravel()
        count = np.full((1, 1), float(self.shape[0]))
        return np.block([[gram, sums[:, None]], [sums[None], count]])

    @cached_property
    def largest_gram_eigenvalue(self) -> float:
        """The largest eigenvalue of AᵀA, which is that of AAᵀ."""
        examples, features = self.shape
        if features <= examples:
            return largest_eigenvalue(
                symmetric_operator(features, lambda v: self.adjoint(self.apply(v)))
            )
        return largest_eigenvalue(
            symmetric_operator(examples, lambda v: self.apply(self.adjoint(v)))
        )
