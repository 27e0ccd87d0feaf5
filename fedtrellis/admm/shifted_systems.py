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
    required,
    size_of,
    user_diagonal,
)
from fedtrellis.admm.kept import KeptFor
from fedtrellis.admm.systems import (
    CholeskySystem,
    ConjugateGradientSystem,
    DiagonalSystem,
    ScaledSystem,
    ShiftedSystem,
    UserSystem,
    WideCholeskySystem,
)
from fedtrellis.objectives.base import DENSE_ORDER, Array, check_number

__all__ = ["Hessian", "cached_system", "make_system"]

Hessian = Literal["gram", "diagonal"]

# A factor of this order (2 MB) is made even where it is larger than the data.
_SMALL_ORDER = 500


def make_system(
    objective: Any,
    hessian: str,
    *,
    weight: float,
    shift: float,
    scale: Array | None = None,
    user_hessian: Any = None,
) -> ShiftedSystem:
    """Return the solver for weight · H + shift · S that suits H.

    "diagonal" is H = ``objective.lipschitz()`` · I, or with a scale the diagonal of
    :func:`~fedtrellis.admm.hessians.majoriser_of`. "gram" is ``hessian_factor()``,
    H = s AᵀA + c I with A of shape (d, p), or else ``hessian_bound()``. With order =
    min(p, d), or p where there is no A, the matrix of that order is factorised if

    - order ≤ 2048, and
    - the factor, of order² float64, is no larger than that of order 500 or than the
      data (A, or a bound that is an ndarray);

    otherwise conjugate gradients need only products.

    Parameters
    ----------
    objective : object
        f_i; ``shape``, if it has it, is that of x.
    hessian : {"gram", "diagonal"}
    weight, shift : float
        1/m for m clients, and σ; both above 0.
    scale : ndarray of float64 of shape (p,), optional
        The diagonal of S, above 0; None for S = I.
    user_hessian : float, ndarray of shape (p,) or object, optional
        Instead of the objective's: h of H = h I, the diagonal of H (both at least 0),
        or an object whose ``solve(vector, shift)`` returns (H + shift · I)⁻¹ vector,
        for which S has to be a multiple of I.

    Raises
    ------
    ValueError
        An argument is not allowed, the objective has no such H, or H is not positive
        semi-definite.
    """
    if hessian not in get_args(Hessian):
        allowed = ", ".join(map(repr, get_args(Hessian)))
        raise ValueError(f"hessian is {hessian!r}; allowed: {allowed}")
    check_number("weight", weight, positive=True)
    check_number("shift", shift, positive=True)
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
            h = majoriser_of(objective, user_hessian) / scale
        elif user_hessian is not None:
            h = user_diagonal(user_hessian, size_of(objective))
        else:
            h = check_number(
                f"lipschitz() of objective {type(objective).__name__}",
                required(objective, "lipschitz"),
            )
        system = DiagonalSystem(h, weight, shift)
    else:
        # H′ = S^(−1/2) H S^(−1/2), see ScaledSystem
        H = hessian_of(objective)
        if scale is not None:
            H = H.scaled(1.0 / np.sqrt(scale))
        try:
            system = _system_of(H, weight, shift)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                f"H of objective {type(objective).__name__} is not positive "
                f"semi-definite: {error}"
            ) from error
    return system if scale is None else ScaledSystem(system, scale)


def _system_of(H: KnownHessian, weight: float, shift: float) -> ShiftedSystem:
    """Return the system of an H, from a factor if that is small enough."""
    allowed = max(8 * _SMALL_ORDER**2, H.data_bytes)
    if H.order > DENSE_ORDER or 8 * H.order**2 > allowed:
        return ConjugateGradientSystem(H.product, weight, shift)
    if isinstance(H, FactorHessian) and H.wide:
        return WideCholeskySystem(H, weight, shift)
    return CholeskySystem(H, weight, shift)


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
