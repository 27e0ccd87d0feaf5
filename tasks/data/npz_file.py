"""A node's own archive of NumPy's; see :mod:`.csv_file`.

No message shows what a file holds, and no exception that does is chained.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .settings import Schema
from .table import (
    LabelCodes,
    NodeTable,
    check_width,
    fault,
    label_codes,
    to_weight,
)

__all__ = ["read_npz"]


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
    ``weights`` of shape (d_i,), if samples have some; where samples are split ``ids``
    of shape (d_i,), texts or whole numbers; ``names`` of the features, which may be
    left out where they go by their number.

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
    check_width(path, features.shape[1], schema)
    targets, codes = None, label_codes(schema)
    if schema.target != "none":
        targets = _npz_targets(path, arrays.get("labels"), len(features), schema, codes)
    weights = _npz_weights(path, arrays.get("weights"), len(features), schema)
    ids: tuple[str, ...] = ()
    if schema.split:
        ids = _texts(path, arrays.get("ids"), "ids", len(features))
        if not ids:
            fault(path, "must have an array 'ids', which names the samples")
        seen: dict[str, int] = {}
        for row, name in enumerate(ids, start=1):
            if seen.setdefault(name, row) != row:
                fault(path, f"is the id of row {seen[name]}, too", row, "ids")
    return NodeTable.of(features, targets, names, ids, schema, codes, weights)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive; none with Python objects is read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = ("features", "labels", "ids", "names", "weights")
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


def _npz_weights(
    path: Path, array: NDArray[Any] | None, count: int, schema: Schema
) -> NDArray[np.float64] | None:
    if not schema.weight_column:
        return None
    if array is None:
        if schema.split:
            return None
        fault(path, "must have an array 'weights', as data.weight-column is set")
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        fault(path, f"the array 'weights' must have {count} numbers")
    weights = array.astype(np.float64)
    for row, value in enumerate(weights.tolist(), start=1):
        found = to_weight("" if math.isnan(value) else repr(value), schema)
        if isinstance(found, str):
            fault(path, found, row, "weights")
    return weights


def _npz_targets(
    path: Path,
    array: NDArray[Any] | None,
    count: int,
    schema: Schema,
    codes: LabelCodes,
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
