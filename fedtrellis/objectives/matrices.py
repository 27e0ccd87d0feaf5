"""Functions of a matrix: completion, quadratic assignment, principal components."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives import base
from fedtrellis.objectives.base import Array, Bound, FiniteSum, IntArray


class MatrixCompletion(FiniteSum):
    """Mean squared error over the observed entries of a matrix.

    f(X) = (weight/d) Σ_k (X[rows_k, columns_k] − ratings_k)²; weight d gives the sum.
    An entry that is observed twice counts twice.

    ``rows``, ``columns`` and ``ratings`` have shape (d,); the first two are whole
    numbers in [0, m) and [0, n), where (m, n) is the ``shape`` of X; the ``weight`` is
    a positive factor on the whole function. A ValueError: lengths disagree, an index is
    out of range, or an entry is not finite.

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
        self._ratings = base.check_array("ratings", ratings, 1)
        self.num_examples = count = len(self._ratings)
        if count == 0:
            raise ValueError("ratings is empty; it must have at least one entry")
        row = base.check_integers("rows", rows, count, self.shape[0])
        column = base.check_integers("columns", columns, count, self.shape[1])
        self._weigh(weight)
        self._flat = row * self.shape[1] + column
        # Each entry once, in C order: the CSR pattern of every gradient.
        self._entries, self._entry_of = np.unique(self._flat, return_inverse=True)
        self._counts = np.bincount(self._entry_of)

    def _residuals(self, x: Array, rows: IntArray | None) -> Array:
        part: Any = slice(None) if rows is None else rows
        flat = x.reshape(*x.shape[:-2], -1)
        residuals: Array = flat[..., self._flat[part]] - self._ratings[part]
        return residuals

    def _scale(self, rows: IntArray | None) -> float:
        return self.weight / self.num_examples * self._inverse(rows)

    def _value(self, x: Array) -> float:
        residuals = self._residuals(x, None)
        return self._scale(None) * float(residuals @ residuals)

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        entry_of = self._entry_of if rows is None else self._entry_of[rows]
        # (2 weight/d) Σ of the residuals that fall on the same entry
        residuals = self._residuals(x, rows)
        sums = np.bincount(entry_of, residuals, minlength=len(self._entries))
        result = np.zeros(self.shape)
        result.reshape(-1)[self._entries] = 2.0 * self._scale(rows) * sums
        return result

    def curvature(self, x: Array, direction: Array) -> float:
        """Return (2 weight/d) Σ_k D[rows_k, columns_k]², the same at every X."""
        self._point(x)
        direction = self._point(direction, "direction")
        changes = direction.reshape(-1)[self._flat]
        return 2.0 * self._scale(None) * float(changes @ changes)

    def _room(self, rows: IntArray | None) -> int:
        return self.num_examples if rows is None else len(rows)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        r = self._residuals(points, rows)
        return np.asarray(self._scale(rows) * np.einsum("mk,mk->m", r, r))

    def hessian_bound(self) -> Bound:
        """Return ∇²f = (2 weight/d) diag(how often each entry is observed)."""
        diagonal = np.zeros(self.shape[0] * self.shape[1])
        diagonal[self._entries] = 2.0 * self._scale(None) * self._counts
        return base.diagonal_bound(diagonal)

    def lipschitz(self) -> float:
        """Return (2 weight/d) times the most observations of one entry."""
        return 2.0 * self._scale(None) * float(self._counts.max())

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"rmse": ...}``, the root mean squared error."""
        residuals = self._residuals(self._point(x), None)
        return {"rmse": float(np.sqrt(np.mean(residuals**2)))}


class QuadraticAssignment(FiniteSum):
    """The quadratic assignment cost, or the part of it on some entries of A.

    f(X) = weight · Σ over (i, j) in E of A_ij (X B Xᵀ)_ij. With E all entries this is
    trace(A X Bᵀ Xᵀ), and Σ_ij A_ij B_{p(i), p(j)} where X is the permutation matrix
    with X[i, p(i)] = 1, for A and B symmetric or not. The parts on a partition of the
    entries add up to the whole. f is not convex in general.

    A and B, flows and distances, have shape (n, n). E is where the ``mask``, a bool
    array of shape (n, n), is true. The examples that a mini-batch samples are the
    entries of E. The ``weight`` is a positive factor on the whole function. With k > 1
    ``copies`` a point is k matrices, an array of shape (k, n, n) or a list, and the
    function the mean of their f. A ValueError: A and B are not square of one order, E
    is empty, or a parameter is not allowed.

    Hessian bound: ‖∇f(X) − ∇f(Z)‖ ≤ 2 weight ‖A_E‖₂ ‖B‖₂ ‖X − Z‖, so Θ is that times I
    (the Hessian itself is indefinite). The relaxation to the Birkhoff polytope is
    figure 1d of the FedFW workshop paper (2022).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import QuadraticAssignment
    >>> flow = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> f = QuadraticAssignment(flow, 2 * flow)
    >>> x = np.eye(2)
    >>> round(f.value(x), 3)
    4.0
    >>> f.gradient(x).round(3)
    array([[4., 0.],
           [0., 4.]])
    """

    quadratic = True

    def __init__(
        self,
        A: ArrayLike,
        B: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        weight: float = 1.0,
        copies: int = 1,
    ) -> None:
        A, self._B = base.check_array("A", A, 2), base.check_array("B", B, 2)
        shapes, order = (A.shape, self._B.shape), len(A)
        if order == 0 or set(shapes) != {(order, order)}:
            raise ValueError(f"A and B have shapes {shapes}; they must be one square")
        chosen = np.asarray(np.full(A.shape, True) if mask is None else mask)
        wrong = chosen.dtype != np.bool_ or chosen.shape != A.shape
        if wrong or not chosen.any():
            found = f"mask has dtype {chosen.dtype} and shape {chosen.shape}"
            wanted = f"bool of shape {A.shape}, and true somewhere"
            raise ValueError(f"{found}; it must be {wanted}")
        copies = base.check_count("copies", copies, 1)
        self.shape = A.shape if copies == 1 else (copies, *A.shape)
        self._weigh(weight)
        self._scale = self.weight / copies
        self._A = np.where(chosen, A, 0.0)
        self._entries = np.flatnonzero(chosen)
        self.num_examples = len(self._entries)

    def _point(self, x: Any, name: str = "x") -> Array:
        return super()._point(np.stack(x) if isinstance(x, list) else x, name)

    def _points(self, points: Any) -> Array:
        stacked = np.stack(points, axis=1) if isinstance(points, list) else points
        return super()._points(stacked)

    def _like(self, x: Any, gradient: Array) -> Any:
        return list(gradient) if isinstance(x, list) else gradient

    def _part(self, rows: IntArray | None) -> Array:
        """Return weight/k · A on the entries sampled, 0 elsewhere."""
        if rows is None:
            return self._scale * self._A
        part, entries = np.zeros(self._A.shape), self._entries[rows]
        scale = self._scale * self._inverse(rows)
        part.flat[entries] = scale * self._A.flat[entries]
        return part

    def _value(self, x: Array) -> float:
        # trace(A X Bᵀ Xᵀ) = ⟨A X Bᵀ, X⟩
        return float(np.vdot(self._part(None) @ (x @ self._B.T), x))

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        # A X Bᵀ + Aᵀ X B
        A, B = self._part(rows), self._B
        return A @ (x @ B.T) + A.T @ (x @ B)

    def curvature(self, x: Array, direction: Array) -> float:
        """Return 2 f(D), as f is a quadratic form; of either sign."""
        self._point(x)
        return 2.0 * self._value(self._point(direction, "direction"))

    def _room(self, rows: IntArray | None) -> int:
        return math.prod(self.shape)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        products = self._part(rows) @ (points @ self._B.T)
        flat = len(points), math.prod(self.shape)
        pairs = products.reshape(flat), points.reshape(flat)
        return np.asarray(np.einsum("mk,mk->m", *pairs))

    def hessian_bound(self) -> Bound:
        """Return 2 weight/k ‖A_E‖₂ ‖B‖₂ · I."""
        return base.diagonal_bound(np.full(math.prod(self.shape), self.lipschitz()))

    @cached_property
    def _norms(self) -> float:
        # ‖A_E‖₂ ‖B‖₂
        return float(np.linalg.norm(self._A, 2) * np.linalg.norm(self._B, 2))

    def lipschitz(self) -> float:
        """Return 2 weight/k ‖A_E‖₂ ‖B‖₂, computed once."""
        return 2.0 * self._scale * self._norms


class PrincipalComponents(FiniteSum):
    """f(x) = −(weight/2d) Σ_j Tr(xᵀ H_j x) with H_j = a_j a_jᵀ, the a_j rows of A.

    That is −(weight/2) Tr(xᵀ C x) with C = AᵀA/d. It is concave, without a lower
    bound; over the x with xᵀx = I its minimisers span the space of the largest
    eigenvalues of C. Points have shape (p, r). A is of shape (d, p), and centred
    already where C is to be a covariance; r, the ``components``, is from 1 to p;
    ``weight`` is a positive factor on the whole function. A ValueError: A is not a
    finite matrix or a parameter is not allowed.

    §5.1 of arXiv 2507.22855.
    """

    quadratic = True

    def __init__(self, A: ArrayLike, components: int, *, weight: float = 1.0) -> None:
        self._rows = base.check_examples("A", np.asarray(A))
        self.num_examples, features = self._rows.shape
        self.shape = (features, base.check_count("components", components, 1, features))
        self._weigh(weight)

    @cached_property
    def covariance(self) -> Array:
        """C = AᵀA/d, of shape (p, p)."""
        return np.asarray(self._rows.T @ self._rows / self.num_examples)

    def _product(self, columns: Array, rows: IntArray | None) -> Array:
        """Return C x of the whole or of a mini-batch, for x of shape (p, any)."""
        part = self._rows if rows is None else self._rows[rows]
        product: Array
        if rows is None and len(part) >= self.shape[0]:
            product = self.covariance @ columns
        else:  # few examples: C is not formed
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

    @cached_property
    def _norm(self) -> float:
        # ‖C‖₂, that of the smaller of AᵀA/d and AAᵀ/d
        A, d = self._rows, self.num_examples
        return base.largest_eigenvalue(A @ A.T / d if d < len(A.T) else self.covariance)

    def lipschitz(self) -> float:
        """Return weight · ‖C‖₂, the least Lipschitz constant of ∇f; computed once."""
        return self.weight * self._norm

    def optimum(self) -> float:
        """Return −(weight/2) Σ of the r largest eigenvalues, min f over xᵀx = I."""
        return -0.5 * self.weight * float(self._eigen[0].sum())

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.covariance)
        # eigh counts upwards
        chosen = slice(None, -self.shape[1] - 1, -1)
        return values[chosen], vectors[:, chosen]

    def metrics(self, x: Array) -> dict[str, float]:
        """Return what tells x from the optimum over xᵀx = I.

        ``"optimality-gap"`` is f(x) less the minimum there, ``"subspace-error"`` the
        sine of the largest angle between the spaces of x and of the leading
        eigenvectors, which says nothing where the r-th eigenvalue equals the next.
        """
        x = self._point(x)
        basis, leading = np.linalg.qr(x)[0], self._eigen[1]
        # sin θ_max = ‖(I − QQᵀ) V‖₂
        outside = leading - basis @ (basis.T @ leading)
        return {
            "optimality-gap": self.value(x) - self.optimum(),
            "subspace-error": min(1.0, float(np.linalg.norm(outside, 2))),
        }
