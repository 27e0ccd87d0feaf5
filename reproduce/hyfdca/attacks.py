"""Attacks on what a server of HyFDCA sees, as functions of plain numbers.

A server sees vectors: sums V_t = (1/λN) Σ_i a_{t,i} x_i over all clients, or a single
client's v_k where nothing hides it, and the weights w_t that it sent. It looks for rows
x_i, or for the part of one at some client's features. Nothing here knows a strategy or
a client.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

__all__ = ["found_in", "rows_by_independence", "rows_in_differences"]

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


# ------------------------------------------------------------------- few uploads

# A combination that fits by chance is expected less often than this.
_CHANCE = 1e-3
# What a row adds to an upload is more than this share of the upload.
_LEAST = 1e-9
# Rows that are looked for at a time.
_ROWS = 32
# Sorted keys this many places apart are compared.
_NEIGHBOURS = 3


def rows_in_differences(
    uploads: Array, rows: Array, up_to: int = 4, noise: float = 1e-10
) -> NDArray[np.int64]:
    """Look for rows, at any sign and scale, among combinations of uploads.

    With the hinge loss's dual point for a proposal, two successive sums differ by the
    rows of the samples that changed sides, and often by one row.

    A combination Σ_j s_j V_j with s_j = ±1 is c·x if and only if what is left of it
    without its part along x vanishes. For up to four uploads that is a meeting in the
    middle: of all sums and differences of two uploads, without their parts along x,
    two are equal or opposite.

    Parameters
    ----------
    uploads : ndarray of shape (T, q)
        What travelled at q features, in any order.
    rows : ndarray of shape (n, q)
        The truth, at the same features. Rows with less than two non-zero entries are
        not looked for.
    up_to : int
        How many uploads a combination has at most, 1 to 4. It has fewer where so many
        of them would fit by chance: with few features.
    noise : float
        How far an upload's numbers are off at most, in units of its largest.

    Returns
    -------
    ndarray of int64
        The rows found, ascending.
    """
    uploads = np.unique(uploads, axis=0)
    scale = float(np.abs(uploads).max(initial=0.0))
    if not scale:
        return np.zeros(0, dtype=np.int64)
    uploads = uploads / scale
    support = int((np.abs(uploads).max(axis=0) > noise).sum())
    some = np.flatnonzero(np.count_nonzero(rows, axis=1) >= 2)
    while up_to > 1 and _by_chance(len(uploads), up_to, noise, support):
        up_to -= 1
    elements, sizes = _elements(uploads, 1 if up_to <= 2 else 2, noise)
    units = directions(rows[some])
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((uploads.shape[1], 2)) / np.sqrt(uploads.shape[1])
    hashed = elements @ keys
    found: list[int] = []
    for start in range(0, len(units), _ROWS):
        piece = slice(start, start + _ROWS)
        for i, x, along in zip(
            some[piece], units[piece], units[piece] @ elements.T, strict=True
        ):
            if _is_there(x, along, elements, sizes, hashed, keys, up_to, noise):
                found.append(int(i))
    return np.array(found, dtype=np.int64)


def _by_chance(count: int, up_to: int, noise: float, support: int) -> bool:
    combinations = (2.0 * count) ** up_to
    # one dimension of the support is the row's own
    return combinations * noise ** max(support - 1, 0) > _CHANCE


def _elements(uploads: Array, size: int, noise: float) -> tuple[Array, Array]:
    """All combinations of up to ``size`` uploads, up to sign, and of how many."""
    parts, sizes = [uploads], [np.ones(len(uploads))]
    if size == 2:
        first, second = np.triu_indices(len(uploads), 1)
        parts += [uploads[first] - uploads[second], uploads[first] + uploads[second]]
        sizes += [np.full(len(first), 2.0)] * 2
    every, counts = np.vstack(parts), np.concatenate(sizes)
    some = np.abs(every).max(axis=1) > noise
    return every[some], counts[some]


def _is_there(
    x: Array,
    along: Array,
    elements: Array,
    sizes: Array,
    hashed: Array,
    keys: Array,
    up_to: int,
    noise: float,
) -> bool:
    """Whether one or two of the elements make a multiple of x, of length 1."""
    # the keys of what is left of each element without its part along x
    left = hashed - along[:, None] * (x @ keys)
    close = 4.0 * noise * np.sqrt(len(x))
    alone = np.flatnonzero((np.abs(left) <= close).all(axis=1) & (sizes <= up_to))
    if _confirmed(x, elements[alone], along[alone], noise):
        return True
    if up_to == 1:
        return False
    order = np.argsort(np.abs(left[:, 0]), kind="stable")
    first = np.abs(left[order, 0])
    for apart in range(1, _NEIGHBOURS + 1):
        at = np.flatnonzero(first[apart:] - first[:-apart] <= close)
        i, j = order[at], order[at + apart]
        sign = np.where(left[i, 0] * left[j, 0] > 0.0, -1.0, 1.0)
        fits = np.abs(left[i, 1] + sign * left[j, 1]) <= close
        fits &= sizes[i] + sizes[j] <= up_to
        i, j, sign = i[fits], j[fits], sign[fits]
        both = elements[i] + sign[:, None] * elements[j]
        if _confirmed(x, both, along[i] + sign * along[j], noise):
            return True
    return False


def _confirmed(x: Array, vectors: Array, along: Array, noise: float) -> bool:
    """Whether one of the vectors is its part along x, and that is no rounding."""
    if not len(vectors):
        return False
    rest = np.abs(vectors - along[:, None] * x).max(axis=1)
    size = np.maximum(_LEAST, 1e3 * noise)
    return bool(((rest <= 4.0 * noise) & (np.abs(along) > size)).any())


# ------------------------------------------------------------------ many uploads

# Uploads whose mean length is a unit.
_AROUND = 21


def rows_by_independence(steps: Array, noise: float = 1e-8) -> Array:
    """Claim the mixing directions of FastICA (Hyvärinen 1999), all at once.

    Where V_t − w_t is a sum of m rows with independent coefficients that are not
    Gaussian, independent component analysis finds the rows from very many t.

    Parameters
    ----------
    steps : ndarray of shape (T, p)
        V_t − w_t of successive uploads. They shrink as a run ends, so each is taken in
        units of the lengths around it.
    noise : float
        Singular values below this share of the largest are rounding.

    Returns
    -------
    ndarray of shape (m, p)
        m the rank.
    """
    from sklearn.decomposition import FastICA

    T = len(steps)
    lengths = np.log(np.maximum(np.linalg.norm(steps, axis=1), 1e-300))
    window = np.ones(min(_AROUND, T))
    around = np.convolve(lengths, window, "same")
    around /= np.convolve(np.ones(T), window, "same")
    scaled = steps / np.exp(around)[:, None]
    left, values, right = np.linalg.svd(scaled, full_matrices=False)
    m = int((values > noise * values[0]).sum())
    white = left[:, :m] * np.sqrt(T)
    with warnings.catch_warnings():  # not every window has what it looks for
        warnings.simplefilter("ignore")
        ica = FastICA(whiten=False, max_iter=300, tol=1e-9, random_state=0).fit(white)
    return np.asarray(ica.components_ @ (values[:m, None] * right[:m]))
