"""One iterate for each piece of a product of sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.iterate import Arrays, Changes, Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.product import Product

__all__ = ["Parts"]


class Parts(Iterate, form="parts"):
    """x = (x_1, …, x_k), each piece in its own set's form.

    Parameters
    ----------
    pieces : sequence of Iterate
        As the product has its sets.
    """

    def __init__(self, pieces: Sequence[Iterate]) -> None:
        self.pieces = list(pieces)
        self.shape: Shape = (sum(math.prod(piece.shape) for piece in pieces),)
        self.balance = max(piece.balance for piece in pieces)

    @classmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """Every piece of a flat vector in its own form."""
        pieces = []
        for domain, piece in cast(Product, form.domain).pieces(point):
            own = form._replace(domain=domain)
            pieces.append(own.kind.at(piece, own))
        return cls(pieces)

    def dense(self) -> FloatArray:
        """The pieces, ravelled, one after the other."""
        return np.concatenate([piece.dense().reshape(-1) for piece in self.pieces])

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """The steps are shared out: piece after piece, each after the others.

        Returns
        -------
        list of ndarray
            How many arrays each piece has (int64), then theirs.
        """
        product = cast(Product, domain)
        own = self._share(steps)
        x = self.dense()
        counts, arrays = [], []
        start = 0
        for part, piece in zip(product.domains, self.pieces, strict=True):
            stop = start + math.prod(piece.shape)
            block = problem.block(x, slice(start, stop), piece.shape)
            made = piece.corrections(block, part, own)
            x[start:stop] = piece.changed(made, part, own).dense().reshape(-1)
            counts.append(len(made))
            arrays += made
            start = stop
        return [np.array(counts, dtype=np.int64), *arrays]

    def _share(self, steps: int) -> int:
        return max(1, steps // len(self.pieces))

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Change every piece."""
        product, own = cast(Product, domain), self._share(steps)
        cut = _cut(arrays, len(self.pieces))
        return type(self)(
            [
                piece.changed(part_arrays, part, own)
                for piece, part, part_arrays in zip(
                    self.pieces, product.domains, cut, strict=True
                )
            ]
        )

    def arrays(self) -> list[NDArray[Any]]:
        """How many arrays each piece has, then theirs."""
        parts = [piece.arrays() for piece in self.pieces]
        counts = np.array([len(part) for part in parts], dtype=np.int64)
        return [counts, *(array for part in parts for array in part)]

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        product = cast(Product, form.domain)
        cut = _cut(arrays, len(product.domains))
        pieces = []
        for domain, own_shape, own in zip(
            product.domains, product.shapes, cut, strict=True
        ):
            part = form._replace(domain=domain)
            pieces.append(part.kind.of_arrays(own, own_shape, part))
        return cls(pieces)


def _cut(arrays: Arrays, pieces: int) -> list[Arrays]:
    """The arrays of each piece; ValueError if they are not those of so many."""
    counts = arrays[0] if arrays else np.empty(0)
    if (
        counts.dtype != np.int64
        or counts.shape != (pieces,)
        or (counts < 0).any()
        or counts.sum() != len(arrays) - 1
    ):
        raise ValueError(f"the arrays are not those of {pieces} pieces")
    stops = 1 + np.cumsum(counts)
    return [
        arrays[stop - count : stop]
        for stop, count in zip(stops.tolist(), counts.tolist(), strict=True)
    ]
