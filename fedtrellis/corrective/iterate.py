"""The contract of a client's iterate, what both sides hold, and one of many pieces."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.problem import LocalProblem, PieceProblem
from fedtrellis.domains.atoms import FLOAT64
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.product import Product

__all__ = ["Form", "Iterate", "Parts"]

Arrays = Sequence[NDArray[Any]]
Changes = list[NDArray[Any]]


class Form(NamedTuple):
    """What decides on the form of an iterate: its set, and the model's dtype."""

    domain: Domain
    dtype: np.dtype[Any] = FLOAT64

    @property
    def _kind(self) -> type[Iterate]:
        return Iterate.forms[self.domain.form]

    def start_at(self, point: FloatArray) -> Iterate:
        """The iterate that is a point of the set, before any step.

        Its numbers are those that the model's dtype can hold.
        """
        return self._kind.at(point, self)

    def unpack(self, arrays: Arrays, shape: Shape) -> Iterate:
        """The iterate that :meth:`Iterate.arrays` describe; ValueError if malformed."""
        return self._kind.of_arrays(arrays, shape, self)


class Iterate(ABC):
    """x_i in the form that its set gives it; never changed once it is made.

    Client and server hold the same iterate. The client finds :meth:`corrections`, which
    travel, and both sides make the next iterate of them with :meth:`changed`, bit for
    bit the same.
    """

    #: Every form by its name.
    forms: ClassVar[dict[str, type[Iterate]]] = {}

    shape: Shape
    #: Of the model: what factors are of. Points are float64, which both sides go on
    #: with for as long as the run is.
    dtype: np.dtype[Any] = FLOAT64

    def __init_subclass__(cls, form: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        Iterate.forms[form] = cls

    @abstractmethod
    def dense(self) -> FloatArray:
        """x_i as a new array, always computed in the same order."""

    @abstractmethod
    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """What so many corrective steps on L_i over the set change, as it travels.

        Each step takes one gradient of f_i.
        """

    @abstractmethod
    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """The iterate after the corrections of so many steps, as they arrived.

        ValueError if they are malformed, or lead out of the set.
        """

    @abstractmethod
    def arrays(self) -> list[NDArray[Any]]:
        """All of it, for a client that lost its own, or for a checkpoint."""

    @classmethod
    @abstractmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`; ValueError if they are malformed."""

    @classmethod
    @abstractmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """The iterate that is a point of the set, before any step."""


class Parts(Iterate, form="parts"):
    """x = (x_1, …, x_k), each piece in the form of its factor of the product."""

    def __init__(self, pieces: Sequence[Iterate]) -> None:
        self.pieces = list(pieces)
        self.shape: Shape = (sum(math.prod(piece.shape) for piece in pieces),)

    @classmethod
    def at(cls, point: FloatArray, form: Form) -> Self:
        """Every piece of a flat vector in its own form."""
        pieces = cast(Product, form.domain).pieces(point)
        return cls([form._replace(domain=D).start_at(piece) for D, piece in pieces])

    def dense(self) -> FloatArray:
        """The pieces, ravelled, one after the other."""
        return np.concatenate([piece.dense().reshape(-1) for piece in self.pieces])

    def corrections(self, problem: LocalProblem, domain: Domain, steps: int) -> Changes:
        """Steps piece after piece; how many arrays each has (int64), then theirs."""
        share = max(1, steps // len(self.pieces))
        x, start = self.dense(), 0
        found = []
        domains = cast(Product, domain).domains
        for part, piece in zip(domains, self.pieces, strict=True):
            stop = start + math.prod(piece.shape)
            block = PieceProblem(problem, x, slice(start, stop), piece.shape)
            made = piece.corrections(block, part, share)
            x[start:stop] = piece.changed(made, part, share).dense().reshape(-1)
            found.append(made)
            start = stop
        return _joined(found)

    def changed(self, arrays: Arrays, domain: Domain, steps: int) -> Self:
        """Change every piece."""
        share = max(1, steps // len(self.pieces))
        cut = _cut(arrays, len(self.pieces))
        parts = zip(self.pieces, cut, cast(Product, domain).domains, strict=True)
        return type(self)(
            [piece.changed(own, part, share) for piece, own, part in parts]
        )

    def arrays(self) -> list[NDArray[Any]]:
        """How many arrays each piece has, then theirs."""
        return _joined([piece.arrays() for piece in self.pieces])

    @classmethod
    def of_arrays(cls, arrays: Arrays, shape: Shape, form: Form) -> Self:
        """Inverse of :meth:`arrays`."""
        product = cast(Product, form.domain)
        cut = _cut(arrays, len(product.domains))
        parts = zip(product.domains, cut, product.shapes, strict=True)
        return cls([form._replace(domain=D).unpack(own, s) for D, own, s in parts])


def _joined(parts: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """How many arrays each piece has, then theirs."""
    counts = np.array([len(part) for part in parts], dtype=np.int64)
    return [counts, *(array for part in parts for array in part)]


def _cut(arrays: Arrays, pieces: int) -> list[Arrays]:
    """Inverse of :func:`_joined`; ValueError if they are not those of so many."""
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
