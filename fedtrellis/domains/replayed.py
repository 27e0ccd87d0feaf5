"""A client's iterate as the server replays it, x ← decay · x + weight · s each round.

The decay is one number held beside the array, so that a step costs what its atom costs,
not what x costs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom

FloatArray = NDArray[np.float64]

# Far above the smallest float, so that entries / scale keep all their digits.
_MIN_SCALE = 1e-100


class ReplayedIterate:
    """x = scale · array, from a start that is copied."""

    def __init__(self, start: FloatArray) -> None:
        self._array: FloatArray = np.array(start, dtype=np.float64, order="C")
        self._scale = 1.0

    def step(self, decay: float, weight: float, atom: Atom) -> None:
        """Take the step x ← decay · x + weight · atom."""
        self._scale *= decay
        if decay == 0.0:
            self._array.fill(0.0)  # also where it was not finite
            self._scale = 1.0
        elif self._scale < _MIN_SCALE:
            self._array *= self._scale
            self._scale = 1.0
        atom.add_to(self._array, weight / self._scale)

    def add_to(self, array: FloatArray, weight: float = 1.0) -> None:
        """Do array += weight · x, in place."""
        array += weight * self._scale * self._array

    def dense(self) -> FloatArray:
        """X as a new array."""
        return self._scale * self._array
