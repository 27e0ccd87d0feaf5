"""F* by a central solver, with a certificate.

For experiments and pictures only: it needs the whole objective in one place.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.objectives.base import Array


class Certified(NamedTuple):
    """A point of D, its value, and the Frank-Wolfe gap there.

    F* lies in [value − gap, value] if F is convex.
    """

    point: Array
    value: float
    gap: float


def certified_minimum(
    objective: Any,
    domain: Domain,
    start: Array,
    tolerance: float = 1e-6,
    max_iterations: int = 20_000,
) -> Certified:
    """Minimise a convex function over a domain until the gap certifies the value.

    Accelerated projected gradient descent (Beck and Teboulle, "FISTA", 2009) with
    backtracking, restarted whenever the momentum points uphill (O'Donoghue and Candès,
    2015). The function is smooth, with ``value(x)`` and ``gradient(x)`` for arrays of
    the shape of ``start``, which is any point and is projected. The search stops where
    the Frank-Wolfe gap is at most ``tolerance``, relative to the larger of 1 and F, or
    after ``max_iterations`` with the best point and the gap it has.
    """
    x = domain.project(start)
    y, momentum = x, 1.0
    lipschitz = 1.0
    best = Certified(x, float("inf"), float("inf"))
    for iteration in range(1, max_iterations + 1):
        value_y, gradient_y = objective.value(y), np.asarray(objective.gradient(y))
        while True:
            candidate = domain.project(y - gradient_y / lipschitz)
            step = candidate - y
            value = objective.value(candidate)
            # F(c) ≤ F(y) + ⟨∇F(y), c − y⟩ + (L/2) ‖c − y‖²
            bound = value_y + float((gradient_y * step).sum())
            bound += 0.5 * lipschitz * float((step * step).sum())
            if value <= bound + 1e-12 * max(1.0, abs(bound)):
                break
            lipschitz *= 2.0
        uphill = float((gradient_y * (candidate - x)).sum()) > 0.0
        if uphill and momentum > 1.0 and iteration < max_iterations:
            y, momentum = x, 1.0  # the momentum points uphill: start it again
            continue
        following = 0.5 * (1.0 + sqrt(1.0 + 4.0 * momentum**2))
        y = candidate + (momentum - 1.0) / following * (candidate - x)
        x, momentum = candidate, following
        if iteration % 10 == 0 or iteration == max_iterations:
            gap = domain.gap(np.asarray(objective.gradient(x)), x)
            if gap < best.gap:
                best = Certified(x, value, gap)
            if best.gap <= tolerance * max(1.0, abs(best.value)):
                break
            lipschitz *= 0.9  # the curvature may have become smaller
    return best


class Stationary(NamedTuple):
    """A point where the gradient all but vanishes.

    If F is μ-strongly convex, F* ≥ value − gradient_norm²/(2μ).
    """

    point: Array
    value: float
    gradient_norm: float


def unconstrained_minimum(
    objective: Any, start: Array, tolerance: float = 1e-9, max_iterations: int = 20_000
) -> Stationary:
    """Minimise a smooth function without a constraint, by L-BFGS.

    It has ``value(x)`` and ``gradient(x)`` for arrays of the shape of ``start``. The
    search stops where the largest entry of |∇F| is at most ``tolerance``. Rounding may
    end it before: the result says how far it came.
    """
    # a quarter of a second that no method needs
    from scipy.optimize import minimize

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        x = flat.reshape(start.shape)
        return objective.value(x), np.asarray(objective.gradient(x)).reshape(-1)

    options = {"gtol": tolerance, "ftol": 0.0, "maxcor": 50}
    options |= {"maxiter": max_iterations, "maxfun": 2 * max_iterations}
    flat = np.asarray(start, dtype=np.float64).reshape(-1)
    how: Any = {"jac": True, "method": "L-BFGS-B", "options": options}
    found = minimize(value_and_gradient, flat, **how)
    point = np.asarray(found.x, dtype=np.float64).reshape(start.shape)
    norm = float(np.linalg.norm(np.asarray(objective.gradient(point)).reshape(-1)))
    return Stationary(point, float(objective.value(point)), norm)
