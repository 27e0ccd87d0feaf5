"""A client's iterate as the server replays it, x ← decay · x + weight · s each round.

Full participation never reads the iterates, so a step with a small atom is only noted
down; what was noted is worked in when somebody asks. Sparse atoms over a long vector
are kept as their non-zero entries, everything else as a dense array, and the decay is
one number held beside it, so a step costs what its atom costs, not what x costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom, PermutationAtom, RankOneAtom, SparseAtom
from fedtrellis.wire.arrays import FloatArray, check_entries

# Below this size a dense array beats any bookkeeping of its non-zero entries.
_DENSE_SIZE = 16_384
# Steps noted down before they are worked in, if nobody asks before.
_MAX_PENDING = 256
# Atoms that may wait: hundreds of any other kind would take hundreds of times x.
_SMALL = (SparseAtom, RankOneAtom, PermutationAtom)
# Far above the smallest float, so that entries / scale keep all their digits.
_MIN_SCALE = 1e-100


class ReplayedIterate:
    """x = scale · (share · base + entries + the steps still pending).

    The base, where x starts, is shared between iterates and never changed. The entries
    are an array, or the indices and values of a sparse one.
    """

    def __init__(self, base: FloatArray) -> None:
        self._base = base
        self._array: FloatArray | None = None
        self._forget(float(base.any()))
        if base.size <= _DENSE_SIZE:
            self._make_dense()

    def _forget(self, share: float) -> None:
        self._share, self._scale = share, 1.0
        self._indices, self._values = np.empty(0, dtype=np.int64), np.empty(0)
        self._pending: list[tuple[Atom, float]] = []
        if self._array is not None:
            self._array.fill(0.0)

    def step(self, decay: float, weight: float, atom: Atom) -> None:
        """Note down x ← decay · x + weight · atom."""
        if decay == 0.0:
            self._forget(0.0)
        self._scale *= decay or 1.0
        if self._scale < _MIN_SCALE:
            self._flush()
            self._share *= self._scale
            self._values *= self._scale
            if self._array is not None:
                self._array *= self._scale
            self._scale = 1.0
        self._pending.append((atom, weight / self._scale))
        if len(self._pending) >= _MAX_PENDING or not isinstance(atom, _SMALL):
            self._flush()

    def _make_dense(self) -> FloatArray:
        if self._array is None:
            self._array = np.multiply(self._base, self._share, order="C")
            self._array.reshape(-1)[self._indices] += self._values
            self._share = 0.0
        return self._array

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        sparse = [(atom, w) for atom, w in pending if isinstance(atom, SparseAtom)]
        if self._array is not None or len(sparse) < len(pending):
            array = self._make_dense()
            for atom, weight in pending:
                atom.add_to(array, weight)
        elif pending:
            # of the entries to be added, several may have one index
            indices = [atom.indices.astype(np.int64) for atom, _ in sparse]
            values = [atom.values * np.float64(w) for atom, w in sparse]
            together = np.concatenate([self._indices, *indices])
            self._indices, where = np.unique(together, return_inverse=True)
            weights = np.concatenate([self._values, *values])
            sums = np.bincount(where, weights, self._indices.size)
            self._values = sums.astype(np.float64, copy=False)
            if 4 * self._indices.size > self._base.size:
                self._make_dense()

    def add_to(self, array: FloatArray, weight: float = 1.0) -> None:
        """Do array += weight · x, in place."""
        self._flush()
        scale = weight * self._scale
        if self._array is not None:
            array += scale * self._array
            return
        array.reshape(-1)[self._indices] += scale * self._values
        if self._share:
            array += (scale * self._share) * self._base

    def dense(self) -> FloatArray:
        """X as a new array."""
        array = np.zeros(self._base.shape)
        self.add_to(array)
        return array

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs to bring x back."""
        self._flush()
        if self._array is not None:
            return {"array": self._scale * self._array}
        return {
            "indices": self._indices,
            "values": self._scale * self._values,
            "base-weight": np.array(self._scale * self._share),
        }

    @classmethod
    def from_state(
        cls, base: FloatArray, state: Mapping[str, NDArray[Any]]
    ) -> ReplayedIterate:
        """Inverse of :meth:`state`, given its base; ValueError if they do not fit."""
        iterate = cls(base)
        if "array" in state:
            iterate._array, iterate._share = np.array(state["array"]), 0.0
            if iterate._array.shape != base.shape:
                raise ValueError(f"the iterate does not have the shape {base.shape}")
            return iterate
        iterate._indices = np.array(state["indices"], dtype=np.int64)
        iterate._values = np.array(state["values"], dtype=np.float64)
        # a negative index becomes a large one
        check_entries(iterate._indices.view(np.uint64), iterate._values, base.size)
        iterate._share = float(state["base-weight"])
        return iterate
