"""The dual problem of the hinge loss by an interior-point method.

With A the rows y_i x_i and β = yα it is the quadratic programme

    minimise (1/2s)‖Aᵀβ + a‖² − Σ b_i β_i  over 0 ≤ β_i ≤ 1,

s = λN, b = 1, a what samples contribute whose β is already known. A sample of weight
s_i has s_i times its row and b_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.wire.arrays import FloatArray

_STEPS = 100
# How far towards the boundary a step may go.
_BACK_OFF = 0.995


def interior_point(
    matrix: Any,
    base: FloatArray,
    scale: float,
    linear: FloatArray,
    done: Callable[[FloatArray], bool],
) -> None:
    """Solve the programme by Mehrotra's predictor-corrector method.

    ``matrix`` is A, dense or CSR, of shape (n, p), ``base`` a, ``scale`` s, and
    ``linear`` b > 0; matrices of order n must fit in memory. ``done`` is shown β after
    every step, and says whether it will do. Rounding ends the search where nothing
    does.

    S. Mehrotra, "On the implementation of a primal-dual interior point method", 1992.
    """
    count, gram = matrix.shape[0], matrix @ matrix.T
    gram = (gram if isinstance(gram, np.ndarray) else gram.toarray()) / scale
    beta, low, high = np.full(count, 0.5), np.ones(count), np.ones(count)
    for _ in range(_STEPS):
        room = 1.0 - beta
        # A w − b = low − high at the solution: the multipliers of the bounds
        residual = matrix @ ((matrix.T @ beta + base) / scale) - linear - low + high
        mean = float(low @ beta + high @ room) / (2 * count)
        try:
            system = gram + np.diag(low / beta + high / room)
            factor = scipy.linalg.cho_factor(system, overwrite_a=True)
        except (np.linalg.LinAlgError, ValueError):
            return
        # predictor: straight at the solution; the mean after it says how much to
        # centre the corrector
        here = factor, residual, beta, low, high
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
    factor: tuple[FloatArray, bool],
    residual: FloatArray,
    beta: FloatArray,
    low: FloatArray,
    high: FloatArray,
    for_low: FloatArray,
    for_high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return Newton's step of β, low and high, and how much of it there is room for."""
    room = 1.0 - beta
    d_beta = scipy.linalg.cho_solve(factor, -residual + for_low - for_high)
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
