"""How rows and columns are dealt to clients that hold some of both.

Every (row, column) entry goes to exactly one client: two that held one would count it
twice in every sum over clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError

__all__ = [
    "Indices",
    "Share",
    "column_groups",
    "deal_blocks",
    "deal_entries",
    "group_counts",
    "quadrants",
    "sample_groups",
    "selected_entries",
    "without_rare_entries",
]

Indices = NDArray[np.intp]


class Share(NamedTuple):
    """What one client holds.

    Attributes
    ----------
    rows, columns : ndarray of int
        Ascending, neither of them empty.
    entries : ndarray of int or None
        None: every entry of these rows and columns. Else the positions, in the CSR
        matrix, of the non-zero entries that the client holds of them.
    """

    rows: Indices
    columns: Indices
    entries: Indices | None = None


def group_counts(clients: int, samples: int, features: int, name: str) -> Indices:
    """Return how many sample groups and feature groups the clients form.

    Parameters
    ----------
    clients : int
        Their product.
    samples, features : int
        The settings; 0 for one that follows from the other. Where both are 0, the
        feature groups are the largest divisor of ``clients`` whose square is not above
        it: 4 × 4 for 16 clients, 5 × 2 for 10. A prime number of clients has one
        feature group: they are split by samples only.
    name : str
        The task, for messages.

    Returns
    -------
    ndarray of int of shape (2,)

    Raises
    ------
    SettingsError
        The clients cannot form such groups.
    """
    if not samples and not features:
        root = math.isqrt(clients)
        features = next(q for q in range(root, 0, -1) if clients % q == 0)
    if not samples and clients % features == 0:
        samples = clients // features
    if not features and clients % samples == 0:
        features = clients // samples
    if samples * features != clients:
        raise SettingsError(
            f"{name}.sample-groups = {samples} and {name}.feature-groups = {features} "
            f"do not suit {clients} clients: their product must be the number of "
            "clients, 0 is chosen from it"
        )
    return np.array([samples, features])


def sample_groups(count: int, groups: int, rng: np.random.Generator) -> list[Indices]:
    """Deal rows evenly and at random; each group's are ascending."""
    return [np.sort(part) for part in np.array_split(rng.permutation(count), groups)]


def column_groups(count: int, groups: int) -> list[Indices]:
    """Cut columns into consecutive groups of even size."""
    return np.array_split(np.arange(count), groups)


def quadrants(side: int, count: int) -> list[Indices]:
    """Return the columns of the four quadrants of square images.

    Upper left, upper right, lower left and lower right; columns beyond the pixels, such
    as a bias, go with the last one, as the paper has it for MNIST.
    """
    pixels = np.arange(side * side).reshape(side, side)
    half = side // 2
    halves = (slice(None, half), slice(half, None))
    groups = [np.sort(pixels[i, j].ravel()) for i in halves for j in halves]
    groups[-1] = np.concatenate([groups[-1], np.arange(side * side, count)])
    return groups


def deal_blocks(rows: Sequence[Indices], columns: Sequence[Indices]) -> list[Share]:
    """Give every pair of a sample group s and a feature group q to a client.

    Client s·Q + q, for Q feature groups.
    """
    return [Share(part, block) for part in rows for block in columns]


def deal_entries(
    matrix: Any, rows: Sequence[Indices], groups: int, rng: np.random.Generator
) -> list[Share]:
    """Deal the non-zero entries of every row to the clients of its sample group.

    Each gets 1/Q of a row's, drawn at random, or one more; all Q of them hold the
    sample, also where it has too few entries for all. A client's columns are those it
    has an entry of, so that the clients' columns overlap.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array of shape (d, p)
    rows : sequence of ndarray of int
        The sample groups.
    groups : int
        Q.
    rng : numpy.random.Generator

    Returns
    -------
    list of Share
        Of client s·Q + q; without columns where there were not enough entries.

    Notes
    -----
    How HyFDCA's authors deal News20 and Covtype, arXiv 2210.08106, section 7.2.
    """
    lengths = np.diff(matrix.indptr)
    owner = np.repeat(np.arange(matrix.shape[0]), lengths)
    # In a random order within each row, dealt in turn from a random client on.
    order = np.lexsort((rng.random(matrix.nnz), owner))
    turn = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)
    first = rng.integers(0, groups, matrix.shape[0])
    dealt = np.empty(matrix.nnz, dtype=np.intp)
    dealt[order] = (turn + np.repeat(first, lengths)) % groups
    group = np.empty(matrix.shape[0], dtype=np.intp)
    for number, part in enumerate(rows):
        group[part] = number
    client = group[owner] * groups + dealt
    # Stable: a client's entries stay in the order of the matrix.
    sequence = np.argsort(client, kind="stable")
    bounds = np.searchsorted(client[sequence], np.arange(len(rows) * groups + 1))
    shares = []
    for number in range(len(rows) * groups):
        entries = sequence[bounds[number] : bounds[number + 1]]
        columns = np.unique(matrix.indices[entries]).astype(np.intp)
        shares.append(Share(rows[number // groups], columns, entries))
    return shares


def selected_entries(
    matrix: Any, rows: Indices, columns: Indices, entries: Indices
) -> Any:
    """Return some entries of a CSR matrix as a CSR matrix of their own.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array of shape (d, p)
    rows, columns : ndarray of int
        Ascending; those of the result.
    entries : ndarray of int
        Positions in ``matrix.data``; those outside the rows are left out, all must be
        in the columns.
    """
    owners = np.searchsorted(matrix.indptr, entries, side="right") - 1
    inside = np.isin(owners, rows)
    entries, owners = entries[inside], owners[inside]
    where = (
        np.searchsorted(rows, owners),
        np.searchsorted(columns, matrix.indices[entries]),
    )
    shape = (len(rows), len(columns))
    coordinates = scipy.sparse.coo_array((matrix.data[entries], where), shape=shape)
    return scipy.sparse.csr_array(coordinates)


def without_rare_entries(
    features: Any, shares: Sequence[Share], num_train: int, least: int, matrix: Any
) -> tuple[Any, list[Share]]:
    """Leave out what too few training samples of a client have at a feature.

    Parameters
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
        The training samples first.
    shares : sequence of Share
    num_train : int
    least : int
        How many of a client's training samples must have an entry that is not 0 at a
        feature; where fewer have, these are left out.
    matrix : scipy.sparse.csr_array of shape (d, p)
        The features, to whose entries the shares' positions belong.

    Returns
    -------
    (ndarray or scipy.sparse.csr_array, list of Share)
        The features without these entries, and the shares. A client that is dealt
        single entries does not hold a column any more of which it has none left.
    """
    gone = np.zeros(matrix.nnz, dtype=np.bool_)
    kept = []
    for share in shares:
        positions = _positions(matrix, share, num_train)
        positions = positions[matrix.data[positions] != 0.0]
        columns = matrix.indices[positions]
        counts = np.bincount(columns, minlength=matrix.shape[1])
        rare = positions[counts[columns] < least]
        gone[rare] = True
        if share.entries is not None and len(rare):
            entries = share.entries[~gone[share.entries]]
            held = np.unique(matrix.indices[entries]).astype(np.intp)
            share = share._replace(columns=held, entries=entries)
        kept.append(share)
    if not gone.any():
        return features, kept
    if isinstance(features, np.ndarray):
        features = features.copy()
        rows = np.searchsorted(matrix.indptr, np.flatnonzero(gone), side="right") - 1
        features[rows, matrix.indices[gone]] = 0.0
        return features, kept
    data = np.where(gone, 0.0, matrix.data)
    features = scipy.sparse.csr_array(
        (data, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape
    )
    features.eliminate_zeros()
    return features, kept


def _positions(matrix: Any, share: Share, num_train: int) -> Indices:
    """Where a client's training entries stand in a CSR matrix."""
    if share.entries is not None:
        # entries of a row stand together, and training rows come first
        end = int(matrix.indptr[num_train])
        return share.entries[share.entries < end]
    rows = share.rows[share.rows < num_train]
    starts, lengths = matrix.indptr[rows], np.diff(matrix.indptr)[rows]
    ends = np.cumsum(lengths)
    positions = np.arange(ends[-1] if len(ends) else 0, dtype=np.intp)
    positions += np.repeat(starts - (ends - lengths), lengths)
    held = np.zeros(matrix.shape[1], dtype=np.bool_)
    held[share.columns] = True
    found: Indices = positions[held[matrix.indices[positions]]]
    return found
