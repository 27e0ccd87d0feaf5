"""What sets have in common: balls of a norm, and sets that are given by vectors."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, SparseAtom
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.numerics import positive

__all__ = ["ByVector", "NormBall", "Places"]

#: Flat indices of a point's entries that are given; None: all are.
Places = NDArray[np.intp] | None


class NormBall(Domain):
    """The points whose norm is at most ``radius``.

    A subclass has the norm (:meth:`_norm`), oracle, projection and the formulas of
    :meth:`_largest_norms`.
    """

    by_nonzeros: ClassVar[bool] = True
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def norm(self, point: ArrayLike) -> float:
        """Return the norm that is at most ``radius`` in the ball."""
        x = self._input(point, "point")
        return self._norm(x.reshape(-1), x.shape)

    @abstractmethod
    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        """Return the norm of a point of a shape, from its entries in a vector.

        Or, where ``by_nonzeros``, from those at some flat places, all others zero.
        Infinity, without a warning, where that overflows.
        """

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the norm is at most radius (1 + tolerance)."""
        x = self._finite(point)
        if x is None:
            return False
        return self._norm(x.reshape(-1), x.shape) <= self.radius * (1.0 + tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if type(self).contains is not NormBall.contains:  # a user's says more than this
            return self.contains(atom.dense(), tolerance)
        if not (self.by_nonzeros and isinstance(atom, SparseAtom)):
            return super()._contains_atom(atom, tolerance)
        values = atom.values.astype(np.float64, copy=False)
        if not values.size:
            return True
        if not np.isfinite(values).all():
            return False
        norm = self._norm(values, atom.shape, atom.indices)
        return norm <= self.radius * (1.0 + tolerance)

    def diameter(self, shape: Shape) -> float:
        """Return twice the largest Euclidean norm: −x is in the ball as x is."""
        self.check_shape(shape)
        return 2.0 * self._largest_norms(shape)["l2"]

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)


class ByVector(Domain):
    """A set whose ``parameters`` are numbers or arrays; arrays compare by value.

    Numbers make a set for arrays of any shape, and an array one for its own shape.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # + 0.0 makes −0.0 the 0.0 that it equals
        values = [np.asarray(getattr(self, f.name)) + 0.0 for f in fields(self)]  # type: ignore[arg-type]
        return tuple((value.shape, value.tobytes()) for value in values)

    def _freeze(
        self, parameter: str, allowed: str, good: Callable[[FloatArray], Any]
    ) -> FloatArray:
        """Make a parameter a float, or an array of its own that nobody writes to.

        ValueError unless finite numbers that are ``good``, which is asked for finite
        ones only.
        """
        value = getattr(self, parameter)
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        finite = array.size > 0 and bool(np.isfinite(array).all())
        if isinstance(value, bool | str) or not finite or not good(array):
            raise ValueError(
                f"{self.name}: {parameter} must be {allowed}, got {str(value)[:80]}"
            )
        array.flags.writeable = False
        object.__setattr__(self, parameter, array if array.ndim else float(array))
        return array

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the arrays given are of this shape."""
        super().check_shape(shape)
        # numbers have none, and arrays all have the same
        given = [getattr(getattr(self, name), "shape", ()) for name in self.parameters]
        allowed: Shape = max(given)
        if allowed and tuple(shape) != allowed:
            raise ValueError(
                f"{self.name} with {' and '.join(self.parameters)} of shape {allowed} "
                f"has no points of shape {tuple(shape)}: only {allowed} is allowed"
            )
