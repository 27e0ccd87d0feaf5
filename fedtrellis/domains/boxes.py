"""Boxes, whose bounds may differ from entry to entry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, DenseAtom, SignAtom
from fedtrellis.domains.base import FloatArray, Norm, Shape
from fedtrellis.domains.families import ByVector
from fedtrellis.domains.numerics import unit
from fedtrellis.settings import setting

__all__ = ["Box"]


@dataclass(frozen=True, eq=False)
class Box(ByVector):
    """The box lower ≤ x ≤ upper.

    Parameters
    ----------
    lower, upper : float or array_like
        Two numbers make a box for arrays of any shape. An array makes a box for
        arrays of its shape; it is copied.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Box
    >>> domain = Box(lower=-1.0, upper=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([-1.,  2., -1.])
    """

    name: ClassVar[str] = "box"
    parameters: ClassVar[Mapping[str, Any]] = {
        "lower": setting(-1.0, "lower bound of every entry"),
        "upper": setting(1.0, "upper bound of every entry"),
    }
    lower: float | FloatArray
    upper: float | FloatArray

    def __post_init__(self) -> None:
        lower, upper = (
            self._freeze(name, "a finite number or an array of them", lambda _: True)
            for name in ("lower", "upper")
        )
        if lower.ndim and upper.ndim and lower.shape != upper.shape:
            raise ValueError(
                f"{self.name}: lower and upper must have one shape, got {lower.shape} "
                f"and {upper.shape}"
            )
        if (lower > upper).any():
            raise ValueError(
                f"{self.name}: lower must not exceed upper, got {self.lower!r} and "
                f"{self.upper!r}"
            )

    def lmo(self, gradient: ArrayLike) -> Atom:
        """Return lower where g > 0 and upper elsewhere.

        A SignAtom if both bounds are numbers, else a DenseAtom.
        """
        g = self._input(gradient, "gradient")
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            return SignAtom(g <= 0.0, self.lower, self.upper)
        return DenseAtom(np.where(g <= 0.0, self.upper, self.lower))

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip every coordinate."""
        x = self._input(point, "point")
        return cast(NDArray[np.float64], np.clip(x, self.lower, self.upper))

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether lower − t ≤ x ≤ upper + t, t = tolerance · largest |bound|."""
        x = self._finite(point)
        if x is None:
            return False
        t = tolerance * max(np.abs(self.lower).max(), np.abs(self.upper).max())
        return bool((x >= self.lower - t).all() and (x <= self.upper + t).all())

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        numbers = isinstance(self.lower, float) and isinstance(self.upper, float)
        if numbers and isinstance(atom, SignAtom):
            return self.contains(atom.levels(), tolerance)
        return super()._contains_atom(atom, tolerance)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of the vertex with the largest entries; nuclear norms differ
        entries = np.maximum(np.abs(self.lower), np.abs(self.upper))
        entries = np.broadcast_to(entries, shape)
        return {
            "l1": float(entries.sum()),
            "l2": float(np.linalg.norm(entries)),
            "linf": float(entries.max()),
        }

    def diameter(self, shape: Shape) -> float:
        """Return ‖upper − lower‖₂."""
        self.check_shape(shape)
        return unit(np.broadcast_to(np.subtract(self.upper, self.lower), shape))[1]

    def centre(self, shape: Shape) -> FloatArray:
        """Return (lower + upper) / 2."""
        self.check_shape(shape)
        middle = np.multiply(0.5, self.lower) + np.multiply(0.5, self.upper)
        return np.array(np.broadcast_to(middle, shape))
