"""The linear systems (weight · H + shift · S) d = u of FedGiA's clients: which solver.

H is a symmetric positive semi-definite p × p matrix that majorises a client's loss:
its Hessian bound ("gram"), the largest eigenvalue of that times I ("diagonal"), or one
of the user's own. S is I, or a diagonal scale. Vectors are float64 of shape (p,): the
entries of x in C order.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from fedtrellis.admm.hessians import (
    FactorHessian,
    KnownHessian,
    hessian_of,
    majoriser_of,
    objective_lipschitz,
    size_of,
    user_diagonal,
)
from fedtrellis.admm.kept import FactorFile, KeptFor
from fedtrellis.admm.systems import (
    CholeskySystem,
    ConjugateGradientSystem,
    DiagonalSystem,
    FactoredSystem,
    ScaledSystem,
    ShiftedSystem,
    SpectralSystem,
    UserSystem,
    WideCholeskySystem,
    WideSpectralSystem,
)
from fedtrellis.objectives.base import DENSE_ORDER, Array, check_number

__all__ = ["Hessian", "cached_system", "make_system"]

Hessian = Literal["gram", "diagonal"]

# A factor of this order (2 MB) is made even where it is larger than the data.
_SMALL_ORDER = 500

# An eigendecomposition takes 15 times as long as a Cholesky factor, and replaces the
# solves of a round's steps by one. Measured for ten rounds, on one core, it wins from
# 6, 18 and 28 steps for the orders 100, 500 and 1000: the time of a factor grows as
# order³ and that of a solve as order², and for small ones the time of a call rules.
_MIN_CLOSED_STEPS = 6
_ORDER_PER_CLOSED_STEP = 30


def make_system(
    objective: Any,
    hessian: str,
    *,
    weight: float,
    shift: float,
    steps: int,
    scale: Array | None = None,
    user_hessian: Any = None,
    factor_file: str | None = None,
) -> ShiftedSystem:
    """Return the solver for weight · H + shift · S that suits H.

    "diagonal" is H = ``objective.lipschitz()`` · I, or with a scale the diagonal of
    :func:`~fedtrellis.admm.hessians.majoriser_of`. "gram" is ``hessian_factor()``,
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
        f_i; ``shape``, if it has it, is that of x.
    hessian : {"gram", "diagonal"}
    weight, shift : float
        1/m for m clients, and σ; both above 0.
    steps : int
        ADMM steps of a round, at least 1; decides only on the kind of factor.
    scale : ndarray of float64 of shape (p,), optional
        The diagonal of S, above 0; None for S = I.
    user_hessian : float, ndarray of shape (p,) or object, optional
        Instead of the objective's: h of H = h I, the diagonal of H (both at least 0),
        or an object whose ``solve(vector, shift)`` returns (H + shift · I)⁻¹ vector,
        for which S has to be a multiple of I.
    factor_file : str, optional
        Where factors of "gram", and ``lipschitz()`` for "diagonal", are kept between
        processes; see :class:`~fedtrellis.admm.kept.FactorFile`.

    Raises
    ------
    ValueError
        An argument is not allowed, the objective has no such H, H is not positive
        semi-definite, or the file cannot be used.
    """
    if hessian not in get_args(Hessian):
        allowed = ", ".join(map(repr, get_args(Hessian)))
        raise ValueError(f"hessian is {hessian!r}; allowed: {allowed}")
    check_number("weight", weight, positive=True)
    check_number("shift", shift, positive=True)
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps is {steps!r}; it must be a whole number of at least 1")
    if hasattr(user_hessian, "solve"):
        if scale is not None:
            if np.ptp(scale) != 0.0:
                raise ValueError("hessian.solve(vector, shift) needs one σ for all")
            shift = shift * float(scale[0])
        return UserSystem(user_hessian, weight, shift)
    system: ShiftedSystem
    if user_hessian is not None or hessian == "diagonal":
        h: float | Array
        if scale is not None:
            h = majoriser_of(objective, user_hessian, factor_file) / scale
        elif user_hessian is not None:
            h = user_diagonal(user_hessian, size_of(objective))
        else:
            h = check_number(
                f"lipschitz() of objective {type(objective).__name__}",
                objective_lipschitz(objective, factor_file),
            )
        system = DiagonalSystem(h, weight, shift)
    else:
        # H′ = S^(−1/2) H S^(−1/2), see ScaledSystem
        H = hessian_of(objective)
        if scale is not None:
            H = H.scaled(1.0 / np.sqrt(scale))
        try:
            system = _system_of(H, weight, shift, steps, FactorFile(factor_file))
        except np.linalg.LinAlgError as error:
            raise ValueError(
                f"H of objective {type(objective).__name__} is not positive "
                f"semi-definite: {error}"
            ) from error
    return system if scale is None else ScaledSystem(system, scale)


def _system_of(
    H: KnownHessian, weight: float, shift: float, steps: int, file: FactorFile
) -> ShiftedSystem:
    """Return the system of an H, from a factor if that is small enough."""
    allowed = max(8 * _SMALL_ORDER**2, H.data_bytes)
    if H.order > DENSE_ORDER or 8 * H.order**2 > allowed:
        return ConjugateGradientSystem(H.product, weight, shift)
    closed = steps >= max(_MIN_CLOSED_STEPS, H.order / _ORDER_PER_CLOSED_STEP)
    kind: type[FactoredSystem]
    if isinstance(H, FactorHessian) and H.wide:
        kind = WideSpectralSystem if closed else WideCholeskySystem
    else:
        kind = SpectralSystem if closed else CholeskySystem
    parts = file.get(
        "factor",
        lambda: kind.factorise(H, weight, shift),
        kind.__name__,
        *H.identity(),
        *(() if kind.any_shift else (weight, shift)),
    )
    return kind(H, parts, weight, shift)


# Two, so that one change of σ back and forth costs nothing.
_systems: KeptFor[ShiftedSystem] = KeptFor(most=2)


def cached_system(
    objective: Any,
    hessian: str,
    *,
    scale: Array | None = None,
    user_hessian: Any = None,
    **options: Any,
) -> ShiftedSystem:
    """Return what :func:`make_system` does, made once while the objective lives.

    The last two systems of every objective are kept in this process; the data of an
    objective must not change. Not kept are those of a ``user_hessian`` or by products
    only: they take nothing to make, and may refer to the objective and keep it alive.
    """
    options |= {"scale": scale, "user_hessian": user_hessian}
    make = partial(make_system, objective, hessian, **options)
    if user_hessian is not None:
        return make()
    # every round asks the same
    options["scale"] = scale is not None and scale.tobytes()
    key = hessian, *options.items()
    return _systems.get(objective, key, make, lambda system: not system.by_products)
