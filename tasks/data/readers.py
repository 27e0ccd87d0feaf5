"""Readers of tables: csv by pandas, LIBSVM's text by scikit-learn, NumPy's archives.

:func:`read_table` takes the format from the file's name. pandas and scikit-learn are
imported when a file needs them: a node with NumPy's files has no use for either. A file
that does not hold what it should is a DataFileError, which names file, row and column.
"""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.settings import SettingsError, need

from ..base import Array, DataFileError, data_path, once_per_file
from .datasets import read_idx_pair, rows_of
from .table import (
    UNPACKING_ERRORS,
    Schema,
    Table,
    check_names,
    check_width,
    dense,
    fault,
    is_number,
    load_arrays,
    make_table,
    numbers,
    open_packed,
    to_number,
)

# What separates the fields of a file of ratings.
_BLANKS = r"\s+"
# How many labels a message counts to before it asks whether they are numbers.
_MOST_LABELS = 1000
_UNREADABLE = "the file cannot be read or unpacked"
# What holds the names of columns, and what messages call the labels of formats that
# have no column of them.
_FIRST, _NAMES = "the first line", "the array 'names'"
_LABEL = {"labels": "label"}


# -- which file, and in which format


def node_path(node_config: Mapping[str, Any], key: str = "data") -> Path:
    """Return the file that a node's config names.

    A SettingsError: there is no such entry, or it is no absolute path; a
    FileNotFoundError: there is no such file or folder.
    """
    value = node_config.get(key)
    path = Path(value).expanduser() if isinstance(value, str) else Path()
    if not path.is_absolute():
        given = (
            "is missing" if value is None else f"= {value!r} must be an absolute path"
        )
        hint = f"start the node with --node-config '{key}=\"/absolute/path\"'"
        raise SettingsError(f"node config: {key} {given}; with 'nodes' data {hint}")
    if not path.exists():
        raise FileNotFoundError(f"node config: {key} = {value!r}: there is none")
    return path


def _format(path: str | Path) -> str:
    """Return the end of a file's name, without that of what packed it."""
    return Path(re.sub(r"\.(gz|bz2)$", "", str(path).lower())).suffix


def is_dense(path: str | Path) -> bool:
    """Whether a file's name says that its format is dense."""
    return _format(path) in (".csv", ".npz", ".npy")


def read_table(path: Path, schema: Schema) -> Table:
    """Read a file in the format that its name ends with, and check all of it.

    ``.csv`` and LIBSVM's text as ``.svm``, ``.libsvm`` or ``.txt``, raw or packed as
    ``.gz`` or ``.bz2``, ``.npz``, and a folder with one pair of idx files.
    """
    if path.is_dir():
        return read_idx_folder(path, schema)
    read = _READERS.get(_format(path))
    if read is None:
        names = "must end in .csv, .csv.gz, .npz, .npy, .svm, .libsvm or .txt"
        fault(path, f"the name {names}, or be that of a folder of idx files")
    return read(path, schema)


def read_own_file(
    key: str,
    path: str,
    target: Literal["class", "number"],
    label_column: str,
    weight_column: str = "",
) -> Table:
    """Read a file of the user's, once per process while it stays as it is.

    ``key`` is the setting that names it, for messages. ``.csv`` and ``.csv.gz``: a
    first line of column names, those of the labels and, unless empty, of the weights
    among them; ``.npz``: arrays ``features``, ``labels`` and maybe ``names``; of any
    other name LIBSVM's text, raw or packed. Columns without names are ``feature-1`` and
    so on. Classes are counted from 0 in the order of the table's ``labels``, which
    nobody has listed.
    """
    schema = Schema(0, (), target, (), label_column, weight_column=weight_column)
    table: Table = _own_file(schema, data_path(key, path))
    return table


@once_per_file(2)
def _own_file(schema: Schema, path: Path) -> Table:
    table = (read_table if is_dense(path.name) else libsvm_table)(path, schema)
    if len(table.labels) > _MOST_LABELS:
        kind = f"{len(table.labels)} different labels; are they numbers to learn?"
        fault(path, kind)
    width = table.features.shape[1]
    names = table.names or tuple(f"feature-{j}" for j in range(1, width + 1))
    return table._replace(names=names)


# -- text: csv and ratings


def _lines(
    path: Path, separator: str, header: Sequence[str] | None = None
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield 0 and the columns' names, then the number and the fields of each line."""
    need("pandas", f"{path}, a file of text,", "data")
    kind, bad, row = _UNREADABLE, None, -1
    try:
        with (
            open_packed(path) as file,
            # what is no UTF-8 becomes surrogates, which are no numbers
            io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text,
        ):
            rows: Iterator[Sequence[str]] = map(str.split, text)
            if separator != _BLANKS:
                rows = csv.reader(text, delimiter=separator, strict=True)
            for row, fields in enumerate(chain([header] if header else [], rows)):
                yield row, fields
        return
    except csv.Error:
        kind = "quotation marks that do not fit, or a field that is far too long"
        bad = row + 1
    except UNPACKING_ERRORS:
        pass
    fault(path, kind, bad)


def _check_fields(
    path: Path, row: int, fields: Sequence[str], names: Sequence[str], *, given: bool
) -> None:
    if fields and len(fields) != len(names):
        kind = f"{_FIRST} has {len(names)} column names"
        kind = f"{len(names)} are expected" if given else kind
        fault(path, f"{len(fields)} fields; {kind}", row)


def _read_text(
    path: Path,
    names: Sequence[str],
    own: Sequence[int],
    separator: str = ",",
    header: Sequence[str] | None = None,
) -> tuple[Array, dict[int, list[str]]]:
    """Return some columns as finite numbers, and the others as texts.

    pandas reads what is in order. Where it finds a fault, or text where a short row may
    be filled up, all is read line by line, which gives the same or says what is wrong.
    """
    # half a second that nodes with other files need not spend
    import pandas as pd

    # from pandas 3.1 on numbers are exact to the last bit by default
    new = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
    others = [j for j in range(len(names)) if j not in own]
    frame = None
    # a ParserError is a ValueError, too
    with suppress(ValueError, *UNPACKING_ERRORS), open_packed(path) as file:
        frame = pd.read_csv(
            file,
            sep=separator,
            header=None,
            skiprows=int(not header),
            dtype={**dict.fromkeys(own, np.float64), **dict.fromkeys(others, object)},
            na_filter=False,
            skip_blank_lines=False,
            encoding_errors="surrogateescape",
            **({} if new else {"float_precision": "round_trip"}),
        )
    if frame is not None and frame.shape[1] == len(names):
        found = frame[list(own)].to_numpy(np.float64)
        texts = {j: frame[j].tolist() for j in others}
        if np.isfinite(found).all() and not any("" in texts[j] for j in others):
            return found, texts
    texts, cells, blank = {j: [] for j in others}, [], 0
    for row, fields in islice(_lines(path, separator, header), 1, None):
        if fields and blank:
            fault(path, "the line is empty", blank)
        _check_fields(path, row, fields, names, given=bool(header))
        if not fields:
            blank = blank or row
            continue
        for j in own:
            if not math.isfinite(to_number(fields[j])):
                kind = "must be a number" if fields[j].strip() else "is empty"
                if is_number(fields[j]):
                    kind = "must be a finite number"
                fault(path, kind, row, names[j])
        cells.append(np.array([float(fields[j]) for j in own]))
        for j in others:
            texts[j].append(fields[j])
    if not cells:
        fault(path, "there are no rows below the column names")
    return np.array(cells), texts


def read_csv(
    path: Path,
    schema: Schema,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
) -> Table:
    """Read a text file with a first line of column names, raw or packed.

    ``header`` has the columns' names, where the file has no such line. Rows are counted
    from 1 below it, and columns come in the model's order where it has names, else in
    the file's.
    """
    lines = [*islice(_lines(path, separator, header), 2)]
    if len(lines) < 1 + bool(header) or not lines[0][1]:
        fault(path, "the file is empty; its first line must hold the columns' names")
    names = [name.strip() for name in lines[0][1]]
    check_names(path, names, _FIRST)
    _check_fields(path, *lines[-1], names, given=bool(header))
    called = {
        "labels": schema.label_column,
        "weights": schema.weight_column,
        "ids": "id",
    }
    needed = [called[part] for part, must in schema.columns().items() if must]
    for name in (*schema.ignored, *needed):
        if name not in names:
            fault(path, f"{_FIRST} has no column {name!r}")
    apart = {schema.label_column, schema.weight_column, *needed, *schema.ignored}
    own = [j for j, name in enumerate(names) if name not in apart]
    # without a label's name the first line may be an example
    bare = header is None and not schema.names and len(own) == len(names)
    if bare and any(map(is_number, names)):
        hint = "(columns whose names are numbers need data.feature-names)"
        kind = f"must hold the columns' names, and there are numbers in it {hint}"
        fault(path, f"{_FIRST} {kind}")
    if not own:
        fault(path, f"{_FIRST} names no feature")
    cells, texts = _read_text(path, names, own, separator, header)
    found: Any = {n: called[n] for n in schema.columns() if called[n] in names}
    found = {part: texts[names.index(name)] for part, name in found.items()}
    found |= {"names": [names[j] for j in own], "places": [j + 1 for j in own]}
    return make_table(path, schema, cells, where=_FIRST, called=called, **found)


def read_ratings(path: Path, users: int = 0, items: int = 0) -> Table:
    """Read ratings as in MovieLens-100k's ``u.data``: user, item, rating in each line.

    With tabs or spaces between; what stands behind the rating (a time) is not read.
    Users and items are whole numbers from 1 to ``users`` and ``items``, how many there
    are on all nodes together; by default as many as may be. The table's features of
    shape (d, 2) are user and item, counted from 0.
    """
    _, first = next(_lines(path, _BLANKS), (0, ()))
    if not first:
        fault(path, "there are no ratings")
    if len(first) not in (3, 4):
        kind = "user, item and rating, and a time if you like, are expected"
        fault(path, f"{len(first)} fields; {kind}", 1)
    names = ("user", "item", "rating", "time")[: len(first)]
    table, _ = _read_text(path, names, range(3), _BLANKS, names)
    # no real number is near the limit; one that is would ask for terabytes
    for column, (name, count) in enumerate((("user", users), ("item", items))):
        most = count or 10**6
        good = (table[:, column] >= 1) & (table[:, column] <= most)
        wrong = np.flatnonzero(~good | (table[:, column] % 1 != 0))
        if len(wrong):
            says = f", as matrix-completion.{name}s says" if count else ""
            kind = f"must be a whole number from 1 to {most}{says}"
            fault(path, kind, int(wrong[0]) + 1, name)
    schema = Schema(2, names[:2], "number")
    features, ratings = table[:, :2] - 1.0, table[:, 2]
    return make_table(path, schema, features, names=names[:2], labels=ratings)


def read_matrix(path: Path) -> Array:
    """Read a matrix of float64 of shape (d, p), an example in each row.

    ``.npy``, or a table's file, labels unread; a csv file may do without the line of
    names.
    """
    schema, header = Schema(0, label_column=""), None
    if _format(path) != ".csv":
        return dense(read_table(path, schema).features)
    _, first = next(_lines(path, ","), (0, ()))
    if first and is_number(first[0]):
        header = [str(j) for j in range(1, len(first) + 1)]
    return dense(read_csv(path, schema, header=header).features)


# -- NumPy's archives


def read_npz(path: Path, schema: Schema) -> Table:
    """Read an archive of NumPy's, or one array, which is ``features``.

    ``features`` of shape (d_i, p_i); ``labels`` of shape (d_i,), numbers or texts;
    ``weights`` of shape (d_i,), if samples have some; where samples are split ``ids``
    of shape (d_i,), texts or whole numbers; ``names`` of the features, which may be
    left out where they go by their number.
    """
    arrays = load_arrays(path, ("features", "labels", "ids", "names", "weights"))
    features = arrays.get("features")
    if features is None or features.ndim != 2 or 0 in features.shape:
        fault(path, "must have an array 'features' of rows and columns, not empty")
    if features.dtype.kind not in "biuf":
        fault(path, "the array 'features' must be of numbers")
    rows, width = features.shape

    def entries(
        name: str, kinds: str, what: str, *, needed: bool, count: int = rows
    ) -> Any:
        if (array := arrays.get(name)) is None:
            if needed:
                fault(path, f"must have an array {name!r}")
            return None
        if array.shape != (count,):
            fault(path, f"the array {name!r} must have {count} {what}")
        if array.dtype.kind not in kinds:
            fault(path, f"the array {name!r} must be of {what}")
        return array.tolist()

    named = schema.split or bool(schema.names)
    found = entries("names", "Uiu", "texts", needed=named, count=width)
    names = [str(name).strip() for name in found or ()]
    check_names(path, names, _NAMES)
    number = schema.target == "number"
    kinds = {
        "labels": ("biuf", "numbers") if number else ("biufU", "numbers or texts"),
        "weights": ("biuf", "numbers"),
        "ids": ("Uiu", "texts or whole numbers"),
    }
    columns = schema.columns().items()
    return make_table(
        path,
        schema,
        numbers(path, features, names or [str(j) for j in range(1, width + 1)]),
        names=names,
        where=_NAMES,
        **{part: entries(part, *kinds[part], needed=must) for part, must in columns},
    )


# -- a folder of idx files


def read_idx_folder(path: Path, schema: Schema) -> Table:
    """Read a node's folder with one pair of idx files, as MNIST's, raw or ``.gz``.

    One file whose name ends in ``images-idx3-ubyte`` and one in ``labels-idx1-ubyte``.
    Pixels are divided by 255.
    """
    if schema.split or schema.names or schema.target == "number":
        fault(path, "idx files have images and their classes; the run needs csv or npz")
    found = []
    for end in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        files = [*path.glob(f"*{end}"), *path.glob(f"*{end}.gz")]
        if len(files) != 1:
            fault(path, f"has {len(files)} files *{end}[.gz]; exactly one is expected")
        found += files
    pixels, labels = read_idx_pair(*found)
    check_width(path, math.prod(pixels.shape[1:]), schema)
    return make_table(found[1], schema, rows_of(pixels), labels=labels, called=_LABEL)


# -- LIBSVM's text, by scikit-learn


def read_libsvm(path: Path, features: int = 0) -> tuple[Any, Array]:
    """Read ``label index:value …``, a line an example, raw or packed.

    With ``features`` p, indices count from 1 to p: unlike scikit-learn this does not
    take a file with an index 0 for one that counts from 0, which another node's might
    not have. 0: p is what the largest index says, and indices are counted from 1, or
    from 0 where one of them is 0. Return a CSR array of float64 of shape (d, p), and
    the labels of shape (d,), float64, as they stand in the file.
    """
    need("sklearn", f"{path}, a file in LIBSVM's format,", "sklearn")
    lines = None
    with suppress(*UNPACKING_ERRORS), open_packed(path) as file:
        lines = file.readlines()
    if lines is None:
        fault(path, _UNREADABLE)
    loaded = _svmlight(lines, features)
    if loaded is None:
        # lines up to the first bad one are not in order, nor are more
        first = bisect_left(
            range(1, len(lines)), True, key=lambda n: not _svmlight(lines[:n], features)
        )
        bounds = f", from 1 to {features}" if features else ""
        kind = "must be a label and index:value pairs of finite numbers"
        raise DataFileError(
            f"{path}, line {first + 1}: {kind}, the indices whole and ascending{bounds}"
        )
    matrix, targets = loaded
    if not matrix.shape[0] or not (features or matrix.nnz):
        fault(path, "the file has no examples with features")
    return scipy.sparse.csr_array(matrix), targets


def _svmlight(lines: list[bytes], features: int) -> tuple[Any, Array] | None:
    """Return what scikit-learn reads in some lines, None if it is not in order."""
    # half a second that other readers need not spend
    from sklearn.datasets import load_svmlight_file

    base: dict[str, Any] = {"zero_based": False, "n_features": features}
    base = base if features else {"zero_based": "auto"}
    try:
        matrix, targets = load_svmlight_file(io.BytesIO(b"".join(lines)), **base)
    except MemoryError:
        raise
    except Exception:  # whatever it says, it may quote the file
        return None
    finite = np.isfinite(matrix.data).all() and np.isfinite(targets).all()
    return (matrix, targets) if finite else None


def libsvm_table(path: Path, schema: Schema) -> Table:
    """Read LIBSVM's text by a schema, which may ask for nothing else than labels."""
    if schema.split or schema.names or schema.weight_column:
        what = "no names for features, no ids and no weights"
        fault(path, f"LIBSVM's format has {what}; use csv or npz")
    matrix, targets = read_libsvm(path, schema.features)
    return make_table(path, schema, matrix, labels=targets, called=_LABEL)


_READERS: dict[str, Callable[[Path, Schema], Table]] = {
    ".csv": read_csv,
    **dict.fromkeys((".npz", ".npy"), read_npz),
    **dict.fromkeys((".svm", ".libsvm", ".txt"), libsvm_table),
}
