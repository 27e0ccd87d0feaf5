"""A file of the user's in any of the formats, whose labels nobody has listed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator

from ..base import data_path
from .csv_file import read_csv
from .libsvm import read_libsvm_table
from .node_file import file_stamp
from .npz_file import read_npz
from .settings import Schema
from .table import fault

__all__ = ["AnyFile", "DealtRows", "dealt_rows", "is_dense", "read_any_file"]

_DENSE = {".csv": read_csv, ".csv.gz": read_csv, ".npz": read_npz}
# How many labels a message counts to before it asks whether they are numbers.
_MOST_LABELS = 1000


class AnyFile(NamedTuple):
    """What a file holds; arrays are read-only.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
        float64; CSR from LIBSVM's format.
    targets : ndarray of shape (d,)
        Numbers, or classes counted from 0 in the order of ``labels``.
    names : tuple of str
        Of the columns; ``feature-1`` and so on where the format has none.
    labels : tuple of str or float
        The classes, ascending: numbers where all of them are; none of a regression.
    weights : ndarray of shape (d,) or None
        What each row counts.
    """

    features: Any
    targets: NDArray[np.float64]
    names: tuple[str, ...]
    labels: tuple[str | float, ...]
    weights: NDArray[np.float64] | None = None


def is_dense(path: str) -> bool:
    """Whether a file's name says that its format is dense."""
    return path.lower().endswith(tuple(_DENSE))


def read_any_file(
    key: str,
    path: str,
    target: Literal["class", "number"],
    label_column: str,
    weight_column: str = "",
) -> AnyFile:
    """Read a file, once per process while it stays as it is.

    Parameters
    ----------
    key : str
        The setting that names it, for messages.
    path : str
        ``.csv`` and ``.csv.gz``: a first line of column names; ``.npz``: arrays
        ``features``, ``labels`` and maybe ``names``; of any other name LIBSVM's text,
        raw or packed.
    target : {"class", "number"}
        What the labels are.
    label_column : str
        That of the label in a csv file.
    weight_column : str
        And that of the rows' weights; empty: there is none.

    Raises
    ------
    FileNotFoundError, DataFileError
        There is none, or it holds something else; names file, row and column.
    """
    found = data_path(key, path)
    return _read(found, file_stamp(found), target, label_column, weight_column)


@lru_cache(maxsize=2)
def _read(
    path: Path,
    stamp: tuple[int, ...],
    target: Literal["class", "number"],
    label_column: str,
    weight_column: str = "",
) -> AnyFile:
    name = path.name.lower()
    read = next((r for end, r in _DENSE.items() if name.endswith(end)), None)
    schema = Schema(
        0, target=target, label_column=label_column, weight_column=weight_column
    )
    table = (read or read_libsvm_table)(path, schema)
    assert table.targets is not None
    width = table.features.shape[1]
    names = table.names or tuple(f"feature-{j}" for j in range(1, width + 1))
    targets, labels = table.targets, table.labels
    if target == "class":
        if len(labels) > _MOST_LABELS:
            fault(path, f"{len(labels)} different labels; are they numbers to learn?")
        # they are numbered as they came; now the smallest is 0
        order = sorted(
            range(len(labels)), key=lambda i: (_is_text(labels[i]), labels[i])
        )
        place = np.argsort(order).astype(np.float64)
        targets, labels = (
            place[targets.astype(np.intp)],
            tuple(labels[i] for i in order),
        )
        targets.setflags(write=False)
    return AnyFile(table.features, targets, names, labels, table.weights)


def _is_text(label: str | float) -> bool:
    """Whether a label is no number."""
    return isinstance(label, str)


class DealtRows(NamedTuple):
    """Client i holds the rows ``starts[i]:starts[i + 1]``; arrays are read-only."""

    features: Any
    targets: NDArray[np.float64]
    starts: NDArray[np.intp]

    def share(self, client: int) -> tuple[Any, NDArray[np.float64]]:
        """Return a client's rows."""
        own = slice(self.starts[client], self.starts[client + 1])
        return self.features[own], self.targets[own]


# More tasks than one are alive in a process only in tests and sweeps.
@lru_cache(maxsize=2)
def _dealt(
    path: Path, stamp: tuple[int, ...], label_column: str, seed: int, clients: int
) -> DealtRows:
    data = _read(path, stamp, "number", label_column)
    order = generator(seed, "partition").permutation(len(data.targets))
    sizes = [len(part) for part in np.array_split(order, clients)]
    features, targets = data.features[order], data.targets[order]
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.intp)
    for array in (features, targets, starts):
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return DealtRows(features, targets, starts)


def dealt_rows(
    key: str, path: str, label_column: str, seed: int, clients: int
) -> DealtRows:
    """Return a regression's file, its rows shuffled and dealt evenly.

    Raises
    ------
    FileNotFoundError, DataFileError
        As of :func:`read_any_file`.
    """
    found = data_path(key, path)
    return _dealt(found, file_stamp(found), label_column, seed, clients)
