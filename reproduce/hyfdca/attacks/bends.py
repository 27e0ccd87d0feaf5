"""Rows from sums at chosen weights: where a gradient jumps, and where a sum bends.

Two more attacks of a server that chooses w, beside :mod:`.thresholds`. With the hinge
loss Σ l_i is piecewise linear: p + 1 values of it close together give its gradient, two
gradients differ by the rows of the samples between. With the smoothed hinge loss the
sum V of settled clients is piecewise linear, and its second difference along a straight
line is the row of the sample that enters or leaves the parabola there.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from .thresholds import Isolated, Query
from .truth import Array

__all__ = ["rows_at_bends", "rows_at_jumps"]

_MOST = 40


def rows_at_jumps(
    found: Isolated, p: int, samples: int, norm: float, seed: int = 0
) -> Query:
    """Claim the differences of gradients of Σ l along half circles.

    Parameters
    ----------
    found, p, samples, norm, seed
        As for :func:`.rows_at_thresholds`.

    Yields
    ------
    (ndarray of shape (p,), bool)
        The next w; is sent Σ l_i at it, an array of shape (1,).
    """
    rng = np.random.default_rng(seed)
    tiny = 1e-6 * norm / samples
    while True:
        d, e = np.linalg.qr(rng.standard_normal((p, 2)))[0].T
        before = None
        for angle in np.arange(0.0, np.pi, 0.5 * np.pi / samples):
            w = norm * (1.0 - 1e-5) * (np.cos(angle) * d + np.sin(angle) * e)
            values = []
            for shift in np.vstack([np.zeros(p), tiny * np.eye(p)]):
                (value,) = yield w + shift, False
                found.asked += 1
                values.append(float(value))
            gradient = (np.array(values[1:]) - values[0]) / tiny
            if before is not None and np.abs(gradient - before).max() > 1e-4:
                found.claim(gradient - before)
            before = gradient


def rows_at_bends(
    found: Isolated,
    p: int,
    samples: int,
    norm: float,
    noise: float = 1e-9,
    seed: int = 0,
) -> Query:
    """Claim second differences of V along straight lines.

    Parameters
    ----------
    found, p, samples, norm, noise, seed
        As for :func:`.rows_at_thresholds`.

    Yields
    ------
    (ndarray of shape (p,), bool)
        See :data:`.Query`.
    """
    rng = np.random.default_rng(seed)
    while True:
        d, e = np.linalg.qr(rng.standard_normal((p, 2)))[0].T
        yield from _line(found, norm * d, 0.3 * norm * e, samples, noise)


def _line(found: Isolated, d: Array, e: Array, samples: int, noise: float) -> Query:
    """Along t·d + e."""
    # two kinks a sample, from −0.95 to 0.95
    t, step = -0.95, 0.5 / samples
    V: list[Array] = []
    while t < 0.95:
        while len(V) < 3:
            settled = yield from _settled(found, (t + len(V) * step) * d + e, noise)
            V.append(settled)
        bend = V[0] - 2.0 * V[1] + V[2]
        size = float(np.abs(V[2] - V[0]).max())
        if float(np.abs(bend).max()) > max(1e-4 * size, 30.0 * noise):
            found.claim(bend)
            t, V, step = t + 2.0 * step, V[2:], 0.7 * step
        else:
            t, V, step = t + 2.0 * step, V[2:], 1.3 * step


def _settled(found: Isolated, w: Array, noise: float) -> Generator[Any, Array, Array]:
    V = yield w, True
    found.asked += 1
    for _ in range(_MOST):
        new = yield w, True
        found.asked += 1
        moved = float(np.abs(new - V).max())
        V = new
        if moved <= noise:
            break
    return V
