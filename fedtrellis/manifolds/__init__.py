"""Smooth manifolds: their projections, tangent spaces and retractions."""

from fedtrellis.domains.singular import polar_factor
from fedtrellis.manifolds.base import (
    Euclidean,
    Manifold,
    Oblique,
    Product,
    Sphere,
)
from fedtrellis.manifolds.matrices import FixedRank, Stiefel

__all__ = ["Euclidean", "FixedRank", "Manifold", "Oblique", "Product", "Sphere"]
__all__ += ["Stiefel", "polar_factor"]
