"""The idx format of MNIST and EMNIST.

A file that is not exactly what it says is refused with one line that names it. No more
is decompressed than the header allows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import DataFileError
from .packed import UnpackingError, read_at_most
from .settings import Schema
from .table import NodeTable, check_width, fault, label_codes

__all__ = ["Images", "read_idx", "read_idx_folder", "read_idx_pair"]

Bytes = NDArray[np.uint8]

# No idx file of MNIST or EMNIST is larger (byclass has 697 932 training images).
_LIMIT = 2**30


class Images(NamedTuple):
    """Images of shape (d, channels, height, width) and their labels, of shape (d,)."""

    pixels: Bytes
    labels: Bytes


class _MagicNumberError(DataFileError):
    """A file starts as no idx file of bytes does; the message quotes its start."""


def read_idx(path: Path, ndim: int) -> Bytes:
    """Read an idx file of unsigned bytes, raw or packed.

    The format, from http://yann.lecun.com/exdb/mnist: two zero bytes, the type 0x08,
    the number of dimensions, each dimension as a big-endian 32-bit integer, the data.

    Parameters
    ----------
    path : pathlib.Path
    ndim : int
        The number of dimensions it must have: 3 for images, 1 for labels.

    Returns
    -------
    ndarray of uint8
        Read-only.

    Raises
    ------
    DataFileError
        The magic number is another, or the length disagrees with the dimensions.
    """
    size = 4 + 4 * ndim
    header = read_at_most(path, size)
    magic = bytes((0, 0, 8, ndim))
    if header[:4] != magic:
        raise _MagicNumberError(
            f"{path}: starts with {header[:4].hex()}, not with {magic.hex()}, the "
            f"magic number of an idx file of bytes with {ndim} dimensions"
        )
    if len(header) < size:
        raise DataFileError(f"{path}: ends within its header")
    shape = tuple(int(n) for n in np.frombuffer(header[4:], dtype=">u4"))
    expected = math.prod(shape)
    if not 0 < expected <= _LIMIT:
        raise DataFileError(
            f"{path}: dimensions {shape} are not between 1 and 2³⁰ bytes"
        )
    data = read_at_most(path, size + expected + 1)[size:]
    if len(data) != expected:
        held = "more" if len(data) > expected else f"{len(data)}"
        raise DataFileError(
            f"{path}: dimensions {shape} ask for {expected} bytes of data, "
            f"the file has {held}"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, *, transposed: bool = False) -> Images:
    """Read images and their labels.

    Parameters
    ----------
    images, labels : pathlib.Path
    transposed : bool, default False
        EMNIST's files hold every image with rows and columns swapped; True puts them
        upright.

    Raises
    ------
    DataFileError
        One of the files is malformed, or their lengths differ.
    """
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        raise DataFileError(
            f"{labels}: has {len(classes)} labels for the {len(pixels)} images of "
            f"{images.name}"
        )
    if transposed:
        pixels = pixels.transpose(0, 2, 1)
    return Images(pixels[:, np.newaxis], classes)


def read_idx_folder(path: Path, schema: Schema) -> NodeTable:
    """Read a node's folder with one pair of idx files, as MNIST's, raw or ``.gz``.

    One file whose name ends in ``images-idx3-ubyte`` and one in ``labels-idx1-ubyte``.
    Pixels are divided by 255.

    Raises
    ------
    DataFileError
        The folder does not hold what it should.
    """
    if schema.split or schema.names or schema.target == "number":
        fault(path, "idx files have images and their classes; the run needs csv or npz")
    found = []
    for end in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        files = sorted([*path.glob(f"*{end}"), *path.glob(f"*{end}.gz")])
        if len(files) != 1:
            fault(path, f"has {len(files)} files *{end}[.gz]; exactly one is expected")
        found += files
    # two messages of the public readers quote a file's first bytes
    kind = None
    try:
        pixels, labels = read_idx_pair(*found)
    except _MagicNumberError:
        kind = "are no pair of idx files of bytes"
    except UnpackingError:
        kind = "one cannot be decompressed"
    except DataFileError as error:
        kind = str(error).rpartition(": ")[2]  # of dimensions and lengths
    if kind is not None:
        fault(path, f"the files {found[0].name} and {found[1].name}: {kind}")
    features = pixels.reshape(len(pixels), -1) / 255.0
    check_width(path, features.shape[1], schema)
    targets = None
    if schema.target == "class":
        codes = label_codes(schema)
        table = np.array([codes.get(float(value), math.nan) for value in range(256)])
        targets = table[labels]
        wrong = np.flatnonzero(np.isnan(targets))
        if len(wrong):
            fault(
                found[1],
                "is not among the labels that the run allows",
                int(wrong[0]) + 1,
                "label",
            )
    return NodeTable.of(features, targets, (), (), schema)
