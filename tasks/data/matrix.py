"""A matrix of numbers from a file of the user's, an example in each row."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..base import Array, DataFileError
from .table import is_number

__all__ = ["read_matrix"]


def read_matrix(path: Path) -> Array:
    """Read a matrix of numbers, an example in each row.

    Parameters
    ----------
    path : Path
        ``.npy``; ``.npz`` with one array; ``.csv``, with commas between the numbers and
        at most one line of names before them.

    Returns
    -------
    ndarray of float64 of shape (d, p)

    Raises
    ------
    DataFileError
        The file holds something else, in one line that names it.
    """
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise DataFileError(f"{path}: the name must end in .npy, .npz or .csv")
    array = np.asarray(readers[suffix](path))
    if array.dtype.kind not in "biuf" or array.ndim != 2 or 0 in array.shape:
        raise DataFileError(
            f"{path}: it holds an array of dtype {array.dtype} and shape "
            f"{array.shape}; a matrix of real numbers is expected"
        )
    matrix = array.astype(np.float64)
    if not np.isfinite(matrix).all():
        raise DataFileError(f"{path}: there are NaN or infinite entries")
    return matrix


def _read_npy(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataFileError(f"{path}: it cannot be read as an array") from error


def _read_npz(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            if len(names) == 1:
                return archive[names[0]]
    except (
        ValueError,
        OSError,
        EOFError,
        AttributeError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataFileError(f"{path}: it cannot be read as an archive") from error
    raise DataFileError(f"{path}: it has {len(names)} arrays; one is expected")


def _read_csv(path: Path) -> Any:
    try:
        with path.open(encoding="utf-8") as file:
            lines = [line for line in file if line.strip()]
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path}: it is not text in UTF-8") from error
    if lines and not is_number(lines[0].split(",")[0]):
        lines = lines[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of a file without numbers
        with suppress(ValueError):  # which quotes what it could not read
            return np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
    width = lines[0].count(",") + 1
    for row, line in enumerate(lines, start=1):
        fields = line.split(",")
        wrong = [n for n, f in enumerate(fields, start=1) if not is_number(f)]
        if len(fields) != width:
            kind = f"row {row} has {len(fields)} columns, the first {width}"
        elif wrong:
            kind = f"row {row}, column {wrong[0]}: must be a number"
        else:
            continue
        raise DataFileError(f"{path}: not a matrix of numbers: {kind}")
    raise DataFileError(f"{path}: not a matrix of numbers")
