"""Sets of labelled images: MNIST's, EMNIST's and CIFAR-10's files, and the digits.

A file or folder that is missing is a FileNotFoundError. A file that is not exactly what
it says is a DataFileError, which names it and quotes nothing of it. Either is one line.
No more is decompressed than the format allows, and pickles may only make arrays.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator

from ..base import derived_seed, held_out, stratified, toy
from .table import fault, read_at_most

Bytes = NDArray[np.uint8]

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

# The setting that messages name unless another is given.
_KEY = "classification.path"
# No idx file of MNIST or EMNIST is larger (byclass has 697 932 training images).
_LIMIT = 2**30
# A record of CIFAR-10 is a label and an image; a batch has 10 000, and nothing larger
# is read.
_CIFAR_RECORD = 1 + math.prod(DATASETS["cifar10"])
_CIFAR_BATCH = 10_000


class Images(NamedTuple):
    """Images of shape (d, channels, height, width) and their labels, of shape (d,)."""

    pixels: Bytes
    labels: Bytes


class Examples(NamedTuple):
    """Training and test examples, labels counted from 0.

    ``owners`` are the clients that hold the training examples by nature, None where
    none do.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    test_features: NDArray[Any]
    test_labels: NDArray[Any]
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
        held, kept = map(np.sort, np.split(order, [held_out(count, validation)]))
        tests = examples.features[held], examples.labels[held]
        examples = examples.train(kept)
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


# -- the sets


def split_digits(seed: int) -> Examples:
    """Return scikit-learn's digits, rows of pixels from 0 to 1.

    80 % of them, drawn by the seed and stratified by label, are for training.
    """
    pixels, labels = toy("digits", "task = 'digits'")
    features = pixels / 16.0
    train, test = stratified(labels, 0.2, derived_seed(seed, "digits split"))
    return Examples(features[train], labels[train], features[test], labels[test])


def load_mnist(folder: Path, key: str = _KEY) -> Examples:
    """Load MNIST's four idx files, ``.gz`` or raw; the setting ``key`` names them."""
    what = "images and labels of MNIST"
    train = _idx_pair(folder, ["train-"], f"training {what}", key=key)
    test = _idx_pair(folder, ["t10k-"], f"test {what}", key=key)
    return _checked(folder, train, test, "mnist", 10)


def load_emnist(
    folder: Path, split: str, *, partial: bool, seed: int, key: str = _KEY
) -> Examples:
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
        pixels, labels = test
        order = generator(seed, "emnist split").permutation(len(labels))
        parts = map(np.sort, np.split(order, [len(order) * 4 // 5]))
        train, test = (Images(pixels[part], labels[part]) for part in parts)
    return _checked(folder, train, test, "emnist", EMNIST_CLASSES[split])


def load_cifar10(folder: Path, *, partial: bool, key: str = _KEY) -> Examples:
    """Load CIFAR-10's five training batches and its test batch, in either format.

    With ``partial`` some training batches, not all, may be missing.
    """

    def read(name: str) -> Images:
        names = [name + end for end in ("", ".bin", ".bin.xz", ".bin.gz")]
        return read_cifar(_find(folder, names, f"batch {name} of CIFAR-10", key))

    batches: list[Images] = []
    missing: list[str] = []
    for number in range(1, 6):
        try:
            batches.append(read(f"data_batch_{number}"))
        except FileNotFoundError as error:
            missing.append(str(error))
    if missing and not (partial and batches):
        partial_key = key.removesuffix("path") + "partial"
        hint = "" if partial else f" ({partial_key} = true does without)"
        raise FileNotFoundError(missing[0] + hint)
    train = Images(*map(np.concatenate, zip(*batches, strict=True)))
    return _checked(folder, train, read("test_batch"), "cifar10", 10)


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
    for which, (pixels, labels) in (("training", train), ("test", test)):
        if pixels.shape[1:] != shape:
            size, expected = (
                " x ".join(map(str, sides)) for sides in (pixels.shape[2:], shape[1:])
            )
            kind = f"the {which} images have {size} pixels; {expected} are expected"
            fault(folder, kind)
        if labels.max() >= k:
            kind = f"the {which} labels reach {labels.max()}"
            fault(folder, f"{kind}; the {k} classes count from 0")
    return Examples(*train, *test)


# -- idx


def read_idx(path: Path, ndim: int) -> Bytes:
    """Read an idx file of unsigned bytes, raw or packed.

    The format, from http://yann.lecun.com/exdb/mnist: two zero bytes, the type 0x08,
    the number of dimensions, each dimension as a big-endian 32-bit integer, the data.

    ``ndim`` is the number of dimensions it must have: 3 for images, 1 for labels. The
    array is read-only.
    """
    size = 4 + 4 * ndim
    header = read_at_most(path, size)
    if header[:4] != bytes((0, 0, 8, ndim)):
        what = f"the magic number of an idx file of bytes with {ndim} dimensions"
        fault(path, f"does not start with {what}")
    if len(header) < size:
        fault(path, "ends within its header")
    shape = tuple(int(n) for n in np.frombuffer(header[4:], dtype=">u4"))
    expected = math.prod(shape)
    if not 0 < expected <= _LIMIT:
        fault(path, f"dimensions {shape} are not between 1 and 2³⁰ bytes")
    data = read_at_most(path, size + expected + 1)[size:]
    if len(data) != expected:
        held = "more" if len(data) > expected else f"{len(data)}"
        asked = f"dimensions {shape} ask for {expected} bytes of data"
        fault(path, f"{asked}, the file has {held}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, *, transposed: bool = False) -> Images:
    """Read images and their labels.

    EMNIST's files hold every image with rows and columns swapped; ``transposed`` puts
    them upright.
    """
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        kind = f"has {len(classes)} labels for the {len(pixels)} images of"
        fault(labels, f"{kind} {images.name}")
    if transposed:
        pixels = pixels.transpose(0, 2, 1)
    return Images(pixels[:, np.newaxis], classes)


# -- CIFAR-10

# what makes an empty array that the pickle then fills
_EMPTY = np.ndarray(0).__reduce__()[0]
_ALLOWED: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    # pickles have the integers 0 and 1, NumPy now wants Booleans
    "numpy.dtype": lambda name, *flags: np.dtype(name, *map(bool, flags)),
    # NumPy 2 renamed the module, and files name the one they were made with
    "numpy.core.multiarray._reconstruct": _EMPTY,
    "numpy._core.multiarray._reconstruct": _EMPTY,
    # bytes in pickles of protocol 2 that Python 3 made
    "_codecs.encode": lambda text, encoding: text.encode("latin1"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Makes NumPy arrays of numbers and plain containers, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[f"{module}.{name}"]


def restricted_load(path: Path) -> Any:
    """Load a pickle that holds arrays and plain containers only."""
    # A batch is 31 MB; the rest is names.
    data = read_at_most(path, 2 * _CIFAR_RECORD * _CIFAR_BATCH)
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    fault(path, f"not a pickle of arrays: {reason}")


def read_cifar(path: Path) -> Images:
    """Read one batch of CIFAR-10: the Python version, or the binary one.

    The binary version's name ends in ``.bin``, or ``.bin.xz`` or ``.bin.gz``
    compressed; a record is a label and 3 × 32 × 32 bytes. The Python version is a
    pickled dictionary, https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    pixels, labels = _cifar_records(path)
    if not len(labels):
        fault(path, "holds no images")
    if labels.min() < 0 or labels.max() > 9:
        fault(path, "a label lies outside 0 to 9")
    return Images(pixels.reshape(-1, *DATASETS["cifar10"]), labels.astype(np.uint8))


def _cifar_records(path: Path) -> tuple[Any, Any]:
    if ".bin" in path.suffixes:
        limit = _CIFAR_RECORD * _CIFAR_BATCH
        data = read_at_most(path, limit + 1)
        if len(data) > limit or len(data) % _CIFAR_RECORD:
            kind = f"{len(data)} bytes read are not at most {_CIFAR_BATCH} records of"
            fault(path, f"{kind} {_CIFAR_RECORD} bytes")
        records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
        return records[:, 1:], records[:, 0]
    batch, arrays = restricted_load(path), None
    with suppress(KeyError, TypeError, IndexError, ValueError):
        arrays = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    if arrays is None:
        fault(path, "has no 'data' and 'labels'")
    pixels, labels = arrays
    good = pixels.ndim == 2 and pixels.shape == (labels.size, _CIFAR_RECORD - 1)
    if not good or pixels.dtype != np.uint8 or labels.dtype.kind not in "iu":
        found = f"'data' has shape {pixels.shape} and dtype {pixels.dtype}"
        wanted = f"'labels' shape {labels.shape}; they must be (d, 3072) bytes and (d,)"
        fault(path, f"{found}, {wanted}")
    return pixels, labels
