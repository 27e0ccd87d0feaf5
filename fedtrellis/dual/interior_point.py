"""The dual problem of the hinge losses by an interior-point method.

With A the rows y_i x_i and β = yα it is the quadratic programme

    minimise (1/2s)‖Aᵀβ + a‖² + ½ Σ c_i β_i² − Σ b_i β_i  over 0 ≤ β_i ≤ 1,

s = λN, c = 0 for the hinge loss and g for the smoothed one, b = 1, a what samples
contribute whose β is already known. A sample of weight s_i has s_i times its row, c_i
and b_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.wire.arrays import FloatArray

# Solves (AAᵀ/s + D) v = r for a diagonal D: takes D, returns what takes r.
_System = Callable[[FloatArray], Callable[[FloatArray], FloatArray]]

# Rows of a sparse matrix that become dense at a time, in entries (64 MiB).
_BLOCK_ENTRIES = 2**23
_STEPS = 100
# How far towards the boundary a step may go.
_BACK_OFF = 0.995


def _dense(matrix: Any) -> FloatArray:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())


def _factorised(matrix: FloatArray) -> Callable[[FloatArray], FloatArray]:
    factor = scipy.linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
    return lambda right: scipy.linalg.cho_solve(factor, right, check_finite=False)


def _tall_system(matrix: Any, scale: float) -> _System:
    """Systems of order p, by the Sherman-Morrison-Woodbury formula."""
    rows, columns = matrix.shape
    size = max(1, _BLOCK_ENTRIES // columns)

    def system(diagonal: FloatArray) -> Callable[[FloatArray], FloatArray]:
        # s I + Aᵀ D⁻¹ A
        gram = scale * np.eye(columns)
        roots = np.sqrt(diagonal)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            block = _dense(matrix[part]) / roots[part, None]
            gram += block.T @ block
        inner = _factorised(gram)

        def once(right: FloatArray) -> FloatArray:
            solved = inner(matrix.T @ (right / diagonal))
            return np.asarray((right - matrix @ solved) / diagonal)

        def solve(right: FloatArray) -> FloatArray:
            # the formula loses digits as D nears 0; a step of refinement finds them
            found = once(right)
            product = matrix @ (matrix.T @ found) / scale + diagonal * found
            return found + once(right - product)

        return solve

    return system


def _wide_system(matrix: Any, scale: float) -> _System:
    """Systems of the order of the number of rows."""
    gram = _dense(matrix @ matrix.T) / scale
    return lambda diagonal: _factorised(gram + np.diag(diagonal))


def interior_point(
    matrix: Any,
    base: FloatArray,
    scale: float,
    curvature: float | FloatArray,
    linear: float | FloatArray,
    done: Callable[[FloatArray], bool],
) -> None:
    """Solve the programme by Mehrotra's predictor-corrector method.

    ``matrix`` is A, dense or CSR, of shape (n, p), ``base`` a, ``scale`` s, and
    ``curvature`` and ``linear`` c ≥ 0 and b > 0; matrices of the order of the smaller
    of n and p must fit in memory. ``done`` is shown β after every step, and says
    whether it will do. Rounding ends the search where nothing does.

    S. Mehrotra, "On the implementation of a primal-dual interior point method", 1992;
    the tall systems as in M. C. Ferris and T. S. Munson, "Interior-point methods for
    massive support vector machines", 2002.
    """
    count, features = matrix.shape
    make = _tall_system if features <= count else _wide_system
    system = make(matrix, scale)
    beta, low, high = np.full(count, 0.5), np.ones(count), np.ones(count)
    for _ in range(_STEPS):
        room = 1.0 - beta
        # A w + cβ − b = low − high at the solution: the multipliers of the bounds
        w = (matrix.T @ beta + base) / scale
        residual = matrix @ w + curvature * beta - linear - low + high
        mean = float(low @ beta + high @ room) / (2 * count)
        try:
            solve = system(curvature + low / beta + high / room)
        except np.linalg.LinAlgError:
            return
        # predictor: straight at the solution; the mean after it says how much to
        # centre the corrector
        here = solve, residual, beta, low, high
        d_beta, d_low, d_high, step = _direction(*here, -low, -high)
        ahead = (low + step * d_low) @ (beta + step * d_beta)
        ahead += (high + step * d_high) @ (room - step * d_beta)
        centre = mean * (float(ahead) / (2 * count * mean)) ** 3
        d_beta, d_low, d_high, step = _direction(
            *here,
            (centre - d_low * d_beta) / beta - low,
            (centre + d_high * d_beta) / room - high,
        )
        step *= _BACK_OFF
        if not step > 1e-10:
            return
        beta = beta + step * d_beta
        low, high = low + step * d_low, high + step * d_high
        if done(beta) or not (beta.min() > 0.0 and beta.max() < 1.0):
            return


def _direction(
    solve: Callable[[FloatArray], FloatArray],
    residual: FloatArray,
    beta: FloatArray,
    low: FloatArray,
    high: FloatArray,
    for_low: FloatArray,
    for_high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return Newton's step of β, low and high, and how much of it there is room for."""
    room = 1.0 - beta
    d_beta = solve(-residual + for_low - for_high)
    d_low = for_low - low * d_beta / beta
    d_high = for_high + high * d_beta / room
    longest = 1.0
    for values, change in (
        *((beta, d_beta), (room, -d_beta)),
        *((low, d_low), (high, d_high)),
    ):
        falling = change < 0.0
        if falling.any():
            longest = min(longest, float(np.min(-values[falling] / change[falling])))
    return d_beta, d_low, d_high, longest
