"""A table of examples: what a file must hold, what it holds, and what is wrong with it.

A fault names the file, the row, the column and what is allowed, and never what stands
there: a node's messages reach the server. For the same reason no exception that a
library raises is chained to ours, as it may quote the file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST

from ..base import Array, DataFileError

__all__ = [
    "Schema",
    "Table",
    "fault",
    "is_number",
    "make_table",
    "numbers",
    "to_number",
]


@dataclass(frozen=True)
class Schema:
    """What a file must hold.

    Attributes
    ----------
    features : int
        p; of all nodes together where ``split``. 0: as many as there are.
    names : tuple of str
        The features' names in the model's order; none: by their number.
    target : {"class", "number", "none"}
        What the label column holds; ``"none"``: it is not needed, and not read.
    labels : tuple of str
        Those allowed, for ``"class"``; the first is class 0. None: all that come.
    label_column : str
    split : bool
        Whether the nodes have some of the features and some of the samples: then
        examples have ids, and the label may be missing.
    weight_column : str
        What each sample counts; empty: all alike.
    ignored : tuple of str
        Columns that are not read.
    """

    features: int
    names: tuple[str, ...] = ()
    target: Literal["class", "number", "none"] = "none"
    labels: tuple[str, ...] = ()
    label_column: str = "label"
    split: bool = False
    weight_column: str = ""
    ignored: tuple[str, ...] = ()


class Table(NamedTuple):
    """A file's examples, checked; dense arrays are read-only.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
        float64.
    targets : ndarray of shape (d,) or None
        Classes counted from 0 or numbers, float64; NaN for a sample without a label.
    names : tuple of str
        The features' names; none where the file has no names.
    ids : tuple of str
        The samples', where they are split; else none.
    labels : tuple of str or float
        The classes' labels by their numbers, where the schema lists none: ascending,
        numbers before texts.
    weights : ndarray of shape (d,) or None
        What each sample counts, NaN where the file does not say; None: all alike.
    """

    features: Any
    targets: Any
    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    labels: tuple[str | float, ...] = ()
    weights: Array | None = None

    def columns_digest(self) -> str:
        """Return what tells whether two nodes' columns are the same, in one order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:32]


def fault(
    path: Path, kind: str, row: int | None = None, column: str | None = None
) -> NoReturn:
    """Raise a DataFileError that says where, and what kind of fault.

    Not to be called within an ``except``: a chained exception could quote the file.
    """
    where = str(path)
    if row is not None:
        where += f", row {row}"
    if column is not None:
        where += f", column {column[:60]!r}"
    raise DataFileError(f"{where}: {kind}")


def is_number(text: str) -> bool:
    """Whether a text is a number; unlike Python, 1_0 and digits of other scripts no."""
    if "_" in text or not text.isascii():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_number(text: str) -> float:
    """Return a number, NaN for anything else."""
    return float(text) if is_number(text) else math.nan


def numbers(
    path: Path, cells: NDArray[Any], names: Sequence[str], rows_before: int = 0
) -> Array:
    """Return texts or numbers of shape (d, k) as finite float64 ones.

    Parameters
    ----------
    path : Path
    cells : ndarray of shape (d, k)
    names : sequence of str
        Of the k columns, for messages.
    rows_before : int, default 0
        How many rows of the file stand before these.

    Raises
    ------
    DataFileError
        One is not finite, or no number.
    """
    found = None
    if cells.dtype != object:
        found = cells.astype(np.float64)
    else:
        text = "".join(cells.ravel().tolist())
        if "_" not in text and text.isascii():
            try:
                found = cells.astype(np.float64)
            except ValueError:
                found = None
    if found is None:
        read = [to_number(text) for text in cells.flat]
        found = np.array(read).reshape(cells.shape)
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        kind, text = "must be a finite number", cells[row, column]
        if isinstance(text, str) and not is_number(text):
            kind = "must be a number" if text.strip() else "is empty"
        fault(path, kind, rows_before + int(row) + 1, names[column])
    return found


def make_table(
    path: Path,
    schema: Schema,
    features: Any,
    *,
    labels: Sequence[Any] | Array | None = None,
    names: tuple[str, ...] = (),
    ids: Sequence[str] = (),
    weights: Sequence[Any] | None = None,
    columns: tuple[str, str, str] = ("labels", "weights", "ids"),
) -> Table:
    """Check what a reader found against a schema.

    Parameters
    ----------
    path : Path
    schema : Schema
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
        Finite, float64, in the model's order.
    labels, weights : sequence of str or float, optional
        As they stand in the file.
    names, ids : sequence of str
    columns : tuple of str
        What messages call the labels, the weights and the ids.

    Raises
    ------
    DataFileError
    """
    check_width(path, features.shape[1], schema)
    targets = None
    found: tuple[str | float, ...] = ()
    if schema.target != "none" and labels is not None:
        targets, found = _targets(path, labels, schema, columns[0])
    counts = None
    if schema.weight_column and weights is not None:
        counts = _weights(path, weights, schema, columns[1])
    if schema.split:
        ids = _unique(path, ids, columns[2])
        # of the samples of this file nobody has said it
        targets = None if targets is None or np.isnan(targets).all() else targets
        counts = None if counts is None or np.isnan(counts).all() else counts
    for part in (features, targets, counts):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Table(features, targets, names, tuple(ids), found, counts)


def check_width(path: Path, width: int, schema: Schema) -> None:
    """Check the number of features, unless it is open.

    Raises
    ------
    DataFileError
    """
    few = width < schema.features and not schema.split
    if schema.features and (few or width > schema.features):
        fault(path, f"{width} feature columns; data.features says {schema.features}")


def in_order(
    path: Path,
    names: Sequence[str],
    schema: Schema,
    where: str,
    places: Sequence[int] = (),
) -> list[int]:
    """Return the columns that hold the model's features, in its order.

    ``where`` is what holds the names, and ``places`` are their numbers in it.

    Raises
    ------
    DataFileError
        A name is not one of the schema's, or one is missing.
    """
    if not schema.names:
        return list(range(len(names)))
    for place, name in zip(places or range(1, len(names) + 1), names, strict=True):
        if name not in schema.names:
            fault(
                path,
                f"{where}: column {place} is not among data.feature-names",
            )
    missing = [name for name in schema.names if name not in names]
    if missing and not schema.split:
        fault(path, f"{where} has no column {missing[0]!r}")
    return [names.index(name) for name in schema.names if name in names]


def _targets(
    path: Path, entries: Sequence[Any] | Array, schema: Schema, column: str
) -> tuple[Array, tuple[str | float, ...]]:
    """Return the targets, and the labels that were found where all are allowed."""
    codes = _codes(schema)
    given = schema.target == "class" and not schema.labels
    targets = np.empty(len(entries))
    for row, entry in enumerate(entries):
        text = entry.strip() if isinstance(entry, str) else None
        value = float(entry) if text is None else to_number(text)
        code: float | None = None
        if text == "" or (text is None and math.isnan(value)):
            if not schema.split:
                fault(path, "is empty", row + 1, column)
            code = math.nan
        elif schema.target == "number":
            if not math.isfinite(value):
                fault(path, "must be a finite number", row + 1, column)
            code = value
        elif given:
            # one that is a number goes by its value
            key = value if math.isfinite(value) or text is None else text
            code = codes.setdefault(key, float(len(codes)))
        else:
            code = codes.get(value if text is None else text, codes.get(value))
        if code is None:
            kind = "is not among the labels that the run allows"
            fault(path, kind, row + 1, column)
        targets[row] = code
    if not given:
        return targets, ()
    # they are numbered as they came; now the smallest is 0
    found = sorted(codes, key=lambda label: (isinstance(label, str), label))
    place = {codes[label]: float(number) for number, label in enumerate(found)}
    return np.array([place.get(code, math.nan) for code in targets]), tuple(found)


def _codes(schema: Schema) -> dict[str | float, float]:
    """Return the numbers of the allowed labels, by text and, of numbers, by value."""
    codes: dict[str | float, float] = {}
    for code, label in enumerate(schema.labels):
        codes[label] = float(code)
        if is_number(label):
            codes.setdefault(float(label), float(code))
    return codes


def _weights(path: Path, entries: Sequence[Any], schema: Schema, column: str) -> Array:
    weights = np.empty(len(entries))
    for row, entry in enumerate(entries):
        text = entry.strip() if isinstance(entry, str) else repr(float(entry))
        if text in ("", "nan") and (schema.split or not text):
            if not schema.split:
                fault(path, "is empty", row + 1, column)
            weights[row] = math.nan
            continue
        value = to_number(text)
        if value != 0.0 and not LIGHTEST <= value < math.inf:
            kind = f"must be 0 or a finite number from {LIGHTEST:g} on"
            fault(path, kind, row + 1, column)
        weights[row] = value
    return weights


def _unique(path: Path, entries: Sequence[str], column: str) -> tuple[str, ...]:
    """Return samples' ids, each once, in the order of the rows."""
    seen: dict[str, int] = {}
    for row, entry in enumerate(entries, start=1):
        name = entry.strip()
        if not name:
            fault(path, "is empty", row, column)
        if not name.isprintable():
            fault(path, "has characters that are no text in UTF-8", row, column)
        if seen.setdefault(name, row) != row:
            fault(path, f"is the id of row {seen[name]}, too", row, column)
    return tuple(seen)
