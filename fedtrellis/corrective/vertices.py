"""Weights over atoms: the form of an iterate in a polytope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Changes, Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.atoms import (
    FLOAT64,
    Atom,
    DenseAtom,
    SparseAtom,
    pack_atoms,
    rounding,
    unpack_atoms,
)
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["Vertices"]

# A point with at most this share of non-zeros is a sparse atom.
_SPARSE_SHARE = 0.25
# How far the sum of weights may be from 1: thousands of rounds of rounding.
_SUM_TOLERANCE = 1e-9
# A gap below this share of its terms is rounding.
_ROUNDING = 1e-15


class Vertices(Iterate, form="vertices"):
    """x = Σ w_a a over the active atoms a, with w_a > 0 and Σ w_a = 1.

    Atoms stand in the order in which they came, and are of the model's dtype.
    """

    # so few pairwise steps leave something of L_i
    balance = 2.0

    def __init__(
        self,
        atoms: Sequence[Atom],
        weights: FloatArray,
        shape: Shape,
        dtype: np.dtype[Any] = FLOAT64,
    ) -> None:
        self.atoms, self.weights, self.shape = list(atoms), weights, shape
        self.dtype = dtype

    @classmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """A point as the only atom, of weight 1."""
        flat = point.reshape(-1)
        indices = np.flatnonzero(flat)
        atom: Atom
        if indices.size <= _SPARSE_SHARE * flat.size:
            atom = SparseAtom(indices, flat[indices].copy(), point.shape)
        else:
            atom = DenseAtom(point.copy())
        return cls([atom.of_dtype(form.dtype)], np.ones(1), point.shape, form.dtype)

    @cached_property
    def _table(self) -> _Table:
        return _Table(self.atoms, self.shape)

    def dense(self) -> FloatArray:
        """Σ w_a a, atom after atom."""
        return self._table.mean(self.weights)

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """Pairwise steps: weight moves from the worst active atom to the oracle's.

        ::

            v = LMO(∇L_i(x)),  u = the active atom with the largest ⟨∇L_i(x), a⟩
            x ← x + γ (v − u),  γ = min(weight of u, line search along v − u)

        Source: Lacoste-Julien and Jaggi, NIPS 2015, algorithm 2.

        Returns
        -------
        list of ndarray
            The places of the atoms whose weights changed (unsigned), the weights of
            those and of the new atoms (float64), and, packed, the new atoms.
        """
        atoms, weights = list(self.atoms), self.weights.tolist()
        table = self._table
        places = {_key(atom): i for i, atom in enumerate(atoms)}
        x = self.dense()
        for _ in range(steps):
            g = problem.gradient(x)
            v = domain.lmo(g).of_dtype(self.dtype)
            scores = table.dots(g)
            scores[np.equal(weights, 0.0)] = -math.inf
            u = int(scores.argmax())
            lowest, highest = v.dot(g), float(scores[u])
            slope = lowest - highest
            if -slope <= _ROUNDING * (abs(lowest) + abs(highest)):
                break
            direction = v.dense()
            atoms[u].add_to(direction, -1.0)
            gamma, _ = problem.line(x, direction, slope, weights[u])
            if gamma == 0.0:
                break
            x += gamma * direction
            weights[u] -= gamma
            place = places.setdefault(_key(v), len(atoms))
            if place == len(atoms):
                atoms.append(v)
                weights.append(0.0)
                table = _Table(atoms, self.shape)
            weights[place] += gamma
        return self._difference(atoms, np.array(weights))

    def _difference(
        self, atoms: Sequence[Atom], weights: FloatArray
    ) -> list[NDArray[Any]]:
        """What travels: weights of these atoms, the first of which are ``self``'s."""
        old = len(self.atoms)
        changed = np.flatnonzero(weights[:old] != self.weights)
        # an atom of this round that is empty again never existed
        new = [i for i in range(old, len(atoms)) if weights[i] > 0.0]
        packed = pack_atoms([atoms[i] for i in new]) if new else []
        return [
            changed.astype(np.min_scalar_type(old)),
            np.concatenate([weights[changed], weights[new]]),
            *packed,
        ]

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Set the changed weights, add the new atoms, drop what is empty."""
        if len(arrays) < 2:
            raise ValueError("changed weights need their places")
        places, weights, packed = arrays[0], arrays[1], arrays[2:]
        old = len(self.atoms)
        new = unpack_atoms(packed, self.shape, self.dtype) if packed else []
        if places.dtype.kind != "u" or places.ndim != 1:
            raise ValueError("the places of changed weights are not unsigned integers")
        if weights.dtype != np.float64 or weights.shape != (places.size + len(new),):
            raise ValueError(
                f"{weights.size} weights for {places.size} places and {len(new)} atoms"
            )
        if places.size and (
            int(places[-1]) >= old or (places[1:] <= places[:-1]).any()
        ):
            raise ValueError(f"the places are not increasing ones of {old} atoms")
        if len(new) > steps:
            raise ValueError(f"{len(new)} new atoms of {steps} steps")
        everyone = np.concatenate([self.weights, weights[places.size :]])
        everyone[places] = weights[: places.size]
        if not (everyone >= 0.0).all() or abs(everyone.sum() - 1.0) > _SUM_TOLERANCE:
            raise ValueError(
                f"the weights are between {everyone.min():g} and {everyone.max():g} "
                f"and sum up to {everyone.sum():.12g}; they must be a mean's"
            )
        for atom in new:
            if not domain.contains_atom(atom, rounding(self.dtype)):
                raise ValueError(f"an atom of kind {atom.kind} lies outside {domain!r}")
        kept, atoms = np.flatnonzero(everyone), [*self.atoms, *new]
        return type(self)(
            [atoms[i] for i in kept], everyone[kept], self.shape, self.dtype
        )

    def arrays(self) -> list[NDArray[Any]]:
        """[weights, atoms as they are packed]."""
        return [self.weights, *pack_atoms(self.atoms)]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        atoms = unpack_atoms(arrays[1:], shape, form.dtype)
        if not atoms or arrays[0].shape != (len(atoms),):
            raise ValueError(f"{arrays[0].size} weights for {len(atoms)} atoms")
        return cls(atoms, np.array(arrays[0], dtype=np.float64), shape, form.dtype)


class _Table:
    """Atoms side by side, for their mean and all inner products at once."""

    def __init__(self, atoms: Sequence[Atom], shape: Shape) -> None:
        self._atoms, self._shape = list(atoms), shape
        # where all are sparse: the entries of all of them in one array
        sparse = [atom for atom in atoms if isinstance(atom, SparseAtom)]
        self._sparse = len(sparse) == len(atoms)
        if self._sparse:
            self._indices = np.concatenate([atom.indices for atom in sparse])
            self._values = np.concatenate([atom.values for atom in sparse])
            sizes = [atom.indices.size for atom in sparse]
            self._atom_of = np.repeat(np.arange(len(sparse)), sizes)

    def mean(self, weights: FloatArray) -> FloatArray:
        """Σ w_a a, a new array."""
        if self._sparse:
            # one entry after the other, as the atoms come: the same bits on both sides
            products = weights[self._atom_of] * self._values
            flat = np.bincount(self._indices, products, math.prod(self._shape))
            return flat.astype(np.float64, copy=False).reshape(self._shape)
        result = np.zeros(self._shape)
        for atom, weight in zip(self._atoms, weights.tolist(), strict=True):
            atom.add_to(result, weight)
        return result

    def dots(self, array: FloatArray) -> FloatArray:
        """⟨a, array⟩ for every atom, shape (number of atoms,)."""
        if self._sparse:
            products = array.take(self._indices) * self._values
            dots = np.bincount(self._atom_of, products, minlength=len(self._atoms))
            return dots.astype(np.float64, copy=False)  # of no entries they are int
        return np.array([atom.dot(array) for atom in self._atoms])


def _key(atom: Atom) -> tuple[Any, ...]:
    """What two atoms have in common if they are the same point in the same form."""
    return (atom.kind, *(array.tobytes() for array in atom.to_arrays()))
