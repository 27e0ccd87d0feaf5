"""Samples of the hybrid tasks, from the rows of a data set: labels, split, scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.extras import need
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError

from ..base import derived_seed
from ..data.scaling import with_constant
from ..data.settings import FILE
from .partition import Indices
from .rows import DATASETS, load_rows

if TYPE_CHECKING:
    from .task import HybridTask

__all__ = ["Samples", "load_samples", "min_max_scaled", "signs"]

FloatArray = NDArray[np.float64]

# Two classes: there is no other way to tell one from the rest.
_TWO_CLASSES = ("breast-cancer", "a9a")


class Samples(NamedTuple):
    """All samples, the training samples first.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
    labels : ndarray of shape (d,)
    num_train : int
        How many of them are training samples.
    rows : ndarray of int of shape (d,)
        Their rows in the data set.
    names : tuple of str
    side, num_rows : int
        Of the data set: see ``Rows.side``, and how many rows it has.
    weights : ndarray of shape (d,) or None
        What each sample counts in training.
    """

    features: Any
    labels: FloatArray
    num_train: int
    rows: Indices
    names: tuple[str, ...]
    side: int
    num_rows: int
    weights: FloatArray | None = None


def _split(task: HybridTask, labels: FloatArray, test: int) -> tuple[Indices, Indices]:
    """Return the training and the test rows, ascending."""
    everything = np.arange(len(labels))
    train, rest = everything[: len(labels) - test], everything[len(labels) - test :]
    if task.test_fraction == 0.0:
        rest = rest[:0]
    elif not test:
        need("sklearn", f"{task.name}.test-fraction", "sklearn")
        # half a second that nodes with other data need not spend
        from sklearn.model_selection import train_test_split

        try:
            train, rest = train_test_split(
                everything,
                test_size=task.test_fraction,
                stratify=labels if task.target == "class" else None,
                random_state=derived_seed(task.seed, "hybrid split"),
            )
        except ValueError as error:
            counts = " and ".join(map(str, np.unique(labels, return_counts=True)[1]))
            kind = "classes" if task.every_class else "labels -1 and +1"
            raise SettingsError(
                f"{task.name}.test-fraction = {task.test_fraction:g} does not suit "
                f"{counts} samples of the {kind}: training and test data "
                "need some of each"
            ) from error
    if 0 < task.train_limit < len(train):
        drawn = generator(task.seed, "hybrid limit").permutation(len(train))
        train = train[drawn[: task.train_limit]]
    return np.sort(train), np.sort(rest)


def _scaled(task: HybridTask, features: Any, train: Indices) -> Any:
    """Scale columns, as the data set asks for, add the bias, and scale rows."""
    if task.dataset in ("breast-cancer", "diabetes"):
        part = features[train]
        deviations = part.std(axis=0)
        deviations[deviations == 0.0] = 1.0
        features = (features - part.mean(axis=0)) / deviations
    elif task.dataset == "covtype":
        features = min_max_scaled(features, train)
    if task.bias > 0.0:
        features = with_constant(features, task.bias)
    if task.row_scaling == "unit":
        need("sklearn", f"{task.name}.row-scaling = 'unit'", "sklearn")
        from sklearn.preprocessing import normalize

        features = normalize(features)
    return features


def load_samples(task: HybridTask) -> Samples:
    """Load, label, split and scale the samples of a task, by its settings.

    Raises
    ------
    SettingsError, FileNotFoundError
        A setting or a file that will not do, in one line.
    """
    columns = task.nodes.label_column, task.nodes.weight_column
    path_key = f"{task.name}.path"
    table = load_rows(task.dataset, task.path, path_key, task.target, *columns)
    key = f"{task.name}.positive-class"
    if task.target == "number":
        labels = table.classes
    elif task.every_class:
        # numbers of the classes, in ascending order
        labels = np.unique(table.classes, return_inverse=True)[1].astype(np.float64)
    else:
        labels = signs(task.dataset, table.classes, task.positive_class, key)
    train, test = _split(task, labels, table.test)
    rows = np.concatenate([train, test])
    features = table.features[rows]
    features = _scaled(task, features, np.arange(len(train)))
    if not isinstance(features, np.ndarray):
        features = scipy.sparse.csr_array(features)
        features.sort_indices()
    names = (*table.names, "bias") if task.bias > 0.0 else table.names
    return Samples(
        features,
        labels[rows],
        len(train),
        rows,
        names,
        table.side,
        len(labels),
        None if table.weights is None else table.weights[rows],
    )


def signs(dataset: str, classes: FloatArray, positive: int, key: str) -> FloatArray:
    """Turn classes into labels +1 and −1.

    Parameters
    ----------
    dataset : str
        Whose rule, in :data:`DATASETS`, is used where ``positive`` is −1.
    classes : ndarray of shape (d,)
    positive : int
        Otherwise the class that becomes +1, against all others.
    key : str
        The setting that holds it, for messages.

    Returns
    -------
    ndarray of shape (d,)
        float64.

    Raises
    ------
    SettingsError
        There is no such class, or the rule leaves all rows with one label.
    """
    present = np.unique(classes)
    if dataset == FILE and positive == -1 and len(present) > 2:
        raise SettingsError(
            f"{key} = -1: the file has {len(present)} labels and no rule; allowed: "
            + ", ".join(f"{label:g}" for label in present[:10])
        )
    if positive == -1:
        chosen = _rule(dataset, classes, present)
    elif dataset in _TWO_CLASSES:
        raise SettingsError(
            f"{key} = {positive}: {dataset!r} has two classes; allowed: -1"
        )
    elif positive not in present:
        listed = ", ".join(f"{label:g}" for label in present)
        raise SettingsError(
            f"{key} = {positive} is no class of {dataset!r}; allowed: -1, {listed}"
        )
    else:
        chosen = classes == positive
    if chosen.all() or not chosen.any():
        raise SettingsError(
            f"all rows of {dataset!r} have one label by the rule {DATASETS[dataset]!r}"
        )
    return np.where(chosen, 1.0, -1.0)


def _rule(dataset: str, classes: FloatArray, present: FloatArray) -> NDArray[np.bool_]:
    if dataset in ("digits", "mnist"):
        return np.asarray(classes >= 5.0)
    if dataset == "covtype":
        return np.asarray(classes == 2.0)
    # two classes, or News20's twenty
    return np.asarray(classes >= present[len(present) // 2])


def min_max_scaled(features: Any, rows: NDArray[np.intp]) -> Any:
    """Scale the features of a CSR matrix to [0, 1], as measured on some rows.

    Constant features become 0.
    """
    part = features[rows]
    low = np.asarray(part.min(axis=0).toarray(), dtype=np.float64).ravel()
    high = np.asarray(part.max(axis=0).toarray(), dtype=np.float64).ravel()
    span = np.where(high > low, high - low, 1.0)
    moved = np.flatnonzero(low)
    if len(moved):
        # The few features whose least is not 0 are moved first, which is exact for
        # whole numbers; all of their entries have to be there for that.
        count = features.shape[0]
        columns = np.tile(moved.astype(np.int32), count)
        starts = np.arange(0, len(columns) + 1, len(moved), dtype=np.int32)
        shift = (np.tile(low[moved], count), columns, starts)
        features = features - scipy.sparse.csr_array(shift, shape=features.shape)
    else:
        features = features.copy()
    features.data /= span[features.indices]
    features.eliminate_zeros()
    return features
