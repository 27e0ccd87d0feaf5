"""The smallest ball of another kind around a domain: D_i ⊇ D for one client.

A client short of compute may work on an ℓ2 ball around D, whose oracle is a division;
one short of bandwidth on an ℓ1 or nuclear-norm ball, whose atoms are small (FedFW,
arXiv 2408.10090, §4.3). As long as one client has D itself the intersection is D.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Simplex,
    SpectralNormBall,
)
from fedtrellis.settings import SettingsError, check_choice

__all__ = ["ENCLOSING", "enclosing_ball"]

#: Balls that can be put around a domain.
ENCLOSING = ("l1-ball", "l2-ball", "linf-ball", "nuclear-norm-ball")


def _largest_entries(domain: Box, shape: tuple[int, ...]) -> np.ndarray:
    bound = np.maximum(np.abs(domain.lower), np.abs(domain.upper))
    return np.broadcast_to(bound, shape)


def _largest_l2(domain: Domain, shape: tuple[int, ...]) -> float | None:
    """Max ‖x‖₂ over the domain."""
    if isinstance(domain, Box):
        return float(np.linalg.norm(_largest_entries(domain, shape)))
    if isinstance(domain, BirkhoffPolytope):
        return sqrt(shape[0])
    if isinstance(domain, LInfBall):
        return domain.radius * sqrt(prod(shape))
    if isinstance(domain, SpectralNormBall):
        return domain.radius * sqrt(min(shape))
    balls = (L1Ball, L2Ball, Simplex, KSupportBall, NuclearNormBall, GroupL1Ball)
    return domain.radius if isinstance(domain, balls) else None


def _largest_l1(domain: Domain, shape: tuple[int, ...]) -> float | None:
    """Max Σ |x_j| over the domain."""
    if isinstance(domain, Box):
        return float(_largest_entries(domain, shape).sum())
    if isinstance(domain, BirkhoffPolytope):
        return float(shape[0])
    if isinstance(domain, LInfBall):
        return domain.radius * prod(shape)
    if isinstance(domain, L2Ball):
        return domain.radius * sqrt(prod(shape))
    if isinstance(domain, KSupportBall):
        # an extreme point has k entries and Euclidean norm r
        return domain.radius * sqrt(domain.k)
    return domain.radius if isinstance(domain, L1Ball | Simplex) else None


def _largest_entry(domain: Domain, shape: tuple[int, ...]) -> float | None:
    """Max of max |x_j| over the domain."""
    if isinstance(domain, Box):
        return float(_largest_entries(domain, shape).max())
    if isinstance(domain, BirkhoffPolytope):
        return 1.0
    return getattr(domain, "radius", None)  # every other set has ±r e_j's scale


def _largest_nuclear(domain: Domain, shape: tuple[int, ...]) -> float | None:
    """Max of the nuclear norm over a domain of matrices."""
    if isinstance(domain, SpectralNormBall):
        return domain.radius * min(shape)
    if isinstance(domain, BirkhoffPolytope):
        return float(shape[0])
    if isinstance(domain, L2Ball):
        return domain.radius * sqrt(min(shape))
    return domain.radius if isinstance(domain, L1Ball | NuclearNormBall) else None


def enclosing_ball(name: str, domain: Domain, shape: tuple[int, ...]) -> Domain:
    """The smallest ball of a kind that contains a domain.

    Parameters
    ----------
    name : str
        One of :data:`ENCLOSING`.
    domain : Domain
        D.
    shape : tuple of int
        Shape of the points.

    Raises
    ------
    SettingsError
        If the kind is not known, or not for this domain and shape.
    """
    check_choice("outer-domain", name, ENCLOSING)
    if name == "nuclear-norm-ball" and len(shape) != 2:
        raise SettingsError(
            f"outer-domain = {name!r} is for matrices, the model has shape {shape}"
        )
    largest, ball = {
        "l1-ball": (_largest_l1, L1Ball),
        "l2-ball": (_largest_l2, L2Ball),
        "linf-ball": (_largest_entry, LInfBall),
        "nuclear-norm-ball": (_largest_nuclear, NuclearNormBall),
    }[name]
    radius = largest(domain, shape)
    if radius is None:
        raise SettingsError(
            f"outer-domain = {name!r} is not available around {domain!r}; "
            f"allowed: another of {', '.join(ENCLOSING)}"
        )
    return ball(radius)
