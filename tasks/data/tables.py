"""Tables of labelled examples, as they come: QSAR, Santander, LIBSVM's text.

Each loader returns all examples of one file, in the file's order. Messages about a file
name the line and what is wrong, and do not show what it holds.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from ..base import DataFileError
from .any_file import read_any_file
from .libsvm import read_libsvm
from .table import to_number

__all__ = ["Table", "load_any", "load_libsvm", "load_qsar", "load_santander"]

_QSAR_FEATURES = 1024
_SANTANDER_FEATURES = 200
_SANTANDER_HEADER = ["ID_code", "target"] + [
    f"var_{i}" for i in range(_SANTANDER_FEATURES)
]
# How many labels a message lists.
_LISTED = 10


class Table(NamedTuple):
    """Examples with a label each.

    ``features`` has shape (d, p), float64, dense (C order) or ``scipy.sparse`` CSR;
    ``labels`` has shape (d,) and counts the classes from 0.
    """

    features: Any
    labels: NDArray[np.intp]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a csv file, or the one csv file in a zip archive."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.lower().endswith(".csv")]
            if len(names) != 1:
                raise DataFileError(
                    f"{path}: the archive has {len(names)} csv files; "
                    "it must have exactly one"
                )
            with archive.open(names[0]) as member:
                yield cast(BinaryIO, member)
    # RuntimeError is how zipfile asks for a password
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise DataFileError(f"{path}: the zip archive cannot be read") from error


# -- QSAR oral toxicity


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
        CSR features; label 1 for positive.

    Raises
    ------
    DataFileError
        The file holds something else; names file and line.

    Notes
    -----
    D. Ballabio, F. Grisoni, V. Consonni, R. Todeschini, "Integrated QSAR models to
    predict acute oral systemic toxicity", 2019.
    """
    with _opened(path) as file:
        lines = file.read().split(b"\n")
    if lines[-1].strip() == b"":
        lines.pop()
    if not lines:
        raise DataFileError(f"{path}: the file is empty")
    # Every row has one length, as both words have eight letters: one array of bytes.
    width = 2 * _QSAR_FEATURES + len(b"negative")
    rows = [line.rstrip(b"\r") for line in lines]
    if {len(row) for row in rows} != {width}:
        _bad_qsar_row(path, rows)
    text = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)
    bits = text[:, 0 : 2 * _QSAR_FEATURES : 2]
    between = text[:, 1 : 2 * _QSAR_FEATURES : 2]
    words = np.ascontiguousarray(text[:, 2 * _QSAR_FEATURES :]).view("S8")[:, 0]
    ones, positive = bits == ord("1"), words == b"positive"
    good = (between == ord(";")).all() and (ones | (bits == ord("0"))).all()
    if not (good and (positive | (words == b"negative")).all()):
        _bad_qsar_row(path, rows)
    columns = np.nonzero(ones)[1].astype(np.int32)
    starts = np.concatenate(([0], np.cumsum(ones.sum(axis=1)))).astype(np.int32)
    features = scipy.sparse.csr_array(
        (np.ones(len(columns)), columns, starts), shape=ones.shape
    )
    return Table(features, positive.astype(np.intp))


def _bad_qsar_row(path: Path, rows: list[bytes]) -> NoReturn:
    """Say which row is wrong, and how."""
    for count, row in enumerate(rows, start=1):
        *bits, label = row.split(b";")
        where = f"{path}, line {count}"
        if len(bits) != _QSAR_FEATURES:
            raise DataFileError(
                f"{where}: {len(bits) + 1} fields with ; between; "
                f"{_QSAR_FEATURES} features and the label are expected"
            )
        wrong = [i for i, bit in enumerate(bits, start=1) if bit not in (b"0", b"1")]
        if wrong:
            raise DataFileError(f"{where}, field {wrong[0]}: must be 0 or 1")
        if label not in (b"negative", b"positive"):
            raise DataFileError(f"{where}: the label must be positive or negative")
    raise AssertionError("no row is wrong")  # pragma: no cover


# -- Santander


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
        The file holds something else; names file, line and column.
    """
    with _opened(path) as file:
        header = file.readline().strip().decode("latin-1").split(",")
        if header != _SANTANDER_HEADER:
            raise DataFileError(
                f"{path}, line 1: the header must be ID_code,target,var_0,…,var_199"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a file without rows
                rows = _without_identifiers(file)
                numbers = np.loadtxt(rows, delimiter=",", comments=None, ndmin=2)
        except ValueError:
            numbers = np.empty((0, 0))
    if (
        numbers.shape[1] != 1 + _SANTANDER_FEATURES
        or not np.isfinite(numbers).all()
        or not np.isin(numbers[:, 0], (0.0, 1.0)).all()
    ):
        _bad_santander_row(path)
    features = np.ascontiguousarray(numbers[:, 1:])
    return Table(features, numbers[:, 0].astype(np.intp))


def _without_identifiers(file: BinaryIO) -> Iterator[bytes]:
    """Yield what stands behind the first comma of every line that is not blank."""
    for line in file:
        numbers = line.partition(b",")[2]
        if numbers:
            yield numbers
        elif line.strip():
            yield b"?"  # no number either: an empty line would be passed over


def _bad_santander_row(path: Path) -> NoReturn:
    """Say which row is wrong, and in which column."""
    with _opened(path) as file:
        for count, line in enumerate(file, start=1):
            fields = line.strip().split(b",")
            if count == 1 or fields == [b""]:
                continue
            where = f"{path}, line {count}"
            if len(fields) != len(_SANTANDER_HEADER):
                raise DataFileError(
                    f"{where}: {len(fields)} fields with , between; "
                    f"{len(_SANTANDER_HEADER)} are expected"
                )
            for name, field in zip(_SANTANDER_HEADER[1:], fields[1:], strict=True):
                value = to_number(field.decode("latin-1"))
                if not math.isfinite(value):
                    raise DataFileError(
                        f"{where}, column {name}: must be a finite number"
                    )
                if name == "target" and value not in (0.0, 1.0):
                    raise DataFileError(f"{where}, column target: must be 0 or 1")
    raise DataFileError(f"{path}: there are no rows of numbers below the header")


# -- LIBSVM


def load_libsvm(path: Path) -> Table:
    """Load examples with two labels in LIBSVM's text format.

    The smaller of the two labels becomes 0, the larger 1.

    Parameters
    ----------
    path : Path
        As :func:`~.libsvm.read_libsvm` takes it.

    Returns
    -------
    Table
        CSR features, as many as the largest index says.

    Raises
    ------
    DataFileError
        The file holds something else, or its labels are not two; names the file, and
        the line where it is one.
    """
    matrix, targets = read_libsvm(path)
    labels, which = np.unique(targets, return_inverse=True)
    _check_labels(path, [f"{label:g}" for label in labels], 2)
    return Table(matrix, which.astype(np.intp))


def _check_labels(path: str | Path, labels: Sequence[str], classes: int) -> None:
    if len(labels) != classes:
        more = "" if len(labels) <= _LISTED else f" and {len(labels) - _LISTED} more"
        raise DataFileError(
            f"{path}: the labels are {', '.join(labels[:_LISTED])}{more}; there must "
            f"be exactly {'two' if classes == 2 else classes}"
        )


# -- any format


def load_any(key: str, path: str, label_column: str, classes: int = 2) -> Table:
    """Load a file with so many labels, numbers or texts, in any of the formats.

    The other parameters are those of :func:`~.any_file.read_any_file`. The smallest
    label, or the first in the alphabet, becomes 0.

    Raises
    ------
    FileNotFoundError, DataFileError
        There is none, or it holds something else; a file with more or fewer labels is
        told with them.
    """
    data = read_any_file(key, path, "class", label_column)
    labels = [f"{x:g}" if isinstance(x, float) else x for x in data.labels]
    _check_labels(path, labels, classes)
    return Table(data.features, data.targets.astype(np.intp))
