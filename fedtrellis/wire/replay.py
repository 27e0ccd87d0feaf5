"""A client's iterate as the server replays it, x ← decay · x + weight · s each round.

Full participation never reads the iterates, so a step with a small atom is only noted
down; what was noted is worked in when somebody asks. The decay is one number held
beside the array, so that a step costs what its atom costs, not what x costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom, PermutationAtom, RankOneAtom, SparseAtom
from fedtrellis.wire.arrays import FloatArray

# Steps noted down before they are worked in, if nobody asks before.
_MAX_PENDING = 256
# Atoms that may wait: hundreds of any other kind would take hundreds of times x.
_SMALL = (SparseAtom, RankOneAtom, PermutationAtom)
# Far above the smallest float, so that entries / scale keep all their digits.
_MIN_SCALE = 1e-100


class ReplayedIterate:
    """x = scale · (array + the steps still pending), from a start that is copied."""

    def __init__(self, start: FloatArray) -> None:
        self._array: FloatArray = np.array(start, dtype=np.float64, order="C")
        self._scale = 1.0
        self._pending: list[tuple[Atom, float]] = []

    def step(self, decay: float, weight: float, atom: Atom) -> None:
        """Note down x ← decay · x + weight · atom."""
        if decay == 0.0:
            self._array.fill(0.0)
            self._scale, self._pending = 1.0, []
        self._scale *= decay or 1.0
        if self._scale < _MIN_SCALE:
            self._flush()
            self._array *= self._scale
            self._scale = 1.0
        self._pending.append((atom, weight / self._scale))
        if len(self._pending) >= _MAX_PENDING or not isinstance(atom, _SMALL):
            self._flush()

    def _flush(self) -> None:
        for atom, weight in self._pending:
            atom.add_to(self._array, weight)
        self._pending = []

    def add_to(self, array: FloatArray, weight: float = 1.0) -> None:
        """Do array += weight · x, in place."""
        self._flush()
        array += weight * self._scale * self._array

    def dense(self) -> FloatArray:
        """X as a new array."""
        array = np.zeros(self._array.shape)
        self.add_to(array)
        return array

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs to bring x back."""
        self._flush()
        return {"array": self._scale * self._array}

    @classmethod
    def from_state(
        cls, base: FloatArray, state: Mapping[str, NDArray[Any]]
    ) -> ReplayedIterate:
        """Inverse of :meth:`state`; ValueError if its shape is not the base's."""
        if state["array"].shape != base.shape:
            raise ValueError(f"the iterate does not have the shape {base.shape}")
        return cls(state["array"])
