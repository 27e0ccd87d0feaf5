"""No constraint at all, for methods that need none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.base import NORMS, Domain, FloatArray, Norm, Shape

__all__ = ["WholeSpace"]


@dataclass(frozen=True)
class WholeSpace(Domain):
    """Every array: the domain of an unconstrained problem.

    It is closed and convex but not bounded, so it has a projection (the identity) and
    no linear minimisation oracle, and Frank-Wolfe's methods refuse it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import WholeSpace
    >>> WholeSpace().contains(np.array([1e9]))
    True
    """

    name: ClassVar[str] = "whole-space"
    bounded: ClassVar[bool] = False

    def lmo(self, gradient: ArrayLike) -> NoReturn:
        """Raise ValueError: a linear function has no minimum here."""
        raise ValueError(
            f"{self.name} is not bounded: it has no linear minimisation oracle"
        )

    def project(self, point: ArrayLike) -> FloatArray:
        """Return a copy of the point."""
        return self._input(point, "point").copy()

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the point is finite."""
        return self._finite(point) is not None

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        return dict.fromkeys(NORMS, inf)

    def diameter(self, shape: Shape) -> float:
        """Return infinity."""
        self.check_shape(shape)
        return inf

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)
