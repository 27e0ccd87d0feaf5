"""Smooth manifolds: their projections, tangent spaces and retractions."""

from inspect import signature
from typing import Any

from fedtrellis.domains.numerics import check_arguments
from fedtrellis.domains.singular import polar_factor
from fedtrellis.manifolds.base import (
    Euclidean,
    Manifold,
    Oblique,
    Product,
    Shape,
    Sphere,
)
from fedtrellis.manifolds.matrices import FixedRank, Grassmann, Stiefel

__all__ = ["MANIFOLDS", "Euclidean", "FixedRank", "Grassmann", "Manifold", "Oblique"]
__all__ += ["Product", "Sphere", "Stiefel", "make_manifold", "polar_factor"]

#: Every manifold by its name in run configurations.
MANIFOLDS: dict[str, type[Manifold]] = {
    manifold.name: manifold
    for manifold in (
        *(Sphere, Oblique, Stiefel, Grassmann, FixedRank),
        *(Euclidean, Product),
    )
}


def make_manifold(name: str, shape: Shape, **parameters: Any) -> Manifold:
    """Make a manifold from its name, the shape of its points and its parameters.

    The name is a key of :data:`MANIFOLDS`; parameters are what the class takes besides
    the shape, such as ``radius=8.0``. For ``"product"`` the parts imply the shape, and
    it has to agree. ValueError for an unknown name, a shape the manifold has no points
    of, a parameter missing, unknown or out of range: one line that says what is
    allowed.

    Examples
    --------
    >>> from fedtrellis.manifolds import make_manifold
    >>> make_manifold('stiefel', (5, 2))
    Stiefel(shape=(5, 2))
    """
    if name not in MANIFOLDS:
        raise ValueError(f"unknown manifold {name!r}; allowed: {', '.join(MANIFOLDS)}")
    check_arguments(MANIFOLDS[name], parameters, "shape", " besides the shape")
    if "shape" in signature(MANIFOLDS[name]).parameters:
        parameters["shape"] = shape
    manifold = MANIFOLDS[name](**parameters)
    manifold.check_shape(shape)
    return manifold
