"""What a loss is for a method, and what an objective is.

A loss need not be a subclass of anything: it has the methods that its method calls, as
:class:`Loss` and :class:`DifferentiableLoss` declare them. The losses of
:mod:`fedtrellis.objectives` are an :class:`Objective` and have all of them; a user's
own subclass has ``shape``, ``num_examples``, ``value`` and ``gradient``. For PyTorch
modules see :class:`fedtrellis.objectives.torch_objective.TorchObjective`.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedtrellis.domains.atoms.base import cut

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

FLOAT64 = np.dtype(np.float64)
Point = Array | Sequence[Array]

#: A symmetric matrix, as an array or by its products.
Bound: TypeAlias = "Array | LinearOperator[Any]"

# Up to this order a matrix is formed and decomposed densely (32 MiB, seconds);
# above it only its products are used.
DENSE_ORDER = 2048

# Up to this order the largest eigenvalue comes from all of them (under a millisecond);
# above it from the Lanczos iteration, whose products are far cheaper.
DIRECT_ORDER = 64

# values(points) works through a batch of points in slices whose intermediate arrays
# have at most this many entries (64 MiB).
_SLICE_ENTRIES = 2**23

# The last stacks are kept, as long as their data has at most so many entries (64 MiB).
_MOST_STACKS, _STACKED_ENTRIES = 8, 2**23


@runtime_checkable
class Loss(Protocol):
    """A function of which values can be asked for.

    ``num_examples``, where it has one, counts for weights and metrics.

    Examples
    --------
    >>> from fedtrellis.objectives import Loss
    >>> class Device:
    ...     def value(self, x):
    ...         return float(x.sum())
    >>> isinstance(Device(), Loss)
    True
    """

    def value(self, x: Any, /) -> float:
        """Return f(x); x is one ndarray, or a list of them for a model of several."""


@runtime_checkable
class DifferentiableLoss(Protocol):
    """A function of which gradients can be asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import DifferentiableLoss, LeastSquares
    >>> isinstance(LeastSquares(np.eye(2), np.ones(2)), DifferentiableLoss)
    True
    """

    def gradient(self, x: Any, /) -> Any:
        """Return ∇f(x), shaped as x."""


class Objective(ABC):
    """A smooth function of one float64 array, usually a mean over examples.

    ``shape`` is that of a point x, ``num_examples`` how many examples the function is
    made of, and ``dtype`` what it computes in: float64, unless it was made by
    :meth:`of_dtype`. ``quadratic`` says whether f is known to be quadratic. The
    curvature is then the same at every x, and f(x + γd) = f(x) + γ⟨∇f(x), d⟩ +
    (γ²/2) curvature. Where the curvature is above 0, γ = −⟨∇f(x), d⟩ / curvature is the
    exact line search; where it is not, f is lowest at an end of any segment along d.

    Examples
    --------
    >>> from fedtrellis.objectives import Objective
    >>> class Half(Objective):
    ...     def value(self, x):
    ...         return 0.5 * float(x @ x)
    ...     def gradient(self, x):
    ...         return x
    >>> import numpy as np
    >>> Half().value(np.array([3.0, 4.0]))
    12.5
    """

    shape: tuple[int, ...]
    num_examples: int
    quadratic: bool = False
    dtype: np.dtype[Any] = FLOAT64

    def _weigh(self, weight: float, l2: float = 0.0) -> None:
        """Set the factor on the whole function, and that of its regulariser."""
        self.weight = check_number("weight", weight, positive=True)
        self.l2 = check_number("l2", l2)

    def of_dtype(self, dtype: DTypeLike) -> Self:
        """Return f for models of float32, computing in that, where f offers it."""
        return self

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return f(x)."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return ∇f(x), of the shape of x."""

    def curvature(self, x: Array, direction: Array) -> float | None:
        """Return dᵀ∇²f(x)d, the second derivative of f(x + γd) by γ at γ = 0.

        Products with the data give it, never a Hessian, for a direction d of the shape
        of x and any length. It is below 0 where f bends downwards along d, which only a
        non-convex f does. An objective that does not offer it returns None at every x
        and d. A ValueError: x or the direction is of another shape.
        """
        return None

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int
    ) -> Array:
        """Return an unbiased estimate of ∇f(x) from a mini-batch.

        ``rng`` draws it without replacement, and is the only source of randomness. It
        has ``batch_size`` examples, at least 1; ``num_examples`` or more give ∇f(x).
        """
        raise NotImplementedError(f"{type(self).__name__} has no stochastic_gradient")

    def values(
        self,
        points: Array,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of m points, of shape (m, *shape), as an ndarray (m,).

        With a ``batch_size`` all m values are estimated from one mini-batch that they
        share, ξ in F(x, ξ), which ``rng`` draws.
        """
        if batch_size is not None:
            raise NotImplementedError(f"{type(self).__name__} has no mini-batch values")
        return np.array([self.value(x) for x in points], dtype=np.float64)

    def hessian_bound(self) -> Bound:
        """Return a symmetric Θ with f(x) ≤ f(z) + ⟨∇f(z), x − z⟩ + ½‖x − z‖²_Θ.

        An ndarray of shape (p, p) or a ``scipy.sparse.linalg.LinearOperator``; p is the
        number of entries of x, which count in C order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no hessian_bound")

    def lipschitz(self) -> float:
        """Return the largest eigenvalue of Θ, a Lipschitz constant of ∇f."""
        return largest_eigenvalue(self.hessian_bound())

    def metrics(self, x: Array) -> dict[str, float]:
        """Return what else is worth reporting at x, such as the accuracy."""
        return {}


class FiniteSum(Objective):
    """A weighted sum over examples, whose parts can be evaluated on some of them.

    Subclasses evaluate on ``rows``: the indices of a mini-batch, scaled by
    num_examples / len(rows) so that the expectation is the whole sum, or None for all.
    """

    @abstractmethod
    def _gradient(self, x: Array, rows: IntArray | None) -> Array: ...

    @abstractmethod
    def _values(self, points: Array, rows: IntArray | None) -> Array: ...

    def _inverse(self, rows: IntArray | None) -> float:
        """What makes a mini-batch's sum unbiased."""
        return 1.0 if rows is None else self.num_examples / len(rows)

    def _value(self, x: Array) -> float:
        """Return f(x); subclasses override it where that is quicker."""
        return float(self._values(x[None], None)[0])

    def _room(self, rows: IntArray | None) -> int:
        """The entries of the largest intermediate array that a point takes."""
        examples = self.num_examples if rows is None else len(rows)
        return max(examples, self.shape[0]) * math.prod(self.shape[1:])

    def _point(self, x: Any, name: str = "x") -> Array:
        if type(x) is np.ndarray and x.shape == self.shape and x.dtype == self.dtype:
            return x
        return check_point(x, self.shape, name=name, dtype=self.dtype)

    def _points(self, points: Any) -> Array:
        return check_point(points, self.shape, batch=True)

    def _like(self, x: Any, gradient: Array) -> Array:
        """Return a gradient in the form of the point x."""
        return gradient

    def value(self, x: Any) -> float:
        """Return f(x)."""
        return self._value(self._point(x))

    def gradient(self, x: Any) -> Array:
        """Return ∇f(x), in the form of x."""
        return self._like(x, self._gradient(self._point(x), None))

    def stochastic_gradient(
        self, x: Any, rng: np.random.Generator, batch_size: int
    ) -> Array:
        """Return the gradient on a mini-batch that ``rng`` draws, in the form of x."""
        rows = draw_batch(rng, self.num_examples, batch_size)
        return self._like(x, self._gradient(self._point(x), rows))

    def values(
        self,
        points: Any,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of a batch of points, in slices that fit in memory."""
        points = self._points(points)
        rows = draw_batch(rng, self.num_examples, batch_size)
        step = max(1, _SLICE_ENTRIES // self._room(rows))
        starts = range(0, len(points), step)
        parts = [self._values(points[i : i + step], rows) for i in starts]
        return np.concatenate([np.zeros(0), *parts])


class MeanObjective(Objective):
    """F(x) = (1/n) Σ_i f_i(x), whatever the numbers of the f_i's examples.

    A call costs one call of every f_i, of which there is at least one, all of one
    shape, else it is a ValueError. ``num_examples`` is that of all f_i together. It is
    for the server: the objective of FedGiA, arXiv 2205.01438, equation (1).
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._parts = tuple(objectives)
        shapes = sorted({part.shape for part in self._parts})
        if len(shapes) != 1:
            raise ValueError(f"objectives have the shapes {shapes}; they must have one")
        (self.shape,) = shapes
        self.num_examples = sum(part.num_examples for part in self._parts)

    def value(self, x: Array) -> float:
        """Return F(x)."""
        return sum(part.value(x) for part in self._parts) / len(self._parts)

    def gradient(self, x: Array) -> Array:
        """Return ∇F(x), of the shape of x."""
        total = np.zeros(self.shape)
        for part in self._parts:
            total += part.gradient(x)
        return total / len(self._parts)

    def metrics(self, x: Array) -> dict[str, float]:
        """Return the means of the f_i's metrics, weighted by their examples.

        A fraction of examples, such as the accuracy, is then that of all of them.
        Measures that only some of the f_i have are left out.
        """
        parts = [part.metrics(x) for part in self._parts]
        shares = [part.num_examples / self.num_examples for part in self._parts]
        return {
            name: float(sum(w * m[name] for w, m in zip(shares, parts, strict=True)))
            for name in parts[0]
            if all(name in measures for measures in parts)
        }


def draw_batch(
    rng: np.random.Generator | None, num_examples: int, batch_size: int | None
) -> IntArray | None:
    """Draw a mini-batch without replacement; None, of either, is all examples."""
    if batch_size is None:
        return None
    if rng is None or batch_size < 1:
        given = f"batch_size is {batch_size!r} and rng is {rng}"
        raise ValueError(f"{given}; it must be at least 1, and a random generator")
    if batch_size >= num_examples:
        return None
    return rng.choice(num_examples, size=batch_size, replace=False, shuffle=False)


class Stacked(Protocol):
    """What :func:`stack` makes of n objectives.

    One that keeps copies of the data says in ``entries`` how many numbers; one that can
    take local gradient steps offers ``local_steps(points, sizes, rows)``.
    """

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        r"""∇f_i(x_i) of each, a new array, at points of shape (n, \*shape).

        ``rows`` has each one's mini-batch; None: all of its examples.
        """


def stack(objectives: Sequence[Any]) -> Stacked | None:
    """One object for many objectives, where their class offers it.

    Their class has ``stack(objectives)``, a static or class method that returns a
    :class:`Stacked`, or None for those that it cannot take together. What it returned
    last is kept for the same ones.
    """
    kind = type(objectives[0])
    make = getattr(kind, "stack", None)
    if make is None or any(type(objective) is not kind for objective in objectives):
        return None
    key = tuple(map(id, objectives))
    if key not in _kept:
        _kept[key] = tuple(objectives), make(objectives)
    _kept.move_to_end(key)
    stacked = _kept[key][1]
    entries = [getattr(other, "entries", 0) for _, other in _kept.values()]
    while len(entries) > _MOST_STACKS or sum(entries) > _STACKED_ENTRIES:
        _kept.popitem(last=False)
        del entries[0]
    return stacked


# By the objectives' identities; they are kept too, so that none is another's.
_kept: OrderedDict[tuple[int, ...], tuple[tuple[Any, ...], Stacked | None]]
_kept = OrderedDict()


class PointForms:
    """A list of arrays, one flat array, or a single array in its own shape."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = list(shapes)
        self.sizes = [math.prod(shape) for shape in shapes]
        self.flat = (sum(self.sizes),)

    def layers(self, x: Point, batch: tuple[int, ...] = ()) -> list[Array]:
        """Return a point, or a batch of them, as arrays of float32 or float64."""
        wanted = [(*batch, *shape) for shape in self.shapes]
        if isinstance(x, np.ndarray):
            array, flat = as_floats(x), (*batch, *self.flat)
            if [array.shape] == wanted:
                return [array]
            if array.shape != flat:
                raise ValueError(f"x has shape {array.shape}; it must be {flat}")
            return self.split(array)
        parts = list(map(as_floats, x))
        given = [part.shape for part in parts]
        if given != wanted:
            raise ValueError(f"x has shapes {given}; they must be {wanted}")
        return parts

    def vector(self, x: Point, batch: tuple[int, ...] = ()) -> Array:
        """Return a point, or a batch of them, as a new array of shape (*batch, p)."""
        if isinstance(x, np.ndarray) and x.shape == (*batch, *self.flat):
            return as_floats(x).copy()
        parts = zip(self.layers(x, batch), self.sizes, strict=True)
        flat = [layer.reshape(*batch, size) for layer, size in parts]
        return np.concatenate(flat, axis=-1)

    def vectors(self, points: Point) -> Array:
        """Return points, stacked on the leading axis of each array, as (m, p)."""
        first = points if isinstance(points, np.ndarray) else next(iter(points), ())
        return self.vector(points, np.shape(first)[:1])

    def like(self, x: Point, vector: Array) -> Any:
        """Return a flat array in the form that the point x has."""
        if isinstance(x, np.ndarray):
            return vector.reshape(x.shape)
        return self.split(vector)

    def split(self, array: Array) -> list[Array]:
        """Return the layers of flat points, the last axis of ``array``, as views."""
        return list(cut(array, self.shapes))


def as_floats(values: Any) -> Array:
    """Return an array as float32 if it has no more digits, else as float64."""
    array = np.asarray(values)
    short = array.dtype.kind == "f" and array.itemsize < 8
    found: Array = array.astype(np.float32 if short else np.float64, copy=False)
    return found


def symmetric_operator(order: int, product: Any) -> LinearOperator[Any]:
    """Return a symmetric LinearOperator from its product with one vector."""
    from scipy.sparse.linalg import LinearOperator

    def matvec(vector: Array) -> Any:
        return product(vector.reshape(order))

    return LinearOperator((order, order), matvec, matvec, dtype=np.float64)


def diagonal_bound(diagonal: Array) -> Bound:
    """Return a diagonal matrix, dense where it has at most 2048 rows."""
    if len(diagonal) <= DENSE_ORDER:
        return np.diag(diagonal)
    return symmetric_operator(len(diagonal), lambda v: diagonal * v)


def largest_eigenvalue(matrix: Bound) -> float:
    """Return the largest eigenvalue of a symmetric matrix or operator.

    Its relative error is below 1e-12, unless other eigenvalues lie as close to it as
    1e-8: then it is at most 1e-10, and 1e-4 in cases where the order is above 2048.
    """
    order = int(matrix.shape[0])
    if order > DIRECT_ORDER:
        # A fixed start makes the answer the same in every process.
        start = np.random.default_rng(0).standard_normal(order)
        if not np.any(matrix @ start):
            return 0.0  # ARPACK refuses the zero matrix
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        operator: Any = matrix
        settings: Any = {"which": "LA", "v0": start, "maxiter": 300}
        settings["return_eigenvectors"] = False
        for tolerance in (1e-10,) if order <= DENSE_ORDER else (1e-10, 1e-7, 1e-4):
            # The tolerance is on ‖Hv − λv‖/λ, which bounds the error of λ; that is
            # about the square of it over the relative distance to the next one.
            with contextlib.suppress(ArpackNoConvergence):
                return float(eigsh(operator, 1, tol=tolerance, **settings)[0])
        if order > DENSE_ORDER:
            raise RuntimeError(f"no largest eigenvalue of order {order} found")
    dense = matrix if isinstance(matrix, np.ndarray) else matrix @ np.eye(order)
    return float(np.linalg.eigvalsh(dense)[-1])


# -- checks of what a user gives: a ValueError of one line names it and what is allowed


def check_number(name: str, value: float, *, positive: bool = False) -> float:
    """Return a finite number that is at least 0, or above 0 for ``positive``."""
    allowed = "above 0" if positive else "at least 0"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} is {value!r}; it must be a finite number {allowed}")
    return number


def check_count(name: str, value: float, least: int, most: int | None = None) -> int:
    """Return a whole number from ``least`` on, up to ``most`` if there is one."""
    if int(value) != value or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; it must be a whole number {allowed}")
    return int(value)


def check_array(
    name: str, value: ArrayLike, ndim: int, count: int | None = None
) -> Array:
    """Return ``value`` as finite, C-contiguous float64, copied only if needed.

    With a ``count`` it has so many entries on its first axis.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}; it must be real numbers")
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; it must have {ndim} axes")
    result = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(result).all():
        raise ValueError(f"{name} has NaN or infinite entries; all must be finite")
    if count not in (None, len(result)):
        raise ValueError(f"{name} has {len(result)} entries; it must have {count}")
    return result


def is_sparse(matrix: Any) -> bool:
    """Whether it is a SciPy sparse matrix, for types that stay as they are."""
    return not isinstance(matrix, np.ndarray) and bool(scipy.sparse.issparse(matrix))


def check_examples(name: str, value: Any) -> Any:
    """Return a data matrix (examples × features), dense or CSR, of finite float64."""
    matrix = value
    if not is_sparse(value):
        matrix = check_array(name, value, 2)
    else:
        if value.ndim != 2 or np.dtype(value.dtype).kind not in "biuf":
            found = f"is sparse of shape {value.shape} and dtype {value.dtype}"
            raise ValueError(f"{name} {found}; it must be a matrix of real numbers")
        matrix = scipy.sparse.csr_array(value, dtype=np.float64)
        check_array(f"{name}.data", matrix.data, 1)
    if 0 in matrix.shape:
        wanted = "at least one row and one column"
        raise ValueError(f"{name} has shape {matrix.shape}; it must have {wanted}")
    return matrix


def check_integers(name: str, value: ArrayLike, count: int, bound: int) -> IntArray:
    """Return a vector of ``count`` whole numbers in [0, ``bound``)."""
    given = check_array(name, value, 1, count)
    integers = given.astype(np.intp)
    wrong = (integers != given) | (integers < 0) | (integers >= bound)
    if wrong.any():
        wanted = f"entries must be whole numbers from 0 to {bound - 1}"
        raise ValueError(f"{name} has the entry {given[wrong][0]:g}; {wanted}")
    return integers


def check_point(
    x: ArrayLike,
    shape: tuple[int, ...],
    *,
    batch: bool = False,
    name: str = "x",
    dtype: np.dtype[Any] = FLOAT64,
) -> Array:
    """Return a point, or a batch of points on a leading axis, of the given shape."""
    point = np.asarray(x, dtype=dtype)
    if point.shape[1 if batch else 0 :] != shape or point.ndim != len(shape) + batch:
        wanted = ("m", *shape) if batch else shape
        name = "points" if batch else name
        raise ValueError(f"{name} has shape {point.shape}; it must be {wanted}")
    return point
