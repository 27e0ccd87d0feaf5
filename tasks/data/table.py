"""A table of examples: what a file must hold, what it holds, and what is wrong with it.

Files may be packed, as the ends of their names say, or be zip archives of one.

A fault names the file, the row, the column and what is allowed, and never what stands
there: a node's messages reach the server. For the same reason no exception that a
library raises is chained to ours, as it may quote the file.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST

from ..base import Array, DataFileError

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}

#: What reading a damaged packed file may raise, or one that is not packed at all;
#: RuntimeError is how zipfile asks for a password.
UNPACKING_ERRORS = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError),
)


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

    def columns(self) -> dict[str, bool]:
        """Return what there is beside features, and whether a file must have it."""
        asked = {
            "labels": self.target != "none",
            "weights": bool(self.weight_column),
            "ids": self.split,
        }
        return {n: not self.split or n == "ids" for n, there in asked.items() if there}


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


def open_packed(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed as its name's end says.

    Of a zip archive, whatever its name, the one csv file in it. What is wrong with the
    content shows while reading, as one of :data:`UNPACKING_ERRORS`.
    """
    if not zipfile.is_zipfile(path):
        return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if name.lower().endswith(".csv")]
    if len(names) != 1:
        fault(path, f"the archive has {len(names)} csv files; it must have exactly one")
    return cast(BinaryIO, archive.open(names[0]))


def read_at_most(path: Path, limit: int) -> bytes:
    """Return at most ``limit`` bytes of what a file holds, decompressed."""
    with open_packed(path) as stream:
        try:
            return stream.read(limit)
        except UNPACKING_ERRORS as error:
            # a disk's error has a number; bz2's and gzip's of a file's content have not
            if isinstance(error, OSError) and error.errno is not None:
                raise
    fault(path, "cannot be decompressed")


def load_arrays(path: Path, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` archive, all or those of some names.

    One with Python objects is refused.
    """
    with (
        suppress(ValueError, AttributeError, TypeError, *UNPACKING_ERRORS),
        np.load(path, allow_pickle=False) as archive,
    ):
        names = [name for name in archive.files if not wanted or name in wanted]
        return {name: archive[name] for name in names}
    fault(path, "cannot be read as an archive of arrays of numbers and texts")


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
    names: Sequence[str] = (),
    where: str = "",
    places: Sequence[int] = (),
    labels: Iterable[Any] | None = None,
    weights: Iterable[Any] | None = None,
    ids: Sequence[Any] = (),
    called: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Check what a reader found against a schema.

    ``features`` are finite and float64; ``where`` is what holds their ``names``, and
    ``places`` the numbers of these in it. ``labels`` and ``weights`` are texts or
    numbers as they stand in the file; ``called`` is how messages name them.
    """
    if schema.names:
        order = _in_order(path, names, schema, where, places)
        features, names = features[:, order], [names[index] for index in order]
    check_width(path, features.shape[1], schema)
    targets = counts = None
    found: Sequence[str | float] = ()
    name = {part: called.get(part, part) for part in ("labels", "weights", "ids")}
    if schema.target != "none" and labels is not None:
        targets, found = _targets(path, _texts(labels), schema, name["labels"])
    if schema.weight_column and weights is not None:
        counts = _weights(path, _texts(weights), schema, name["weights"])
    if schema.split:
        ids = _unique(path, [str(entry) for entry in ids], name["ids"])
        # the file has the column, and nothing in it
        targets = None if targets is None or np.isnan(targets).all() else targets
        counts = None if counts is None or np.isnan(counts).all() else counts
    if isinstance(features, np.ndarray):
        features = np.ascontiguousarray(features)
    for part in (features, targets, counts):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Table(features, targets, tuple(names), tuple(ids), tuple(found), counts)


def check_width(path: Path, width: int, schema: Schema) -> None:
    """Check the number of features, unless it is open."""
    few = width < schema.features and not schema.split
    if schema.features and (few or width > schema.features):
        fault(path, f"{width} feature columns; data.features says {schema.features}")


def check_names(path: Path, names: Sequence[str], where: str) -> None:
    """Check the names of columns, showing none: they may be the first example."""
    for number, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            fault(path, f"{where}: column {number} has no name")
        if name in names[: number - 1]:
            first = names.index(name) + 1
            fault(path, f"{where}: columns {first} and {number} have one name")


def _in_order(
    path: Path, names: Sequence[str], schema: Schema, where: str, places: Sequence[int]
) -> list[int]:
    """Return the columns that hold the model's features, in its order."""
    for place, name in zip(places or range(1, len(names) + 1), names, strict=True):
        if name not in schema.names:
            fault(path, f"{where}: column {place} is not among data.feature-names")
    missing = [name for name in schema.names if name not in names]
    if missing and not schema.split:
        fault(path, f"{where} has no column {missing[0]!r}")
    return [names.index(name) for name in schema.names if name in names]


def _texts(entries: Iterable[Any]) -> list[str]:
    """Return texts without blanks around them, and numbers as texts; NaN is empty."""
    numbers = (e if isinstance(e, str) or e != e else repr(float(e)) for e in entries)
    return [entry.strip() if isinstance(entry, str) else "" for entry in numbers]


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
) -> tuple[Array, Sequence[str | float]]:
    """Return the targets, and the labels that were found where all are allowed."""
    values = [to_number(text) for text in texts]
    if schema.target == "number":
        good, kind = np.isfinite(values), "must be a finite number"
        _check(path, texts, good, schema, kind, column)
        return np.array(values), ()
    # a label that is a number goes by its value
    pairs = zip(texts, values, strict=True)
    keys = [(text, value if math.isfinite(value) else text) for text, value in pairs]
    found: Sequence[str | float] = ()
    if not schema.labels:
        known = {key for _, key in keys if key != ""}
        found = sorted(known, key=lambda key: (isinstance(key, str), key))
    codes: dict[str | float, float] = {}
    for code, label in enumerate(schema.labels or found):
        codes[label] = code
        if is_number(str(label)):
            codes.setdefault(float(label), code)
    targets = np.array([codes.get(t, codes.get(key, math.nan)) for t, key in keys])
    kind = "is not among the labels that the run allows"
    _check(path, texts, np.isfinite(targets), schema, kind, column)
    return targets.astype(np.float64), found


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
    for row, name in enumerate(map(str.strip, entries), start=1):
        if not name:
            fault(path, "is empty", row, column)
        if not name.isprintable():
            fault(path, "has characters that are no text in UTF-8", row, column)
        if seen.setdefault(name, row) != row:
            fault(path, f"is the id of row {seen[name]}, too", row, column)
    return tuple(seen)
