"""The linear systems (weight · H + shift · I) d = u of FedGiA's clients.

H is a symmetric positive semi-definite p × p matrix that majorises a client's loss:
its Hessian bound ("gram"), the largest eigenvalue of that times I ("diagonal"), or one
of the user's own. :func:`make_system` chooses how to solve with it, and
:func:`cached_system` keeps what that takes from round to round.

Vectors are float64 of shape (p,): the entries of x in C order.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from fedtrellis.admm.factor_file import FactorFile, fingerprint
from fedtrellis.admm.factored import (
    CholeskySystem,
    SpectralSystem,
    WideCholeskySystem,
    WideSpectralSystem,
)
from fedtrellis.admm.hessians import (
    call_method,
    hessian_factor_of,
    lipschitz_of,
    missing,
    name_of,
    objective_lipschitz,
    size_of,
    user_diagonal,
)
from fedtrellis.admm.solvers import (
    ConjugateGradientSystem,
    DiagonalSystem,
    ShiftedSystem,
    UserSystem,
)
from fedtrellis.objectives.checks import Array, check_array, check_number, is_sparse
from fedtrellis.objectives.symmetric import DENSE_ORDER

__all__ = [
    "HESSIANS",
    "CholeskySystem",
    "ConjugateGradientSystem",
    "DiagonalSystem",
    "ShiftedSystem",
    "SpectralSystem",
    "UserSystem",
    "WideCholeskySystem",
    "WideSpectralSystem",
    "cached_system",
    "lipschitz_of",
    "make_system",
]

Hessian = Literal["gram", "diagonal"]
HESSIANS: tuple[Hessian, ...] = get_args(Hessian)

# A factor of this order (2 MB) is made even where it is larger than the data.
_SMALL_ORDER = 500

# From how many steps a round the closed form is used, see _closed_form_pays.
_MIN_CLOSED_STEPS = 6
_ORDER_PER_CLOSED_STEP = 30


def _closed_form_pays(order: int, steps: int) -> bool:
    """Whether an eigendecomposition is cheaper than a Cholesky factor, in all.

    It takes 15 times as long and replaces ``steps`` solves a round by one. Measured for
    ten rounds, on one core, it wins from steps = 6, 18 and 28 for the orders 100, 500
    and 1000. The time of a factor grows as order³ and that of a solve as order², so
    that the threshold grows with the order; for small ones the time of a call rules.
    """
    return steps >= max(_MIN_CLOSED_STEPS, order / _ORDER_PER_CLOSED_STEP)


def make_system(
    objective: Any,
    hessian: str,
    *,
    weight: float,
    shift: float,
    steps: int,
    user_hessian: Any = None,
    factor_file: str | None = None,
) -> ShiftedSystem:
    """Return the solver for weight · H + shift · I that suits H.

    "diagonal" is H = ``objective.lipschitz()`` · I. "gram" is ``hessian_factor()``,
    H = s AᵀA + c I with A of shape (d, p), or else ``hessian_bound()``. With order =
    min(p, d), or p where there is no A, the matrix of that order is factorised if

    - order ≤ 2048, and
    - the factor, of order² float64, is no larger than that of order 500 or than the
      data (A, or a bound that is an ndarray);

    otherwise conjugate gradients need only products. A factor is an eigendecomposition,
    so that any number of steps costs one, where ``steps`` ≥ max(6, order/30), and else
    Cholesky's.

    Parameters
    ----------
    objective : object
        f_i, see above; ``shape``, if it has it, is that of x.
    hessian : {"gram", "diagonal"}
    weight, shift : float
        1/m for m clients, and σ; both above 0.
    steps : int
        How many ADMM steps a round takes, at least 1; decides only on the kind of
        factor.
    user_hessian : float, ndarray of shape (p,) or object, optional
        In place of the objective's: h of H = h I, the diagonal of H (both at least 0),
        or an object whose ``solve(vector, shift)`` returns (H + shift · I)⁻¹ vector.
    factor_file : str, optional
        Where factors of "gram", and ``lipschitz()`` for "diagonal", are kept between
        processes; see :class:`~fedtrellis.admm.factor_file.FactorFile`.

    Raises
    ------
    ValueError
        An argument is not allowed, the objective has no such H, H is not positive
        semi-definite, or the file cannot be used.
    """
    _check(hessian, weight, shift, steps)
    if user_hessian is not None:
        if hasattr(user_hessian, "solve"):
            return UserSystem(user_hessian, weight, shift)
        diagonal = user_diagonal(user_hessian, size_of(objective))
        return DiagonalSystem(diagonal, weight, shift)
    if hessian == "diagonal":
        value = check_number(
            f"lipschitz() of objective {name_of(objective)}",
            objective_lipschitz(objective, factor_file),
        )
        return DiagonalSystem(value, weight, shift)
    closed = _wants_closed_form(objective, hessian, steps)
    factor = hessian_factor_of(objective)
    if factor is None:
        return _system_of_bound(objective, weight, shift, closed, factor_file)
    A, s, c = factor
    examples, features = A.shape
    if not _factorises(min(examples, features), _bytes(A)):
        return ConjugateGradientSystem.of_factor(A, s, c, weight, shift)
    if features <= examples:

        def matrix() -> Array:
            # H = s AᵀA + c I
            product = A.T @ A
            H: Array = product.toarray() if is_sparse(product) else product
            H *= s
            H[np.diag_indices(features)] += c
            return H

        return _dense_system(
            objective, matrix, A, (s, c), weight, shift, closed, factor_file
        )
    if closed:
        key = _key(factor_file, "wide spectral", A, s, c)
        parts = _kept(factor_file, key, lambda: WideSpectralSystem.factorise(A))
        return WideSpectralSystem(A, s, c, parts, weight, shift)
    key = _key(factor_file, "wide Cholesky", A, s, c, weight, shift)
    parts = _kept(
        factor_file, key, lambda: WideCholeskySystem.factorise(A, s, c, weight, shift)
    )
    return WideCholeskySystem(A, s, c, parts, weight, shift)


def _check(hessian: str, weight: float, shift: float, steps: int) -> None:
    if hessian not in HESSIANS:
        allowed = ", ".join(map(repr, HESSIANS))
        raise ValueError(f"hessian is {hessian!r}; allowed: {allowed}")
    check_number("weight", weight, positive=True)
    check_number("shift", shift, positive=True)
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps is {steps!r}; it must be a whole number of at least 1")


def _bytes(A: Any) -> int:
    if is_sparse(A):
        return int(A.data.nbytes + A.indices.nbytes + A.indptr.nbytes)
    return int(A.nbytes)


def _factorises(order: int, data_bytes: int) -> bool:
    allowed = max(8 * _SMALL_ORDER**2, data_bytes)
    return order <= DENSE_ORDER and 8 * order**2 <= allowed


def _wants_closed_form(objective: Any, hessian: str, steps: int) -> bool:
    """Whether make_system would choose an eigendecomposition, if a factor at all."""
    if hessian != "gram":
        return False
    factor = hessian_factor_of(objective)
    order = size_of(objective) if factor is None else min(factor[0].shape)
    return order is not None and _closed_form_pays(order, steps)


def _system_of_bound(
    objective: Any, weight: float, shift: float, closed: bool, factor_file: str | None
) -> ShiftedSystem:
    """Return the system of an objective that has a hessian_bound() only."""
    bound = call_method(objective, "hessian_bound")
    if bound is None:
        raise missing(objective, "hessian_bound")
    name = f"hessian_bound() of objective {name_of(objective)}"
    order = int(bound.shape[0])
    if bound.shape != (order, order) or size_of(objective) not in (None, order):
        raise ValueError(
            f"{name} has shape {bound.shape}; it must be square, with as many rows as "
            "x has entries"
        )
    if isinstance(bound, np.ndarray):
        bound = check_array(name, bound, 2)
        size = bound.nbytes
    else:
        size = 0
    if not _factorises(order, size):
        return ConjugateGradientSystem(lambda v: bound @ v, weight, shift)
    H: Array = bound if isinstance(bound, np.ndarray) else bound @ np.eye(order)
    return _dense_system(
        objective, lambda: H, H, (), weight, shift, closed, factor_file
    )


def _dense_system(
    objective: Any,
    matrix: Callable[[], Array],
    data: Any,
    numbers: tuple[float, ...],
    weight: float,
    shift: float,
    closed: bool,
    factor_file: str | None,
) -> ShiftedSystem:
    """Return the system of a p × p matrix, formed only if no factor of it is kept."""
    try:
        if closed:
            key = _key(factor_file, "spectral", data, *numbers)
            parts = _kept(factor_file, key, lambda: SpectralSystem.factorise(matrix()))
            return SpectralSystem(parts, weight, shift)
        key = _key(factor_file, "Cholesky", data, *numbers, weight, shift)
        parts = _kept(
            factor_file,
            key,
            lambda: CholeskySystem.factorise(matrix(), weight, shift),
        )
        return CholeskySystem(parts, weight, shift)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"H of objective {name_of(objective)} is not positive semi-definite: "
            f"{error}"
        ) from error


def _key(factor_file: str | None, kind: str, data: Any, *numbers: float) -> bytes:
    return fingerprint(kind, data, *numbers) if factor_file else b""


def _kept(
    factor_file: str | None, key: bytes, compute: Callable[[], Mapping[str, Array]]
) -> Mapping[str, Array]:
    if not factor_file:
        return compute()
    return FactorFile(factor_file).get("factor", key, compute)


@dataclass
class _Entry:
    """The systems of one objective, the last used at the end."""

    reference: weakref.ref[Any]
    systems: OrderedDict[tuple[Any, ...], ShiftedSystem]
    #: From what was asked for, as it was asked, to the keys of ``systems``.
    requests: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)


# Two, so that one change of σ back and forth costs nothing.
_SYSTEMS_PER_OBJECTIVE = 2
_entries: dict[int, _Entry] = {}
# Re-entrant: collecting garbage may drop an entry in a thread that holds it.
_lock = threading.RLock()


def cached_system(
    objective: Any,
    hessian: str,
    *,
    weight: float,
    shift: float,
    steps: int,
    user_hessian: Any = None,
    factor_file: str | None = None,
) -> ShiftedSystem:
    """Return what :func:`make_system` does, made once while the objective lives.

    The last two systems of every objective are kept in this process, until the
    objective is garbage; the data of an objective must not change. Not kept are those
    that take nothing to make, of a ``user_hessian`` or by products only, since they may
    refer to the objective and keep it alive; and those of objectives that cannot be
    weakly referenced. Parameters and errors are those of :func:`make_system`.
    """

    def make() -> ShiftedSystem:
        return make_system(
            objective,
            hessian,
            weight=weight,
            shift=shift,
            steps=steps,
            user_hessian=user_hessian,
            factor_file=factor_file,
        )

    if user_hessian is not None:
        return make()
    # every round asks the same; what follows costs as much as a small client's step
    request = (hessian, weight, shift, steps)
    with _lock:
        entry = _entry_of(objective, new=False)
        if entry is not None and request in entry.requests:
            key = entry.requests[request]
            entry.systems.move_to_end(key)
            return entry.systems[key]
    _check(hessian, weight, shift, steps)
    closed = _wants_closed_form(objective, hessian, steps)
    key = (hessian, float(weight), float(shift), closed)
    with _lock:
        entry = _entry_of(objective, new=False)
        if entry is not None and key in entry.systems:
            entry.systems.move_to_end(key)
            entry.requests[request] = key
            return entry.systems[key]
    # Other threads go on meanwhile; two that ask for the same one may both make it.
    system = make()
    if isinstance(system, ConjugateGradientSystem):
        return system
    with _lock:
        entry = _entry_of(objective, new=True)
        if entry is None:
            return system
        system = entry.systems.setdefault(key, system)
        entry.systems.move_to_end(key)
        while len(entry.systems) > _SYSTEMS_PER_OBJECTIVE:
            entry.systems.popitem(last=False)
            entry.requests.clear()
        entry.requests[request] = key
        return system


def _entry_of(objective: Any, *, new: bool) -> _Entry | None:
    """Return the objective's entry, or a ``new`` one; the lock must be held."""
    number = id(objective)
    entry = _entries.get(number)
    # the number may have been that of an object whose entry is still to be dropped
    if entry is not None and entry.reference() is objective:
        return entry
    if not new:
        return None

    def drop(reference: weakref.ref[Any]) -> None:
        with _lock:
            # the number may be another object's by now
            found = _entries.get(number)
            if found is not None and found.reference is reference:
                del _entries[number]

    try:
        reference = weakref.ref(objective, drop)
    except TypeError:
        return None
    entry = _entries[number] = _Entry(reference, OrderedDict())
    return entry
