"""Images and their labels: the idx files of MNIST and EMNIST, CIFAR-10's two formats.

A file that is not exactly what it says is refused with one line that names it and
quotes nothing of it (a DataFileError). No more is decompressed than the format allows,
and pickles may only make arrays.
"""

from __future__ import annotations

import io
import math
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .packed import read_at_most
from .table import Schema, Table, check_width, fault, make_table

Bytes = NDArray[np.uint8]

# No idx file of MNIST or EMNIST is larger (byclass has 697 932 training images).
_LIMIT = 2**30
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + math.prod(_CIFAR_SHAPE)
# A batch file of CIFAR-10 has 10 000 images; nothing larger is read.
_CIFAR_BATCH = 10_000


class Images(NamedTuple):
    """Images of shape (d, channels, height, width) and their labels, of shape (d,)."""

    pixels: Bytes
    labels: Bytes


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
        fault(
            path,
            f"dimensions {shape} ask for {expected} bytes of data, the file has {held}",
        )
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


def read_idx_folder(path: Path, schema: Schema) -> Table:
    """Read a node's folder with one pair of idx files, as MNIST's, raw or ``.gz``.

    One file whose name ends in ``images-idx3-ubyte`` and one in ``labels-idx1-ubyte``.
    Pixels are divided by 255.
    """
    if schema.split or schema.names or schema.target == "number":
        fault(path, "idx files have images and their classes; the run needs csv or npz")
    found = []
    for end in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        files = [*path.glob(f"*{end}"), *path.glob(f"*{end}.gz")]
        if len(files) != 1:
            fault(path, f"has {len(files)} files *{end}[.gz]; exactly one is expected")
        found += files
    pixels, labels = read_idx_pair(*found)
    check_width(path, math.prod(pixels.shape[1:]), schema)
    features = pixels.reshape(len(pixels), -1) / 255.0
    names = ("label", "weights", "ids")
    return make_table(found[1], schema, features, labels=labels.tolist(), columns=names)


# -- CIFAR-10


class _ArrayUnpickler(pickle.Unpickler):
    """Makes NumPy arrays of numbers and plain containers, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        # what makes an empty array that the pickle then fills; the module was renamed
        # in NumPy 2, and files name the one they were made with
        reconstruct = np.ndarray(0).__reduce__()[0]
        allowed = {
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": _dtype,
            "numpy.core.multiarray._reconstruct": reconstruct,
            "numpy._core.multiarray._reconstruct": reconstruct,
            "_codecs.encode": _encode,
        }
        if f"{module}.{name}" not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return allowed[f"{module}.{name}"]


def _dtype(name: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """Make a dtype; pickles have the integers 0 and 1, NumPy now wants Booleans."""
    return np.dtype(name, align=bool(align), copy=bool(copy))  # type: ignore[no-any-return]


def _encode(text: str, encoding: str) -> bytes:
    """Turn text into bytes, as pickles of protocol 2 made by Python 3 ask for."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r:.40}")
    return text.encode("latin1")


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
    read = _cifar_records if ".bin" in path.suffixes else _cifar_pickle
    pixels, labels = read(path)
    if not len(labels):
        fault(path, "holds no images")
    if labels.min() < 0 or labels.max() > 9:
        fault(path, "a label lies outside 0 to 9")
    return Images(pixels.reshape(-1, *_CIFAR_SHAPE), labels.astype(np.uint8))


def _cifar_records(path: Path) -> tuple[Any, Any]:
    limit = _CIFAR_RECORD * _CIFAR_BATCH
    data = read_at_most(path, limit + 1)
    if len(data) > limit or len(data) % _CIFAR_RECORD:
        kind = f"{len(data)} bytes read are not at most {_CIFAR_BATCH} records of"
        fault(path, f"{kind} {_CIFAR_RECORD} bytes")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:], records[:, 0]


def _cifar_pickle(path: Path) -> tuple[Any, Any]:
    batch, arrays = restricted_load(path), None
    with suppress(KeyError, TypeError, IndexError, ValueError):
        arrays = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    if arrays is None:
        fault(path, "has no 'data' and 'labels'")
    pixels, labels = arrays
    good = pixels.ndim == 2 and pixels.shape == (labels.size, _CIFAR_RECORD - 1)
    if not good or pixels.dtype != np.uint8 or labels.dtype.kind not in "iu":
        fault(
            path,
            f"'data' has shape {pixels.shape} and dtype {pixels.dtype}, 'labels' shape "
            f"{labels.shape}; they must be (d, 3072) bytes and (d,)",
        )
    return pixels, labels
