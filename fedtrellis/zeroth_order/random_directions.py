"""Random directions on the sphere, and what scalars along them add up to."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.wire.arrays import FloatArray

__all__ = ["block_lengths", "combine", "directions", "weighted_sum"]

# Directions are drawn and used in blocks of at most this many entries (8 MiB).
_BLOCK_ENTRIES = 2**20


def directions(
    rng: np.random.Generator, count: int, shape: tuple[int, ...]
) -> FloatArray:
    r"""Draw directions, uniform on the unit sphere of the arrays of a shape.

    Several calls that follow one another on a generator draw the same numbers as one
    for all of them.

    Parameters
    ----------
    rng : numpy.random.Generator
    count : int
    shape : tuple of int
        S.

    Returns
    -------
    ndarray of float64, shape (count, \*S)

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
    """Rebuild G^P from its scalars and the generator of its directions.

    Parameters
    ----------
    scalars : array_like of shape (m,)
        Of an :class:`~.estimators.Estimate` by
        :func:`~.estimators.projection_estimate`.
    rng : numpy.random.Generator
        In the state in which the estimate was given its own.
    shape : tuple of int
        S.

    Returns
    -------
    ndarray of float64, shape S
        The estimate's ``gradient``: computed alike, so equal to rounding.

    Raises
    ------
    ValueError
        The scalars are not a vector, none, or not finite.

    Examples
    --------
    Whoever has the scalars and the seed has the gradient:

    >>> import numpy as np
    >>> from fedtrellis.manifolds import Euclidean
    >>> from fedtrellis.zeroth_order import combine, projection_estimate
    >>> estimate = projection_estimate(
    ...     lambda points: points.sum(axis=1), Euclidean((3,)), np.zeros(3),
    ...     np.random.default_rng(7), samples=5, smoothing=1e-3,
    ... )
    >>> rebuilt = combine(estimate.scalars, np.random.default_rng(7), (3,))
    >>> bool(np.allclose(rebuilt, estimate.gradient))
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
    start, total = 0, None
    for u in blocks:
        weights = scalars[start : start + len(u)]
        part = (weights @ u.reshape(len(u), -1)).reshape(u.shape[1:])
        total = part if total is None else total + part
        start += len(u)
    assert total is not None
    return total
