"""Samples of the hybrid tasks: rows of a data set, labelled, split and scaled.

Digits, breast cancer and diabetes come with scikit-learn; MNIST, Covtype, a9a and
News20 are the user's files. News20 and a9a are sparse, and four of five entries of
MNIST and Covtype are 0, so these four stay CSR.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, need
from fedtrellis.tables import Preparation, moments

from ..base import data_path, derived_seed
from ..data.datasets import load_images
from ..data.readers import read_csv, read_libsvm
from ..data.table import FILE, Schema, Table

if TYPE_CHECKING:
    from .task import HybridTask

FloatArray = NDArray[np.float64]
Indices = NDArray[np.intp]

#: Data sets by name, with the rule by which their classes become +1 and −1.
DATASETS = {
    "digits": "5 and above against 0 to 4",
    "breast-cancer": "benign against malignant",
    "mnist": "5 and above against 0 to 4",
    "covtype": "class 2 against the rest",
    "a9a": "the larger label against the smaller",
    "news20": "the upper half of the classes, in ascending order, against the lower",
    FILE: "the larger of two labels, or the second in the alphabet, against the other",
}

#: Data sets whose labels are numbers, with what they are.
TARGETS = {"diabetes": "how far the disease went in a year"}

#: Those that are the user's, with the names of their files in a folder; MNIST's are
#: known to its reader.
BY_PATH: dict[str, tuple[str, ...]] = {
    "mnist": (),
    "covtype": ("covtype.data", "covtype.data.gz"),
    "a9a": ("a9a", "a9a.bz2"),
    "news20": ("news20", "news20.bz2", "news20_multiclass.bz2"),
    FILE: (),
}

_COVTYPE = (
    *("elevation", "aspect", "slope"),
    *(f"{way}-distance-to-hydrology" for way in ("horizontal", "vertical")),
    "horizontal-distance-to-roadways",
    *(f"hillshade-{time}" for time in ("9am", "noon", "3pm")),
    "horizontal-distance-to-fire-points",
    *(f"wilderness-area-{i}" for i in range(1, 5)),
    *(f"soil-type-{i}" for i in range(1, 41)),
)
# Two classes: there is no other way to tell one from the rest.
_TWO_CLASSES = ("breast-cancer", "a9a")


class Samples(NamedTuple):
    """Samples, the training samples first.

    Features are an ndarray or a CSR array of float64 of shape (d, p), ``names`` theirs;
    ``labels`` and ``weights``, what each sample counts in training, of shape (d,). The
    last ``test`` samples are for tests. ``side`` is the number of rows where features
    are the pixels of square images, else 0; ``rows`` are the samples' rows in the data
    set.
    """

    features: Any
    labels: FloatArray
    names: tuple[str, ...]
    side: int = 0
    test: int = 0
    weights: FloatArray | None = None
    rows: Indices = np.arange(0)
    #: of a file of the user's: its columns and labels, and what they have become
    table: Table | None = None
    preparation: Preparation | None = None

    @property
    def num_train(self) -> int:
        """How many are training samples."""
        return len(self.labels) - self.test


def load_samples(task: HybridTask) -> Samples:
    """Load, label, split and scale the samples of a task, by its settings."""
    data = load_rows(task)
    labels = data.labels
    if task.every_class:
        # numbers of the classes, in ascending order
        labels = np.unique(labels, return_inverse=True)[1].astype(np.float64)
    elif task.target == "class":
        labels = _signs(task, labels)
    train, test = _split(task, labels, data.test)
    rows = np.concatenate([train, test])
    features, made = data.features[rows], None
    if data.table is not None and data.table.columns:
        made = Preparation.of_moments(
            data.table.columns,
            moments(features[: len(train)]),
            target=task.nodes.label_column,
            classes=task.class_names(data.table.labels),
        )
        features = made.scaled(features)
    features = _scaled(task, features, len(train))
    if not isinstance(features, np.ndarray):
        features = scipy.sparse.csr_array(features)
        features.sort_indices()
    return Samples(
        features,
        labels[rows],
        (*data.names, "bias") if task.bias > 0.0 else data.names,
        data.side,
        len(test),
        None if data.weights is None else data.weights[rows],
        rows,
        preparation=made,
    )


def load_rows(task: HybridTask) -> Samples:
    """Load all rows of a task's data set, with its labels and in its own order.

    Pixels are divided by the largest value they may have.
    """
    dataset, key = task.dataset, f"{task.name}.path"
    if dataset in BY_PATH and not task.path:
        where = "the data set's file or the folder with it"
        raise FileNotFoundError(f"{key} is empty; for {dataset!r} it must name {where}")
    if dataset == FILE:
        own = task._own_table(task.target)
        # labels that are numbers are classes of these numbers
        numbers = all(isinstance(label, float) for label in own.labels)
        values = own.labels if numbers else range(len(own.labels))
        classes = np.array(values, dtype=np.float64)
        known = classes[own.targets.astype(np.intp)] if own.labels else own.targets
        return Samples(own.features, known, own.names, weights=own.weights, table=own)
    if dataset == "mnist":
        return _load_mnist(data_path(key, task.path, folder=True), key)
    if dataset not in BY_PATH:
        return _load_toy(dataset)
    path = _find(task.path, key, dataset)
    if dataset == "covtype":
        schema = Schema(0, _COVTYPE, "number", label_column="class")
        table = read_csv(path, schema, header=(*_COVTYPE, "class"))
        return Samples(scipy.sparse.csr_array(table.features), table.targets, _COVTYPE)
    table = read_libsvm(path, Schema(0, target="number"))
    features, labels = table.features, table.targets
    # 32-bit indices, which half the memory suffices for
    indices = features.indices.astype(np.int32), features.indptr.astype(np.int32)
    features = scipy.sparse.csr_array((features.data, *indices), shape=features.shape)
    names = tuple(f"feature-{i}" for i in range(1, features.shape[1] + 1))
    return Samples(features, labels, names)


def _load_toy(name: str) -> Samples:
    """Load a set that scikit-learn has."""
    need("sklearn", f"the data set {name!r}", "sklearn")
    # half a second that nodes with other data need not spend
    from sklearn import datasets

    raw = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name.replace('-', '_')}")(**raw)
    names = tuple(re.sub("[ _]", "-", str(name)) for name in data.feature_names)
    features, labels = data.data.astype(np.float64), data.target.astype(np.float64)
    images = name == "digits"
    scale, side = (16.0, 8) if images else (1.0, 0)
    return Samples(features / scale, labels, names, side=side)


def _load_mnist(folder: Path, key: str) -> Samples:
    images = load_images("mnist", folder, key)
    parts = [
        scipy.sparse.csr_array(pixels.reshape(len(pixels), -1)).astype(np.float64)
        for pixels in (images.features, images.test_features)
    ]
    features = scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
    features.data /= 255.0
    labels = np.concatenate([images.labels, images.test_labels]).astype(np.float64)
    names = tuple(f"pixel-{i}-{j}" for i in range(28) for j in range(28))
    return Samples(features, labels, names, side=28, test=len(images.test_labels))


def _find(path: str, key: str, dataset: str) -> Path:
    """Return the file that a setting names, or that is in the folder it names."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return data_path(key, path)
    found = [folder / name for name in BY_PATH[dataset] if (folder / name).is_file()]
    if not found:
        names = " or ".join(BY_PATH[dataset])
        why = f"has no file of {dataset}: looked for {names}"
        raise FileNotFoundError(f"{key} = {path!r} {why}")
    return found[0]


def _signs(task: HybridTask, classes: FloatArray) -> FloatArray:
    """Turn classes into labels +1 and −1, by the data set's rule or one of them."""
    dataset, positive = task.dataset, task.positive_class
    present = np.unique(classes)
    allowed = ", ".join(f"{label:g}" for label in present[:20])
    if positive == -1 and dataset == FILE and len(present) > 2:
        why = f"does not suit a file with {len(present)} labels, which has no rule"
        raise task.refused("positive_class", f"{why}; allowed: {allowed}")
    if positive != -1 and dataset in _TWO_CLASSES:
        why = f"does not suit {dataset!r}, which has two classes; allowed: -1"
        raise task.refused("positive_class", why)
    if positive not in (-1, *present):
        why = f"is no class of {dataset!r}; allowed: -1, {allowed}"
        raise task.refused("positive_class", why)
    if positive != -1 or dataset == "covtype":
        chosen = classes == (2.0 if positive == -1 else positive)
    else:
        # of two classes, or News20's twenty, the upper half
        bound = 5.0 if dataset in ("digits", "mnist") else present[len(present) // 2]
        chosen = classes >= bound
    if chosen.all() or not chosen.any():
        raise SettingsError(
            f"all rows of {dataset!r} have one label by the rule {DATASETS[dataset]!r}"
        )
    return np.where(chosen, 1.0, -1.0)


def _split(task: HybridTask, labels: FloatArray, test: int) -> tuple[Indices, Indices]:
    """Return the training and the test rows, ascending."""
    everything = np.arange(len(labels))
    train, rest = everything[: len(labels) - test], everything[len(labels) - test :]
    if task.test_fraction == 0.0:
        rest = rest[:0]
    elif not test:
        need("sklearn", f"{task.name}.test-fraction", "sklearn")
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
            why = (
                f"does not suit {counts} samples of the {kind}: training and test data"
            )
            raise task.refused("test_fraction", f"{why} need some of each") from error
    if 0 < task.train_limit < len(train):
        drawn = generator(task.seed, "hybrid limit").permutation(len(train))
        train = train[drawn[: task.train_limit]]
    return np.sort(train), np.sort(rest)


def _scaled(task: HybridTask, features: Any, num_train: int) -> Any:
    """Scale columns, as the data set asks for, add the bias, and scale rows."""
    if task.dataset in ("breast-cancer", "diabetes"):
        part = features[:num_train]
        deviations = part.std(axis=0)
        deviations[deviations == 0.0] = 1.0
        features = (features - part.mean(axis=0)) / deviations
    elif task.dataset == "covtype":
        features = min_max_scaled(features, num_train)
    if task.bias > 0.0:
        features = with_constant(features, task.bias)
    if task.row_scaling == "unit":
        need("sklearn", f"{task.name}.row-scaling = 'unit'", "sklearn")
        from sklearn.preprocessing import normalize

        features = normalize(features)
    return features


def with_constant(matrix: Any, value: float) -> Any:
    """Append a constant feature to dense features, or CSR ones."""
    column = np.full((matrix.shape[0], 1), value)
    if isinstance(matrix, np.ndarray):
        return np.hstack([matrix, column])
    sparse = scipy.sparse.csr_array(column)
    return scipy.sparse.csr_array(scipy.sparse.hstack([matrix, sparse], format="csr"))


def min_max_scaled(features: Any, num_train: int) -> Any:
    """Scale a CSR matrix's columns to [0, 1] by its first rows, constant ones to 0."""
    entries = features.toarray()
    low, high = entries[:num_train].min(axis=0), entries[:num_train].max(axis=0)
    entries -= low
    entries /= np.where(high > low, high - low, 1.0)
    return scipy.sparse.csr_array(entries)
