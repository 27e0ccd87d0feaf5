"""Smooth manifolds: their projections, tangent spaces and retractions."""

from fedtrellis.domains.singular import polar_factor
from fedtrellis.manifolds.base import Euclidean, Manifold, Oblique, Product, Sphere
from fedtrellis.manifolds.matrices import FixedRank, Grassmann, Stiefel

__all__ = ["Euclidean", "FixedRank", "Grassmann", "Manifold", "Oblique", "Product"]
__all__ += ["Sphere", "Stiefel", "polar_factor"]
