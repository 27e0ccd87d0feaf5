"""Which rows an attack's claims are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "directions", "found_in"]

Array = NDArray[np.float64]

# Claims are compared in pieces, so that no table of all pairs is made.
_PIECE = 2048


def directions(vectors: Array) -> Array:
    """Vectors of shape (m, q) at length 1; those that vanish stay 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0.0, lengths, 1.0)


def found_in(claims: Array, rows: Array, tolerance: float = 1e-6) -> NDArray[np.int64]:
    """Return the indices of the rows that a claim is, at any sign and scale.

    Parameters
    ----------
    claims : ndarray of shape (m, q)
    rows : ndarray of shape (n, q)
        The truth. A row with less than two non-zero entries is not looked for: any
        vector with one non-zero entry would be it.
    tolerance : float
        A claim c is row x if |cos(c, x)| > 1 − tolerance.

    Returns
    -------
    ndarray of int64
        Ascending. Of equal rows all are found.
    """
    some = np.flatnonzero(np.count_nonzero(rows, axis=1) >= 2)
    units, hit = directions(rows[some]), np.zeros(len(some), dtype=bool)
    for start in range(0, len(claims), _PIECE):
        cosines = np.abs(directions(claims[start : start + _PIECE]) @ units.T)
        hit |= (cosines > 1.0 - tolerance).any(axis=0)
    return some[hit].astype(np.int64)
