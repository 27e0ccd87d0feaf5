"""Riemannian gradients estimated from function values alone.

M is a manifold of arrays of n = p·r entries, P_M the projection onto it, F(x, ξ) a
function of which only values can be asked for, ξ what is random in it (a mini-batch).
The two estimators are (7) and (6) of "Zeroth-order projection-based Riemannian
federated learning", arXiv 2507.22855:

    G^P(x) = (n/m) Σ_j [F(P_M(x + μ u_j), ξ_j) − F(x, ξ_j)]/μ · u_j    u_j on the sphere
    G^R(x) = (1/m) Σ_j [F(Retr_x(μ u_j), ξ_j) − F(x, ξ_j)]/μ · u_j     u_j in T_x M

Both tend to the Riemannian gradient in the mean as μ → 0. The first lies off T_x M,
and is known to whoever has the m scalars and the generator's seed: :func:`combine`.
"""

from fedtrellis.zeroth_order.estimators import (
    RETRACTIONS,
    Estimate,
    Values,
    combine,
    directions,
    evaluator,
    projection_estimate,
    riemannian_gradient,
    tangent_estimate,
)

__all__ = [
    "RETRACTIONS",
    "Estimate",
    "Values",
    "combine",
    "directions",
    "evaluator",
    "projection_estimate",
    "riemannian_gradient",
    "tangent_estimate",
]
