"""How rows and columns are dealt to clients that hold some of both.

Every (row, column) entry goes to exactly one client: two that held one would count it
twice in every sum over clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError

from ..base import once
from ..linear import cut_at_random
from .samples import Indices, Samples, load_samples

if TYPE_CHECKING:
    from .task import HybridTask

FloatArray = NDArray[np.float64]


class Share(NamedTuple):
    """What one client holds: rows and columns, ascending, neither of them empty.

    Of these, by default, every entry; else those non-zero ones that ``entries`` names
    by their positions in the CSR matrix.
    """

    rows: Indices
    columns: Indices
    entries: Indices | None = None


class ClientData(NamedTuple):
    """The entries that one client holds.

    ``features``, of shape (n_k, p_k), are float64, an ndarray or a CSR array; an entry
    that another client holds is 0. ``feature_names`` are in the model's order,
    ``sample_ids`` the samples' rows in the data set. ``labels``, −1 and +1, and
    ``weights``, what each sample counts, have shape (n_k,), NaN where another client
    has it; None: this client has none.
    """

    features: Any
    feature_names: tuple[str, ...]
    sample_ids: tuple[str, ...]
    labels: FloatArray | None
    weights: FloatArray | None = None


# More tasks than one are alive in a process only in tests and sweeps.
_loaded = once(2)(load_samples)


@once(2)
def _as_csr(task: HybridTask) -> Any:
    """All entries, also those left out: shares name them by their positions here."""
    return scipy.sparse.csr_array(_loaded(task).features)


@once(2)
def held_of(task: HybridTask) -> tuple[Samples, list[Share]]:
    """Return all samples, and what each client holds; made once.

    Without those entries that are left out.
    """
    data = _loaded(task)
    shares = _dealt(task, data)
    if task.least_entries:
        features, shares = without_rare_entries(
            data.features, shares, data.num_train, task.least_entries, _as_csr(task)
        )
        data = data._replace(features=features)
    for client, share in enumerate(shares):
        if not (share.rows < data.num_train).any() or not len(share.columns):
            why = f"leaves client {client} of {task.num_clients} without training data"
            raise task.refused("partition", why)
    return data, shares


@once(16_384)
def client_data(task: HybridTask, client: int, test: bool) -> ClientData:
    """Return a client's training or test data, made once per process."""
    data, shares = held_of(task)
    share = shares[client]
    rows = share.rows[(share.rows >= data.num_train) == test]
    if share.entries is None:
        features = data.features[rows][:, share.columns]
    else:
        features = selected_entries(_as_csr(task), rows, share.columns, share.entries)

    found = ClientData(
        features,
        tuple(data.names[column] for column in share.columns),
        tuple(str(row) for row in data.rows[rows]),
        data.labels[rows],
        None if data.weights is None else data.weights[rows],
    )
    for array in found:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return found


def _dealt(task: HybridTask, data: Samples) -> list[Share]:
    samples, groups = group_counts(task)
    columns = len(data.names)
    counts = ("sample", samples, data.num_train), ("feature", groups, columns)
    for what, wanted, there in counts:
        if wanted > there:
            who = f"{task.num_clients} clients are too many for task {task.name!r}"
            why = f"they form {wanted} {what} groups, and it has {there} {what}s"
            raise SettingsError(f"{who}: {why}")
    train, test = np.split(data.labels, [data.num_train])
    parts = [
        sample_groups(
            labels,
            samples,
            generator(task.seed, f"hybrid {kind} samples"),
            task.samples,
        )
        for kind, labels in (("training", train), ("test", test))
    ]
    rows = [
        np.concatenate([a, data.num_train + b]) for a, b in zip(*parts, strict=True)
    ]
    if task.partition == "entries":
        rng = generator(task.seed, "hybrid entries")
        return deal_entries(_as_csr(task), rows, groups, rng)
    if data.side and groups == 4:
        blocks = quadrants(data.side, columns)
    else:
        blocks = np.array_split(np.arange(columns), groups)
    # client s·Q + q for sample group s, feature group q and Q of the latter
    return [Share(part, block) for part in rows for block in blocks]


def group_counts(task: HybridTask) -> tuple[int, int]:
    """Return how many sample groups and feature groups the clients form.

    Their product is the number of clients. A setting of 0 follows from the other. Where
    both are 0, the feature groups are the largest divisor of the number of clients
    whose square is not above it: 4 × 4 for 16 clients, 5 × 2 for 10, 7 × 1 for 7.
    """
    clients, partition = task.num_clients, task.partition
    samples = task.sample_groups or int(partition == "vertical")
    features = task.feature_groups or int(partition == "horizontal")
    alone = {"horizontal": ("feature", features), "vertical": ("sample", samples)}
    kind, groups = alone.get(partition, ("", 1))
    if groups != 1:
        why = f"does not suit {task.name}.partition = {partition!r}; allowed: 0, 1"
        raise task.refused(f"{kind}_groups", why)
    if not samples and not features:
        root = math.isqrt(clients)
        features = next(q for q in range(root, 0, -1) if clients % q == 0)
    samples = samples or clients // features
    features = features or clients // samples
    if samples * features != clients:
        given = f"{task.name}.sample-groups = {task.sample_groups} and "
        given += f"{task.name}.feature-groups = {task.feature_groups}"
        why = "their product must be that number, and 0 is chosen from it"
        raise SettingsError(f"{given} do not suit {clients} clients: {why}")
    return samples, features


def sample_groups(
    labels: FloatArray, groups: int, rng: np.random.Generator, how: str = "iid"
) -> list[Indices]:
    """Deal rows as ``samples`` of a hybrid task says; each group's are ascending."""
    order = rng.permutation(len(labels))
    if how == "labels":
        order = order[np.argsort(labels[order], kind="stable")]
    if how == "uneven":
        parts = cut_at_random(order, groups, rng)
    else:
        parts = np.array_split(order, groups)
    return [np.sort(part) for part in parts]


def quadrants(side: int, count: int) -> list[Indices]:
    """Return the columns of the four quadrants of square images, row by row.

    Columns beyond the pixels, such as a bias, go with the last one, as the paper has it
    for MNIST.
    """
    pixels = np.arange(side * side).reshape(side, side)
    half = side // 2
    halves = (slice(None, half), slice(half, None))
    groups = [np.sort(pixels[i, j].ravel()) for i in halves for j in halves]
    groups[-1] = np.concatenate([groups[-1], np.arange(side * side, count)])
    return groups


def deal_entries(
    matrix: Any, rows: Sequence[Indices], groups: int, rng: np.random.Generator
) -> list[Share]:
    """Deal the non-zero entries of every row to the clients of its sample group.

    Each gets 1/Q of a row's, drawn at random, or one more; all Q of them hold the
    sample, also where it has too few entries for all. A client's columns are those it
    has an entry of, so that the clients' columns overlap, or none where there were not
    enough. ``rows`` are the sample groups, ``groups`` is Q; client s·Q + q as above.
    So HyFDCA's authors deal News20 and Covtype, arXiv 2210.08106, section 7.2.
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
    bounds = np.searchsorted(client[sequence], np.arange(1, len(rows) * groups))
    return [
        Share(rows[number // groups], np.unique(matrix.indices[own]), own)
        for number, own in enumerate(np.split(sequence, bounds))
    ]


def selected_entries(
    matrix: Any, rows: Indices, columns: Indices, entries: Indices
) -> Any:
    """Return some entries of a CSR matrix, as one of some of its rows and columns."""
    held = np.zeros(matrix.nnz)
    held[entries] = matrix.data[entries]
    parts = held, matrix.indices, matrix.indptr
    part = scipy.sparse.csr_array(parts, shape=matrix.shape)[rows][:, columns]
    part.eliminate_zeros()
    return part


def without_rare_entries(
    features: Any, shares: Sequence[Share], num_train: int, least: int, matrix: Any
) -> tuple[Any, list[Share]]:
    """Leave out what too few training samples of a client have at a feature.

    Where fewer than ``least`` of them have an entry that is not 0, these become 0; a
    client that is dealt single entries does not hold a column any more of which it has
    none left. ``matrix`` has the features as CSR, training samples first. Returns the
    features, and the shares, whose positions stay those of its entries.
    """
    entries = np.arange(matrix.nnz)
    places = scipy.sparse.csr_array(
        (entries, matrix.indices, matrix.indptr), shape=matrix.shape
    )
    owner = np.zeros(matrix.nnz, dtype=np.intp)
    for client, share in enumerate(shares):
        own = share.entries
        if own is None:
            own = places[share.rows][:, share.columns].data
        owner[own] = client
    # a client's column by one number
    column = owner * matrix.shape[1] + matrix.indices
    counted = (matrix.data != 0.0) & (entries < matrix.indptr[num_train])
    gone = counted & (
        np.bincount(column[counted], minlength=len(shares) * matrix.shape[1])[column]
        < least
    )
    if not gone.any():
        return features, [*shares]
    kept = []
    for share in shares:
        if share.entries is not None:
            left = share.entries[~gone[share.entries]]
            share = Share(share.rows, np.unique(matrix.indices[left]), left)
        kept.append(share)
    parts = np.where(gone, 0.0, matrix.data), matrix.indices, matrix.indptr
    rest = scipy.sparse.csr_array(parts, shape=matrix.shape, copy=True)
    if isinstance(features, np.ndarray):
        return rest.toarray(), kept
    rest.eliminate_zeros()
    return rest, kept
