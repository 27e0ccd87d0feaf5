"""H_i and r_i of FedGiA's client, and a diagonal above H_i."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.kept import KeptFor
from fedtrellis.objectives.base import (
    Array,
    check_array,
    check_examples,
    check_number,
    is_sparse,
    largest_eigenvalue,
    symmetric_operator,
)

__all__ = ["call_method", "hessian_of", "lipschitz_of", "majoriser_of"]


class FactorHessian:
    """H = s AᵀA + diag(c) with A of shape (d, p), c one number or p of them."""

    def __init__(self, A: Any, s: float, c: float | Array) -> None:
        self.A, self.s, self.c = A, s, c
        # Woodbury's identity takes a multiple of the identity
        self.wide = np.ndim(c) == 0 and A.shape[0] < A.shape[1]
        # of the smallest matrix whose factor solves systems with H
        self.order = A.shape[0] if self.wide else A.shape[1]
        # of what is in memory anyway
        arrays = [A.data, A.indices, A.indptr] if is_sparse(A) else [A]
        self.data_bytes = sum(array.nbytes for array in arrays)
        if np.ndim(c):
            self.data_bytes = max(self.data_bytes, 8 * self.order**2)

    def product(self, v: Array) -> Array:
        """Return s Aᵀ(A v) + c v, a new array."""
        result: Array = self.A.T @ (self.A @ v)
        result *= self.s
        if np.any(self.c):
            result += self.c * v
        return result

    def matrix(self) -> Array:
        """Return H, a new array."""
        H = _dense(self.A.T @ self.A)
        H *= self.s
        H[np.diag_indices(len(H))] += self.c
        return H

    def outer(self) -> Array:
        """Return A Aᵀ, a new array."""
        return _dense(self.A @ self.A.T)

    def diagonal(self) -> Array:
        """Return s times the columns' squared lengths, plus c."""
        squares = self.A.multiply(self.A) if is_sparse(self.A) else self.A * self.A
        return self.s * np.asarray(squares.sum(axis=0)).reshape(-1) + self.c

    def scaled(self, q: Array) -> FactorHessian:
        """Return diag(q) H diag(q), for q above 0."""
        A: Any = self.A * q
        if is_sparse(self.A):
            A = scipy.sparse.csr_array(self.A @ scipy.sparse.diags_array(q))
        alike = not np.any(self.c) or np.ptp(q) == 0.0
        c = self.c * float(q[0] ** 2) if alike else self.c * q * q
        return FactorHessian(A, self.s, c)


class BoundHessian:
    """H as an ndarray or LinearOperator.

    The methods are those of :class:`FactorHessian`.
    """

    def __init__(self, bound: Any) -> None:
        self._bound = bound
        self._dense = isinstance(bound, np.ndarray)
        self.order = int(bound.shape[0])
        self.data_bytes = int(bound.nbytes) if self._dense else 0

    def product(self, v: Array) -> Array:
        """Return H v, a new array."""
        return np.asarray(self._bound @ v)

    def matrix(self) -> Array:
        """Return H, by a product for each column of an operator."""
        H = self._bound if self._dense else self._bound @ np.eye(self.order)
        return np.asarray(H)

    def diagonal(self) -> Array | None:
        """Return the diagonal, or None where it is not known."""
        return np.array(self._bound.diagonal()) if self._dense else None

    def scaled(self, q: Array) -> BoundHessian:
        """Return diag(q) H diag(q), for q above 0."""
        if self._dense:
            return BoundHessian(self._bound * q * q[:, None])
        return BoundHessian(
            symmetric_operator(self.order, lambda v: q * self.product(q * v))
        )


#: A symmetric positive semi-definite p × p matrix that majorises a loss.
KnownHessian = FactorHessian | BoundHessian


def _dense(matrix: Any) -> Array:
    array: Array = matrix.toarray() if is_sparse(matrix) else matrix
    return array


def size_of(objective: Any) -> int | None:
    """Return p, or None for an objective that does not say."""
    shape = getattr(objective, "shape", None)
    return None if shape is None else int(np.prod(shape))


def call_method(objective: Any, method: str) -> Any:
    """Return what a method without arguments returns, None where there is none."""
    function = getattr(objective, method, None)
    if function is None:
        return None
    try:
        return function()
    except NotImplementedError:
        return None


def required(objective: Any, method: str) -> Any:
    """Return what a method returns; ValueError where there is none."""
    value = call_method(objective, method)
    if value is None:
        raise ValueError(
            f"objective {type(objective).__name__} has no {method}(); give "
            "FedGiAClient(hessian=...) a number, a diagonal, or an object with "
            "solve(vector, shift)"
        )
    return value


def hessian_of(objective: Any) -> KnownHessian:
    """Return H by ``hessian_factor()`` or else ``hessian_bound()``, or ValueError."""
    factor = _factor_of(objective)
    if factor is not None:
        return factor
    bound = required(objective, "hessian_bound")
    name = f"hessian_bound() of objective {type(objective).__name__}"
    order = int(bound.shape[0])
    if bound.shape != (order, order) or size_of(objective) not in (None, order):
        raise ValueError(
            f"{name} has shape {bound.shape}; it must be square, with as many rows as "
            "x has entries"
        )
    if isinstance(bound, np.ndarray):
        return BoundHessian(check_array(name, bound, 2))
    return BoundHessian(bound)


def _factor_of(objective: Any) -> FactorHessian | None:
    """Return H = s AᵀA + c I of ``hessian_factor()``, None where there is none."""
    factor = call_method(objective, "hessian_factor")
    if factor is None:
        return None
    A, s, c = factor
    name = f"hessian_factor() of objective {type(objective).__name__}"
    matrix = check_examples(f"A of {name}", A)
    s, c = check_number(f"s of {name}", s), check_number(f"c of {name}", c)
    return FactorHessian(matrix, s, c)


def lipschitz_of(objective: Any, user_hessian: Any = None) -> float:
    """Return r_i, the largest eigenvalue of H; ValueError unless it is above 0.

    It is the ``user_hessian`` itself if that is a number, its largest entry if it is
    an array, the ``lipschitz`` (a number or a method) of an object with ``solve`` if
    that has it, and else the objective's ``lipschitz()``.
    """
    name = f"lipschitz() of objective {type(objective).__name__}"
    if user_hessian is None:
        value = required(objective, "lipschitz")
    elif not hasattr(user_hessian, "solve"):
        name = "hessian"
        value = float(np.max(user_diagonal(user_hessian, size_of(objective))))
    else:
        own = getattr(user_hessian, "lipschitz", None)
        if own is None:
            value = required(objective, "lipschitz")
        else:
            name = f"lipschitz of hessian, of type {type(user_hessian).__name__},"
            value = own() if callable(own) else own
    number = check_number(name, value)
    if number == 0.0:
        raise ValueError(
            f"{name} is 0, as for data that are all zero; r_i must be above 0"
        )
    return number


def user_diagonal(given: Any, size: int | None) -> float | Array:
    """Return a user's h, or diagonal, checked."""
    if isinstance(given, bool) or not isinstance(
        given, int | float | np.number | np.ndarray
    ):
        raise ValueError(
            f"hessian is of type {type(given).__name__}; it must be a number, a 1-D "
            "array, or an object with solve(vector, shift)"
        )
    if np.ndim(given) == 0:
        return check_number("hessian", given)  # type: ignore[arg-type]
    diagonal = check_array("hessian", given, 1)
    if size is not None and len(diagonal) != size:
        raise ValueError(
            f"hessian has {len(diagonal)} entries; it must have {size}, as x has"
        )
    if diagonal.min(initial=0.0) < 0.0:
        raise ValueError(
            f"hessian has the entry {diagonal.min():g}; all must be at least 0"
        )
    return diagonal


_majorisers: KeptFor[float | Array] = KeptFor(most=1)


def majoriser_of(objective: Any, user_hessian: Any = None) -> float | Array:
    """Return d with diag(d) ⪰ H: a vector, or one number where no diagonal is known.

    With D = diag(H) and c = λ_max(D^(−1/2) H D^(−1/2)) it is c·D: a column that is a
    thousand times as large as the others has a curvature of its own, where the multiple
    of the identity that majorises H gives all columns the largest.

    D is known from ``hessian_factor()`` or from a ``hessian_bound()`` that is an
    ndarray; else d is r_i. Parameters and errors are those of
    :func:`lipschitz_of`.

    Returns
    -------
    float or ndarray of float64 of shape (p,)
        At least 0, and somewhere above; 0 in a column of zeros.
    """
    largest = lipschitz_of(objective, user_hessian)
    if isinstance(user_hessian, np.ndarray):
        return user_diagonal(user_hessian, None)
    if user_hessian is not None:
        return largest

    def make() -> float | Array:
        methods = ("hessian_factor", "hessian_bound")
        if all(call_method(objective, method) is None for method in methods):
            return largest
        H = hessian_of(objective)
        D = H.diagonal()
        return largest if D is None else _times_largest(H, D)

    return _majorisers.get(objective, None, make)


def _times_largest(hessian: KnownHessian, D: Array) -> Array:
    """Return c·D, with c the largest eigenvalue of D^(−1/2) H D^(−1/2)."""
    # 0 where D is 0: a positive semi-definite H has zeros there
    present = D > 0.0
    q = np.where(present, 1.0 / np.sqrt(np.where(present, D, 1.0)), 0.0)
    c = largest_eigenvalue(
        symmetric_operator(len(D), lambda v: q * hessian.product(q * v))
    )
    # rounding must not put it below H; nine digits are the same in every process
    return D * float(f"{c * (1.0 + 1e-9):.9e}")
