"""Riemannian gradients estimated from function values alone.

M is a manifold of arrays of n = p·r entries, P_M the projection onto it, F(x, ξ) a
function of which only values can be asked for, ξ what is random in it (a mini-batch).
The estimator is (7) of "Zeroth-order projection-based Riemannian federated learning",
arXiv 2507.22855:

    G^P(x) = (n/m) Σ_j [F(P_M(x + μ u_j), ξ_j) − F(x, ξ_j)]/μ · u_j    u_j on the sphere

It tends to the Riemannian gradient in the mean as μ → 0. It lies off T_x M, and is
known to whoever has the m scalars and the generator's seed: :func:`combine`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite, nan, prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms.packing import PooledSigns, signed
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Objective
from fedtrellis.objectives.base import PointForms
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout

__all__ = [
    "Estimate",
    "Values",
    "combine",
    "directions",
    "evaluator",
    "projection_estimate",
]


# Directions are drawn and used in blocks of at most this many entries (8 MiB).
_BLOCK_ENTRIES = 2**20
# Directions whose pairs a curvature is measured along, at most.
_MEASURED = 20


def directions(
    rng: np.random.Generator, count: int, shape: tuple[int, ...]
) -> FloatArray:
    r"""Draw directions, uniform on the unit sphere of the arrays of shape S.

    A float64 array of shape (count, \*S). Several calls that follow one another on a
    generator draw the same numbers as one for all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.zeroth_order import directions
    >>> u = directions(np.random.default_rng(0), 5, (3, 2))
    >>> u.shape
    (5, 3, 2)
    >>> np.linalg.norm(u.reshape(5, -1), axis=1).round(12)
    array([1., 1., 1., 1., 1.])
    """
    # u = w/‖w‖ with w standard normal
    w = rng.standard_normal((count, prod(shape)))
    w /= np.sqrt(np.einsum("ij,ij->i", w, w))[:, None]
    return w.reshape(count, *shape)


def combine(
    scalars: ArrayLike, rng: np.random.Generator, shape: tuple[int, ...]
) -> FloatArray:
    """Rebuild G^P, float64 of shape S, from its scalars and their generator.

    ``scalars``, (m,), are those of an :class:`Estimate` by :func:`projection_estimate`,
    and the generator is in the state in which the estimate was given its own. The
    result is the estimate's ``gradient``: computed alike, so equal to rounding.
    ValueError if the scalars are not a vector, none, or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.zeroth_order import combine, directions
    >>> [u] = directions(np.random.default_rng(7), 1, (3,))
    >>> gradient = combine([2.0], np.random.default_rng(7), (3,))
    >>> bool(np.allclose(gradient, 3 * 2.0 * u))
    True
    """
    s = np.asarray(scalars, dtype=np.float64)
    if s.ndim != 1 or not s.size or not np.isfinite(s).all():
        raise ValueError(
            f"scalars must be a vector of finite numbers, at least one; got {s.dtype} "
            f"of shape {s.shape} with {np.count_nonzero(~np.isfinite(s))} not finite"
        )
    blocks = (directions(rng, n, shape) for n in block_lengths(len(s), prod(shape)))
    # G^P = (n/m) Σ_j s_j u_j
    return (prod(shape) / len(s)) * weighted_sum(s, blocks)


def block_lengths(count: int, size: int) -> list[int]:
    """Return how many directions, of ``size`` entries each, go into each block."""
    length = max(1, _BLOCK_ENTRIES // size)
    return [min(length, count - start) for start in range(0, count, length)]


def weighted_sum(scalars: FloatArray, blocks: Iterable[FloatArray]) -> FloatArray:
    """Return Σ_j s_j u_j, the u_j given in blocks."""
    start, total = 0, np.zeros(())
    for u in blocks:
        weights = scalars[start : start + len(u)]
        part = (weights @ u.reshape(len(u), -1)).reshape(u.shape[1:])
        total = total + part
        start += len(u)
    return total


#: Function values at x and the perturbed points y_1, …, y_m, which come stacked in this
#: order, shape (m + 1, *S). The result is of shape (m + 1,) where all have one ξ in
#: common; or of shape (2, m), the values F(x, ξ_j) above the values F(y_j, ξ_j).
Values = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Function values, for all points in one call or for one part after the other.

    It is one of :data:`Values`, made by :func:`evaluator`. An objective may have as
    many numbers for each point as ``rows``, the examples that a value is made of.
    """

    of_points: Callable[[FloatArray, np.random.Generator | None], FloatArray]
    rng: np.random.Generator | None
    rows: int
    shared: bool

    def __call__(self, points: FloatArray) -> FloatArray:
        """The values at x and the points after it, with new mini-batches."""
        return self.of_points(points, self.rng)

    def repeated(self) -> Values:
        """The same, with the mini-batch of the first call in all, if they share one."""
        rng = self.rng
        if rng is None or not self.shared:
            return self
        state = rng.bit_generator.state

        def again(points: FloatArray) -> FloatArray:
            rng.bit_generator.state = state
            return self.of_points(points, rng)

        return again


def evaluator(
    objective: Any,
    layout: Layout,
    *,
    batch_size: int = 0,
    rng: np.random.Generator | None = None,
    shared: bool = True,
) -> Evaluator:
    r"""Return the function values of an objective in the form the estimators need.

    Parameters
    ----------
    objective : object
        With ``values(points, rng, batch_size=...)``, see
        :meth:`fedtrellis.objectives.Objective.values`; or only with ``value(x)``,
        which is called once for each point and knows the full data only.
    layout : Layout
        Of the model. For one of several arrays the points are flat vectors, and the
        objective is given the list of the layers: each (k, \*layer shape) in
        ``values`` and of the layer's shape in ``value``.
    batch_size : int
        Examples in a mini-batch, the ξ; 0: all, and no ξ.
    rng : numpy.random.Generator, optional
        Draws the mini-batches; needed with them.
    shared : bool
        Whether one ξ, drawn in each call, serves x and all perturbed points: m + 1
        function values in one call of ``objective.values``. False draws a ξ_j for each
        direction, as the paper writes it: 2m values, in m calls of two points each,
        which cannot be put together, so it costs far more than twice the time. Without
        mini-batches it makes no difference.

    Raises
    ------
    ValueError
        A ``batch_size`` below 0, without ``rng``, or above 0 for an objective that only
        has ``value``.

    Examples
    --------
    An objective that has ``value(x)`` alone is asked point by point:

    >>> import numpy as np
    >>> from fedtrellis.wire.arrays import Layout
    >>> from fedtrellis.zeroth_order import evaluator
    >>> from types import SimpleNamespace
    >>> square = SimpleNamespace(value=lambda x: float(x @ x))
    >>> evaluator(square, Layout(((2,),)))(np.array([[0.0, 0.0], [1.0, 2.0]]))
    array([0., 5.])
    """
    if batch_size < 0:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 0")
    only_value = not hasattr(objective, "values") or (
        # what is inherited from Objective is a loop over value(), for one array only
        getattr(type(objective), "values", None) is Objective.values
    )
    if only_value and batch_size:
        raise ValueError(
            f"batch_size is {batch_size}, but {type(objective).__name__} only has "
            "value(x), on all its data; it needs values(points, rng, batch_size=...), "
            "or batch_size = 0"
        )
    if batch_size and rng is None:
        raise ValueError(f"batch_size is {batch_size}; it needs a random generator")

    # differences of values need the digits of float64, whatever the model is of
    layout, forms = Layout(layout.shapes), PointForms(layout.shapes)

    def together(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        if only_value:
            found = [objective.value(layout.objective_point(x)) for x in points]
        else:
            layers = forms.split(points.reshape(len(points), -1))
            # one array, or the list of layers
            stacked = layers if len(layers) > 1 else layers[0]
            if batch_size:
                found = objective.values(stacked, rng, batch_size=batch_size)
            else:
                found = objective.values(stacked)
        return np.asarray(found, dtype=np.float64)

    def pairs(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        x = points[0]
        # F(x, ξ_j) and F(y_j, ξ_j)
        columns = [together(np.stack((x, y)), rng) for y in points[1:]]
        return np.stack(columns, axis=1)

    if batch_size:
        return Evaluator(together if shared else pairs, rng, batch_size, shared)
    rows = 0 if only_value else int(getattr(objective, "num_examples", 0))
    return Evaluator(together, None, rows, True)


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and what it was made of.

    Attributes
    ----------
    gradient : ndarray of float64, shape S
        G, (n/m) Σ_j scalars_j u_j.
    scalars : ndarray of float64, shape (m,)
        The difference quotients s_j. That of a dropped sample is 0, and the others are
        m/(m − dropped) times what they were, so that the formulas for G hold.
    dropped : int
        Samples without a finite difference quotient.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.zeroth_order import Estimate
    >>> Estimate(np.zeros(3), np.zeros(5), dropped=0).dropped
    0
    """

    gradient: FloatArray
    scalars: FloatArray
    dropped: int


def projection_estimate(
    values: Values,
    manifold: Manifold,
    x: ArrayLike,
    rng: np.random.Generator,
    *,
    samples: int,
    smoothing: float,
) -> Estimate:
    """Estimate the Riemannian gradient by projected random directions, estimator (7).

    The points are given in parts, x before each, so that they and the numbers that
    they make it compute stay within a few blocks of 8 MiB (or of one point).

    Parameters
    ----------
    values : callable
        F at x and at perturbed points; see :data:`Values`.
    manifold : Manifold
        M.
    x : array_like, shape S
        A point of M, which is not checked.
    rng : numpy.random.Generator
        Draws the directions; not the generator of the mini-batches.
    samples : int
        m, at least 1.
    smoothing : float
        μ > 0. Rounding puts errors of about ε|F|/μ into the difference quotients, ε
        being the precision in which F is computed: 1e-16, but 1e-7 for a module in
        float32, which needs a μ far above 1e-4 or a module in float64.

    Raises
    ------
    FloatingPointError
        F(x) is not finite, or no sample has a finite value: one without is dropped,
        counted, and no part of the mean.
    ValueError
        A parameter is not allowed, x is not a finite point of the manifold's shape, or
        ``values`` returned another shape.

    Examples
    --------
    F(x) = aᵀx on the sphere. Its gradient at x is the part of a orthogonal to x; the
    estimate lies off the tangent space:

    >>> import numpy as np
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.zeroth_order import projection_estimate
    >>> a, x = np.array([3.0, 4.0]), np.array([1.0, 0.0])
    >>> estimate = projection_estimate(
    ...     lambda points: points @ a, Sphere((2,)), x,
    ...     np.random.default_rng(0), samples=100_000, smoothing=1e-4,
    ... )
    >>> bool(np.abs(estimate.gradient - [0.0, 4.0]).max() < 0.05)
    True
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1")
    if not (smoothing > 0.0 and isfinite(smoothing)):
        raise ValueError(f"smoothing is {smoothing}; it must be positive and finite")
    point = np.asarray(x, dtype=np.float64)
    manifold.check_shape(point.shape)
    ask, width = values, point.size
    if isinstance(values, Evaluator):
        ask, width = values.repeated(), max(width, values.rows)
    lengths = block_lengths(samples, width)
    # a copy takes as long as a small function's values
    again = deepcopy(rng) if len(lengths) > 1 else rng
    quotients = []
    for length in lengths:
        u = directions(rng, length, point.shape)
        # P_M(x + μ u_j)
        points = np.concatenate((point[None], manifold.project(point + smoothing * u)))
        numbers = np.asarray(ask(points), dtype=np.float64)
        if numbers.shape not in ((length + 1,), (2, length)):
            raise ValueError(
                f"the function values have shape {numbers.shape}; expected "
                f"({length + 1},), or (2, {length}) for a ξ for each direction"
            )
        # F(x, ξ), one or one for each direction, and F at the perturbed points
        at_x, at_points = np.split(numbers, [1])
        if not np.isfinite(at_x).all():
            bad = at_x[~np.isfinite(at_x)][0]
            where = "at the point whose gradient is estimated"
            raise FloatingPointError(f"the function's value is {bad} {where}")
        with np.errstate(over="ignore", invalid="ignore"):
            # s_j = [F(y_j, ξ_j) − F(x, ξ_j)]/μ
            s = (at_points - at_x) / smoothing
        quotients.append(s.reshape(-1))
    scalars = np.concatenate(quotients)
    finite = np.isfinite(scalars)
    dropped = samples - int(np.count_nonzero(finite))
    if dropped == samples:
        raise FloatingPointError(
            f"none of the {samples} perturbed points has a finite function value; "
            f"smoothing is {smoothing}"
        )
    # the mean over those that are left, written as one over all
    scalars = np.where(finite, scalars, 0.0) * (samples / (samples - dropped))
    # all blocks at once may not fit: then they are drawn again
    redrawn = (directions(again, length, point.shape) for length in lengths)
    total = weighted_sum(scalars, [u] if len(lengths) == 1 else redrawn)
    # G^P = (n/m) Σ_j s_j u_j
    gradient = (point.size / samples) * total
    return Estimate(gradient, scalars, dropped)


def step_curvature(
    client: Any,
    x: FloatArray,
    layout: Layout,
    config: Mapping[str, Any],
    project: Callable[[FloatArray], FloatArray] = np.asarray,
) -> float:
    """Return r, so that 1/r is a size of a client's steps along m = ``samples``.

    A step −(γ/m) U Uᵀ∇F, where U's m columns are directions u_j of length √n, lowers F
    to second order while γ < 2m/λ, with λ the largest eigenvalue of M = Uᵀ∇²F U, by
    size. r = λ/m at x, with M from F's values on one mini-batch::

        M_jk ≈ [F(x + h(u_j + u_k)) − F(x + h u_j) − F(x + h u_k) + F(x)] / h²

    All points are projected. m is at most 20 here, and less where directions are long,
    which makes r larger rather than smaller. It takes (m + 1)(m + 2)/2 values, and says
    nothing of points far from x. ``config`` has ``samples``, ``batch-size``, ``seed``.
    """
    rng = generator(config["seed"], "curvature", client.client_id)
    size = config["batch-size"]
    values = evaluator(client.objective, layout, batch_size=size, rng=rng.spawn(1)[0])
    x = project(x.astype(np.float64))
    m = max(1, min(config["samples"], _MEASURED, _BLOCK_ENTRIES // x.size))
    # differences of second order lose half of the digits, of what computes F
    eps = float(np.finfo(layout.point_dtype).eps)
    h = max(eps, getattr(client.objective, "eps", 0.0)) ** 0.25
    h *= max(1.0, float(np.linalg.norm(x)))
    # from x itself, u_0 = 0
    steps = np.concatenate([np.zeros((1, *x.shape)), directions(rng, m, x.shape)])
    pairs, ask, found = np.triu_indices(m + 1), values.repeated(), []
    ends = np.cumsum(block_lengths(len(pairs[0]), x.size))[:-1]
    for j, k in zip(*(np.split(part, ends) for part in pairs), strict=True):
        found.append(ask(project(x + h * (steps[j] + steps[k]))))
    F = np.zeros((m + 1, m + 1))
    F[pairs] = np.concatenate(found)
    F += np.triu(F, 1).T
    M = (F[1:, 1:] - F[1:, :1] - F[:1, 1:] + F[0, 0]) * (x.size / h**2)
    known = np.isfinite(M).all()
    return float(np.abs(np.linalg.eigvalsh(M)).max()) / m if known else nan


#: The property by which a client announces the model that its objective begins at.
START = "start"


def pool_choice(
    seed: int, client: str, server_round: int, count: int, pool: int
) -> NDArray[np.int64]:
    """Draw which directions of a pool a client takes, with replacement: (count,)."""
    rng = generator(seed, "choice of the pool", client, server_round)
    return rng.integers(pool, size=count)


def from_pool(start: FloatArray, weights: FloatArray, seed: int) -> FloatArray:
    """Return x_0 + Σ_j a_j u_j in x_0's dtype, the same bits on every machine.

    ``weights`` is a, of shape (K,); what is 0 costs nothing.
    """
    point = np.array(start, order="C")
    used = np.flatnonzero(weights)
    drawn = PooledSigns(seed, used.tolist(), point.size)
    for weight in weights[used].tolist():
        signed(drawn.draw(), weight, point)
    return point


def mark_of(arrays: Sequence[NDArray[Any]]) -> str:
    """Return a digest of a model's numbers, the same whatever they are held in."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()[:32]
