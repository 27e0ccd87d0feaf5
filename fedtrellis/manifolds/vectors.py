"""Manifolds of vectors of fixed length, and the whole space."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrellis.domains.numerics import positive
from fedtrellis.manifolds.base import (
    FloatArray,
    Manifold,
    Shape,
    checked_shape,
    unit_vectors,
)

__all__ = ["Euclidean", "Oblique", "Sphere"]


@dataclass(frozen=True)
class Sphere(Manifold):
    """The sphere ‖x‖ = radius of arrays of any shape; ‖·‖ over all entries.

    The point closest to zero is taken to be the one on the first axis.

    Parameters
    ----------
    shape : tuple of int
    radius : float
        Positive. The bound ε of an ℓ2 attack, for instance.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Sphere
    >>> manifold = Sphere((2,))
    >>> point = manifold.project(np.array([3.0, 4.0]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([0.6, 0.8])
    """

    name: ClassVar[str] = "sphere"
    shape: Shape
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.name, self.shape))
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    @property
    def dimension(self) -> int:
        """Return n − 1, n the number of entries."""
        return math.prod(self.shape) - 1

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = ρ x/‖x‖
        unit, _ = unit_vectors(x.reshape(len(x), -1))
        return (self.radius * unit).reshape(x.shape)

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        x, v = x.reshape(len(x), -1), v.reshape(len(v), -1)
        normal = x / self.radius
        along: FloatArray = np.einsum("mi,mi->m", *np.broadcast_arrays(normal, v))[
            :, None
        ]
        # v − <x/ρ, v> x/ρ
        return (v - along * normal).reshape(-1, *self.shape)

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        direction, length = unit_vectors(v.reshape(len(v), -1))
        angle = (length / self.radius)[:, None]
        # Exp_x(v) = cos(‖v‖/ρ) x + ρ sin(‖v‖/ρ) v/‖v‖
        y = np.cos(angle) * x.reshape(len(x), -1)
        y = y + self.radius * np.sin(angle) * direction
        # rounding, and v's share along x, would add up over many steps
        return self._project(y.reshape(-1, *self.shape))


@dataclass(frozen=True)
class Oblique(Manifold):
    """The p × r matrices with columns of norm 1, a product of r spheres.

    The point closest to a zero column is taken to be the first unit vector.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Oblique
    >>> manifold = Oblique((2, 2))
    >>> point = manifold.project(np.array([[3.0, 0.0], [4.0, 2.0]]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([[0.6, 0. ],
           [0.8, 1. ]])
    """

    name: ClassVar[str] = "oblique"
    shape: Shape

    def __post_init__(self) -> None:
        shape = checked_shape(self.name, self.shape, matrix=True)
        object.__setattr__(self, "shape", shape)

    @property
    def dimension(self) -> int:
        """Return (p − 1) r."""
        return (self.shape[0] - 1) * self.shape[1]

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x)_j = x_j/‖x_j‖, for every column j
        return unit_columns(x)[0]

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        along: FloatArray = np.einsum("mpr,mpr->mr", *np.broadcast_arrays(x, v))[
            :, None, :
        ]
        # v_j − <x_j, v_j> x_j
        return v - along * x

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        direction, length = unit_columns(v)
        # Exp_x(v)_j = cos(‖v_j‖) x_j + sin(‖v_j‖) v_j/‖v_j‖
        y = np.cos(length) * x + np.sin(length) * direction
        # rounding, and v's share along x, would add up over many steps
        return self._project(y)


@dataclass(frozen=True)
class Euclidean(Manifold):
    """All arrays of a shape, for the parts of a model without a constraint.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Euclidean
    >>> manifold = Euclidean((2,))
    >>> point = manifold.project(np.array([3.0, 4.0]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([3., 4.])
    """

    name: ClassVar[str] = "euclidean"
    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.name, self.shape))

    @property
    def dimension(self) -> int:
        """Return the number of entries."""
        return math.prod(self.shape)

    def _project(self, x: FloatArray) -> FloatArray:
        return x.copy()

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return np.broadcast_to(v, (max(len(x), len(v)), *self.shape)).copy()

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return x + v


def unit_columns(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return every column over its norm, (m, p, r), and the norms, (m, 1, r)."""
    unit, norms = unit_vectors(x.swapaxes(1, 2))
    return np.ascontiguousarray(unit.swapaxes(1, 2)), norms[:, None, :]
