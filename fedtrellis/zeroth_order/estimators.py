"""The two estimators of a Riemannian gradient, and the gradient itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.manifolds import Manifold
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.zeroth_order.function_values import Evaluator, Values
from fedtrellis.zeroth_order.random_directions import (
    block_lengths,
    directions,
    weighted_sum,
)

__all__ = [
    "RETRACTIONS",
    "Estimate",
    "projection_estimate",
    "riemannian_gradient",
    "tangent_estimate",
]

RETRACTIONS = ("polar", "exponential")

# As many entries of points, or numbers that values are made of, are computed at once.
_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and what it was made of.

    Attributes
    ----------
    gradient : ndarray of float64, shape S
        G, (n/m) Σ_j scalars_j u_j for estimator (7) and (1/m) Σ_j scalars_j u_j for
        (6).
    scalars : ndarray of float64, shape (m,)
        The difference quotients s_j. That of a dropped sample is 0, and the others are
        m/(m − dropped) times what they were, so that the formulas for G hold.
    dropped : int
        Samples without a finite difference quotient.
    evaluations : int
        Function values asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Euclidean
    >>> from fedtrellis.zeroth_order import projection_estimate
    >>> estimate = projection_estimate(
    ...     lambda points: points.sum(axis=1), Euclidean((3,)), np.zeros(3),
    ...     np.random.default_rng(0), samples=5, smoothing=1e-3,
    ... )
    >>> estimate.gradient.shape, estimate.scalars.shape
    ((3,), (5,))
    >>> estimate.evaluations, estimate.dropped
    (6, 0)
    """

    gradient: FloatArray
    scalars: FloatArray
    dropped: int
    evaluations: int


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

    An :class:`~.function_values.Evaluator` is given the points in parts where they, or
    the numbers that they make it compute, are more than 32 MiB: then memory stays
    within a few blocks of 8 MiB (or of one point). Any other callable is given them
    whole.

    Parameters
    ----------
    values : callable
        F at x and at the m perturbed points; see :data:`~.function_values.Values`.
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

    Returns
    -------
    Estimate
        A sample without a finite value is dropped, counted, and no part of the mean.

    Raises
    ------
    FloatingPointError
        F(x) is not finite, or no sample has a finite value.
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
    point = _checked_point(manifold, x, samples, smoothing)

    def draw(generator: np.random.Generator, count: int) -> FloatArray:
        return directions(generator, count, point.shape)

    def perturbed(u: FloatArray) -> FloatArray:
        # P_M(x + μ u_j)
        return manifold.project(point + smoothing * u)

    # G^P has the factor n/m
    return _estimate(
        values, point, rng, samples, smoothing, draw, perturbed, point.size
    )


def tangent_estimate(
    values: Values,
    manifold: Manifold,
    x: ArrayLike,
    rng: np.random.Generator,
    *,
    samples: int,
    smoothing: float,
    retraction: str = "polar",
) -> Estimate:
    """Estimate the Riemannian gradient by tangent directions, estimator (6).

    Parameters, result and errors are those of :func:`projection_estimate`, but G has
    no factor n and :func:`~.random_directions.combine` does not rebuild it. In
    addition:

    Parameters
    ----------
    retraction : {"polar", "exponential"}
        Retr_x: P_M(x + v), which is the polar retraction where points have orthonormal
        columns, or the exponential map.

    Raises
    ------
    NotImplementedError
        The manifold has no closed form of its exponential map.

    Examples
    --------
    F(x) = aᵀx on the sphere. Its gradient at x is the part of a orthogonal to x:

    >>> import numpy as np
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.zeroth_order import tangent_estimate
    >>> a, x = np.array([3.0, 4.0]), np.array([1.0, 0.0])
    >>> estimate = tangent_estimate(
    ...     lambda points: points @ a, Sphere((2,)), x,
    ...     np.random.default_rng(0), samples=100_000, smoothing=1e-4,
    ... )
    >>> bool(np.abs(estimate.gradient - [0.0, 4.0]).max() < 0.05)
    True
    """
    point = _checked_point(manifold, x, samples, smoothing)
    if retraction not in RETRACTIONS:
        raise ValueError(
            f"retraction is {retraction!r}; allowed: {', '.join(RETRACTIONS)}"
        )
    retract = manifold.retract if retraction == "polar" else manifold.exponential

    def draw(generator: np.random.Generator, count: int) -> FloatArray:
        return manifold.random_tangent(point, generator, count)

    def perturbed(u: FloatArray) -> FloatArray:
        # Retr_x(μ u_j)
        return retract(point, smoothing * u)

    # G^R has the factor 1/m
    return _estimate(values, point, rng, samples, smoothing, draw, perturbed, 1)


def riemannian_gradient(
    manifold: Manifold, x: ArrayLike, gradient: ArrayLike
) -> FloatArray:
    """Return grad f(x), the Euclidean gradient's part in T_x M.

    Parameters
    ----------
    manifold : Manifold
    x : array_like, shape S
        A point of M, which is not checked.
    gradient : array_like, shape S
        ∇f(x).

    Returns
    -------
    ndarray of float64, shape S

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.zeroth_order import riemannian_gradient
    >>> riemannian_gradient(Sphere((2,)), [1.0, 0.0], [3.0, 4.0])
    array([0., 4.])
    """
    # grad f(x) = P_{T_x M}(∇f(x))
    return manifold.project_tangent(x, gradient)


def _checked_point(
    manifold: Manifold, x: ArrayLike, samples: int, smoothing: float
) -> FloatArray:
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1")
    if not (smoothing > 0.0 and isfinite(smoothing)):
        raise ValueError(f"smoothing is {smoothing}; it must be positive and finite")
    point = np.asarray(x, dtype=np.float64)
    manifold.check_shape(point.shape)
    return point


def _estimate(
    values: Values,
    x: FloatArray,
    rng: np.random.Generator,
    samples: int,
    smoothing: float,
    draw: Callable[[np.random.Generator, int], FloatArray],
    perturbed: Callable[[FloatArray], FloatArray],
    factor: int,
) -> Estimate:
    """Return G = (factor/m) Σ_j s_j u_j."""
    width, of_parts = x.size, None
    if isinstance(values, Evaluator) and samples * max(x.size, values.rows) > _AT_ONCE:
        width, of_parts = max(x.size, values.rows), values.parts
    lengths = block_lengths(samples, width)
    # All blocks at once may not fit: then they are drawn again when they are needed.
    replay = deepcopy(rng) if len(lengths) > 1 else None
    u = x

    def near(length: int) -> FloatArray:
        nonlocal u
        u = draw(rng, length)
        return perturbed(u)

    if of_parts is None:
        points = np.empty((samples + 1, *x.shape))
        points[0] = x
        start = 1
        for length in lengths:
            points[start : start + length] = near(length)
            start += length
        found = [_checked_values(values(points), samples)]
    else:
        parts = (np.concatenate((x[None], near(length))) for length in lengths)
        found = [
            _checked_values(part, length)
            for part, length in zip(of_parts(parts), lengths, strict=True)
        ]
    blocks: Iterable[FloatArray] = (u,)
    if replay is not None:
        blocks = (draw(replay, length) for length in lengths)

    evaluations = sum(at_x.size + at_points.size for at_x, at_points in found)
    at_x = np.concatenate([np.broadcast_to(a, b.shape) for a, b in found])
    at_points = np.concatenate([b for _, b in found])
    if not np.isfinite(at_x).all():
        bad = at_x[~np.isfinite(at_x)][0]
        raise FloatingPointError(
            f"the function's value is {bad} at the point whose gradient is estimated"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        # s_j = [F(y_j, ξ_j) − F(x, ξ_j)]/μ
        scalars = (at_points - at_x) / smoothing
    finite = np.isfinite(scalars)
    dropped = samples - int(np.count_nonzero(finite))
    if dropped == samples:
        raise FloatingPointError(
            f"none of the {samples} perturbed points has a finite function value; "
            f"smoothing is {smoothing}"
        )
    if dropped:
        # the mean over those that are left, written as one over all
        scalars = np.where(finite, scalars, 0.0) * (samples / (samples - dropped))
    gradient = (factor / samples) * weighted_sum(scalars, blocks)
    return Estimate(gradient, scalars, dropped, evaluations)


def _checked_values(result: ArrayLike, samples: int) -> tuple[FloatArray, FloatArray]:
    """Return F(x), of shape (1,) or (m,), and F at the perturbed points, (m,)."""
    numbers = np.asarray(result, dtype=np.float64)
    if numbers.shape == (samples + 1,):
        return numbers[:1], numbers[1:]
    if numbers.shape == (2, samples):
        return numbers[0], numbers[1]
    raise ValueError(
        f"the function values have shape {numbers.shape}; expected ({samples + 1},), "
        f"or (2, {samples}) for a ξ for each direction"
    )
