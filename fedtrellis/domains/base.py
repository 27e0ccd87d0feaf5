"""The contract of a constraint set, and what balls and sets of vectors share."""

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, SignAtom, SparseAtom
from fedtrellis.domains.atoms.base import FloatArray, Shape
from fedtrellis.domains.numerics import positive
from fedtrellis.settings import arguments_of, parse, refused

__all__ = [
    "ByVector",
    "Domain",
    "FloatArray",
    "NormBall",
    "Places",
    "Shape",
    "alike",
    "describe",
]


class Domain(ABC):
    """A convex compact set D of arrays.

    Unless a class says otherwise, D is a set of vectors and an array of any shape
    stands for the vector of its entries. All computation is in float64.

    Attributes
    ----------
    name : str
        What run configurations call the set.
    parameters : mapping
        What a run config may set besides the radius: the constructor's argument, and
        its help, range and default made by :func:`fedtrellis.settings.setting`.
    bounded : bool
        Whether D is bounded, as everything with an oracle is.
    of_vectors : bool
        Whether an array of any shape stands for the vector of its entries, so that D
        fits a task whatever its model.
    form : str
        What an iterate of FedFW's corrective variant is: "entries"; "low-rank", a
        product of thin factors; or "parts", one of a product's sets each.
    sparse_atoms : bool
        Whether extreme points have few entries that are not zero, and points of D that
        are zero elsewhere can be projected onto, see :meth:`project_on`.
    any_vector : bool
        Whether a task that suggests D works on any vectors, so that all sets of
        vectors fit it.
    by_nonzeros : bool
        Whether zeros among the entries say nothing: x is in D where the vector of its
        other entries is. A sparse atom is then judged by its few values; in a ball of a
        norm these keep their places.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import L1Ball
    >>> domain, x = L1Ball(2.0), np.array([1.0, 0.5])
    >>> domain.contains(x), float(domain.gap(np.array([1.0, 0.0]), x))
    (True, 3.0)
    """

    name: ClassVar[str]
    parameters: ClassVar[Mapping[str, Any]] = {}
    bounded: ClassVar[bool] = True
    of_vectors: ClassVar[bool] = True
    any_vector: ClassVar[bool] = False
    form: ClassVar[str] = "entries"
    sparse_atoms: ClassVar[bool] = False
    by_nonzeros: ClassVar[bool] = False
    #: Whether x is in D where each of its entries is, whatever its place.
    _entrywise: ClassVar[bool] = False

    @abstractmethod
    def lmo(self, gradient: ArrayLike) -> Atom:
        """Solve the linear minimisation problem argmin over s in D of <gradient, s>.

        The answer is an extreme point of D, of the gradient's shape. Deterministic:
        among equal coordinates the lowest index wins, and a zero gradient has a
        feasible point for its answer too. ValueError: the gradient is not finite, or D
        has no points of its shape.
        """

    def lmo_from(
        self, gradient: ArrayLike, start: FloatArray | None
    ) -> tuple[Atom, FloatArray | None]:
        """Call the oracle for one of several similar gradients.

        Here it is :meth:`lmo`, and there is nothing to keep. A set whose oracle is
        quicker from where the last one ended overrides this: it returns, beside the
        atom, a float64 array that is the ``start`` for the next gradient of this shape;
        before the first that is None. ValueError as :meth:`lmo`, or if the start is not
        for this shape.
        """
        return self.lmo(gradient), None

    def lmo_many(self, gradients: FloatArray) -> list[Atom]:
        r"""Call the oracle for gradients of shape (n, \*shape), one a row, in float64.

        The answers, and errors for any of them, are those of :meth:`lmo`.
        """
        return [self.lmo(gradient) for gradient in gradients]

    @abstractmethod
    def project(self, point: ArrayLike) -> FloatArray:
        """Solve argmin over s in D of ‖point − s‖₂ (Euclidean, Frobenius).

        The answer is a new float64 array of the point's shape. ValueError: the point is
        not finite, or D has no points of its shape.
        """

    @abstractmethod
    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether a point lies in D, give or take ``tolerance`` · size of D.

        A point that is not finite does not. ValueError: D has no points of this shape.
        """

    def contains_atom(self, atom: Atom, tolerance: float = 1e-9) -> bool:
        """Say whether an atom that came from elsewhere is a point of D.

        The same answer as ``contains(atom.dense(), tolerance)``, at the cost of the
        atom's own form, of whatever kind, where D has a way to
        (:meth:`_contains_atom`). Membership is what is asked, not whether the point is
        extreme. False also for an atom that is not finite, or whose shape no point of D
        has; nothing is raised.
        """
        try:
            self.check_shape(atom.shape)
        except ValueError:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            return self._contains_atom(atom, tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        """Answer :meth:`contains_atom` for an atom whose shape fits."""
        if self.by_nonzeros and isinstance(atom, SparseAtom) and atom.values.size:
            return self.contains(atom.values, tolerance)
        if self._entrywise and isinstance(atom, SignAtom):
            return self.contains(atom.levels(), tolerance)
        return self.contains(atom.dense(), tolerance)

    def project_on(self, point: FloatArray, support: NDArray[np.bool_]) -> FloatArray:
        """Project onto the points of D that are zero off a support.

        Here by the projection of the point with zeros there, which stay zero where D
        has no say in the order or the sum of entries. Used where :attr:`sparse_atoms`.
        """
        return self.project(np.where(support, point, 0.0))

    def contains_product(
        self, left: FloatArray, right: FloatArray, tolerance: float = 1e-9
    ) -> bool:
        """Say whether A Bᵀ lies in D, for thin factors of shapes (m, r) and (n, r)."""
        left, right = (f.astype(np.float64, copy=False) for f in (left, right))
        return self.contains(left @ right.T, tolerance)

    @abstractmethod
    def diameter(self, shape: Shape) -> float:
        """Return max over x, y in D of ‖x − y‖₂, for arrays of a shape."""

    @abstractmethod
    def centre(self, shape: Shape) -> FloatArray:
        """Return a point of D to start from: its centre of symmetry if it has one."""

    def largest_norms(self, shape: Shape) -> tuple[float, float] | None:
        """Return max over x in D of ‖x‖₁ and of ‖x‖₂; None where they are not known."""
        return None

    @classmethod
    def has_radius(cls) -> bool:
        """Say whether the set takes a ``radius``."""
        return "radius" in arguments_of(cls)

    @classmethod
    @cache
    def settings(cls) -> type[Any]:
        """Return :attr:`parameters` as a dataclass for :mod:`fedtrellis.settings`.

        Its keys in a run config have the prefix ``NAME.``.
        """
        return dataclasses.make_dataclass(
            f"{cls.__name__}Settings",
            [(name, type(f.default), f) for name, f in cls.parameters.items()],
            frozen=True,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], radius: float) -> Self:
        """Make the set from the keys ``NAME.PARAMETER`` of a flat run config.

        ``radius`` is for a set that has one. SettingsError where a value is out of its
        own range, ValueError for what the constructor refuses.
        """
        values = dataclasses.asdict(parse(cls.settings(), config, f"{cls.name}."))
        if cls.has_radius():
            values["radius"] = radius
        return cls(**values)

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError if D has no points of this shape."""
        if math.prod(shape) < 1:
            raise ValueError(
                f"{self.name} has no points of shape {tuple(shape)}: "
                f"at least one entry is needed"
            )

    def gap(self, gradient: ArrayLike, point: ArrayLike) -> float:
        """Return the Frank-Wolfe gap max over u in D of <gradient, point − u>.

        For a convex function with this gradient at a feasible ``point`` it bounds the
        distance to the minimum over D from above (Jaggi, ICML 2013).
        """
        g = np.asarray(gradient, dtype=np.float64)
        x = np.asarray(point, dtype=np.float64)
        if g.shape != x.shape:
            raise ValueError(
                f"gradient and point differ in shape: {g.shape} and {x.shape}"
            )
        # the maximum is at u = lmo(g):  <g, x> − <g, lmo(g)>
        return float(np.vdot(g, x)) - self.lmo(g).dot(g)

    def _input(self, array: ArrayLike, what: str) -> FloatArray:
        """Return the argument as float64, its shape and its values checked."""
        result = self._finite(array)
        if result is None:
            raise ValueError(f"{self.name}: the {what} must be finite")
        return result

    def _rows(self, gradients: FloatArray) -> FloatArray:
        """Return many gradients with their entries in a row each, shapes checked."""
        self.check_shape(gradients.shape[1:])
        return gradients.reshape(len(gradients), -1)

    def _check_extremes(self, *extremes: FloatArray) -> None:
        """Raise ValueError unless the largest and smallest entries are finite.

        These show every infinity and, as NaN goes before all numbers, every NaN.
        """
        if not all(np.isfinite(extreme).all() for extreme in extremes):
            raise ValueError(f"{self.name}: the gradient must be finite")

    def _finite(self, point: ArrayLike) -> FloatArray | None:
        """Return the point as float64, its shape checked, or None if not finite."""
        result = np.asarray(point, dtype=np.float64)
        self.check_shape(result.shape)
        # the extremes show every NaN and infinity, and need no temporary array
        finite = math.isfinite(result.min()) and math.isfinite(result.max())
        return result if finite else None


#: Flat indices of a point's entries that are given; None: all are.
Places = NDArray[np.intp] | None


class NormBall(Domain):
    """The points whose norm is at most ``radius``.

    A subclass has the norm (:meth:`_norm`), oracle, projection and
    :meth:`Domain.largest_norms`, or a diameter of its own.
    """

    by_nonzeros: ClassVar[bool] = True
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def norm(self, point: ArrayLike) -> float:
        """Return the norm that is at most ``radius`` in the ball."""
        x = self._input(point, "point")
        return self._norm(x.reshape(-1), x.shape)

    @abstractmethod
    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        """Return the norm of a point, from its entries in a vector; ∞ for overflow.

        Where ``by_nonzeros``, those at some flat places, all others being zero.
        """

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the norm is at most radius (1 + tolerance)."""
        x = self._finite(point)
        if x is None:
            return False
        return self._norm(x.reshape(-1), x.shape) <= self.radius * (1.0 + tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if type(self).contains is not NormBall.contains:  # a user's says more than this
            return self.contains(atom.dense(), tolerance)
        if not (self.by_nonzeros and isinstance(atom, SparseAtom)):
            return super()._contains_atom(atom, tolerance)
        values = atom.values.astype(np.float64, copy=False)
        if not values.size:
            return True
        if not np.isfinite(values).all():
            return False
        norm = self._norm(values, atom.shape, atom.indices)
        return norm <= self.radius * (1.0 + tolerance)

    def diameter(self, shape: Shape) -> float:
        """Return twice the largest Euclidean norm: −x is in the ball as x is."""
        self.check_shape(shape)
        norms = self.largest_norms(shape)
        assert norms is not None
        return 2.0 * norms[1]

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)


class ByVector(Domain):
    """A set whose ``parameters`` are numbers or arrays; arrays compare by value.

    Numbers make a set for arrays of any shape, and an array one for its own shape.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # + 0.0 makes −0.0 the 0.0 that it equals
        values = [np.asarray(getattr(self, f.name)) + 0.0 for f in fields(self)]  # type: ignore[arg-type]
        return tuple((value.shape, value.tobytes()) for value in values)

    def _freeze(
        self, parameter: str, allowed: str, good: Callable[[FloatArray], Any]
    ) -> FloatArray:
        """Make a parameter, of finite numbers that are good, a float or frozen copy."""
        value = getattr(self, parameter)
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        finite = array.size > 0 and bool(np.isfinite(array).all())
        if isinstance(value, bool | str) or not finite or not good(array):
            raise ValueError(
                f"{self.name}: {parameter} must be {allowed}, got {str(value)[:80]}"
            )
        array.flags.writeable = False
        object.__setattr__(self, parameter, array if array.ndim else float(array))
        return array

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the arrays given are of this shape."""
        super().check_shape(shape)
        # numbers have none, and arrays all have the same
        given = [getattr(getattr(self, name), "shape", ()) for name in self.parameters]
        allowed: Shape = max(given)
        if allowed and tuple(shape) != allowed:
            raise ValueError(
                f"{self.name} with {' and '.join(self.parameters)} of shape {allowed} "
                f"has no points of shape {tuple(shape)}: only {allowed} is allowed"
            )


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def check_domain(domain: object) -> None:
    """Raise SettingsError for what is no set."""
    if not isinstance(domain, Domain):
        why = "must be a fedtrellis Domain, for example L1Ball(30.0)"
        raise refused("domain", domain, why)


def describe(domain: Domain) -> str:
    """Return a set's ``repr`` in a line; empty where its class has none of its own."""
    if type(domain).__repr__ is object.__repr__:
        return ""
    # what a box of many bounds prints beyond that is not compared
    return " ".join(repr(domain).split())[:500]


def alike(one: str, other: str) -> bool:
    """Say whether two descriptions are of one set, numbers equal to 10⁻⁹ of them.

    Two machines may compute a radius with other last digits.
    """
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-9) for a, b in pairs)
