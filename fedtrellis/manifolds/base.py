"""The contract of a manifold; manifolds of vectors of fixed length, and products."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms.base import cut
from fedtrellis.domains.base import FloatArray, Shape
from fedtrellis.domains.numerics import positive, unit_vectors

__all__ = [
    "Euclidean",
    "FloatArray",
    "Manifold",
    "Oblique",
    "Product",
    "Shape",
    "Sphere",
]


class Manifold(ABC):
    """A smooth submanifold M of the arrays of one shape, with the metric of R^n.

    Every operation takes one point, of shape ``shape``, or a batch of m, of shape
    (m, *shape), and computes in float64. Where two arrays are taken either may be a
    batch: tangents at one point, or one tangent for each point. Results are new
    arrays. An element of a batch is computed as it is alone, up to rounding.

    Attributes
    ----------
    name : str
        What messages call the manifold.
    shape : tuple of int
        Shape of a point.

    Examples
    --------
    >>> from fedtrellis.manifolds import Sphere
    >>> Sphere((2,)).project_tangent([1.0, 0.0], [3.0, 4.0])
    array([0., 4.])
    """

    name: ClassVar[str]
    shape: Shape
    #: Whether points are matrices.
    _matrices: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sides = tuple(self.shape) if isinstance(self.shape, list | tuple) else ()
        positive = all(
            isinstance(side, int | np.integer) and type(side) is not bool and side > 0
            for side in sides
        )
        if not sides or not positive or (self._matrices and len(sides) != 2):
            wanted = "two positive integers" if self._matrices else "positive integers"
            raise ValueError(f"{self.name}: shape must be {wanted}, got {self.shape!r}")
        object.__setattr__(self, "shape", tuple(map(int, sides)))

    # What a manifold implements. Here every argument is checked and a batch; a batch
    # of one stands for as many as the other argument has.

    @abstractmethod
    def _project(self, x: FloatArray) -> FloatArray:
        """Return P_M of each point, a new array."""

    @abstractmethod
    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        """Return the orthogonal projection of each v onto the tangent space at x."""

    # What everybody calls.

    def project(self, point: ArrayLike) -> FloatArray:
        """Return the closest point, P_M(x) = argmin over y in M of ‖x − y‖.

        Where several are closest the class says which one is returned. The point is of
        shape S or (m, *S), and so is the result. ValueError: the point is not finite,
        or neither a point of this shape nor a batch.
        """
        x = self._finite(point, "point")
        return self._project(self._batch(x)).reshape(x.shape)

    def project_tangent(self, point: ArrayLike, vector: ArrayLike) -> FloatArray:
        """Project a vector orthogonally onto the tangent space T_x M.

        That the point lies on M is not checked. Both are of shape S or (m, *S); the
        result is of shape S, or (m, *S) if either is a batch. ValueError: an argument
        is not finite, or its shape does not fit.
        """
        x, v = self._pair(point, vector)
        result = self._project_tangent(self._batch(x), self._batch(v))
        return result.reshape(max(x.shape, v.shape, key=len))

    def retract(self, point: ArrayLike, tangent: ArrayLike) -> FloatArray:
        """Return the projection-like retraction Retr_x(v) = P_M(x + v).

        Of second order (Absil, Malick, "Projection-like retractions on matrix
        manifolds", SIAM J. Optim. 2012). For orthonormal columns it is the polar
        retraction. Arguments, result and errors are those of :meth:`project_tangent`.
        """
        x, v = self._pair(point, tangent)
        # Retr_x(v) = P_M(x + v)
        return self.project(x + v)

    def random_point(self, rng: np.random.Generator) -> FloatArray:
        """Draw a point, the projection of a standard normal array.

        On the sphere and for orthonormal or unit columns it is uniform.
        """
        return self.project(rng.standard_normal(self.shape))

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether ‖x − P_M(x)‖ ≤ ``tolerance`` · ‖P_M(x)‖, for all of a batch.

        A point that is not finite does not lie in M. ValueError for what is neither a
        point of this shape nor a batch.
        """
        x = self._array(point, "point")
        return self._is_finite(x) and self._contains(self._batch(x), tolerance)

    def _contains(self, x: FloatArray, tolerance: float) -> bool:
        nearest = self._project(x)
        # ‖x − P_M(x)‖ ≤ tolerance ‖P_M(x)‖
        return bool(np.all(_norms(x - nearest) <= tolerance * _norms(nearest)))

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless it is the shape of one point."""
        if tuple(shape) != self.shape:
            raise ValueError(
                f"{self.name} has no points of shape {tuple(shape)}: "
                f"its points have shape {self.shape}"
            )

    # Arguments.

    def _batch(self, x: FloatArray) -> FloatArray:
        return x.reshape(-1, *self.shape)

    def _array(self, array: ArrayLike, what: str) -> FloatArray:
        """Return the argument as float64, its shape checked."""
        x = np.asarray(array, dtype=np.float64)
        if x.shape != self.shape and (x.shape[1:] != self.shape or x.size == 0):
            raise ValueError(
                f"{self.name}: the {what} has shape {x.shape}, expected {self.shape}, "
                "or several of these along a first axis"
            )
        return x

    def _finite(self, array: ArrayLike, what: str) -> FloatArray:
        """Return the argument as float64, its shape and its values checked."""
        x = self._array(array, what)
        if not self._is_finite(x):
            raise ValueError(f"{self.name}: the {what} must be finite")
        return x

    @staticmethod
    def _is_finite(x: FloatArray) -> bool:
        # the extremes show every NaN and infinity, and need no temporary array
        return math.isfinite(x.min()) and math.isfinite(x.max())

    def _pair(
        self, point: ArrayLike, vector: ArrayLike
    ) -> tuple[FloatArray, FloatArray]:
        x, v = self._finite(point, "point"), self._finite(vector, "vector")
        if x.ndim == v.ndim and x.shape != v.shape:
            raise ValueError(
                f"{self.name}: {len(x)} points and {len(v)} vectors do not pair up"
            )
        return x, v


def _norms(x: FloatArray) -> FloatArray:
    """Return ‖x_i‖ for each element of a batch, safe against overflow."""
    return unit_vectors(x.reshape(len(x), -1))[1]


class _Spheres(Manifold):
    """Vectors of length ρ: all of an array, or each column of a matrix."""

    radius: float = 1.0

    @abstractmethod
    def _vectors(self, x: FloatArray) -> FloatArray:
        """Return the k vectors of each array of a batch, (m, k, entries)."""

    @abstractmethod
    def _arrays(self, vectors: FloatArray) -> FloatArray:
        """Inverse of :meth:`_vectors`."""

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = ρ x/‖x‖ of every vector
        return self._arrays(self.radius * unit_vectors(self._vectors(x))[0])

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        x, v = self._vectors(x), self._vectors(v)
        normal = x / self.radius
        along = np.einsum("mkp,mkp->mk", *np.broadcast_arrays(normal, v))
        # v − <x/ρ, v> x/ρ
        return self._arrays(v - along[:, :, None] * normal)


@dataclass(frozen=True)
class Sphere(_Spheres):
    """The sphere ‖x‖ = radius of arrays of any shape; ‖·‖ over all entries.

    The point closest to zero is taken to be the one on the first axis.

    Parameters
    ----------
    shape : tuple of int
    radius : float
        Positive. The bound ε of an ℓ2 attack, for instance.

    Examples
    --------
    >>> from fedtrellis.manifolds import Sphere
    >>> Sphere((2,), radius=10.0).project([3.0, 4.0])
    array([6., 8.])
    """

    name: ClassVar[str] = "sphere"
    shape: Shape
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def _vectors(self, x: FloatArray) -> FloatArray:
        return x.reshape(len(x), 1, -1)

    def _arrays(self, vectors: FloatArray) -> FloatArray:
        return vectors.reshape(-1, *self.shape)


@dataclass(frozen=True)
class Oblique(_Spheres):
    """The p × r matrices with columns of norm 1, a product of r spheres.

    The point closest to a zero column is taken to be the first unit vector.

    Examples
    --------
    >>> from fedtrellis.manifolds import Oblique
    >>> Oblique((2, 2)).project([[3.0, 0.0], [4.0, 2.0]]).tolist()
    [[0.6, 0.0], [0.8, 1.0]]
    """

    name: ClassVar[str] = "oblique"
    _matrices: ClassVar[bool] = True
    shape: Shape

    def _vectors(self, x: FloatArray) -> FloatArray:
        return x.swapaxes(1, 2)

    def _arrays(self, vectors: FloatArray) -> FloatArray:
        return np.ascontiguousarray(vectors.swapaxes(1, 2))


@dataclass(frozen=True)
class Euclidean(Manifold):
    """All arrays of a shape, for the parts of a model without a constraint.

    Examples
    --------
    >>> from fedtrellis.manifolds import Euclidean
    >>> Euclidean((2,)).project([3.0, 4.0])
    array([3., 4.])
    """

    name: ClassVar[str] = "euclidean"
    shape: Shape

    def _project(self, x: FloatArray) -> FloatArray:
        return x.copy()

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return np.broadcast_to(v, (max(len(x), len(v)), *self.shape)).copy()


@dataclass(frozen=True)
class Product(Manifold):
    """M_1 × … × M_k for one flat vector, the ravelled pieces one after the other.

    The manifold of a model with a constraint for each layer, joined as
    :class:`fedtrellis.wire.arrays.Layout` does. Everything separates over the pieces.

    Parameters
    ----------
    parts : sequence of Manifold
        The manifolds M_i.

    Examples
    --------
    >>> from fedtrellis.manifolds import Euclidean, Product, Sphere
    >>> Product([Sphere((2,)), Euclidean((1,))]).project([3.0, 4.0, 5.0])
    array([0.6, 0.8, 5. ])
    """

    name: ClassVar[str] = "product"
    parts: Sequence[Manifold]
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Sequence) else ()
        if not parts or not all(isinstance(part, Manifold) for part in parts):
            raise ValueError(
                f"{self.name}: parts must be one manifold or more, got {self.parts!r}"
            )
        object.__setattr__(self, "parts", parts)
        total = sum(math.prod(part.shape) for part in parts)
        object.__setattr__(self, "shape", (total,))

    def _pieces(self, *flat: FloatArray) -> Iterator[tuple[Manifold, list[FloatArray]]]:
        shapes = [part.shape for part in self.parts]
        cuts = [cut(array, shapes) for array in flat]
        for part, *pieces in zip(self.parts, *cuts, strict=True):
            yield part, pieces

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = (P_{M_1}(x_1), …, P_{M_k}(x_k)), and so for what follows
        return _joined(part._project(piece) for part, [piece] in self._pieces(x))

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return _joined(
            part._project_tangent(*pieces) for part, pieces in self._pieces(x, v)
        )

    def _contains(self, x: FloatArray, tolerance: float) -> bool:
        return all(
            part._contains(piece, tolerance) for part, [piece] in self._pieces(x)
        )


def _joined(pieces: Iterable[FloatArray]) -> FloatArray:
    return np.concatenate([piece.reshape(len(piece), -1) for piece in pieces], axis=1)
