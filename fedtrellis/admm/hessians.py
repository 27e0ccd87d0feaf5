"""What FedGiA's client takes H and r_i from: an objective, or the user; checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.factor_file import FactorFile, fingerprint
from fedtrellis.objectives.checks import Array, check_array, check_number, is_sparse


def lipschitz_of(
    objective: Any, user_hessian: Any = None, factor_file: str | None = None
) -> float:
    """Return r_i, the largest eigenvalue of H.

    Parameters
    ----------
    objective : object
        Its ``lipschitz()`` is r_i, unless ``user_hessian`` tells.
    user_hessian : float, ndarray of shape (p,) or object, optional
        A number is r_i, of an array it is the largest entry, and of an object with
        ``solve`` it is its ``lipschitz``, a number or a method, if it has one.
    factor_file : str, optional
        Where r_i is kept, if it is the objective's and that has ``hessian_factor()``.

    Raises
    ------
    ValueError
        There is nothing to take r_i from, it is not a finite number above 0, or the
        file cannot be used.
    """
    name = f"lipschitz() of objective {name_of(objective)}"
    if user_hessian is None:
        value = objective_lipschitz(objective, factor_file)
    elif not hasattr(user_hessian, "solve"):
        name = "hessian"
        value = float(np.max(user_diagonal(user_hessian, size_of(objective))))
    else:
        own = getattr(user_hessian, "lipschitz", None)
        if own is None:
            value = objective_lipschitz(objective, None)
        else:
            name = f"lipschitz of hessian, of type {name_of(user_hessian)},"
            value = own() if callable(own) else own
    number = check_number(name, value)
    if number == 0.0:
        raise ValueError(
            f"{name} is 0, as for data that are all zero; r_i must be above 0"
        )
    return number


def name_of(objective: Any) -> str:
    """Return the name of its class."""
    return type(objective).__name__


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


def missing(objective: Any, method: str) -> ValueError:
    """Return the error of an objective that lacks a method."""
    return ValueError(
        f"objective {name_of(objective)} has no {method}(); give "
        "FedGiAClient(hessian=...) a number, a diagonal, or an object with "
        "solve(vector, shift)"
    )


def hessian_factor_of(objective: Any) -> tuple[Any, float, float] | None:
    """Return (A, s, c) with H = s AᵀA + c I, A float64, None where there is none."""
    factor = call_method(objective, "hessian_factor")
    if factor is None:
        return None
    A, s, c = factor
    if is_sparse(A):
        matrix: Any = scipy.sparse.csr_array(A, dtype=np.float64)
    else:
        matrix = np.asarray(A, dtype=np.float64)
    name = f"hessian_factor() of objective {name_of(objective)}"
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} has A of shape {matrix.shape}; it must be a matrix")
    return matrix, check_number(f"s of {name}", s), check_number(f"c of {name}", c)


def objective_lipschitz(objective: Any, factor_file: str | None) -> Any:
    """Return ``objective.lipschitz()``, from the file where it is kept."""

    def compute() -> Any:
        value = call_method(objective, "lipschitz")
        if value is None:
            raise missing(objective, "lipschitz")
        return value

    if not factor_file:
        return compute()
    file = FactorFile(factor_file)
    factor = hessian_factor_of(objective)
    if factor is None:
        # There is nothing to take a fingerprint of that costs less than the constant.
        return compute()
    # A subclass may know a better constant of the same matrix, so its name counts.
    kind = type(objective)
    key = fingerprint(f"lipschitz {kind.__module__}.{kind.__qualname__}", *factor)
    kept = file.get("lipschitz", key, lambda: {"value": np.float64(compute())})
    return float(kept["value"])


def user_diagonal(given: Any, size: int | None) -> float | Array:
    """Return a user's h, or diagonal, checked."""
    if isinstance(given, bool) or not isinstance(
        given, int | float | np.number | np.ndarray
    ):
        raise ValueError(
            f"hessian is of type {name_of(given)}; it must be a number, a 1-D array, "
            "or an object with solve(vector, shift)"
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
