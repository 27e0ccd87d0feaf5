"""What a loss is for a method, and what an objective is.

A loss need not be a subclass of anything: it has the methods that its method calls, as
:class:`Loss` and :class:`DifferentiableLoss` declare them. The losses of
:mod:`fedtrellis.objectives` are an :class:`Objective` and have all of them; a user's
own subclass has ``shape``, ``num_examples``, ``value`` and ``gradient``. A point x is
one float64 array of the objective's ``shape``. For PyTorch modules see
:class:`fedtrellis.objectives.torch_objective.TorchObjective`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike

from fedtrellis.objectives.checks import FLOAT64, Array, IntArray, check_point
from fedtrellis.objectives.symmetric import Bound, largest_eigenvalue

# values(points) works through a batch of points in slices whose intermediate arrays
# have at most this many entries (64 MiB).
_SLICE_ENTRIES = 2**23


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

    Attributes
    ----------
    shape : tuple of int
        The shape of a point x.
    num_examples : int
        How many examples the function is made of.
    quadratic : bool
        Whether f is known to be quadratic. The curvature is then the same at every x,
        and f(x + γd) = f(x) + γ⟨∇f(x), d⟩ + (γ²/2) curvature. Where the curvature is
        above 0, γ = −⟨∇f(x), d⟩ / curvature is the exact line search; where it is not,
        f is lowest at an end of any segment along d.
    dtype : dtype
        What it computes in: float64, unless it was made by :meth:`of_dtype`.

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

    def of_dtype(self, dtype: DTypeLike) -> Self:
        """Return f for models of float32, computing in that, where f offers it.

        Here it does not, and f goes on in float64, whatever its points are of.
        """
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
        non-convex f does. An objective that does not offer it, as one does that says
        nothing else, returns None at every x and d; a line search then has values to go
        by. A ValueError: x or the direction is of another shape.
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

    def _value(self, x: Array) -> float:
        """Return f(x); subclasses override it where that is quicker."""
        return float(self._values(x[None], None)[0])

    def _entries_per_point(self, rows: IntArray | None) -> int:
        """The entries of the largest intermediate array that a point takes."""
        examples = self.num_examples if rows is None else len(rows)
        return max(examples, self.shape[0]) * math.prod(self.shape[1:])

    def _point(self, x: Any, name: str = "x") -> Array:
        if type(x) is np.ndarray and x.shape == self.shape and x.dtype == self.dtype:
            return x
        return check_point(x, self.shape, name=name, dtype=self.dtype)

    def value(self, x: Any) -> float:
        """Return f(x)."""
        return self._value(self._point(x))

    def gradient(self, x: Any) -> Array:
        """Return ∇f(x), of the shape of x."""
        return self._gradient(self._point(x), None)

    def stochastic_gradient(
        self, x: Any, rng: np.random.Generator, batch_size: int
    ) -> Array:
        """Return the gradient on a mini-batch that ``rng`` draws."""
        point = self._point(x)
        return self._gradient(point, draw_batch(rng, self.num_examples, batch_size))

    def values(
        self,
        points: Array,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of a batch of points, in slices that fit in memory."""
        points = check_point(points, self.shape, batch=True)
        rows = common_batch(rng, self.num_examples, batch_size)
        result = np.zeros(len(points))
        step = max(1, _SLICE_ENTRIES // self._entries_per_point(rows))
        for start in range(0, len(points), step):
            part = slice(start, start + step)
            result[part] = self._values(points[part], rows)
        return result


class MeanObjective(Objective):
    """F(x) = (1/n) Σ_i f_i(x), whatever the numbers of the f_i's examples.

    Nothing is copied; a call costs one call of every f_i, of which there is at least
    one, all of one shape, else it is a ValueError. ``num_examples`` is that of all f_i
    together. It is for the server, which asks for values, gradients and metrics alone:
    the objective of FedGiA, arXiv 2205.01438, equation (1), (1/m) Σ f_i with f_i the
    mean over a client's d_i examples.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._parts = tuple(objectives)
        if not self._parts:
            raise ValueError("objectives is empty; it must have at least one")
        shapes = {part.shape for part in self._parts}
        if len(shapes) > 1:
            listed = ", ".join(map(str, sorted(shapes)))
            raise ValueError(f"objectives have the shapes {listed}; they must have one")
        self.shape = self._parts[0].shape
        self.num_examples = sum(part.num_examples for part in self._parts)

    def value(self, x: Array) -> float:
        """Return F(x)."""
        return sum(part.value(x) for part in self._parts) / len(self._parts)

    def gradient(self, x: Array) -> Array:
        """Return ∇F(x), of the shape of x."""
        total = np.zeros(self.shape)
        for part in self._parts:
            total += part.gradient(x)
        total /= len(self._parts)
        return total

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


def common_batch(
    rng: np.random.Generator | None, num_examples: int, batch_size: int | None
) -> IntArray | None:
    """Draw the mini-batch that several points share; None stands for all examples."""
    if batch_size is None:
        return None
    if rng is None:
        raise ValueError("rng is None; batch_size needs a random generator")
    return draw_batch(rng, num_examples, batch_size)


def draw_batch(
    rng: np.random.Generator, num_examples: int, batch_size: int
) -> IntArray | None:
    """Draw a mini-batch without replacement; None stands for all examples."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be at least 1")
    if batch_size >= num_examples:
        return None
    return rng.choice(num_examples, size=batch_size, replace=False, shuffle=False)


def inverse_fraction(rows: IntArray | None, num_examples: int) -> float:
    """Return num_examples / len(rows), what makes a mini-batch's sum unbiased."""
    return 1.0 if rows is None else num_examples / len(rows)
