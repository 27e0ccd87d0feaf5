"""What each client of a hybrid task holds, by the task's settings."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError

from ..base import data_path
from .partition import (
    Share,
    column_groups,
    deal_blocks,
    deal_entries,
    group_counts,
    quadrants,
    sample_groups,
    selected_entries,
    without_rare_entries,
)
from .partition_file import read_partition_file
from .samples import Samples, load_samples

if TYPE_CHECKING:
    from .task import HybridTask

__all__ = ["ClientData", "client_data", "samples_of", "shares_of"]

FloatArray = NDArray[np.float64]


class ClientData(NamedTuple):
    """The entries that one client holds.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (n_k, p_k)
        float64; an entry of these samples and features that another client holds is 0.
    feature_names : tuple of str
        Of the p_k features, in the model's order.
    sample_ids : tuple of str
        Of the n_k samples: the numbers of their rows in the data set.
    labels : ndarray of shape (n_k,) or None
        −1 and +1, NaN for a sample whose label another client has; None: this client
        has no labels.
    weights : ndarray of shape (n_k,) or None
        What each sample counts, NaN as for labels.
    """

    features: Any
    feature_names: tuple[str, ...]
    sample_ids: tuple[str, ...]
    labels: FloatArray | None
    weights: FloatArray | None = None


# More tasks than one are alive in a process only in tests and sweeps.
@lru_cache(maxsize=2)
def samples_of(task: HybridTask) -> Samples:
    """Return all samples without those entries that are left out; made once."""
    return _kept(task)[0]


@lru_cache(maxsize=2)
def _loaded(task: HybridTask) -> Samples:
    return load_samples(task)


@lru_cache(maxsize=2)
def _kept(task: HybridTask) -> tuple[Samples, list[Share]]:
    """All samples and who holds what of them, without rare entries."""
    data = _loaded(task)
    shares = _from_file(task, data) if task.partition == "file" else _dealt(task, data)
    if not task.least_entries:
        return data, shares
    features, kept = without_rare_entries(
        data.features, shares, data.num_train, task.least_entries, _as_csr(task)
    )
    return data._replace(features=features), kept


@lru_cache(maxsize=2)
def shares_of(task: HybridTask) -> list[tuple[Share, NDArray[np.bool_]]]:
    """Return what each client holds, and of which samples it has the label."""
    data, shares = _kept(task)
    seen = np.zeros(len(data.labels), dtype=np.bool_)
    result = []
    for client, share in enumerate(shares):
        if not (share.rows < data.num_train).any() or not len(share.columns):
            raise SettingsError(
                f"{task.name}.partition = {task.partition!r} leaves client {client} of "
                f"{task.num_clients} without training data"
            )
        labelled = np.ones(len(share.rows), dtype=np.bool_)
        if task.labels_on == "first":
            labelled = ~seen[share.rows]
            seen[share.rows] = True
        result.append((share, labelled))
    return result


def _dealt(task: HybridTask, data: Samples) -> list[Share]:
    samples, groups = _groups(task)
    columns, tests = len(data.names), len(data.labels) - data.num_train
    for what, wanted, there in (
        ("sample", samples, data.num_train),
        ("feature", groups, columns),
    ):
        if wanted > there:
            raise SettingsError(
                f"{task.num_clients} clients are too many for task {task.name!r}: they "
                f"form {wanted} {what} groups, and it has {there} {what}s"
            )
    train = sample_groups(
        data.num_train, samples, generator(task.seed, "hybrid training samples")
    )
    test = sample_groups(tests, samples, generator(task.seed, "hybrid test samples"))
    rows = [
        np.concatenate([own, data.num_train + others])
        for own, others in zip(train, test, strict=True)
    ]
    if task.partition == "entries":
        rng = generator(task.seed, "hybrid entries")
        return deal_entries(_as_csr(task), rows, groups, rng)
    if data.side and groups == 4:
        return deal_blocks(rows, quadrants(data.side, columns))
    return deal_blocks(rows, column_groups(columns, groups))


def _from_file(task: HybridTask, data: Samples) -> list[Share]:
    for key, groups in (
        ("sample-groups", task.sample_groups),
        ("feature-groups", task.feature_groups),
    ):
        if groups:
            raise SettingsError(
                f"{task.name}.{key} = {groups} does not suit {task.name}.partition = "
                "'file'; allowed: 0"
            )
    key = f"{task.name}.partition-file"
    if not task.partition_file:
        raise FileNotFoundError(f"{key} is empty; it must name the partition's file")
    path = data_path(key, task.partition_file)
    shares = read_partition_file(path, task.num_clients, data.num_rows, data.names)
    # from rows of the data set to samples; a limit has left some out
    position = np.full(data.num_rows, -1, dtype=np.intp)
    position[data.rows] = np.arange(len(data.rows))
    moved = [np.sort(position[share.rows]) for share in shares]
    return [
        share._replace(rows=rows[rows >= 0])
        for share, rows in zip(shares, moved, strict=True)
    ]


@lru_cache(maxsize=2)
def _as_csr(task: HybridTask) -> Any:
    """All entries, also those left out: shares name them by their positions here."""
    features = _loaded(task).features
    return scipy.sparse.csr_array(features)


@lru_cache(maxsize=16_384)
def client_data(task: HybridTask, client: int, test: bool) -> ClientData:
    """Return a client's training or test data, made once per process."""
    data = samples_of(task)
    share, labelled = shares_of(task)[client]
    own = (share.rows >= data.num_train) == test
    rows = share.rows[own]
    if share.entries is None:
        features = data.features[rows][:, share.columns]
        if isinstance(features, np.ndarray):
            features.setflags(write=False)
    else:
        features = selected_entries(_as_csr(task), rows, share.columns, share.entries)
    labels = np.where(labelled[own], data.labels[rows], np.nan)
    labels.setflags(write=False)
    weights = None
    if data.weights is not None and labelled.any():
        weights = np.where(labelled[own], data.weights[rows], np.nan)
        weights.setflags(write=False)
    return ClientData(
        features,
        tuple(data.names[column] for column in share.columns),
        tuple(str(row) for row in data.rows[rows]),
        # whether it has any does not depend on which samples are asked for
        labels if labelled.any() else None,
        weights,
    )


def _groups(task: HybridTask) -> tuple[int, int]:
    """Return the numbers of sample groups and of feature groups."""
    samples, features = task.sample_groups, task.feature_groups
    if task.partition == "horizontal":
        features = features or 1
    elif task.partition == "vertical":
        samples = samples or 1
    for name, groups, fixed in (
        ("feature", features, "horizontal"),
        ("sample", samples, "vertical"),
    ):
        if task.partition == fixed and groups != 1:
            raise SettingsError(
                f"{task.name}.{name}-groups = {groups} does not suit "
                f"{task.name}.partition = {fixed!r}; allowed: 0, 1"
            )
    samples, features = group_counts(
        task.num_clients, samples, features, task.name
    ).tolist()
    return samples, features
