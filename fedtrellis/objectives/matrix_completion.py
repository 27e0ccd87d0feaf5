"""Matrix completion: the mean squared error over the entries that are observed."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.objectives.base import FiniteSum, inverse_fraction
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_array,
    check_integers,
    check_number,
)
from fedtrellis.objectives.symmetric import DENSE_ORDER, Bound, symmetric_operator

__all__ = ["MatrixCompletion"]


class MatrixCompletion(FiniteSum):
    """Mean squared error over the observed entries of a matrix.

    f(X) = (weight/d) Σ_k (X[rows_k, columns_k] − ratings_k)²; weight d gives the sum.
    An entry that is observed twice counts twice.

    Parameters
    ----------
    rows, columns : array_like of shape (d,)
        Whole numbers in [0, m) and [0, n).
    ratings : array_like of shape (d,)
    shape : tuple of int
        (m, n), the shape of X.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If lengths disagree, an index is out of range, or an entry is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import MatrixCompletion
    >>> f = MatrixCompletion([0, 1], [1, 0], [3.0, 4.0], shape=(2, 2))
    >>> x = np.zeros((2, 2))
    >>> round(f.value(x), 3)
    12.5
    >>> f.gradient(x).round(3)
    array([[ 0., -3.],
           [-4.,  0.]])
    """

    quadratic = True

    def __init__(
        self,
        rows: ArrayLike,
        columns: ArrayLike,
        ratings: ArrayLike,
        shape: tuple[int, int],
        *,
        weight: float = 1.0,
    ) -> None:
        if len(shape) != 2 or any(int(n) != n or n < 1 for n in shape):
            raise ValueError(f"shape is {shape!r}; it must be two positive integers")
        self.shape = (int(shape[0]), int(shape[1]))
        self._ratings = check_array("ratings", ratings, 1)
        self.num_examples = count = len(self._ratings)
        if count == 0:
            raise ValueError("ratings is empty; it must have at least one entry")
        row = check_integers("rows", rows, count, self.shape[0])
        column = check_integers("columns", columns, count, self.shape[1])
        self.weight = check_number("weight", weight, positive=True)
        self._flat = row * self.shape[1] + column
        # Each entry once, in C order: the CSR pattern of every gradient.
        self._entries, self._entry_of = np.unique(self._flat, return_inverse=True)
        self._counts = np.bincount(self._entry_of)

    def _residuals(self, x: Array, rows: IntArray | None) -> Array:
        flat = self._flat if rows is None else self._flat[rows]
        ratings = self._ratings if rows is None else self._ratings[rows]
        residuals: Array = x.reshape(*x.shape[:-2], -1)[..., flat] - ratings
        return residuals

    def _scale(self, rows: IntArray | None) -> float:
        return (
            self.weight / self.num_examples * inverse_fraction(rows, self.num_examples)
        )

    def _entry_gradient(self, residuals: Array, rows: IntArray | None) -> Array:
        entry_of = self._entry_of if rows is None else self._entry_of[rows]
        # (2 weight/d) Σ of the residuals that fall on the same entry
        sums = np.bincount(entry_of, residuals, minlength=len(self._entries))
        return np.asarray(2.0 * self._scale(rows) * sums)

    def _value(self, x: Array) -> float:
        residuals = self._residuals(x, None)
        return self._scale(None) * float(residuals @ residuals)

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        result = np.zeros(self.shape)
        entries = self._entry_gradient(self._residuals(x, rows), rows)
        result.reshape(-1)[self._entries] = entries
        return result

    def curvature(self, x: Array, direction: Array) -> float:
        """Return (2 weight/d) Σ_k D[rows_k, columns_k]², the same at every X."""
        self._point(x)
        direction = self._point(direction, "direction")
        changes = direction.reshape(-1)[self._flat]
        return 2.0 * self._scale(None) * float(changes @ changes)

    def _entries_per_point(self, rows: IntArray | None) -> int:
        return self.num_examples if rows is None else len(rows)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        residuals = self._residuals(points, rows)
        squares: Array = np.einsum("mk,mk->m", residuals, residuals)
        return self._scale(rows) * squares

    def sparse_gradient(self, x: Array) -> scipy.sparse.csr_matrix:
        """Return ∇f(x) as a CSR matrix with one stored value per observed entry."""
        data = self._entry_gradient(self._residuals(self._point(x), None), None)
        m, n = self.shape
        rows, columns = np.divmod(self._entries, n)
        starts = np.searchsorted(rows, np.arange(m + 1))
        return scipy.sparse.csr_matrix((data, columns, starts), shape=(m, n))

    def hessian_bound(self) -> Bound:
        """Return ∇²f = (2 weight/d) diag(how often each entry is observed)."""
        diagonal = np.zeros(self.shape[0] * self.shape[1])
        diagonal[self._entries] = 2.0 * self._scale(None) * self._counts
        if len(diagonal) <= DENSE_ORDER:
            return np.diag(diagonal)
        return symmetric_operator(len(diagonal), lambda v: diagonal * v)

    def lipschitz(self) -> float:
        """Return (2 weight/d) times the most observations of one entry."""
        return 2.0 * self._scale(None) * float(self._counts.max())

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"rmse": ...}``, the root mean squared error."""
        residuals = self._residuals(self._point(x), None)
        return {"rmse": float(np.sqrt(np.mean(residuals**2)))}
