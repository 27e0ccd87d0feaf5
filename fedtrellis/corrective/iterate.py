"""The contract of a client's iterate: what both sides hold, and what travels of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.domains.atoms import FLOAT64
from fedtrellis.domains.base import Domain, FloatArray, Shape

__all__ = ["CORRECTIONS", "Form", "Iterate", "start_at", "unpack"]

#: Kinds of corrective steps.
Correction = Literal["projected", "pairwise"]
CORRECTIONS: tuple[Correction, ...] = get_args(Correction)

Arrays = Sequence[NDArray[Any]]
Changes = list[NDArray[Any]]


class Form(NamedTuple):
    """What decides on the form of an iterate.

    Attributes
    ----------
    domain : Domain
    correction : {"pairwise", "projected"} or None
        Weights over atoms, or projected steps, whatever the set's own form is.
    dtype : dtype
        Of the model.
    """

    domain: Domain
    correction: str | None = None
    dtype: np.dtype[Any] = FLOAT64

    @property
    def kind(self) -> type[Iterate]:
        """The class of such iterates."""
        name = self.domain.form
        if self.correction == "pairwise" and name != "parts":
            name = "vertices"
        return Iterate.forms[name]


class Iterate(ABC):
    """x_i in the form that its set gives it; never changed once it is made.

    Client and server hold the same iterate. The client finds :meth:`corrections`, which
    travel, and both sides make the next iterate of them with :meth:`changed`, bit for
    bit the same.

    Attributes
    ----------
    shape : tuple of int
        Of a point.
    balance : float
        The target of :class:`~fedtrellis.corrective.penalty.Balance`: 1 where the steps
        come close to the minimiser of L_i.
    dtype : dtype
        Of the model: what factors and atoms are of. Points and weights are float64,
        which both sides go on with for as long as the run is.
    """

    #: Every form by its name.
    forms: ClassVar[dict[str, type[Iterate]]] = {}

    balance: float = 1.0
    shape: Shape
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
        """The iterate after corrections that arrived.

        Parameters
        ----------
        arrays : sequence of ndarray
            What :meth:`corrections` made, or anything else.
        domain : Domain
            Where the iterate has to stay.
        steps : int
            The corrective steps that were asked for.

        Raises
        ------
        ValueError
            What arrived is malformed, or leaves the set; the reason.
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


def start_at(
    domain: Domain,
    point: FloatArray,
    correction: str | None = None,
    dtype: np.dtype[Any] = FLOAT64,
) -> Iterate:
    """The iterate that is a point of a set, before any step.

    Parameters
    ----------
    domain, correction, dtype
        See :class:`Form`.
    point : ndarray
        Of numbers that the model's dtype can hold.
    """
    form = Form(domain, correction, dtype)
    return form.kind.at(point, form)


def unpack(
    domain: Domain,
    arrays: Arrays,
    shape: Shape,
    correction: str | None = None,
    dtype: np.dtype[Any] = FLOAT64,
) -> Iterate:
    """The iterate of :func:`start_at`'s form that :meth:`Iterate.arrays` describe."""
    form = Form(domain, correction, dtype)
    return form.kind.of_arrays(arrays, shape, form)
