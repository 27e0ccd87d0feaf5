"""Changes of a model by a few atoms, and how they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import (
    FLOAT64,
    Atom,
    SparseAtom,
    pack_atoms,
    unpack_atoms,
)
from fedtrellis.wire.layout import FloatArray

__all__ = ["Step", "pack_steps", "unpack_steps"]


@dataclass(frozen=True)
class Step:
    """One change of the model, x̄ ← decay · x̄ + weight · Σ_j s_j."""

    decay: float
    weight: float
    atoms: tuple[Atom, ...]

    def apply(self, point: FloatArray) -> None:
        """Change ``point``, a C-contiguous array, in place."""
        if self.decay == 0.0:
            point.fill(0.0)  # also where the point was not finite
        elif self.decay != 1.0:
            point *= self.decay
        self.add_atoms(point)

    def add_atoms(self, point: FloatArray) -> None:
        """Do only point += weight · Σ_j s_j, in place."""
        if self._entries is None:
            for atom in self.atoms:
                atom.add_to(point, self.weight)
        else:
            # one after the other, as the atoms would: the same bits on both sides
            indices, values = self._entries
            np.add.at(point.reshape(-1), indices, np.float64(self.weight) * values)

    @cached_property
    def _entries(self) -> tuple[NDArray[np.int64], FloatArray] | None:
        """All entries of sparse atoms, which one call adds; None for other atoms."""
        sparse = [atom for atom in self.atoms if isinstance(atom, SparseAtom)]
        if not sparse or len(sparse) < len(self.atoms):
            return None
        indices = [atom.indices.astype(np.int64, copy=False) for atom in sparse]
        return np.concatenate(indices), np.concatenate([a.values for a in sparse])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the atoms on the wire, without envelope."""
        # a row of three numbers, and with each atom its kind and number of entries
        return 24 + sum(atom.nbytes + 2 for atom in self.atoms)


def pack_steps(steps: Sequence[Step]) -> list[NDArray[Any]]:
    """Steps as a few arrays: (decay, weight, number of atoms) each, then the atoms."""
    if not steps:
        return []
    table = np.array([[s.decay, s.weight, len(s.atoms)] for s in steps])
    atoms = [atom for step in steps for atom in step.atoms]
    return [table, *pack_atoms(atoms)] if atoms else [table]


def unpack_steps(
    arrays: Sequence[NDArray[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any] = FLOAT64,
) -> list[Step]:
    """Inverse of :func:`pack_steps`; ValueError if the arrays are malformed.

    ``dtype`` is that of the atoms' values.
    """
    if not arrays:
        return []
    table = arrays[0]
    if (
        table.ndim != 2
        or table.shape[1] != 3
        or table.dtype != np.float64
        or not np.isfinite(table).all()
        or (table[:, 2] < 0.0).any()
        or (table[:, 2] % 1.0).any()
    ):
        raise ValueError("the table of steps is malformed")
    atoms: list[Atom] = []
    if len(arrays) > 1:
        atoms = unpack_atoms(arrays[1:], shape, dtype, drawn=True)
    if table[:, 2].sum() != len(atoms):
        raise ValueError(f"{len(atoms)} atoms for steps of {table[:, 2].tolist()}")
    steps, start = [], 0
    for decay, weight, count in table.tolist():
        stop = start + int(count)
        steps.append(Step(decay, weight, tuple(atoms[start:stop])))
        start = stop
    return steps
