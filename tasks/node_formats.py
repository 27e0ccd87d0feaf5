"""A node's own data in NumPy's, LIBSVM's and MNIST's formats; see :mod:`.node_csv`.

No message shows what a file holds, and no exception that does is chained.
"""

from __future__ import annotations

import bz2
import gzip
import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from .base import DataFileError
from .images import read_idx_pair
from .node_settings import Schema
from .node_table import NodeTable, fault, label_codes

__all__ = ["read_idx_folder", "read_libsvm_file", "read_npz"]


def _in_order(
    path: Path, names: tuple[str, ...], schema: Schema, what: str
) -> list[int] | None:
    """Return the columns that hold the model's features, in its order; None: as is."""
    if len(set(names)) < len(names):
        fault(path, f"{what} has one name twice")
    if not schema.names:
        return None
    for number, name in enumerate(names, start=1):
        if name not in schema.names:
            fault(
                path,
                f"{what}: the name of column {number} is not among data.feature-names",
            )
    missing = [name for name in schema.names if name not in names]
    if missing and not schema.split:
        fault(path, f"{what} has no column {missing[0]!r}")
    return [names.index(name) for name in schema.names if name in names]


def _check_width(path: Path, width: int, schema: Schema) -> None:
    """Check the number of features."""
    if width > schema.features or (width < schema.features and not schema.split):
        fault(path, f"{width} feature columns; data.features says {schema.features}")


def _check_finite(path: Path, array: Any, what: str, names: tuple[str, ...]) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, *column = (int(i) for i in bad[0])
        name = (
            names[column[0]]
            if names and column
            else str(column[0] + 1 if column else what)
        )
        fault(path, "must be a finite number", row + 1, name)


def read_npz(path: Path, schema: Schema) -> NodeTable:
    """Read an archive of NumPy's.

    ``features`` of shape (d_i, p_i); ``labels`` of shape (d_i,), numbers or texts;
    where samples are split ``ids`` of shape (d_i,), texts or whole numbers; ``names``
    of the features, which may be left out where they go by their number.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, array, row and column.
    """
    arrays = _arrays(path)
    features = arrays.get("features")
    if features is None or features.ndim != 2 or 0 in features.shape:
        fault(path, "must have an array 'features' of rows and columns, not empty")
    if features.dtype.kind not in "biuf":
        fault(path, "the array 'features' must be of numbers")
    features = features.astype(np.float64)
    names = _texts(path, arrays.get("names"), "names", features.shape[1])
    if (schema.split or schema.names) and not names:
        fault(path, "must have an array 'names' of the features' names")
    _check_finite(path, features, "features", names)
    if names:
        order = _in_order(path, names, schema, "the array 'names'")
        if order is not None:
            features = np.ascontiguousarray(features[:, order])
            names = tuple(names[index] for index in order)
    _check_width(path, features.shape[1], schema)
    targets = None
    if schema.target != "none":
        targets = _npz_targets(path, arrays.get("labels"), len(features), schema)
    ids: tuple[str, ...] = ()
    if schema.split:
        ids = _texts(path, arrays.get("ids"), "ids", len(features))
        if not ids:
            fault(path, "must have an array 'ids', which names the samples")
        seen: dict[str, int] = {}
        for row, name in enumerate(ids, start=1):
            if seen.setdefault(name, row) != row:
                fault(path, f"is the id of row {seen[name]}, too", row, "ids")
    return NodeTable.of(features, targets, names, ids, schema)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive; none with Python objects is read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = ("features", "labels", "ids", "names")
            return {name: archive[name] for name in wanted if name in archive.files}
    except (
        ValueError,
        OSError,
        EOFError,
        AttributeError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        pass
    fault(path, "cannot be read as an archive of arrays of numbers and texts")


def _texts(
    path: Path, array: NDArray[Any] | None, what: str, count: int
) -> tuple[str, ...]:
    """Return names or ids; none where there is no such array."""
    if array is None:
        return ()
    if array.shape != (count,) or array.dtype.kind not in "Uiu":
        fault(path, f"the array {what!r} must have {count} texts or whole numbers")
    texts = tuple(str(entry).strip() for entry in array.tolist())
    for row, text in enumerate(texts, start=1):
        if not text or not text.isprintable():
            fault(path, "is empty or no text", row, what)
    return texts


def _npz_targets(
    path: Path, array: NDArray[Any] | None, count: int, schema: Schema
) -> NDArray[np.float64] | None:
    if array is None:
        if schema.split:
            return None
        fault(path, "must have an array 'labels'")
    if array.shape != (count,) or array.dtype.kind not in "biufU":
        fault(path, f"the array 'labels' must have {count} numbers or texts")
    if schema.target == "number":
        if array.dtype.kind == "U":
            fault(path, "the array 'labels' must be of numbers")
        targets = array.astype(np.float64)
        _check_finite(path, targets, "labels", ())
        return targets
    codes = label_codes(schema)
    missing = math.nan if schema.split else None
    targets = np.empty(count)
    for row, entry in enumerate(array.tolist()):
        key = entry.strip() if isinstance(entry, str) else float(entry)
        unknown = key == "" or key != key
        code = missing if unknown else codes.get(key)
        if code is None:
            fault(
                path,
                "is empty"
                if unknown
                else "is not among the labels that the run allows",
                row + 1,
                "labels",
            )
        targets[row] = code
    return targets


# -- LIBSVM


def read_libsvm_file(path: Path, schema: Schema) -> NodeTable:
    """Read LIBSVM's text format, raw or packed as ``.gz`` or ``.bz2``.

    Indices count from 1 to ``data.features``: unlike scikit-learn this does not take
    a file with an index 0 for one that counts from 0, which another node's might not
    have.

    Returns
    -------
    NodeTable
        CSR features.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, row (the line) and column
        (the index).
    """
    if schema.split or schema.names:
        what = "sample ids" if schema.split else "names for features"
        fault(
            path, f"LIBSVM's format has no {what}, which the run needs; use csv or npz"
        )
    # half a second that other formats need not spend
    from sklearn.datasets import load_svmlight_file

    loaded = None
    try:
        loaded = load_svmlight_file(
            str(path), n_features=schema.features, zero_based=False
        )
    except MemoryError:
        raise
    except Exception:  # whatever it says, it may quote the file
        pass
    if loaded is None:
        _bad_libsvm(path, schema)
    matrix, values = loaded
    if not matrix.shape[0]:
        fault(path, "the file has no examples")
    if not np.isfinite(matrix.data).all() or not np.isfinite(values).all():
        _bad_libsvm(path, schema)
    targets = None
    if schema.target == "number":
        targets = values
    elif schema.target == "class":
        codes = label_codes(schema)
        targets = np.array([codes.get(value, math.nan) for value in values.tolist()])
        if np.isnan(targets).any():
            _bad_libsvm(path, schema)
    return NodeTable.of(scipy.sparse.csr_array(matrix), targets, (), (), schema)


def _bad_libsvm(path: Path, schema: Schema) -> NoReturn:
    """Find the line that is wrong; called once it is known that one is."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    try:
        with openers.get(path.suffix, open)(path, "rb") as file:
            lines = file.read().split(b"\n")
    except (OSError, EOFError, zlib.error):
        lines = None
    if lines is None:
        fault(path, "the file cannot be read or unpacked")
    codes = label_codes(schema)
    for row, line in enumerate(lines, start=1):
        fields = line.split(b"#", 1)[0].split()
        if not fields:
            continue
        value = _number(fields[0])
        if not math.isfinite(value):
            fault(path, "must be a finite number", row, "label")
        if schema.target == "class" and value not in codes:
            fault(path, "is not among the labels that the run allows", row, "label")
        last = 0
        for place, pair in enumerate(fields[1:], start=1):
            index, colon, text = pair.partition(b":")
            if not (colon and index.isdigit() and len(index) < 10):
                fault(path, f"pair {place} is no index:value", row)
            number = int(index)
            if not 1 <= number <= schema.features:
                fault(
                    path,
                    f"the index of pair {place} is not from 1 to data.features = "
                    f"{schema.features}",
                    row,
                )
            if number <= last:
                fault(path, f"the index of pair {place} is not above the last", row)
            if not math.isfinite(_number(text)):
                fault(path, "must be a finite number", row, str(number))
            last = number
    fault(path, "cannot be read as LIBSVM's text format")


def _number(text: bytes) -> float:
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan


# -- idx


def read_idx_folder(path: Path, schema: Schema) -> NodeTable:
    """Read a folder with one pair of idx files, as MNIST's, raw or ``.gz``.

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
    kind = None
    try:
        pixels, labels = read_idx_pair(*found)
    except DataFileError as error:
        # its messages speak of headers and lengths, but for the first four bytes
        kind = (
            "are no pair of idx files of bytes"
            if "starts with" in str(error)
            else (str(error).rpartition(": ")[2])
        )
    if kind is not None:
        fault(path, f"the files {found[0].name} and {found[1].name}: {kind}")
    features = pixels.reshape(len(pixels), -1) / 255.0
    _check_width(path, features.shape[1], schema)
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
