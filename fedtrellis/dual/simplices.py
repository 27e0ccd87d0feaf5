"""Concave quadratic programmes over a product of simplices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

IntArray = NDArray[np.int64]

# Pairwise steps first, to find about the right supports; then whole faces at once.
_SWEEPS = 4
_STEPS_A_SWEEP = 4
_MAX_FACES = 300
_MAX_RETRIES = 20
_RETRY_SWEEPS = 10


def maximise_over_simplices(
    G: FloatArray,
    b: FloatArray,
    theta: FloatArray,
    blocks: list[slice],
    tolerance: float = 1e-12,
) -> FloatArray:
    """Maximise bᵀθ − ½ θᵀGθ over a product of simplices, from a feasible θ.

    A few sweeps of pairwise coordinate ascent (in each simplex weight moves from the
    entry with the lowest partial derivative to the one with the highest, by an exact
    step), then an active-set method: to the maximum on the face of the simplices that
    θ lies in, or to that face's boundary on the way there; at a maximum of its face
    the entries with the largest derivatives come in. The objective never falls.

    G, of shape (n, n), is positive semi-definite, b and θ have shape (n,), and θ is
    changed in place; ``blocks`` are the simplices, together all of θ. ``tolerance`` is
    what a derivative may exceed those of its simplex's support by, relative to the
    largest |b|.
    """
    enough = tolerance * max(float(np.abs(b).max(initial=0.0)), 1e-300)
    _pairwise_sweeps(G, b, theta, blocks, enough, _SWEEPS)
    block_of = np.repeat(np.arange(len(blocks)), [k.stop - k.start for k in blocks])
    free = theta > 0.0
    retries = 0
    for _ in range(_MAX_FACES):
        target = _maximum_on_face(G, b, free, block_of)
        negative = free & (target < 0.0)
        step = 1.0
        if negative.any():
            ratios = theta[negative] / (theta[negative] - target[negative])
            step = float(ratios.min())
        moved = theta + step * (target - theta)
        if step < 1.0:
            stuck = negative & (moved <= 1e-15)
            moved[stuck] = 0.0
            free &= ~stuck
        moved = np.where(free, np.maximum(moved, 0.0), 0.0)
        for k in blocks:
            moved[k] /= moved[k].sum()
        if _objective(G, b, moved) < _objective(G, b, theta):
            # rounding, or points of the face that are affinely dependent, so that its
            # maximum is not where the KKT system says: pairwise steps go on from here
            gradient = b - G @ theta
            left = max(
                gradient[k].max() - gradient[k][theta[k] > 0.0].min() for k in blocks
            )
            if retries == _MAX_RETRIES or left <= enough:
                break
            retries += 1
            _pairwise_sweeps(G, b, theta, blocks, enough, _RETRY_SWEEPS)
            free = theta > 0.0
            continue
        theta[:] = moved
        if step < 1.0:
            continue
        gradient, before = b - G @ theta, free.copy()
        for k in blocks:
            # the entry that would raise the objective most, if any would
            level = float(gradient[k][free[k]].mean())
            outside = np.where(free[k], -np.inf, gradient[k])
            best = int(outside.argmax())
            free[k.start + best] |= bool(outside[best] > level + enough)
        if (free == before).all():
            break
    return theta


def _pairwise_sweeps(
    G: FloatArray,
    b: FloatArray,
    theta: FloatArray,
    blocks: list[slice],
    enough: float,
    sweeps: int,
) -> None:
    """Move weight within each simplex, a few times; ``theta`` changes in place."""
    gradient = b - G @ theta
    for block in [*blocks] * sweeps:
        for _ in range(_STEPS_A_SWEEP):
            g = gradient[block]
            up = block.start + int(g.argmax())
            down = block.start + int(np.where(theta[block] > 0.0, g, np.inf).argmin())
            difference = float(gradient[up] - gradient[down])
            if difference <= enough:
                break
            curvature = float(G[up, up] + G[down, down] - 2.0 * G[up, down])
            step = float(theta[down])
            if curvature > 0.0:
                step = min(step, difference / curvature)
            theta[up] += step
            theta[down] -= step
            gradient -= step * (G[:, up] - G[:, down])


def _maximum_on_face(
    G: FloatArray, b: FloatArray, free: NDArray[np.bool_], block_of: IntArray
) -> FloatArray:
    """Maximum over Σ θ = 1 in each block with the other entries 0: a KKT system."""
    index = np.flatnonzero(free)
    n, num_blocks = len(index), int(block_of[-1]) + 1
    KKT = np.zeros((n + num_blocks, n + num_blocks))
    face = G[np.ix_(index, index)]
    # points of a face may be affinely dependent: the least shift makes it definite
    KKT[:n, :n] = face + 1e-14 * max(np.trace(face) / n, 1e-300) * np.eye(n)
    KKT[np.arange(n), n + block_of[index]] = 1.0
    KKT[n + block_of[index], np.arange(n)] = 1.0
    right = np.concatenate([b[index], np.ones(num_blocks)])
    target = np.zeros(len(b))
    try:
        target[index] = np.linalg.solve(KKT, right)[:n]
    except np.linalg.LinAlgError:
        target[index] = np.linalg.lstsq(KKT, right, rcond=None)[0][:n]
    return target


def _objective(G: FloatArray, b: FloatArray, theta: FloatArray) -> float:
    return float(b @ theta - 0.5 * theta @ (G @ theta))
