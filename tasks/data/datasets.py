"""Sets of labelled images: MNIST's, EMNIST's and CIFAR-10's files, and the digits.

A file or folder that is missing is a FileNotFoundError. A file that is not exactly what
it says is a DataFileError, which names it and quotes nothing of it. Either is one line.
No more is decompressed than the format allows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator

from ..base import derived_seed, held_out, stratified, toy
from .table import fault, read_at_most

Bytes = NDArray[np.uint8]
#: Pixels of shape (d, channels, height, width), and labels of shape (d,).
Images = tuple[Bytes, Bytes]

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

# How the names of idx files of images and of labels end.
_PAIR = ("images-idx3-ubyte", "labels-idx1-ubyte")
# No idx file of MNIST or EMNIST is larger (byclass has 697 932 training images).
_LIMIT = 2**30
# A record of CIFAR-10 is a label and an image; a batch has 10 000, and nothing larger
# is read.
_CIFAR_RECORD = 1 + math.prod(DATASETS["cifar10"])
_CIFAR_BATCH = 10_000


class Examples(NamedTuple):
    """Training and test examples, labels counted from 0."""

    features: NDArray[Any]
    labels: NDArray[Any]
    test_features: NDArray[Any]
    test_labels: NDArray[Any]
    #: the clients that hold the training examples by nature
    owners: NDArray[np.intp] | None = None


def limited(
    examples: Examples, train: int, test: int, validation: float, seed: int
) -> Examples:
    """Draw at most ``train`` and ``test`` of the examples by the seed, 0 for all.

    Then the share ``validation`` of the training examples replaces the test examples.
    """

    def drawn(count: int, limit: int, part: str) -> Any:
        if not 0 < limit < count:
            return np.arange(count)
        return np.sort(generator(seed, "limit", part).permutation(count)[:limit])

    x, y = examples.features, examples.labels
    rows = drawn(len(y), train, "train")
    chosen = drawn(len(examples.test_labels), test, "test")
    tests = examples.test_features[chosen], examples.test_labels[chosen]
    if validation:
        count = held_out(len(rows), validation)
        order = generator(seed, "validation").permutation(len(rows))
        held, kept = (rows[np.sort(part)] for part in np.split(order, [count]))
        tests, rows = (x[held], y[held]), kept
    owners = examples.owners
    if owners is not None:
        owners = owners[rows]
    return Examples(x[rows], y[rows], *tests, owners)


def rows_of(features: Any) -> Any:
    """Return examples as rows of float64, bytes of images divided by 255."""
    scale = 255.0 if features.dtype == np.uint8 else 1.0
    return features.reshape(len(features), -1) / scale


def split_digits(seed: int) -> Examples:
    """Return scikit-learn's digits from 0 to 1, 20 % of each label for tests."""
    pixels, labels = toy("digits", "task = 'digits'")
    features = pixels / 16.0
    train, test = stratified(labels, 0.2, derived_seed(seed, "digits split"))
    return Examples(features[train], labels[train], features[test], labels[test])


def load_images(
    name: str,
    folder: Path,
    key: str,
    *,
    split: str = "",
    partial: bool = False,
    seed: int = 0,
) -> Examples:
    """Load MNIST, a split of EMNIST or CIFAR-10 from a folder that a setting names.

    MNIST and EMNIST are idx files, ``.gz`` or raw; EMNIST's images are put upright.
    CIFAR-10's binary version is five training batches and a test batch. With
    ``partial`` some of these batches, not all, may be missing; for EMNIST's training
    files stands a slice, ``emnist-<split>-train-idx<from>-<to>-images-idx3-ubyte``, or
    else 80 % of the test files, drawn by the seed. ``key`` is the setting's.
    """
    shape = DATASETS[name]
    classes = EMNIST_CLASSES[split] if name == "emnist" else 10
    stems, last = {
        "mnist": (["train-"], "t10k-"),
        "emnist": ([f"emnist-{split}-train-"], f"emnist-{split}-test-"),
        "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], "test_batch"),
    }[name]

    def find(*names: str) -> Path:
        for found in names:
            if (folder / found).is_file():
                return folder / found
        where = f"{key} = {str(folder)!r}"
        raise FileNotFoundError(f"{where} has no file {' or '.join(names)}")

    def read(stem: str) -> Images:
        if name == "cifar10":
            ends = (".bin", ".bin.xz", ".bin.gz")
            return read_cifar(find(*(stem + end for end in ends)))
        slices = folder.glob(f"{stem}idx*-{_PAIR[0]}*") if partial else ()
        starts = [stem, *sorted(path.name.split(_PAIR[0])[0] for path in slices)]
        packed = ("", ".gz")
        images = find(*(start + _PAIR[0] + gz for start in starts for gz in packed))
        start = images.name.split(_PAIR[0])[0]
        labels = find(*(start + _PAIR[1] + gz for gz in packed))
        return read_idx_pair(images, labels, transposed=name == "emnist")

    batches, missing = [], []
    for stem in stems:
        try:
            batches.append(read(stem))
        except FileNotFoundError as error:
            missing.append(str(error))
    if missing and not (partial and (batches or name == "emnist")):
        hint = f" ({key.removesuffix('path')}partial = true does without)"
        hint = "" if partial or name == "mnist" else hint
        raise FileNotFoundError(missing[0] + hint)
    test: Any = read(last)
    train: Any
    if batches:
        train = tuple(map(np.concatenate, zip(*batches, strict=True)))
    else:
        count = len(test[1])
        order = generator(seed, "emnist split").permutation(count)
        rows = map(np.sort, np.split(order, [count * 4 // 5]))
        train, test = (tuple(array[part] for array in test) for part in rows)
    for which, (pixels, labels) in (("training", train), ("test", test)):
        if pixels.shape[1:] != shape:
            found = f"the {which} images have shape {pixels.shape[1:]}"
            fault(folder, f"{found}; {shape} is expected")
        if labels.max() >= classes:
            kind = f"the {which} labels reach {labels.max()}"
            fault(folder, f"{kind}; the {classes} classes count from 0")
    return Examples(*train, *test)


def read_idx(path: Path, ndim: int) -> Bytes:
    """Read an idx file of unsigned bytes, raw or packed, with 3 or 1 dimensions.

    The format, from http://yann.lecun.com/exdb/mnist: two zero bytes, the type 0x08,
    the number of dimensions, each dimension as a big-endian 32-bit integer, the data.
    """
    size, data = 4 + 4 * ndim, read_at_most(path, _LIMIT)
    if data[:4] != bytes((0, 0, 8, ndim)) or len(data) < size:
        what = f"the magic number of an idx file of bytes and {ndim} dimensions"
        fault(path, f"does not start with {what}")
    shape = tuple(int(n) for n in np.frombuffer(data[4:size], dtype=">u4"))
    expected, found = math.prod(shape), len(data) - size
    if not 0 < expected == found:
        asked = f"dimensions {shape} ask for {expected} bytes of data"
        fault(path, f"{asked}, the file has {found}")
    return np.frombuffer(data, dtype=np.uint8, offset=size).reshape(shape)


def read_idx_pair(images: Path, labels: Path, *, transposed: bool = False) -> Images:
    """Read images and labels; ``transposed`` puts EMNIST's upright."""
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        kind = f"has {len(classes)} labels for the {len(pixels)} images of"
        fault(labels, f"{kind} {images.name}")
    if transposed:
        pixels = pixels.transpose(0, 2, 1)
    return pixels[:, np.newaxis], classes


def read_cifar(path: Path) -> Images:
    """Read a batch of CIFAR-10's binary version: a label and 3 × 32 × 32 bytes each.

    The name ends in ``.bin``, or ``.bin.xz`` or ``.bin.gz`` compressed;
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    limit = _CIFAR_RECORD * _CIFAR_BATCH
    data = read_at_most(path, limit + 1)
    if not data or len(data) > limit or len(data) % _CIFAR_RECORD:
        kind = f"must be 1 to {_CIFAR_BATCH} records of {_CIFAR_RECORD} bytes"
        fault(path, kind)
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    if records[:, 0].max() > 9:
        fault(path, "must hold images with labels from 0 to 9")
    return records[:, 1:].reshape(-1, *DATASETS["cifar10"]), records[:, 0]
