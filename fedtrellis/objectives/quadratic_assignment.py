"""The quadratic assignment problem, relaxed to matrices."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.objectives.base import FiniteSum, inverse_fraction
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_array,
    check_integers,
    check_number,
)
from fedtrellis.objectives.symmetric import DENSE_ORDER, Bound, symmetric_operator

__all__ = ["QuadraticAssignment"]


class QuadraticAssignment(FiniteSum):
    """The quadratic assignment cost, or the part of it on some entries of A.

    f(X) = weight · Σ over (i, j) in E of A_ij (X B Xᵀ)_ij. With E all entries this is
    trace(A X Bᵀ Xᵀ), and Σ_ij A_ij B_{p(i), p(j)} where X is the permutation matrix
    with X[i, p(i)] = 1, for A and B symmetric or not. The parts on a partition of the
    entries add up to the whole. f is not convex in general.

    Parameters
    ----------
    A, B : array_like of shape (n, n)
        Flows and distances.
    rows : array_like of int, optional
        E is these rows of A.
    mask : array_like of bool of shape (n, n), optional
        E is where the mask is true; not together with ``rows``. The examples that a
        mini-batch samples are the entries of E.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If A and B are not square of one order, E is empty, or a row is out of range or
        named twice.

    Notes
    -----
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
        rows: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        weight: float = 1.0,
    ) -> None:
        flows, self._distances = check_array("A", A, 2), check_array("B", B, 2)
        order = len(flows)
        if flows.shape != (order, order) or order == 0:
            raise ValueError(f"A has shape {flows.shape}; it must be square, not empty")
        if self._distances.shape != flows.shape:
            shape = self._distances.shape
            raise ValueError(f"B has shape {shape}; A's is {flows.shape}")
        if rows is not None and mask is not None:
            raise ValueError("rows and mask are both given; only one of them may be")
        chosen: NDArray[np.bool_] = np.ones(flows.shape, dtype=np.bool_)
        if mask is not None:
            chosen = np.asarray(mask)
            if chosen.dtype != np.bool_ or chosen.shape != flows.shape:
                raise ValueError(
                    f"mask has dtype {chosen.dtype} and shape {chosen.shape}; "
                    f"it must be bool of shape {flows.shape}"
                )
        elif rows is not None:
            given = np.asarray(rows)
            indices = check_integers("rows", given, given.size, order)
            if len(np.unique(indices)) != len(indices):
                raise ValueError("rows names a row twice; each may be named once")
            chosen[:] = False
            chosen[indices] = True
        if not chosen.any():
            name = "mask" if rows is None else "rows"
            raise ValueError(f"{name} selects nothing; at least one entry is needed")
        self.shape = flows.shape
        self.weight = check_number("weight", weight, positive=True)
        self._flows = np.where(chosen, flows, 0.0)
        self._entries = np.flatnonzero(chosen)
        self.num_examples = len(self._entries)

    def _part(self, rows: IntArray | None) -> Array:
        """Return weight · A on the entries sampled, 0 elsewhere."""
        if rows is None:
            return self.weight * self._flows
        part = np.zeros(self.shape)
        entries = self._entries[rows]
        scale = self.weight * inverse_fraction(rows, self.num_examples)
        part.flat[entries] = scale * self._flows.flat[entries]
        return part

    def _value(self, x: Array) -> float:
        # trace(A X Bᵀ Xᵀ) = ⟨A X Bᵀ, X⟩
        return float(np.vdot(self._part(None) @ (x @ self._distances.T), x))

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        # A X Bᵀ + Aᵀ X B
        flows, distances = self._part(rows), self._distances
        return flows @ (x @ distances.T) + flows.T @ (x @ distances)

    def curvature(self, x: Array, direction: Array) -> float:
        """Return 2 f(D), as f is a quadratic form; of either sign.

        Where it is not above 0, f is lowest at an end of a segment along D.
        """
        self._point(x)
        return 2.0 * self._value(self._point(direction, "direction"))

    def _entries_per_point(self, rows: IntArray | None) -> int:
        return self.shape[0] ** 2

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        products = self._part(rows) @ (points @ self._distances.T)
        costs: Array = np.einsum("mij,mij->m", products, points)
        return costs

    def hessian_bound(self) -> Bound:
        """Return 2 weight ‖A_E‖₂ ‖B‖₂ · I."""
        order, bound = self.shape[0] ** 2, self.lipschitz()
        if order <= DENSE_ORDER:
            return bound * np.eye(order)
        return symmetric_operator(order, lambda v: bound * v)

    @cached_property
    def _lipschitz(self) -> float:
        flows, distances = self._flows, self._distances
        norms = np.linalg.norm(flows, 2) * np.linalg.norm(distances, 2)
        return 2.0 * self.weight * float(norms)

    def lipschitz(self) -> float:
        """Return 2 weight ‖A_E‖₂ ‖B‖₂, computed once."""
        return self._lipschitz
