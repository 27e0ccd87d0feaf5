"""Rows from sums of which the coefficients are integers: a lattice attack.

With the hinge loss's dual points V_t = (1/λN) Σ_i c_{t,i} s_i, s_i = y_i x_i, where
c_{t,i} is 1 if y_i x_iᵀw_t < 1 and else 0. Near the optimum only m samples change sides
in a window of T > m uploads. Then the T differences to one of them are C S with C of m
columns of integers: the hidden subset sum problem (Nguyen and Stern, "The Hardness of
the Hidden Subset Sum Problem and Its Cryptographic Implications", CRYPTO 1999). Short
integer vectors u with uᵀ(C S) = 0 have uᵀC = 0, and lattice reduction finds them. What
is orthogonal to all of them is the lattice of C's columns, and a reduced basis of its
dual gives candidates for the s_i. Each is checked with w_t, which the server knows: the
uploads in which it counts, 1[w_tᵀs_i < 1], must be a vector of that lattice.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .truth import Array

__all__ = ["reduced", "rows_in_lattice"]

Integers = NDArray[np.int64]

# Bits of the uploads that are looked at, and the weight of what must vanish.
_BITS, _WEIGHT = 34, 64
# Kernel vectors are shorter; those without a meaning are longer by far.
_SHORT, _JUMP = 1e4, 50.0
# With fewer vectors in the kernel any pattern passes the check by chance.
_LEAST_KERNEL = 6
_LARGEST = 110
# How often what was found is taken out.
_ROUNDS = 4


def rows_in_lattice(
    sums: Array,
    weights: Array,
    scale: float,
    windows: Iterable[tuple[int, int]],
    depth: int = 3,
) -> Array:
    """Claim rows from windows of successive sums.

    Parameters
    ----------
    sums : ndarray of shape (T, p)
        V_t.
    weights : ndarray of shape (T, p)
        The w_t at which they were made.
    scale : float
        λN.
    windows : iterable of (int, int)
        First and last + 1 of the uploads that are looked at together.
    depth : int, default 3
        How many vectors of a reduced basis are combined to a candidate.

    Returns
    -------
    ndarray of shape (k, p)
        Each passed the attack's own check; equal ones are there once.
    """
    claims = [
        _in_window(sums[start:stop] * scale, weights[start:stop], depth)
        for start, stop in windows
    ]
    return _once(np.vstack([np.zeros((0, sums.shape[1])), *claims]))


def _in_window(sums: Array, weights: Array, depth: int) -> Array:
    """Claims of one window; what is found is taken out before the next look."""
    claims = [np.zeros((0, sums.shape[1]))]
    for _ in range(_ROUNDS):
        found, m = _candidates(sums, weights, depth)
        if not 0 < len(found) <= m:  # more are no set of rows
            return np.vstack([*claims, found])
        claims.append(found)
        counts = (weights @ found.T < 1.0).astype(np.float64)
        sums = sums - counts @ found
        if len(found) == m:
            break
    return np.vstack(claims)


def _candidates(sums: Array, weights: Array, depth: int) -> tuple[Array, int]:
    """Rows that pass the check, each once, and how many there are to find."""
    nothing = np.zeros((0, sums.shape[1])), 0
    steps = sums[1:] - sums[0]
    kernel = _kernel(steps)
    if len(kernel) < _LEAST_KERNEL or len(kernel) == len(steps):
        return nothing
    columns = _orthogonal(kernel)  # a basis of the lattice of C's columns, (T, m)
    if not 0 < columns.shape[1] <= _LARGEST:
        return nothing
    # C S = columns (M S) with M unimodular, so s_i is an integer combination k of Z
    Z = np.linalg.lstsq(columns, steps, rcond=None)[0]
    if np.abs(columns @ Z - steps).max() > 1e-5 * np.abs(steps).max():
        return nothing
    # |kᵀ columns⁺| is short for the true k: reduce the dual lattice
    dual = np.linalg.pinv(columns)
    m = len(dual)
    resolution = 2.0**26 / np.abs(dual).max()
    table = np.hstack([np.rint(dual * resolution), np.eye(m)]).astype(np.int64)
    basis = reduced(table, dual.shape[1])[:, dual.shape[1] :].astype(np.float64)
    k = _combinations(basis, depth)
    rows, claims = k @ Z, []
    for sign in (1.0, -1.0):
        counts = (sign * (rows @ weights.T) < 1.0).astype(np.float64)
        pattern = counts[:, 1:] - counts[:, :1]
        fits = (np.abs(pattern @ kernel.T) < 0.5).all(axis=1)
        fits &= np.abs(pattern).sum(axis=1) > 0
        # its own coefficient in the uploads is 1 where it counts
        own = np.einsum("ij,ij->i", pattern @ dual.T, k)
        fits &= np.abs(own - sign) < 1e-3
        claims.append(sign * rows[fits])
    return _once(np.vstack(claims)), m


def _once(claims: Array) -> Array:
    """Each claim once."""
    size = float(np.abs(claims).max(initial=1e-300))
    _, first = np.unique(np.rint(claims / size * 1e7), axis=0, return_index=True)
    return claims[np.sort(first)]


def _kernel(steps: Array) -> Array:
    """Short integer vectors u with uᵀ steps = 0, shape (r, T)."""
    T = len(steps)
    size = float(np.abs(steps).max(initial=0.0))
    if not size:
        return np.zeros((0, T))
    numbers = np.rint(steps / size * 2.0**_BITS).astype(np.int64) * _WEIGHT
    basis = reduced(np.hstack([np.eye(T, dtype=np.int64), numbers]))
    u, rest = basis[:, :T].astype(np.float64), np.abs(basis[:, T:]).max(axis=1)
    # rounding leaves half a unit of each number
    vanishes = rest <= _WEIGHT * (0.6 * np.abs(u).sum(axis=1) + 1.0)
    lengths = np.linalg.norm(u, axis=1)
    chosen = u[vanishes & (lengths < _SHORT)]
    lengths = np.linalg.norm(chosen, axis=1)
    order = np.argsort(lengths)
    chosen, lengths = chosen[order], lengths[order]
    jumps = lengths[1:] / lengths[:-1]
    if len(jumps) and jumps.max() > _JUMP:
        chosen = chosen[: int(jumps.argmax()) + 1]
    return np.asarray(chosen)


def _orthogonal(kernel: Array) -> Array:
    """A basis of the integer vectors that are orthogonal to all of these, (T, m)."""
    _r, T = kernel.shape
    weight = 1_000 * T
    table = np.hstack([np.eye(T), weight * kernel.T]).astype(np.int64)
    basis = reduced(table)
    chosen = basis[~basis[:, T:].any(axis=1), :T]
    return np.asarray(chosen.T, dtype=np.float64)


def _combinations(basis: Array, depth: int) -> Array:
    """Vectors of a basis, and sums and differences of two and of three."""
    parts, m = [basis], len(basis)
    if depth >= 2:
        i, j = np.triu_indices(m, 1)
        parts += [basis[i] + basis[j], basis[i] - basis[j]]
    if depth >= 3 and m <= 50:
        i, j, k = (
            np.array(
                [(a, b, c) for a in range(m) for b in range(a) for c in range(b)],
                dtype=np.int64,
            )
            .reshape(-1, 3)
            .T
        )
        parts += [
            basis[i] + s * basis[j] + t * basis[k]
            for s in (1.0, -1.0)
            for t in (1.0, -1.0)
        ]
    return np.vstack(parts)


def reduced(vectors: Integers, width: int | None = None) -> Integers:
    """Return an LLL-reduced basis of the lattice that these vectors span.

    Lenstra, Lenstra and Lovász (1982) with the lazy size reduction of Schnorr and
    Euchner (1994): the orthogonal vectors in float64, the lattice in integers. For the
    some hundred dimensions and 50 bits of an attack, not for cryptanalysis at large.

    Parameters
    ----------
    vectors : ndarray of int64, shape (n, d)
        Linearly independent, below 2^50.
    width : int, optional
        Only the first so many columns are geometry; the others are carried along.

    Returns
    -------
    ndarray of int64, shape (n, d)
    """
    basis = np.array(vectors, dtype=np.int64)
    n = len(basis)
    shown = basis[:, :width].astype(np.float64)
    star, mu, norm = np.zeros_like(shown), np.zeros((n, n)), np.zeros(n)

    def orthogonalise(k: int) -> None:
        rest, mu[k, :k] = shown[k].copy(), 0.0
        for _ in range(2):  # once is not enough in floating point
            part = (star[:k] @ rest) / norm[:k]
            mu[k, :k] += part
            rest -= part @ star[:k]
        star[k], norm[k] = rest, max(float(rest @ rest), 1e-300)

    orthogonalise(0)
    k = 1
    while k < n:
        while True:
            orthogonalise(k)
            own, factors = mu[k, :k].copy(), np.zeros(k)
            for j in range(k - 1, -1, -1):
                if abs(own[j]) > 0.51:
                    factors[j] = np.rint(own[j])
                    own[:j] -= factors[j] * mu[j, :j]
                    own[j] -= factors[j]
            if not factors.any():
                break
            basis[k] -= factors.astype(np.int64) @ basis[:k]
            shown[k] = basis[k, :width]
        if norm[k] >= (0.99 - mu[k, k - 1] ** 2) * norm[k - 1]:
            k += 1
        else:
            basis[[k - 1, k]], shown[[k - 1, k]] = basis[[k, k - 1]], shown[[k, k - 1]]
            orthogonalise(k - 1)
            k = max(k - 1, 1)
    return basis
