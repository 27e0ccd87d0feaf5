"""CIFAR-10's two formats.

A file that is not exactly what it says is refused with one line that names it. No more
is decompressed than the format allows, and pickles may only make arrays.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..base import DataFileError
from .idx import Images
from .packed import read_at_most

__all__ = ["read_cifar", "restricted_load"]

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + math.prod(_CIFAR_SHAPE)
# A batch file of CIFAR-10 has 10 000 images; nothing larger is read.
_CIFAR_BATCH = 10_000


class _ArrayUnpickler(pickle.Unpickler):
    """Makes NumPy arrays of numbers and plain containers, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _dtype
        # The module was renamed in NumPy 2; files name the one they were made with.
        cores = ("numpy.core.multiarray", "numpy._core.multiarray")
        if module in cores and name == "_reconstruct":
            # what makes an empty array that the pickle then fills
            return np.ndarray(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _dtype(name: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """Make a dtype; pickles have the integers 0 and 1, NumPy now wants Booleans."""
    return np.dtype(name, align=bool(align), copy=bool(copy))  # type: ignore[no-any-return]


def _encode(text: str, encoding: str) -> bytes:
    """Turn text into bytes, as pickles of protocol 2 made by Python 3 ask for."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r:.40}")
    return text.encode("latin1")


def restricted_load(path: Path) -> Any:
    """Load a pickle that holds arrays and plain containers only.

    Raises
    ------
    DataFileError
        It asks for anything else, or is no pickle.
    """
    # A batch is 31 MB; the rest is names.
    data = read_at_most(path, 2 * _CIFAR_RECORD * _CIFAR_BATCH)
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataFileError(f"{path}: not a pickle of arrays: {reason}") from error


def _read_pickle(path: Path) -> Images:
    batch = restricted_load(path)
    try:
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DataFileError(f"{path}: has no 'data' and 'labels'") from error
    good = pixels.ndim == 2 and pixels.shape == (labels.size, _CIFAR_RECORD - 1)
    if not good or pixels.dtype != np.uint8 or labels.dtype.kind not in "iu":
        raise DataFileError(
            f"{path}: 'data' has shape {pixels.shape} and dtype {pixels.dtype}, "
            f"'labels' shape {labels.shape}; they must be (d, 3072) bytes and (d,)"
        )
    if labels.size and (labels.min() < 0 or labels.max() > 9):
        raise DataFileError(f"{path}: a label lies outside 0 to 9")
    return Images(pixels.reshape(-1, *_CIFAR_SHAPE), labels.astype(np.uint8))


def _read_binary(path: Path) -> Images:
    limit = _CIFAR_RECORD * _CIFAR_BATCH
    data = read_at_most(path, limit + 1)
    if len(data) > limit or len(data) % _CIFAR_RECORD:
        raise DataFileError(
            f"{path}: {len(data)} bytes read are not at most {_CIFAR_BATCH} records of "
            f"{_CIFAR_RECORD} bytes"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    if len(records) and records[:, 0].max() > 9:
        raise DataFileError(f"{path}: a label lies outside 0 to 9")
    return Images(records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0])


def read_cifar(path: Path) -> Images:
    """Read one batch of CIFAR-10: the Python version, or the binary one.

    The binary version's name ends in ``.bin``, or ``.bin.xz`` or ``.bin.gz``
    compressed; a record is a label and 3 × 32 × 32 bytes. The Python version is a
    pickled dictionary, https://www.cs.toronto.edu/~kriz/cifar.html.

    Raises
    ------
    DataFileError
        The file is something else or empty.
    """
    images = _read_binary(path) if ".bin" in path.suffixes else _read_pickle(path)
    if not len(images.labels):
        raise DataFileError(f"{path}: holds no images")
    return images
