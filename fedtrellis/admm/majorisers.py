"""A diagonal above each client's H, and its systems in the coordinates that it scales.

With D = diag(H) and c = λ_max(D^(−1/2) H D^(−1/2)) the diagonal c·D majorises H: a
column that is a thousand times as large as the others has a curvature of its own,
where the multiple of the identity that majorises H gives all columns the largest.
"""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.factor_file import FactorFile, fingerprint
from fedtrellis.admm.hessians import (
    call_method,
    hessian_factor_of,
    lipschitz_of,
    user_diagonal,
)
from fedtrellis.admm.shifted_systems import cached_system
from fedtrellis.admm.solvers import DiagonalSystem
from fedtrellis.objectives.checks import Array, is_sparse
from fedtrellis.objectives.symmetric import (
    DENSE_ORDER,
    largest_eigenvalue,
    symmetric_operator,
)

__all__ = ["ScaledObjective", "majoriser_of", "scaled_steps"]

# By objective: its majoriser, and what scales it (the scale's bytes and the object).
_majorisers: WeakKeyDictionary[Any, Array | float] = WeakKeyDictionary()
_scaled: WeakKeyDictionary[Any, tuple[bytes, Any]] = WeakKeyDictionary()


def majoriser_of(
    objective: Any, user_hessian: Any = None, factor_file: str | None = None
) -> float | Array:
    """Return d with diag(d) ⪰ H: a vector, or one number where no diagonal is known.

    Parameters are those of :func:`~fedtrellis.admm.hessians.lipschitz_of`. An objective
    tells by ``hessian_factor()``, by a ``hessian_bound()`` that is an ndarray, or by a
    ``hessian_bound()`` of another kind with ``hessian_diagonal()``; else its
    ``lipschitz()`` counts.

    Returns
    -------
    float or ndarray of float64 of shape (p,)
        At least 0, and somewhere above; 0 in a column of zeros.

    Raises
    ------
    ValueError
        What :func:`~fedtrellis.admm.hessians.lipschitz_of` raises.
    """
    largest = lipschitz_of(objective, user_hessian, factor_file)
    if user_hessian is not None:
        if isinstance(user_hessian, np.ndarray):
            return user_diagonal(user_hessian, None)
        return largest
    try:
        if objective in _majorisers:
            return _majorisers[objective]
    except TypeError:  # it has no hash, so that nothing can be kept for it
        return _made(objective, largest, factor_file)
    made = _made(objective, largest, factor_file)
    with contextlib.suppress(TypeError):  # it may take no weak reference
        _majorisers[objective] = made
    return made


def _made(objective: Any, largest: float, factor_file: str | None) -> float | Array:
    factor = hessian_factor_of(objective)
    if factor is None:
        return _of_bound(objective, largest)

    def compute() -> dict[str, Array]:
        assert factor is not None
        A, s, c = factor
        squares = A.multiply(A).sum(axis=0) if is_sparse(A) else (A * A).sum(axis=0)
        D = s * np.asarray(squares, dtype=np.float64).reshape(-1) + c
        q = _inverse_root(D)

        def product(v: Array) -> Array:
            result: Array = q * (s * (A.T @ (A @ (q * v))) + c * (q * v))
            return result

        return {"value": _times_largest(D, product)}

    if not factor_file:
        return compute()["value"]
    key = fingerprint("majoriser", *factor)
    kept: Array = FactorFile(factor_file).get("majoriser", key, compute)["value"]
    return kept


def _of_bound(objective: Any, largest: float) -> float | Array:
    bound = call_method(objective, "hessian_bound")
    if bound is None:
        return largest
    if isinstance(bound, np.ndarray):
        D = np.array(bound.diagonal(), dtype=np.float64)
    else:
        told = call_method(objective, "hessian_diagonal")
        if told is None:
            return largest
        D = np.asarray(told, dtype=np.float64).reshape(-1)
    q = _inverse_root(D)
    return _times_largest(D, lambda v: q * (bound @ (q * v)))


def _inverse_root(D: Array) -> Array:
    """D^(−1/2), and 0 where D is 0: a positive semi-definite H has zeros there."""
    present = D > 0.0
    return np.where(present, 1.0 / np.sqrt(np.where(present, D, 1.0)), 0.0)


def _times_largest(D: Array, product: Any) -> Array:
    """Return c·D, with c the largest eigenvalue of what the product is of."""
    c = largest_eigenvalue(symmetric_operator(len(D), product))
    # rounding must not put it below H; nine digits are the same in every process
    return D * float(f"{c * (1.0 + 1e-9):.9e}")


class ScaledObjective:
    """A loss in the coordinates u = √S x, where H is S^(−1/2) H S^(−1/2).

    It has what :func:`~fedtrellis.admm.shifted_systems.make_system` asks for, no more.

    Parameters
    ----------
    objective : object
    scale : ndarray of float64 of shape (p,)
        S, above 0.
    """

    def __init__(self, objective: Any, scale: Array) -> None:
        q = 1.0 / np.sqrt(scale)
        self.shape = scale.shape
        self._factor: tuple[Any, float, float] | None = None
        self._bound: Any = None
        factor = hessian_factor_of(objective)
        if factor is not None:
            A, s, c = factor
            scaled = (
                scipy.sparse.csr_array(A @ scipy.sparse.diags_array(q))
                if is_sparse(A)
                else A * q
            )
            if c == 0.0 or np.ptp(q) == 0.0:
                self._factor = scaled, s, c * float(q[0] ** 2)
                return
            # c·I has become c·S⁻¹, which no factor says
            if len(scale) > DENSE_ORDER:
                self._bound = symmetric_operator(
                    len(scale), lambda v: s * (scaled.T @ (scaled @ v)) + c * q * q * v
                )
                return
            gram = scaled.T @ scaled
            self._bound = s * (gram.toarray() if is_sparse(gram) else gram)
            self._bound[np.diag_indices(len(scale))] += c * q * q
            return
        bound = call_method(objective, "hessian_bound")
        if isinstance(bound, np.ndarray):
            self._bound = bound * q * q[:, None]
        elif bound is not None:
            self._bound = symmetric_operator(
                len(scale), lambda v: q * (bound @ (q * v))
            )

    def hessian_factor(self) -> tuple[Any, float, float]:
        """(A S^(−1/2), s, c/S), where S is a number or c is 0."""
        if self._factor is None:
            raise NotImplementedError("its H has no factor")
        return self._factor

    def hessian_bound(self) -> Any:
        """S^(−1/2) H S^(−1/2)."""
        if self._bound is None:
            raise NotImplementedError("its loss has no hessian_bound")
        return self._bound


def scaled_steps(
    objective: Any,
    hessian: str,
    u: Array,
    *,
    scale: Array,
    weight: float,
    shift: float,
    steps: int,
    user_hessian: Any = None,
    factor_file: str | None = None,
) -> tuple[Array, Array]:
    """Take the ADMM steps with the penalty shift·S.

    With H′ = S^(−1/2) H S^(−1/2), u′ = S^(−1/2) u and d′ = √S d the steps
    d = (weight·H + shift·S)⁻¹ u, u ← u − shift·S d are those of H′ and shift·I.

    Parameters
    ----------
    objective, hessian, weight, shift, steps, user_hessian, factor_file
        As :func:`~fedtrellis.admm.shifted_systems.make_system` takes them; "diagonal"
        is :func:`majoriser_of` here.
    u : ndarray of float64 of shape (p,)
        ḡ + π before the first step; left as it is.
    scale : ndarray of float64 of shape (p,)
        S, above 0.

    Returns
    -------
    w, d : ndarrays of float64 of shape (p,)
        As :meth:`~fedtrellis.admm.solvers.ShiftedSystem.admm_steps` returns them.

    Raises
    ------
    ValueError
        What ``make_system`` raises; or the Hessian is a user's object, which knows
        shifts by multiples of the identity only, and S is none.
    """
    root = np.sqrt(scale)
    system: Any
    if hasattr(user_hessian, "solve"):
        if np.ptp(scale) != 0.0:
            raise ValueError("a hessian with solve(vector, shift) needs one σ for all")
        level = float(scale[0])
        system = cached_system(
            objective,
            hessian,
            weight=weight,
            shift=shift * level,
            steps=steps,
            user_hessian=user_hessian,
        )
        w, d = system.admm_steps(u, steps)
        return w, d
    if user_hessian is not None or hessian == "diagonal":
        diagonal = majoriser_of(objective, user_hessian, factor_file)
        system = DiagonalSystem(diagonal / scale, weight, shift)
    else:
        system = cached_system(
            _scaled_objective(objective, scale),
            hessian,
            weight=weight,
            shift=shift,
            steps=steps,
            factor_file=factor_file,
        )
    w, d = system.admm_steps(u / root, steps)
    return w * root, d / root


def _scaled_objective(objective: Any, scale: Array) -> Any:
    key = scale.tobytes()
    try:
        known = _scaled.get(objective)
    except TypeError:
        return ScaledObjective(objective, scale)
    if known is not None and known[0] == key:
        return known[1]
    made = ScaledObjective(objective, scale)
    # a bound by its products refers to the objective, and would keep it alive
    if made._factor is not None or isinstance(made._bound, np.ndarray):
        with contextlib.suppress(TypeError):
            _scaled[objective] = key, made
    return made
