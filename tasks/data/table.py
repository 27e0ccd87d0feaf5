"""A table of examples: what a file must hold, what it holds, and what is wrong with it.

A fault names the file, the row, the column and what is allowed, and never what stands
there: a node's messages reach the server. For the same reason no exception that a
library raises is chained to ours, as it may quote the file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST

from ..base import Array, DataFileError


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


def numbers(path: Path, cells: NDArray[Any], names: Sequence[str]) -> Array:
    """Return numbers of shape (d, k) as float64, which must be finite."""
    found = cells.astype(np.float64)
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        fault(path, "must be a finite number", int(row) + 1, names[column])
    return found


def make_table(
    path: Path,
    schema: Schema,
    features: Any,
    *,
    labels: Iterable[Any] | None = None,
    names: tuple[str, ...] = (),
    ids: Sequence[str] = (),
    weights: Iterable[Any] | None = None,
    columns: tuple[str, str, str] = ("labels", "weights", "ids"),
) -> Table:
    """Check what a reader found against a schema.

    ``features`` are finite, float64 and in the model's order, ``labels`` and
    ``weights`` texts or numbers as they stand in the file, and ``columns`` is what
    messages call the labels, the weights and the ids.
    """
    check_width(path, features.shape[1], schema)
    targets = counts = None
    found: tuple[str | float, ...] = ()
    if schema.target != "none" and labels is not None:
        targets, found = _targets(path, _texts(labels), schema, columns[0])
    if schema.weight_column and weights is not None:
        counts = _weights(path, _texts(weights), schema, columns[1])
    if schema.split:
        ids = _unique(path, ids, columns[2])
        # the file has the column, and nothing in it
        targets = None if targets is None or np.isnan(targets).all() else targets
        counts = None if counts is None or np.isnan(counts).all() else counts
    for part in (features, targets, counts):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Table(features, targets, names, tuple(ids), found, counts)


def check_width(path: Path, width: int, schema: Schema) -> None:
    """Check the number of features, unless it is open."""
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
    """
    if not schema.names:
        return list(range(len(names)))
    for place, name in zip(places or range(1, len(names) + 1), names, strict=True):
        if name not in schema.names:
            fault(path, f"{where}: column {place} is not among data.feature-names")
    missing = [name for name in schema.names if name not in names]
    if missing and not schema.split:
        fault(path, f"{where} has no column {missing[0]!r}")
    return [names.index(name) for name in schema.names if name in names]


def _texts(entries: Iterable[Any]) -> list[str]:
    """Return texts without blanks around them, and numbers as texts; NaN is empty."""
    return [
        entry.strip()
        if isinstance(entry, str)
        else ("" if entry != entry else repr(float(entry)))
        for entry in entries
    ]


def _check(
    path: Path, texts: list[str], good: NDArray[Any], schema: Schema, *fault_of: str
) -> None:
    """Refuse the first entry that is not good, or empty where that is not allowed."""
    empty = np.array([not text for text in texts])
    bad = ~good & ~empty if schema.split else ~good | empty
    if bad.any():
        row = int(bad.argmax())
        kind, column = fault_of
        fault(path, "is empty" if empty[row] else kind, row + 1, column)


def _targets(
    path: Path, texts: list[str], schema: Schema, column: str
) -> tuple[Array, tuple[str | float, ...]]:
    """Return the targets, and the labels that were found where all are allowed."""
    values = np.array([to_number(text) for text in texts])
    if schema.target == "number":
        good = np.isfinite(values)
        _check(path, texts, good, schema, "must be a finite number", column)
        return values, ()
    # a label that is a number goes by its value
    keys = [
        v if math.isfinite(v) else t
        for t, v in zip(texts, values.tolist(), strict=True)
    ]
    found: list[str | float] = []
    if not schema.labels:
        found = sorted({k for k in keys if k != ""}, key=lambda k: (type(k) is str, k))
    codes: dict[str | float, int] = {label: n for n, label in enumerate(found)}
    for code, label in enumerate(schema.labels):
        codes[label] = code
        if is_number(label):
            codes.setdefault(float(label), code)
    pairs = zip(texts, keys, strict=True)
    numbered = np.array([codes.get(t, codes.get(k, math.nan)) for t, k in pairs])
    kind = "is not among the labels that the run allows"
    _check(path, texts, np.isfinite(numbered), schema, kind, column)
    return numbered.astype(np.float64), tuple(found)


def _weights(path: Path, texts: list[str], schema: Schema, column: str) -> Array:
    if schema.split:
        texts = ["" if text == "nan" else text for text in texts]
    weights = np.array([to_number(text) for text in texts])
    good = (weights == 0.0) | (weights >= LIGHTEST) & (weights < math.inf)
    kind = f"must be 0 or a finite number from {LIGHTEST:g} on"
    _check(path, texts, good, schema, kind, column)
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
