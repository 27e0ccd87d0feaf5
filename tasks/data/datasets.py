"""The data sets that settings name: found in the user's folder, or made.

Images and synthetic examples for networks, and tables with two labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.extras import need
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError

from ..base import DataFileError, derived_seed
from .images import Images, read_cifar, read_idx_pair
from .readers import read_csv, read_libsvm, read_own_file
from .table import Schema, Table, fault

__all__ = [
    "BUILT_IN",
    "DATASETS",
    "EMNIST_CLASSES",
    "Examples",
    "limited",
    "load_cifar10",
    "load_emnist",
    "load_file",
    "load_libsvm",
    "load_mnist",
    "load_qsar",
    "load_santander",
    "rows_of",
    "split_digits",
    "synthetic",
]

#: Data sets by name, with the shape of an example.
DATASETS: dict[str, tuple[int, ...]] = {
    "synthetic": (60,),
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "emnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
}

#: Those that come with the package, or with scikit-learn.
BUILT_IN = ("synthetic", "digits")

#: EMNIST's splits and their numbers of classes (Cohen et al., arXiv 1702.05373).
EMNIST_CLASSES = {"mnist": 10, "digits": 10, "balanced": 47, "byclass": 62}

# pFedMe's clients have 5·(lognormal(4, 2) + 50) examples; the lognormal's tail, 7 % of
# the clients but most of the examples, is cut here.
_SIZE_CAP = 1000
_TRAIN_SHARE = 0.75
# The setting that messages name unless another is given.
_KEY = "classification.path"
_QSAR_FEATURES, _SANTANDER_FEATURES = 1024, 200
# How many labels a message lists.
_LISTED = 10


class Examples(NamedTuple):
    """Training and test examples, labels counted from 0.

    ``owners`` are the clients that hold the training examples by nature, None where
    none do.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    test_features: NDArray[Any]
    test_labels: NDArray[Any]
    classes: int
    owners: NDArray[np.intp] | None = None

    def train(self, rows: Any) -> Examples:
        """Return these with some of the training examples."""
        return self._replace(
            features=self.features[rows],
            labels=self.labels[rows],
            owners=None if self.owners is None else self.owners[rows],
        )

    def test(self, features: Any, labels: Any) -> Examples:
        """Return these with other test examples."""
        return self._replace(test_features=features, test_labels=labels)


def limited(
    examples: Examples, train: int, test: int, validation: float, seed: int
) -> Examples:
    """Draw some of the examples by the seed.

    Parameters
    ----------
    examples : Examples
    train, test : int
        The most training and test examples; 0 for all.
    validation : float
        The share of the training examples that takes the place of the test examples;
        0: none.
    seed : int
    """
    chosen = _drawn(len(examples.labels), train, seed, "train")
    examples = examples.train(chosen)
    chosen = _drawn(len(examples.test_labels), test, seed, "test")
    examples = examples.test(
        examples.test_features[chosen], examples.test_labels[chosen]
    )
    if not validation:
        return examples
    count = len(examples.labels)
    order = generator(seed, "validation").permutation(count)
    # at least one on either side
    held_out = min(max(1, round(validation * count)), count - 1)
    own, held = np.sort(order[held_out:]), np.sort(order[:held_out])
    return examples.train(own).test(examples.features[held], examples.labels[held])


def _drawn(count: int, limit: int, seed: int, part: str) -> Any:
    """Return which examples are kept: a slice for all, else drawn indices."""
    if not 0 < limit < count:
        return slice(None)
    return np.sort(generator(seed, "limit", part).permutation(count)[:limit])


def rows_of(features: Any) -> Any:
    """Return examples as rows of float64, bytes of images divided by 255."""
    scale = 255.0 if features.dtype == np.uint8 else 1.0
    return features.reshape(len(features), -1) / scale


# -- images


def split_digits(seed: int) -> Examples:
    """Return scikit-learn's digits, rows of pixels from 0 to 1.

    80 % of them, drawn by the seed and stratified by label, are for training.
    """
    need("sklearn", "task = 'digits'", "sklearn")
    # half a second that other tasks' nodes need not spend
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=0.2,
        stratify=labels,
        random_state=derived_seed(seed, "digits split"),
    )
    features = pixels / 16.0
    return Examples(
        features[train], labels[train], features[test], labels[test], classes=10
    )


def _find(folder: Path, names: Sequence[str], what: str, key: str = _KEY) -> Path:
    """Return the first file of these names.

    Raises
    ------
    FileNotFoundError
        There is none; the message has the setting, ``key``, and the names.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{key} = {str(folder)!r} has no {what}: looked for {' or '.join(names)}"
    )


def _idx_pair(
    folder: Path,
    prefixes: Sequence[str],
    what: str,
    *,
    transposed: bool = False,
    key: str = _KEY,
) -> Images:
    """Read the images and labels whose names start with one of some prefixes."""
    ends = [f"images-idx3-ubyte{gz}" for gz in ("", ".gz")]
    images = _find(folder, [p + end for p in prefixes for end in ends], what, key)
    prefix = images.name.split("images-idx3-ubyte")[0]
    ends = [f"labels-idx1-ubyte{gz}" for gz in ("", ".gz")]
    labels = _find(folder, [prefix + end for end in ends], what, key)
    return read_idx_pair(images, labels, transposed=transposed)


def _checked(
    folder: Path, train: Images, test: Images, classes: int, shape: tuple[int, ...]
) -> Examples:
    for name, part in (("training", train), ("test", test)):
        if part.pixels.shape[1:] != shape:
            size = " x ".join(map(str, part.pixels.shape[2:]))
            raise DataFileError(
                f"{folder}: the {name} images have {size} pixels; "
                f"{' x '.join(map(str, shape[1:]))} are expected"
            )
        if part.labels.max() >= classes:
            raise DataFileError(
                f"{folder}: the {name} labels reach {part.labels.max()}; "
                f"the {classes} classes are counted from 0"
            )
    return Examples(train.pixels, train.labels, test.pixels, test.labels, classes)


def load_mnist(folder: Path, key: str = _KEY) -> Examples:
    """Load MNIST's four idx files, ``.gz`` or raw.

    Parameters
    ----------
    folder : pathlib.Path
    key : str, default "classification.path"
        The setting that names the folder, for messages.

    Raises
    ------
    FileNotFoundError, DataFileError
        A file is missing or malformed, in one line.
    """
    what = "images and labels of MNIST"
    train = _idx_pair(folder, ["train-"], f"training {what}", key=key)
    test = _idx_pair(folder, ["t10k-"], f"test {what}", key=key)
    return _checked(folder, train, test, 10, DATASETS["mnist"])


def load_emnist(folder: Path, split: str, *, partial: bool, seed: int) -> Examples:
    """Load a split of EMNIST, whose images are put upright.

    Parameters
    ----------
    folder : pathlib.Path
    split : str
        A key of :data:`EMNIST_CLASSES`.
    partial : bool
        Where the training files are missing, take slices of them, named
        ``emnist-<split>-train-idx<from>-<to>-images-idx3-ubyte``, or else 80 % of the
        test files, drawn by the seed.
    seed : int

    Raises
    ------
    FileNotFoundError, DataFileError
        A file is missing or malformed, in one line.
    """
    what = f"images and labels of EMNIST's split {split!r}"
    prefix = f"emnist-{split}-"
    classes, shape = EMNIST_CLASSES[split], DATASETS["emnist"]
    train_prefixes, test_prefixes = [prefix + "train-"], [prefix + "test-"]
    if partial:
        train_prefixes += _slices(folder, prefix + "train-")
        test_prefixes += _slices(folder, prefix + "test-")
    test = _idx_pair(folder, test_prefixes, f"test {what}", transposed=True)
    try:
        train = _idx_pair(folder, train_prefixes, f"training {what}", transposed=True)
    except FileNotFoundError as error:
        if not partial:
            raise FileNotFoundError(
                f"{error} (classification.partial = true takes a part)"
            ) from None
        order = generator(seed, "emnist split").permutation(len(test.labels))
        cut = len(order) * 4 // 5
        train, test = (
            Images(test.pixels[part], test.labels[part])
            for part in (np.sort(order[:cut]), np.sort(order[cut:]))
        )
    return _checked(folder, train, test, classes, shape)


def _slices(folder: Path, prefix: str) -> list[str]:
    names = sorted(path.name for path in folder.glob(f"{prefix}idx*-images-idx3-*"))
    return [name.split("images-idx3")[0] for name in names]


def load_cifar10(folder: Path, *, partial: bool, key: str = _KEY) -> Examples:
    """Load CIFAR-10's five training batches and its test batch, in either format.

    Parameters
    ----------
    folder : pathlib.Path
    partial : bool
        Whether some training batches, not all, may be missing.
    key : str, default "classification.path"
        The setting that names the folder, for messages.

    Raises
    ------
    FileNotFoundError, DataFileError
        A batch is missing or malformed, in one line.
    """
    batches = []
    for number in range(1, 6):
        try:
            batches.append(read_cifar(_find_batch(folder, f"data_batch_{number}", key)))
        except FileNotFoundError as error:
            if not partial:
                partial_key = key.removesuffix("path") + "partial"
                raise FileNotFoundError(
                    f"{error} ({partial_key} = true does without)"
                ) from None
    if not batches:
        _find_batch(folder, "data_batch_1", key)
    train = Images(
        np.concatenate([batch.pixels for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
    )
    test = read_cifar(_find_batch(folder, "test_batch", key))
    return _checked(folder, train, test, 10, DATASETS["cifar10"])


def _find_batch(folder: Path, name: str, key: str) -> Path:
    names = [name + end for end in ("", ".bin", ".bin.xz", ".bin.gz")]
    return _find(folder, names, f"batch {name} of CIFAR-10", key)


def synthetic(clients: int, limit: int, seed: int, *, iid: bool) -> Examples:
    """Generate pFedMe's synthetic data, 60 features and 10 labels, α = β = 0.5.

    Client i has 5·(min(lognormal(4, 2), 1000) + 50) examples, 75 % of them for
    training. Its features are N(v_i, Σ) with Σ_jj = j^−1.2 and v_i,j from N(B_i, 1),
    its labels the largest of xᵀW_i + b_i with the entries of W_i and b_i from
    N(u_i, 1); B_i from N(0, β²), u_i from N(0, α²).

    Parameters
    ----------
    clients : int
    limit : int
        The most training examples of all clients together, 0 for no limit; the
        clients' sizes shrink alike.
    seed : int
    iid : bool
        One W and b for all, and v_i = 0: all clients have the same distribution.

    Raises
    ------
    SettingsError
        The limit is lower than the number of clients.

    Notes
    -----
    C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized federated learning with Moreau
    envelopes", NeurIPS 2020, after T. Li et al., MLSys 2020. The cap is ours.
    """
    if 0 < limit < clients:
        raise SettingsError(
            f"classification.train-limit = {limit} is too low: "
            f"each of {clients} clients needs at least one example"
        )
    inputs, classes = DATASETS["synthetic"][0], 10
    rng = generator(seed, "synthetic")
    lognormal = np.minimum(rng.lognormal(4.0, 2.0, clients).astype(int), _SIZE_CAP)
    sizes = 5 * (lognormal + 50)
    train_sizes = (_TRAIN_SHARE * sizes).astype(int)
    if 0 < limit < train_sizes.sum():
        # One each, and a proportional share of the rest.
        spare = limit - clients
        kept = 1 + (train_sizes - 1) * spare // (train_sizes.sum() - clients)
    else:
        kept = train_sizes
    deviations = np.arange(1, inputs + 1) ** -0.6  # the roots of Σ_jj
    shared = generator(seed, "synthetic model")
    W_shared = shared.standard_normal((inputs, classes))
    b_shared = shared.standard_normal(classes)
    parts = []
    for i in range(clients):
        own = generator(seed, "synthetic", i)
        if iid:
            centre, W, b = np.zeros(inputs), W_shared, b_shared
        else:
            u, B = own.normal(0.0, 0.5, 2)
            centre = own.normal(B, 1.0, inputs)
            W = own.normal(u, 1.0, (inputs, classes))
            b = own.normal(u, 1.0, classes)
        x = centre + deviations * own.standard_normal((sizes[i], inputs))
        y = (x @ W + b).argmax(axis=1)
        first, last = train_sizes[i], kept[i]
        parts.append((x[:last], y[:last], x[first:], y[first:], np.full(last, i)))
    joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    features, labels, test_features, test_labels, owners = joined
    return Examples(features, labels, test_features, test_labels, classes, owners)


# -- tables with a label for each row


def load_qsar(path: Path) -> Table:
    """Load UCI's QSAR oral toxicity: 1 024 binary features, positive or negative.

    Parameters
    ----------
    path : Path
        UCI's zip archive or the csv file in it: lines of 0 or 1 with ``;`` between and
        the label at their end, without a header.

    Returns
    -------
    Table
        CSR features; class 1 for positive.

    Raises
    ------
    DataFileError
        The file holds something else; names file, row and column.

    Notes
    -----
    D. Ballabio, F. Grisoni, V. Consonni, R. Todeschini, "Integrated QSAR models to
    predict acute oral systemic toxicity", 2019.
    """
    names = tuple(f"bit-{j}" for j in range(1, _QSAR_FEATURES + 1))
    schema = Schema(0, names, "class", ("negative", "positive"))
    table = read_csv(path, schema, separator=";", header=(*names, "label"))
    wrong = np.argwhere((table.features != 0.0) & (table.features != 1.0))
    if len(wrong):
        row, column = (int(i) for i in wrong[0])
        fault(path, "must be 0 or 1", row + 1, names[column])
    return table._replace(features=scipy.sparse.csr_array(table.features))


def load_santander(path: Path) -> Table:
    """Load ``train.csv`` of Kaggle's Santander customer transaction prediction.

    Parameters
    ----------
    path : Path
        The csv file or Kaggle's zip archive of it: a header
        ``ID_code,target,var_0,…,var_199`` and lines of an identifier, which is not
        used, the label 0 or 1 and 200 numbers.

    Returns
    -------
    Table
        Dense features.

    Raises
    ------
    DataFileError
        The file holds something else; names file, row and column.
    """
    names = tuple(f"var_{j}" for j in range(_SANTANDER_FEATURES))
    return read_csv(
        path, Schema(0, names, "class", ("0", "1"), "target", ignored=("ID_code",))
    )


def load_libsvm(path: Path) -> Table:
    """Load examples with two labels in LIBSVM's text format.

    The smaller of the two labels becomes 0, the larger 1.

    Parameters
    ----------
    path : Path
        As :func:`~.readers.read_libsvm` takes it.

    Returns
    -------
    Table
        CSR features, as many as the largest index says.

    Raises
    ------
    DataFileError
        The file holds something else, or its labels are not two.
    """
    matrix, targets = read_libsvm(path)
    labels, which = np.unique(targets, return_inverse=True)
    _check_labels(path, [f"{label:g}" for label in labels], 2)
    return Table(matrix, which.astype(np.float64))


def load_file(key: str, path: str, label_column: str, classes: int = 2) -> Table:
    """Load a file with so many labels, numbers or texts, in any of the formats.

    The other parameters are those of :func:`~.readers.read_own_file`. The smallest
    label, or the first in the alphabet, becomes 0.

    Raises
    ------
    FileNotFoundError, DataFileError
        There is none, or it holds something else; the message for more or fewer labels
        lists them.
    """
    table = read_own_file(key, path, "class", label_column)
    labels = [f"{x:g}" if isinstance(x, float) else x for x in table.labels]
    _check_labels(path, labels, classes)
    return table


def _check_labels(path: str | Path, labels: Sequence[str], classes: int) -> None:
    if len(labels) != classes:
        more = "" if len(labels) <= _LISTED else f" and {len(labels) - _LISTED} more"
        raise DataFileError(
            f"{path}: the labels are {', '.join(labels[:_LISTED])}{more}; there must "
            f"be exactly {'two' if classes == 2 else classes}"
        )
