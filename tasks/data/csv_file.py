"""A node's own csv file, checked against what the run says of it.

No message shows what a row holds. Exceptions of Python's own that quote it
(``float``'s, ``csv``'s) are not chained either: ours are raised after their handler.
"""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from .packed import UNPACKING_ERRORS, open_packed
from .settings import Schema
from .table import (
    LabelCodes,
    NodeTable,
    check_width,
    fault,
    is_number,
    label_codes,
    to_number,
    to_weight,
)

__all__ = ["read_csv"]

_ID = "id"


class _Columns(NamedTuple):
    """Where in a row things stand: ``other`` are all that are no features, last first.

    ``order`` are the features in the model's order, None where they are in it.
    """

    header: list[str]
    features: list[int]
    label: int | None
    weight: int | None
    id: int | None
    other: list[int]
    order: list[int] | None


class _Lines:
    """A file's lines, as ``csv`` takes them; notes whether one needs a closer look.

    ``float`` takes 1_0 for ten, and digits of any script.
    """

    def __init__(self, file: io.TextIOBase) -> None:
        self.file = file
        self.odd = False

    def __iter__(self) -> Iterator[str]:
        for line in self.file:
            if "_" in line or not line.isascii():
                self.odd = True
            yield line


def read_csv(path: Path, schema: Schema) -> NodeTable:
    """Read a csv file with a row of column names, raw or packed as ``.gz``.

    Parameters
    ----------
    path : Path
    schema : Schema

    Returns
    -------
    NodeTable
        Columns in the model's order where it has names, else in the file's.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, row (counted from 1 below
        the column names) and column.
    """
    unreadable = False
    try:
        # What is no UTF-8 becomes surrogates, which are no numbers: a decoder's error
        # would not name the row.
        with io.TextIOWrapper(
            open_packed(path), "utf-8-sig", errors="surrogateescape", newline=""
        ) as file:
            return _read(path, schema, _Lines(file))
    except UNPACKING_ERRORS:
        unreadable = True
    assert unreadable
    fault(path, "the file cannot be read or unpacked")


def _read(path: Path, schema: Schema, lines: _Lines) -> NodeTable:
    reader = iter(csv.reader(lines, strict=True))
    columns = _columns(path, _next(path, reader, 0) or [], schema)
    codes = label_codes(schema)
    width, other = len(columns.header), columns.other
    values, targets, weights = array("d"), array("d"), array("d")
    ids: dict[str, int] = {}
    blank = row = 0
    lines.odd = False
    while (fields := _next(path, reader, row + 1)) is not None:
        row += 1
        if not fields:
            blank = blank or row
            continue
        if blank:
            fault(path, "the line is empty", row=blank)
        if len(fields) != width:
            fault(
                path,
                f"{len(fields)} fields; the first line has {width} column names",
                row=row,
            )
        if columns.label is not None:
            target = _target(fields[columns.label], schema, codes)
            if isinstance(target, str):
                fault(path, target, row, columns.header[columns.label])
            targets.append(target)
        if columns.weight is not None:
            weight = to_weight(fields[columns.weight], schema)
            if isinstance(weight, str):
                fault(path, weight, row, columns.header[columns.weight])
            weights.append(weight)
        if columns.id is not None:
            _take_id(path, fields[columns.id], row, ids)
        for index in other:
            del fields[index]
        if lines.odd:
            lines.odd = False
            good = all("_" not in field and field.isascii() for field in fields)
        else:
            good = True
        if good:
            try:
                values.extend(map(float, fields))
            except ValueError:
                good = False
        if not good:
            _bad_number(path, row, fields, columns)
    if not row or row == blank:
        fault(path, "there are no rows below the column names")
    features = np.frombuffer(values, dtype=np.float64).reshape(
        -1, len(columns.features)
    )
    finite = np.isfinite(features)
    if not finite.all():
        bad, column = np.argwhere(~finite)[0]
        name = columns.header[columns.features[column]]
        fault(path, "must be a finite number", int(bad) + 1, name)
    names = [columns.header[index] for index in columns.features]
    if columns.order is not None:
        features = features[:, columns.order]
        names = [names[index] for index in columns.order]
    return NodeTable.of(
        features,
        None if columns.label is None else np.frombuffer(targets, dtype=np.float64),
        tuple(names),
        tuple(ids),
        schema,
        codes,
        None if columns.weight is None else np.frombuffer(weights, dtype=np.float64),
    )


def _next(path: Path, reader: Iterator[list[str]], row: int) -> list[str] | None:
    """Return the fields of the next row, None at the end."""
    try:
        return next(reader, None)
    except csv.Error:
        pass
    if row == 0:
        fault(path, "the first line is no row of column names with commas between")
    fault(
        path,
        "quotation marks that do not fit, or a field that is far too long",
        row=row,
    )


def _columns(path: Path, header: list[str], schema: Schema) -> _Columns:
    """Find out which column is what.

    Nothing of the header is shown before it is known to be one: a file without column
    names has its first example there.
    """
    header = [name.strip() for name in header]
    if not header:
        fault(path, "the file is empty; its first line must hold the columns' names")
    for number, name in enumerate(header, start=1):
        if not name or not name.isprintable():
            fault(path, f"the first line: column {number} has no name")
        if name in header[: number - 1]:
            first = header.index(name) + 1
            fault(path, f"the first line: columns {first} and {number} have one name")
    known = {name: index for index, name in enumerate(header)}
    label = known.get(schema.label_column)
    identity = known.get(_ID) if schema.split else None
    if schema.split and identity is None:
        fault(path, f"the first line has no column {_ID!r}, which names the samples")
    if label is None and schema.target != "none" and not schema.split:
        fault(path, f"the first line has no column {schema.label_column!r}")
    weight = known.get(schema.weight_column) if schema.weight_column else None
    if schema.weight_column and weight is None and not schema.split:
        fault(path, f"the first line has no column {schema.weight_column!r}")
    other = [index for index in (label, weight, identity) if index is not None]
    features = [index for index in range(len(header)) if index not in other]
    if not schema.names:
        _check_number(path, [header[i] for i in features], schema, bool(other))
        order = None
    else:
        unknown = [index for index in features if header[index] not in schema.names]
        if unknown:
            fault(
                path,
                f"the first line: column {unknown[0] + 1} is not among "
                "data.feature-names",
            )
        missing = [name for name in schema.names if name not in known]
        if missing and not schema.split:
            fault(path, f"the first line has no column {missing[0]!r}")
        places = {header[index]: place for place, index in enumerate(features)}
        order = [places[name] for name in schema.names if name in places]
        if order == sorted(order):
            order = None
    if not features:
        fault(path, "the first line names no feature")
    if schema.target == "none":
        label = None
    return _Columns(
        header, features, label, weight, identity, sorted(other, reverse=True), order
    )


def _check_number(path: Path, names: list[str], schema: Schema, marked: bool) -> None:
    """Check features that go by their number, in a header that names them."""
    if not marked and any(is_number(name) for name in names):
        fault(
            path,
            "the first line must hold the columns' names, and there are numbers in "
            "it (columns whose names are numbers need data.feature-names)",
        )
    check_width(path, len(names), schema)


def _target(text: str, schema: Schema, codes: LabelCodes) -> float | str:
    """Return a target as a number, or what is wrong with it."""
    text = text.strip()
    if not text:
        return math.nan if schema.split else "is empty"
    code = codes.get(text)
    if code is not None:
        return code
    value = to_number(text)
    if schema.target == "number":
        return value if math.isfinite(value) else "must be a finite number"
    return codes.get(value, "is not among the labels that the run allows")


def _take_id(path: Path, text: str, row: int, ids: dict[str, int]) -> None:
    """Note down a sample's id; they are kept in the order of the rows."""
    text = text.strip()
    if not text:
        fault(path, "is empty", row, _ID)
    if not text.isprintable():
        fault(path, "has characters that are no text in UTF-8", row, _ID)
    first = ids.setdefault(text, row)
    if first != row:
        fault(path, f"is the id of row {first}, too", row, _ID)


def _bad_number(path: Path, row: int, fields: list[str], columns: _Columns) -> NoReturn:
    for index, field in zip(columns.features, fields, strict=True):
        name = columns.header[index]
        if not field.strip():
            fault(path, "is empty", row, name)
        if "_" in field or not field.isascii() or not is_number(field):
            fault(path, "must be a number", row, name)
    # an odd line, whose numbers are all in order
    raise AssertionError("no field is wrong")  # pragma: no cover
