"""Spectral projected gradient steps on L_i, on a set or on a face of it that grows."""

from __future__ import annotations

import numpy as np

from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.base import Domain, FloatArray

__all__ = ["projected_steps"]


def projected_steps(
    problem: LocalProblem, domain: Domain, start: FloatArray, steps: int
) -> FloatArray:
    """So many spectral projected gradient steps; returns the last point.

    ::

        g = ∇L_i(x);  J ← J ∪ support of LMO(g)
        d = P(x − g / M) − x,  P the projection onto the points of D that are 0 off J
        x ← x + γ d,  γ in [0, 1] by line search;  M ← dᵀ∇²L_i d / ‖d‖²

    J starts as the support of x, and grows by the oracle's answers, so that few entries
    change. Where atoms are not sparse J is everything.

    Source: Birgin, Martínez and Raydan, SIAM J. Optimization 2000, with the exact step
    of a quadratic; the growing face is ours.

    Parameters
    ----------
    problem : LocalProblem
    domain : Domain
        D.
    start : ndarray of float64
        A point of D.
    steps : int
        Each takes one gradient.
    """
    x = start
    face = start != 0.0 if domain.sparse_atoms else None
    # M: at first by the curvature along the gradient, then along the last step
    bound: float | None = None
    last: tuple[FloatArray, FloatArray] | None = None
    diameter = domain.diameter(x.shape)
    for _ in range(steps):
        g = problem.gradient(x)
        if not (diameter > 0.0 and g.any()):
            break  # there is nowhere to go
        if face is not None:
            face |= domain.lmo(g).dense() != 0.0
        if bound is None and last is not None:
            # nothing knows the curvature: that of the last step, by its gradients
            moved, change = x - last[0], g - last[1]
            length = float(np.vdot(moved, moved))
            if length == 0.0:
                break  # the last step was lost in the digits of x
            bound = float(np.vdot(moved, change)) / length
        if bound is None:
            bound = problem.bend(x, g)
        if bound is None or not bound > 0.0:
            # as far as D allows, for the line search to shorten
            bound = float(np.linalg.norm(g)) / diameter
        step = max(bound, problem.penalty)
        target = x - g / step
        moved = (
            domain.project(target) if face is None else domain.project_on(target, face)
        )
        d = moved - x
        slope = float(np.vdot(g, d))
        if not slope < 0.0:
            break
        gamma, bend = problem.line(x, d, slope, 1.0)
        if gamma == 0.0:
            break
        last = (x, g) if bend is None else None
        bound = bend
        x = moved if gamma == 1.0 else x + gamma * d
    return x
