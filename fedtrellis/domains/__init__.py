"""Convex sets: their linear minimisation oracles and projections."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedtrellis.domains.base import Domain
from fedtrellis.domains.birkhoff import BirkhoffPolytope
from fedtrellis.domains.matrices import NuclearNormBall, SpectralNormBall
from fedtrellis.domains.product import Product
from fedtrellis.domains.sparse import GroupL1Ball, KSupportBall
from fedtrellis.domains.vectors import Box, L1Ball, L2Ball, LInfBall, Simplex
from fedtrellis.domains.whole_space import WholeSpace

__all__ = [
    "DOMAINS",
    "BirkhoffPolytope",
    "Box",
    "Domain",
    "GroupL1Ball",
    "KSupportBall",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "NuclearNormBall",
    "Product",
    "Simplex",
    "SpectralNormBall",
    "WholeSpace",
    "make_domain",
]

#: Every compact set by its name in run configurations.
DOMAINS: dict[str, type[Domain]] = {
    domain.name: domain
    for domain in (
        L1Ball,
        L2Ball,
        LInfBall,
        Box,
        Simplex,
        KSupportBall,
        NuclearNormBall,
        SpectralNormBall,
        BirkhoffPolytope,
        GroupL1Ball,
        Product,
    )
}


def make_domain(name: str, **parameters: Any) -> Domain:
    """Make a domain from its name and parameters.

    Parameters
    ----------
    name : str
        A key of :data:`DOMAINS`, e.g. ``"l1-ball"``.
    **parameters
        What the class takes, e.g. ``radius=10.0``.

    Raises
    ------
    ValueError
        An unknown name, a parameter missing, unknown or out of range; one line that
        says what is allowed.
    """
    if name not in DOMAINS:
        raise ValueError(f"unknown domain {name!r}; allowed: {', '.join(DOMAINS)}")
    allowed = _parameters(DOMAINS[name])
    unknown = [key for key in parameters if key not in allowed]
    missing = [
        key for key, needed in allowed.items() if needed and key not in parameters
    ]
    if unknown or missing:
        raise ValueError(
            f"{name} takes {', '.join(allowed) or 'no parameters'}; "
            f"got {', '.join(parameters) or 'none'}"
        )
    return DOMAINS[name](**parameters)


def _parameters(domain: type[Domain]) -> Mapping[str, bool]:
    """Return the constructor's parameters and whether each must be given."""
    return {
        f.name: f.default is MISSING
        for f in fields(domain)  # type: ignore[arg-type]
        if f.init
    }
