"""A table of examples: what a file must hold and holds, its faults, its scaling.

A fault names the file, the row, the column and what is allowed, and never what stands
there: a node's messages reach the server. For the same reason no exception that a
library raises is chained to ours, as it may quote the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST
from fedtrellis.settings import SettingsError, setting
from fedtrellis.tables import UNPACKING_ERRORS, Column, Preparation, open_packed

from ..base import Array, DataFileError

#: The value of a task's ``dataset`` with which every node has a file of its own.
NODES = "nodes"
#: The value with which a task reads a file of the user's, by its ``path``.
FILE = "file"


@dataclass(frozen=True)
class DataSettings:
    """What the server, which has no data, and every node go by.

    Stated once, in the run config; a node refuses a file that says something else.
    """

    features: int = setting(
        0,
        "features of an example, with dataset = 'nodes'; 0: as many as feature-names",
        minimum=0,
    )
    feature_names: str = setting(
        "", "their names with commas between, in the model's order; empty: the files'"
    )
    classes: int = setting(0, "classes; 0: as many as data.labels", minimum=0)
    labels: str = setting(
        "",
        "the classes' labels in the nodes' files, with commas between; empty: 0, 1, …, "
        "for hybrid tasks -1, 1",
    )
    label_column: str = setting("label", "the csv column with the label or the target")
    weight_column: str = setting(
        "",
        "the csv column with what each sample counts in hybrid tasks; empty: all alike",
    )
    examples: int = setting(
        0, "examples of all nodes together; 0: every node counts the same", minimum=0
    )
    prepare: bool = setting(
        True,
        "of csv and npz files: scale columns, turn texts and dates into numbers, fill "
        "in what is missing; and give linear models an intercept",
    )
    least: int = setting(
        5, "rows that a category needs, and a sign that a cell is missing", minimum=1
    )
    drop: str = setting(
        "", "columns that are not read, such as numbers of rows, with commas between"
    )
    categories: str = setting(
        "", "columns whose numbers are names of categories, with commas between"
    )
    bad_rows: str = setting(
        "refuse",
        "what becomes of a row that cannot be read; dropped ones are counted",
        choices=("refuse", "drop"),
    )
    agreed: str = setting(
        "", "how nodes' tables are prepared, from a record; empty: they agree on it"
    )

    def kinds(self) -> dict[str, Any]:
        """Return what is said of single columns, by fields of a Schema."""
        return {
            "ignored": _listed("data.drop", self.drop, "", 0),
            "categories": _listed("data.categories", self.categories, "", 0),
        }

    def preparation(self) -> Preparation | None:
        """Return what nodes agreed on; a SettingsError: it is something else."""
        return _agreed(self.agreed) if self.agreed else None

    def names(self) -> tuple[str, ...]:
        """Return the features' names; none where they go by their number."""
        names = _listed(
            "data.feature-names", self.feature_names, "data.features", self.features
        )
        for reserved in (self.label_column, self.weight_column, "id"):
            if reserved in names:
                kind = f"has {reserved!r}, which is the name of another column"
                raise SettingsError(f"data.feature-names {kind}")
        return names

    def num_features(self) -> int:
        """Return p; a SettingsError where neither number nor names are given."""
        if (known := self.preparation()) is not None:
            return len(known.names())
        count = self.features or len(self.names())
        if not count:
            raise SettingsError(
                "data.features = 0 and data.feature-names is empty: say how many "
                "features an example has, or their names"
            )
        return count

    def class_labels(self, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the labels of the classes, in their order.

        ``default`` has those of a task with a fixed number of classes.
        """
        labels = _listed("data.labels", self.labels, "data.classes", self.classes)
        fixed = len(default)
        count = len(labels) or self.classes or fixed
        if fixed and count != fixed:
            key = "data.labels" if labels else "data.classes"
            raise SettingsError(f"{key}: {count} classes; the task has {fixed}")
        if count < 2:
            raise SettingsError(
                f"data.classes = {self.classes} and data.labels = {self.labels!r}: say "
                "how many classes there are, at least 2, or their labels"
            )
        return labels or default or tuple(map(str, range(count)))


@lru_cache(maxsize=4)
def _agreed(text: str) -> Preparation:
    with suppress(ValueError, TypeError, KeyError):
        return Preparation.from_json(json.loads(text))
    raise SettingsError("data.agreed is not what a record's config.toml has")


def _listed(key: str, text: str, number: str, count: int) -> tuple[str, ...]:
    """Return the names in a setting; ``number`` is the setting of how many, 0: any."""
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(part.isprintable() and part for part in parts):
        raise SettingsError(f"{key}: between two commas there must be a name")
    if len(set(parts)) < len(parts):
        twice = next(part for part in parts if parts.count(part) > 1)
        raise SettingsError(f"{key} has {twice!r} twice")
    if count not in (0, len(parts)):
        raise SettingsError(
            f"{number} = {count} does not suit {key}, which has {len(parts)} names; "
            "one of the two is enough"
        )
    return parts


@dataclass(frozen=True)
class Schema:
    """What a file must hold."""

    #: p; of all nodes together where ``split``; 0: as many as there are
    features: int
    #: the features' names in the model's order; none: by their number
    names: tuple[str, ...] = ()
    #: what the label column holds; ``"none"``: it is not needed, and not read
    target: Literal["class", "number", "none"] = "none"
    #: those allowed, for ``"class"``; the first is class 0; none: all that come
    labels: tuple[str, ...] = ()
    label_column: str = "label"
    #: whether the nodes have some of the features and some of the samples: then
    #: examples have ids, and the label may be missing
    split: bool = False
    #: what each sample counts; empty: all alike
    weight_column: str = ""
    #: columns that are not read
    ignored: tuple[str, ...] = ()
    #: columns that are categories, where the table is prepared
    categories: tuple[str, ...] = ()

    def columns(self) -> dict[str, bool]:
        """Return what there is beside features, and whether a file must have it."""
        asked = {
            "labels": self.target != "none",
            "weights": bool(self.weight_column),
            "ids": self.split,
        }
        return {n: not self.split or n == "ids" for n, there in asked.items() if there}


class Table(NamedTuple):
    """A file's examples, checked; dense arrays are read-only."""

    #: an ndarray or scipy.sparse.csr_array of float64, of shape (d, p)
    features: Any
    #: of shape (d,): classes counted from 0 or numbers, float64; NaN for a sample
    #: without a label; None: no labels
    targets: Any
    #: the features' names; none where the file has no names
    names: tuple[str, ...] = ()
    #: the samples', where they are split; else none
    ids: tuple[str, ...] = ()
    #: the classes' labels by their numbers, where the schema lists none: ascending,
    #: numbers before texts
    labels: tuple[str | float, ...] = ()
    #: of shape (d,): what each sample counts, NaN where the file does not say; None:
    #: all alike
    weights: Array | None = None
    #: what the features were made of, where they are to be prepared
    columns: tuple[Column, ...] = ()


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


def load_arrays(
    path: Path, wanted: Collection[str], *, needed: bool = False
) -> dict[str, Any]:
    """Return arrays of an ``.npz`` archive by their names; an ``.npy`` has features.

    An archive with Python objects is refused, and one without what is ``needed``.
    """
    arrays = None
    with suppress(ValueError, *UNPACKING_ERRORS):
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"features": found}
        with found:
            arrays = {name: found[name] for name in wanted if name in found.files}
    if arrays is None:
        fault(path, "cannot be read as an archive of arrays of numbers and texts")
    for name in wanted:
        if needed and name not in arrays:
            fault(path, f"has no array {name!r}")
    return arrays


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


def make_table(
    path: Path,
    schema: Schema,
    features: Any,
    *,
    names: Sequence[str] = (),
    where: str = "",
    labels: Iterable[Any] | None = None,
    weights: Iterable[Any] | None = None,
    ids: Sequence[Any] = (),
    called: Mapping[str, str] = MappingProxyType({}),
    columns: Sequence[str] = (),
) -> Table:
    """Check what a reader found against a schema.

    ``features`` are finite and float64; ``where`` is what holds their ``names``,
    with those of other ``columns`` where there are some.
    ``labels`` and ``weights`` are texts or numbers as they stand in the file;
    ``called`` is how messages name them.
    """
    if schema.names:
        for feature in names:
            if feature not in schema.names:
                place = (columns or names).index(feature) + 1
                fault(path, f"{where}: column {place} is not among data.feature-names")
        missing = [name for name in schema.names if name not in names]
        if missing and not schema.split:
            fault(path, f"{where} has no column {missing[0]!r}")
        order = [names.index(name) for name in schema.names if name in names]
        features, names = features[:, order], [names[j] for j in order]
    width, known = features.shape[1], schema.features
    if known and (width > known or (width < known and not schema.split)):
        fault(path, f"{width} feature columns; data.features says {known}")
    targets = counts = None
    found: Sequence[str | float] = ()
    name = {part: called.get(part, part) for part in ("labels", "weights", "ids")}
    if schema.target != "none" and labels is not None:
        targets, found = _targets(path, labels, schema, name["labels"])
    if schema.weight_column and weights is not None:
        counts = _weights(path, weights, schema, name["weights"])
    if schema.split:
        texts = ["" if entry != entry else str(entry) for entry in ids]
        ids = _unique(path, texts, name["ids"])
        # the file has the column, and nothing in it
        targets = None if targets is None or np.isnan(targets).all() else targets
        counts = None if counts is None or np.isnan(counts).all() else counts
    if isinstance(features, np.ndarray):
        features = np.ascontiguousarray(features)
    for part in (features, targets, counts):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Table(features, targets, tuple(names), tuple(ids), tuple(found), counts)


def _key(entry: Any) -> str | float:
    """Return a number, or a text without blanks around it; NaN is an empty text."""
    if not isinstance(entry, str):
        return float(entry) if entry == entry else ""
    value = to_number(entry)
    return value if math.isfinite(value) else entry.strip()


def _check(
    path: Path, keys: list[Any], good: NDArray[Any], schema: Schema, *fault_of: str
) -> None:
    """Refuse the first entry that is not good, or empty where that is not allowed."""
    empty = np.array([key == "" for key in keys])
    bad = ~good & ~empty if schema.split else ~good | empty
    if bad.any():
        row = int(bad.argmax())
        kind, column = fault_of
        fault(path, "is empty" if empty[row] else kind, row + 1, column)


def _numbers(keys: list[str | float]) -> Array:
    return np.array([math.nan if isinstance(key, str) else key for key in keys])


def _targets(
    path: Path, entries: Iterable[Any], schema: Schema, column: str
) -> tuple[Array, Sequence[str | float]]:
    """Return the targets, and the labels that were found where all are allowed."""
    keys = [_key(entry) for entry in entries]
    if schema.target == "number":
        values, kind = _numbers(keys), "must be a finite number"
        _check(path, keys, np.isfinite(values), schema, kind, column)
        return values, ()
    found = sorted(set(keys) - {""}, key=lambda key: (isinstance(key, str), key))
    # a label that is a number goes by its value
    labels = [_key(label) for label in schema.labels] or found
    codes = {label: float(code) for code, label in enumerate(labels)}
    targets = np.array([codes.get(key, math.nan) for key in keys])
    kind = "is not among the labels that the run allows"
    _check(path, keys, np.isfinite(targets), schema, kind, column)
    return targets, () if schema.labels else found


def _weights(path: Path, entries: Iterable[Any], schema: Schema, column: str) -> Array:
    keys = [_key(entry) for entry in entries]
    weights = _numbers(keys)
    good = (weights == 0.0) | (weights >= LIGHTEST) & (weights < math.inf)
    kind = f"must be 0 or a finite number from {LIGHTEST:g} on"
    _check(path, keys, good, schema, kind, column)
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


# -- scaling of features, dense or CSR


def dense(features: Any) -> Array:
    """Return features as an ndarray."""
    return features if isinstance(features, np.ndarray) else features.toarray()


def divide(matrix: Any, lengths: NDArray[np.float64], axis: int) -> Any:
    """Divide rows (axis 0) or columns (axis 1) by lengths, in place; 0/0 is 0."""
    factors = 1.0 / np.where(lengths > 0.0, lengths, 1.0)
    if isinstance(matrix, np.ndarray):
        matrix *= factors[:, None] if axis == 0 else factors
    elif axis == 0:
        matrix.data *= np.repeat(factors, np.diff(matrix.indptr))
    else:
        matrix.data *= factors[matrix.indices]
    return matrix


def norms(matrix: Any, axis: int) -> NDArray[np.float64]:
    """Return the Euclidean norms of rows (axis 0) or columns (axis 1)."""
    if isinstance(matrix, np.ndarray):
        squares = np.einsum("ij,ij->i" if axis == 0 else "ij,ij->j", matrix, matrix)
    else:
        squares = np.asarray(matrix.multiply(matrix).sum(axis=1 - axis)).ravel()
    return np.asarray(np.sqrt(squares))


def scaled(train: Any, test: Any, scaling: str) -> tuple[Any, Any]:
    """Scale training and test features in place, as measured on the former.

    "standard", zero mean and unit variance, is for dense features.
    """
    if scaling == "unit-rows":
        return divide(train, norms(train, 0), 0), divide(test, norms(test, 0), 0)
    if scaling == "standard":
        # a constant feature becomes exactly 0 and stays it
        constant = train.max(axis=0) == train.min(axis=0)
        means = np.where(constant, train[0], train.mean(axis=0))
        train -= means
        test -= means
    if scaling in ("standard", "unit-columns"):
        lengths = norms(train, 1)
        if scaling == "standard":
            lengths = lengths / np.sqrt(len(train))
        divide(train, lengths, 1)
        divide(test, lengths, 1)
    return train, test
