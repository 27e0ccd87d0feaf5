"""The data sets that settings name: found in the user's folder, or made.

Images and synthetic examples for networks, and tables with two labels. A file or folder
that is missing is a FileNotFoundError, one that holds something else a DataFileError;
either is one line.
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
from .readers import libsvm_table, read_csv, read_own_file
from .table import Schema, Table, fault

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


def limited(
    examples: Examples, train: int, test: int, validation: float, seed: int
) -> Examples:
    """Draw some of the examples by the seed.

    At most ``train`` and ``test`` of them, 0 for all; then the share ``validation`` of
    the training examples replaces the test examples; 0: they stay.
    """
    examples = examples.train(_drawn(len(examples.labels), train, seed, "train"))
    chosen = _drawn(len(examples.test_labels), test, seed, "test")
    tests = examples.test_features[chosen], examples.test_labels[chosen]
    if validation:
        count = len(examples.labels)
        order = generator(seed, "validation").permutation(count)
        # at least one on either side
        held_out = min(max(1, round(validation * count)), count - 1)
        held = np.sort(order[:held_out])
        tests = examples.features[held], examples.labels[held]
        examples = examples.train(np.sort(order[held_out:]))
    return examples._replace(test_features=tests[0], test_labels=tests[1])


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
    features = pixels / 16.0
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=0.2,
        stratify=labels,
        random_state=derived_seed(seed, "digits split"),
    )
    return Examples(features[train], labels[train], features[test], labels[test], 10)


def _find(folder: Path, names: Sequence[str], what: str, key: str) -> Path:
    """Return the first file of these names in the folder that the setting names."""
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
    ends = [f"{prefix}labels-idx1-ubyte{gz}" for gz in ("", ".gz")]
    labels = _find(folder, ends, what, key)
    return read_idx_pair(images, labels, transposed=transposed)


def _checked(folder: Path, train: Images, test: Images, name: str, k: int) -> Examples:
    shape = DATASETS[name]
    for which, part in (("training", train), ("test", test)):
        if part.pixels.shape[1:] != shape:
            size = " x ".join(map(str, part.pixels.shape[2:]))
            raise DataFileError(
                f"{folder}: the {which} images have {size} pixels; "
                f"{' x '.join(map(str, shape[1:]))} are expected"
            )
        if part.labels.max() >= k:
            raise DataFileError(
                f"{folder}: the {which} labels reach {part.labels.max()}; "
                f"the {k} classes are counted from 0"
            )
    return Examples(train.pixels, train.labels, test.pixels, test.labels, k)


def load_mnist(folder: Path, key: str = _KEY) -> Examples:
    """Load MNIST's four idx files, ``.gz`` or raw; the setting ``key`` names them."""
    what = "images and labels of MNIST"
    train = _idx_pair(folder, ["train-"], f"training {what}", key=key)
    test = _idx_pair(folder, ["t10k-"], f"test {what}", key=key)
    return _checked(folder, train, test, "mnist", 10)


def load_emnist(folder: Path, split: str, *, partial: bool, seed: int) -> Examples:
    """Load a split of EMNIST, whose images are put upright.

    With ``partial``, where the training files are missing, take slices of them, named
    ``emnist-<split>-train-idx<from>-<to>-images-idx3-ubyte``, or else 80 % of the test
    files, drawn by the seed.
    """

    def read(part: str, kind: str) -> Images:
        prefixes = [f"emnist-{split}-{part}-"]
        if partial:
            found = folder.glob(f"{prefixes[0]}idx*-images-idx3-*")
            names = sorted(path.name for path in found)
            prefixes += [name.split("images-idx3")[0] for name in names]
        what = f"{kind} images and labels of EMNIST's split {split!r}"
        return _idx_pair(folder, prefixes, what, transposed=True)

    test = read("test", "test")
    try:
        train = read("train", "training")
    except FileNotFoundError as error:
        if not partial:
            raise FileNotFoundError(
                f"{error} (classification.partial = true takes a part)"
            ) from None
        order = generator(seed, "emnist split").permutation(len(test.labels))
        parts = np.split(order, [len(order) * 4 // 5])
        train, test = (
            Images(test.pixels[part], test.labels[part]) for part in map(np.sort, parts)
        )
    return _checked(folder, train, test, "emnist", EMNIST_CLASSES[split])


def load_cifar10(folder: Path, *, partial: bool, key: str = _KEY) -> Examples:
    """Load CIFAR-10's five training batches and its test batch, in either format.

    With ``partial`` some training batches, not all, may be missing.
    """

    def read(name: str) -> Images:
        names = [name + end for end in ("", ".bin", ".bin.xz", ".bin.gz")]
        return read_cifar(_find(folder, names, f"batch {name} of CIFAR-10", key))

    batches = []
    for number in range(1, 6):
        try:
            batches.append(read(f"data_batch_{number}"))
        except FileNotFoundError as error:
            if not partial:
                partial_key = key.removesuffix("path") + "partial"
                raise FileNotFoundError(
                    f"{error} ({partial_key} = true does without)"
                ) from None
    if not batches:
        read("data_batch_1")
    train = Images(*(np.concatenate(part) for part in zip(*batches, strict=True)))
    return _checked(folder, train, read("test_batch"), "cifar10", 10)


def synthetic(clients: int, limit: int, seed: int, *, iid: bool) -> Examples:
    """Generate pFedMe's synthetic data, 60 features and 10 labels, α = β = 0.5.

    Client i has 5·(min(lognormal(4, 2), 1000) + 50) examples, 75 % of them for
    training. Its features are N(v_i, Σ) with Σ_jj = j^−1.2 and v_i,j from N(B_i, 1),
    its labels the largest of xᵀW_i + b_i with the entries of W_i and b_i from
    N(u_i, 1); B_i from N(0, β²), u_i from N(0, α²). With ``iid`` one W and b for all,
    and v_i = 0: all clients have the same distribution. ``limit`` is the most training
    examples of all clients together, 0 for none; the clients' sizes shrink alike.

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
    kept = train_sizes
    if 0 < limit < train_sizes.sum():
        # One each, and a proportional share of the rest.
        spare = limit - clients
        kept = 1 + (train_sizes - 1) * spare // (train_sizes.sum() - clients)
    deviations = np.arange(1, inputs + 1) ** -0.6  # the roots of Σ_jj
    shared = generator(seed, "synthetic model")
    W_shared = shared.standard_normal((inputs, classes))
    b_shared = shared.standard_normal(classes)
    parts = []
    for i in range(clients):
        rng = generator(seed, "synthetic", i)
        centre, W, b = np.zeros(inputs), W_shared, b_shared
        if not iid:
            u, B = rng.normal(0.0, 0.5, 2)
            centre = rng.normal(B, 1.0, inputs)
            W = rng.normal(u, 1.0, (inputs, classes))
            b = rng.normal(u, 1.0, classes)
        x = centre + deviations * rng.standard_normal((sizes[i], inputs))
        y = (x @ W + b).argmax(axis=1)
        first, last = train_sizes[i], kept[i]
        parts.append((x[:last], y[:last], x[first:], y[first:], np.full(last, i)))
    x, y, test_x, test_y, owners = map(np.concatenate, zip(*parts, strict=True))
    return Examples(x, y, test_x, test_y, classes, owners)


# -- tables with a label for each row


def load_qsar(path: Path) -> Table:
    """Load UCI's QSAR oral toxicity: 1 024 binary features, positive or negative.

    UCI's zip archive or the csv file in it: lines of 0 or 1 with ``;`` between and the
    label at their end, without a header. CSR features; class 1 for positive.

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

    The csv file or Kaggle's zip archive of it: a header
    ``ID_code,target,var_0,…,var_199`` and lines of an identifier, which is not used,
    the label 0 or 1 and 200 numbers. Dense features.
    """
    names = tuple(f"var_{j}" for j in range(_SANTANDER_FEATURES))
    return read_csv(
        path, Schema(0, names, "class", ("0", "1"), "target", ignored=("ID_code",))
    )


def load_libsvm(path: Path) -> Table:
    """Load examples with two labels in LIBSVM's text format, whatever its name.

    The smaller of the two labels becomes 0, the larger 1. CSR features, as many as the
    largest index says.
    """
    return _with_labels(path, libsvm_table(path, Schema(0, target="class")), 2)


def load_file(key: str, path: str, label_column: str, classes: int = 2) -> Table:
    """Load a file with so many labels, numbers or texts, in any of the formats.

    The other parameters are those of :func:`~.readers.read_own_file`. The smallest
    label, or the first in the alphabet, becomes 0; the message for more or fewer labels
    lists them.
    """
    return _with_labels(path, read_own_file(key, path, "class", label_column), classes)


def _with_labels(path: str | Path, table: Table, classes: int) -> Table:
    labels = [f"{x:g}" if isinstance(x, float) else x for x in table.labels]
    if len(labels) != classes:
        more = "" if len(labels) <= _LISTED else f" and {len(labels) - _LISTED} more"
        raise DataFileError(
            f"{path}: the labels are {', '.join(labels[:_LISTED])}{more}; there must "
            f"be exactly {'two' if classes == 2 else classes}"
        )
    return table
