"""Principal components as a minimisation over matrices with orthonormal columns."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives.base import FiniteSum
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_count,
    check_examples,
    check_number,
)
from fedtrellis.objectives.symmetric import largest_eigenvalue

__all__ = ["PrincipalComponents"]


class PrincipalComponents(FiniteSum):
    """f(x) = −(weight/2d) Σ_j Tr(xᵀ H_j x) with H_j = a_j a_jᵀ, the a_j rows of A.

    That is −(weight/2) Tr(xᵀ C x) with C = AᵀA/d. It is concave, without a lower
    bound; over the x with xᵀx = I its minimisers span the space of the largest
    eigenvalues of C. Points have shape (p, r).

    Parameters
    ----------
    A : array_like of shape (d, p)
        Centred already, where C is to be a covariance.
    components : int
        r, from 1 to p.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If A is not a finite matrix or a parameter is not allowed.

    Notes
    -----
    §5.1 of arXiv 2507.22855.
    """

    quadratic = True

    def __init__(self, A: ArrayLike, components: int, *, weight: float = 1.0) -> None:
        self._rows = check_examples("A", np.asarray(A))
        self.num_examples, features = self._rows.shape
        self.shape = (features, check_count("components", components, 1, features))
        self.weight = check_number("weight", weight, positive=True)

    @cached_property
    def covariance(self) -> Array:
        """C = AᵀA/d, of shape (p, p)."""
        covariance: Array = self._rows.T @ self._rows / self.num_examples
        return covariance

    def _product(self, columns: Array, rows: IntArray | None) -> Array:
        """Return C x of the whole or of a mini-batch, for x of shape (p, any)."""
        part = self._rows if rows is None else self._rows[rows]
        if rows is None and len(part) >= self.shape[0]:
            product: Array = self.covariance @ columns
            return product
        # few examples: C is not formed
        product = part.T @ (part @ columns)
        product /= len(part)
        return product

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        # ∇f(x) = −weight C x
        slope = self._product(x, rows)
        slope *= -self.weight
        return slope

    def _value(self, x: Array) -> float:
        # f(x) = ½⟨x, ∇f(x)⟩
        return 0.5 * float(np.vdot(x, self._gradient(x, None)))

    def curvature(self, x: Array, direction: Array) -> float:
        """Return −weight · Tr(dᵀ C d), the same at every x and never above 0."""
        self._point(x)
        direction = self._point(direction, "direction")
        return -self.weight * float(np.vdot(direction, self._product(direction, None)))

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        # (p, m r): all the points in one matrix product
        columns = np.moveaxis(points, 0, 1).reshape(self.shape[0], -1)
        traces = np.einsum("pk,pk->k", columns, self._product(columns, rows))
        # −(weight/2) Tr(xᵀ C x)
        sums: Array = traces.reshape(len(points), -1).sum(axis=1)
        return -0.5 * self.weight * sums

    def lipschitz(self) -> float:
        """Return weight · ‖C‖₂, the least Lipschitz constant of ∇f; computed once."""
        return self._lipschitz

    @cached_property
    def _lipschitz(self) -> float:
        if self.num_examples < self.shape[0]:
            gram = self._rows @ self._rows.T / self.num_examples
            return self.weight * largest_eigenvalue(gram)
        return self.weight * largest_eigenvalue(self.covariance)

    def optimum(self) -> float:
        """Return −(weight/2) Σ of the r largest eigenvalues, min f over xᵀx = I."""
        return -0.5 * self.weight * float(self._eigen[0].sum())

    def leading_subspace(self) -> Array:
        """Return a minimiser over xᵀx = I, eigenvectors of C of shape (p, r)."""
        return self._eigen[1].copy()

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.covariance)
        # eigh counts upwards
        chosen = slice(None, -self.shape[1] - 1, -1)
        return values[chosen], vectors[:, chosen]

    def metrics(self, x: Array) -> dict[str, float]:
        """Return what tells x from the optimum over xᵀx = I.

        Returns
        -------
        dict
            ``"optimality-gap"``, f(x) less the minimum over xᵀx = I, and
            ``"subspace-error"``, the sine of the largest angle between the column space
            of x and the space of :meth:`leading_subspace`, which says nothing where
            the r-th largest eigenvalue is as large as the next.
        """
        x = self._point(x)
        basis, leading = np.linalg.qr(x)[0], self._eigen[1]
        # sin θ_max = ‖(I − QQᵀ) V‖₂
        outside = leading - basis @ (basis.T @ leading)
        return {
            "optimality-gap": self.value(x) - self.optimum(),
            "subspace-error": min(1.0, float(np.linalg.norm(outside, 2))),
        }
