"""Readers of tables: csv by pandas, LIBSVM's text by scikit-learn, NumPy's archives.

:func:`read_table` takes the format from the file's name. pandas and scikit-learn are
imported when a file needs them: a node with NumPy's files has no use for either.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.extras import need
from fedtrellis.settings import SettingsError

from ..base import Array, DataFileError, data_path
from .images import read_idx_folder
from .packed import UNPACKING_ERRORS, load_arrays, open_packed
from .table import Schema, Table, fault, in_order, is_number, make_table, numbers

__all__ = [
    "file_stamp",
    "is_dense",
    "node_path",
    "read_csv",
    "read_libsvm",
    "read_matrix",
    "read_npz",
    "read_own_file",
    "read_ratings",
    "read_table",
]

# Rows of a text file that are in memory as texts together.
_ROWS = 5000
# What separates the fields of a file of ratings.
_BLANKS = r"\s+"
# How many labels a message counts to before it asks whether they are numbers.
_MOST_LABELS = 1000


# -- which file, and in which format


def node_path(node_config: Mapping[str, Any], key: str = "data") -> Path:
    """Return the file that a node's config names.

    Raises
    ------
    SettingsError
        There is no such entry, or it is no absolute path.
    FileNotFoundError
        There is no such file or folder.
    """
    value = node_config.get(key)
    if value is None:
        raise SettingsError(
            f"node config: {key} is missing, and the run has dataset = 'nodes'; start "
            f"the node with --node-config '{key}=\"/absolute/path\"'"
        )
    if not isinstance(value, str) or not Path(value).expanduser().is_absolute():
        raise SettingsError(
            f"node config: {key} = {value!r} must be an absolute path; a run happens "
            "in a bundle's folder"
        )
    path = Path(value).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"node config: {key} = {value!r}: there is none")
    return path


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return what tells that a file is the one that was read before."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [file.stat() for file in files]
    return tuple(n for stat in stats for n in (stat.st_mtime_ns, stat.st_size))


def is_dense(path: str) -> bool:
    """Whether a file's name says that its format is dense."""
    return path.lower().endswith((".csv", ".csv.gz", ".npz"))


def read_table(path: Path, schema: Schema) -> Table:
    """Read a file in the format that its name ends with, and check all of it.

    ``.csv`` and ``.csv.gz``, ``.npz``, LIBSVM's text as ``.svm``, ``.libsvm`` or
    ``.txt``, raw or packed as ``.gz`` or ``.bz2``, and a folder with one pair of idx
    files.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, row and column.
    """
    if path.is_dir():
        return read_idx_folder(path, schema)
    for ends, read in _READERS.items():
        if path.name.lower().endswith(ends):
            return read(path, schema)
    fault(
        path,
        "the name must end in .csv, .csv.gz, .npz, .svm, .libsvm or .txt, or be that "
        "of a folder of idx files",
    )


def read_own_file(
    key: str,
    path: str,
    target: Literal["class", "number"],
    label_column: str,
    weight_column: str = "",
) -> Table:
    """Read a file of the user's, once per process while it stays as it is.

    Parameters
    ----------
    key : str
        The setting that names it, for messages.
    path : str
        ``.csv`` and ``.csv.gz``: a first line of column names; ``.npz``: arrays
        ``features``, ``labels`` and maybe ``names``; of any other name LIBSVM's text,
        raw or packed.
    target : {"class", "number"}
        What the labels are; classes are counted from 0 in the order of the table's
        ``labels``, which nobody has listed.
    label_column, weight_column : str
        Of a csv file; no weights where the latter is empty.

    Returns
    -------
    Table
        Columns without names are ``feature-1`` and so on.

    Raises
    ------
    FileNotFoundError, DataFileError
        There is none, or it holds something else; names file, row and column.
    """
    found = data_path(key, path)
    schema = Schema(
        0, target=target, label_column=label_column, weight_column=weight_column
    )
    return _own_file(found, file_stamp(found), schema)


@lru_cache(maxsize=2)
def _own_file(path: Path, stamp: tuple[int, ...], schema: Schema) -> Table:
    read = read_table if is_dense(path.name) else _libsvm_table
    table = read(path, schema)
    if len(table.labels) > _MOST_LABELS:
        kind = f"{len(table.labels)} different labels; are they numbers to learn?"
        fault(path, kind)
    width = table.features.shape[1]
    names = table.names or tuple(f"feature-{j}" for j in range(1, width + 1))
    return table._replace(names=names)


# -- text, by pandas


def _blocks(
    path: Path, separator: str, first: int, empty: str = "the file is empty"
) -> Iterator[NDArray[Any]]:
    """Yield the fields of a text file as texts, some thousand rows at a time.

    ``first`` is the number of the first line in messages.
    """
    need("pandas", f"{path}, a file of text,", "data")
    # half a second that nodes with other files need not spend
    import pandas as pd

    kind = ""
    try:
        with (
            open_packed(path) as file,
            pd.read_csv(
                file,
                sep=separator,
                header=None,
                dtype=object,
                na_filter=False,
                skip_blank_lines=False,
                # what is no UTF-8 becomes surrogates, which are no numbers
                encoding_errors="surrogateescape",
                chunksize=_ROWS,
            ) as chunks,
        ):
            for chunk in chunks:
                yield chunk.to_numpy()
    except pd.errors.EmptyDataError:
        kind = empty
    except pd.errors.ParserError:
        kind = "the rows do not have one number of fields"
    except UNPACKING_ERRORS:
        kind = "the file cannot be read or unpacked"
    if kind.startswith("the rows"):
        _check_rows(path, separator, first)
    if kind:
        fault(path, kind)


def _check_rows(path: Path, separator: str, first: int, width: int = 0) -> int:
    """Return how many rows there are, without the empty lines at the end.

    pandas fills short rows up with empty texts, so this looks at a file that has some.

    Raises
    ------
    DataFileError
        A row has more or fewer fields than the first, or than ``width``.
    """
    count = blank = 0
    torn = False
    with (
        open_packed(path) as file,
        io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as t,
    ):
        rows: Iterator[list[str]] = csv.reader(t, delimiter=separator[0], strict=True)
        if separator == _BLANKS:
            rows = (line.split() for line in t)
        try:
            for count, fields in enumerate(rows, start=1):
                width = width or len(fields)
                if not fields:
                    blank = blank or count
                elif blank or len(fields) != width:
                    break
            else:
                return (blank or count + 1) - 1
        except csv.Error:
            count, torn = count + 1, True
    row = count - 1 + first
    if torn:
        kind = "quotation marks that do not fit, or a field that is far too long"
        fault(path, kind, row)
    if blank:
        fault(path, "the line is empty", blank - 1 + first)
    says = "; the first line has {} column names" if not first else "; {} are expected"
    fault(path, f"{len(fields)} fields" + says.format(width), row)


def _texts(
    path: Path, separator: str, header: Sequence[str] | None
) -> Iterator[NDArray[Any]]:
    """Yield the column names, in a row, and then the fields below, block by block."""
    first = 0 if header is None else 1
    names = "the file is empty; its first line must hold the columns' names"
    blocks = _blocks(path, separator, first, names)
    block = next(blocks)
    if header is None:
        header, block = block[0], block[1:]
    yield np.array([str(name).strip() for name in header], dtype=object)
    done, total = 0, math.inf
    if block.shape[1] != len(header):
        _check_rows(path, separator, first, len(header))
    for part in chain([block], blocks):
        if total == math.inf and (part[:, -1] == "").any():
            total = _check_rows(path, separator, first, len(header)) - 1 + first
        kept = part[: int(min(len(part), max(total - done, 0)))]
        done += len(kept)
        if len(kept):
            yield kept
    if not done:
        fault(path, "there are no rows below the column names")


def read_csv(
    path: Path,
    schema: Schema,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
) -> Table:
    """Read a text file with a first line of column names, raw or packed.

    Parameters
    ----------
    path : Path
    schema : Schema
    separator : str, default ","
    header : sequence of str, optional
        The columns' names, where the file has no such line.

    Returns
    -------
    Table
        Columns in the model's order where it has names, else in the file's.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, row (counted from 1 below
        the column names) and column.
    """
    blocks = _texts(path, separator, header)
    names = next(blocks).tolist()
    if header is None:
        _check_header(path, names)
    label, weight, identity = (
        names.index(name) if name and name in names else None
        for name in (
            schema.label_column,
            schema.weight_column,
            "id" if schema.split else "",
        )
    )
    _check_columns(path, names, schema)
    other = {label, weight, identity, *map(names.index, schema.ignored)}
    own = [index for index in range(len(names)) if index not in other]
    found = [names[index] for index in own]
    if header is None and not schema.names and other == {None}:
        _check_words(path, found)
    places = [index + 1 for index in own]
    order = in_order(path, found, schema, "the first line", places)
    if not found:
        fault(path, "the first line names no feature")
    if schema.target == "none":
        label = None
    parts: list[Array] = []
    kept: dict[int, list[str]] = {
        index: [] for index in (label, weight, identity) if index is not None
    }
    done = 0
    for block in blocks:
        parts.append(numbers(path, block[:, own], found, done))
        for index, texts in kept.items():
            texts += block[:, index].tolist()
        done += len(block)
    return make_table(
        path,
        schema,
        np.ascontiguousarray(np.concatenate(parts)[:, order]),
        labels=None if label is None else kept[label],
        names=tuple(found[index] for index in order),
        ids=[] if identity is None else kept[identity],
        weights=None if weight is None else kept[weight],
        columns=(schema.label_column, schema.weight_column, "id"),
    )


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Check the names of columns.

    None is shown before it is known to be one: a file without column names has its
    first example there.
    """
    for number, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            fault(path, f"the first line: column {number} has no name")
        if name in names[: number - 1]:
            first = names.index(name) + 1
            fault(path, f"the first line: columns {first} and {number} have one name")


def _check_words(path: Path, names: Sequence[str]) -> None:
    """Check that a first line without a label's name is no example."""
    if any(map(is_number, names)):
        fault(
            path,
            "the first line must hold the columns' names, and there are numbers in "
            "it (columns whose names are numbers need data.feature-names)",
        )


def _check_columns(path: Path, names: Sequence[str], schema: Schema) -> None:
    """Check that the columns beside the features are there."""
    needed = [*schema.ignored, "id"] if schema.split else list(schema.ignored)
    if not schema.split:
        needed += [schema.label_column] if schema.target != "none" else []
        needed += [schema.weight_column] if schema.weight_column else []
    for name in needed:
        if name not in names:
            fault(path, f"the first line has no column {name!r}")


def read_ratings(path: Path, users: int = 0, items: int = 0) -> Table:
    """Read ratings as in MovieLens-100k's ``u.data``: user, item, rating in each line.

    With tabs or spaces between; what stands behind the rating (a time) is not read.
    Users and items are whole numbers from 1.

    Parameters
    ----------
    path : Path
    users, items : int, optional
        How many there are, on all nodes together; by default as many as may be.

    Returns
    -------
    Table
        Features of shape (d, 2): user and item, counted from 0; the ratings.

    Raises
    ------
    DataFileError
        A line is something else; names file, row (the line) and column.
    """
    names = ("user", "item", "rating")
    blocks = list(_blocks(path, _BLANKS, 1, "there are no ratings"))
    if (width := blocks[0].shape[1]) not in (3, 4):
        kind = f"{width} fields; user, item and rating, and a time if you like, are"
        fault(path, f"{kind} expected", 1)
    cells = np.concatenate(blocks)
    if (cells[:, -1] == "").any():
        cells = cells[: _check_rows(path, _BLANKS, 1)]
    table = numbers(path, cells[:, :3], names)
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
    features = np.ascontiguousarray(table[:, :2]) - 1.0
    return make_table(path, schema, features, labels=table[:, 2], names=names[:2])


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
    suffix = path.suffix.lower()
    if suffix == ".csv":
        first = next(_blocks(path, ",", 1))[0]
        header = None
        if is_number(first[0]):
            header = [str(number) for number in range(1, len(first) + 1)]
        schema = Schema(0, label_column="")
        return np.array(read_csv(path, schema, header=header).features)
    if suffix not in (".npy", ".npz"):
        fault(path, "the name must end in .npy, .npz or .csv")
    array = None
    if suffix == ".npz":
        arrays = load_arrays(path)
        if len(arrays) != 1:
            fault(path, f"it has {len(arrays)} arrays; one is expected")
        array = next(iter(arrays.values()))
    else:
        with suppress(ValueError, OSError, EOFError):
            array = np.load(path, allow_pickle=False)
    if array is None:
        fault(path, "cannot be read as an array")
    if array.dtype.kind not in "biuf" or array.ndim != 2 or 0 in array.shape:
        fault(
            path,
            f"it holds an array of dtype {array.dtype} and shape {array.shape}; a "
            "matrix of real numbers is expected",
        )
    return numbers(path, array, [str(j) for j in range(1, array.shape[1] + 1)])


# -- NumPy's archives


def read_npz(path: Path, schema: Schema) -> Table:
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
    arrays = load_arrays(path, ("features", "labels", "ids", "names", "weights"))
    features = arrays.get("features")
    if features is None or features.ndim != 2 or 0 in features.shape:
        fault(path, "must have an array 'features' of rows and columns, not empty")
    if features.dtype.kind not in "biuf":
        fault(path, "the array 'features' must be of numbers")
    rows, width = features.shape
    named = bool(schema.split or schema.names)
    names = _entries(path, arrays, "names", width, "Uiu", "texts", needed=named)
    texts = [str(name).strip() for name in names or ()]
    if not all(text and text.isprintable() for text in texts):
        fault(path, "the array 'names' has an entry that is empty or no text")
    if len(set(texts)) < len(texts):
        fault(path, "the array 'names' has one name twice")
    shown = texts or [str(j) for j in range(1, width + 1)]
    features = numbers(path, features, shown)
    if texts:
        order = in_order(path, texts, schema, "the array 'names'")
        features = np.ascontiguousarray(features[:, order])
        texts = [texts[index] for index in order]
    labels = weights = ids = None
    if schema.target != "none":
        kinds = "biuf" if schema.target == "number" else "biufU"
        what = "numbers" if schema.target == "number" else "numbers or texts"
        labels = _entries(path, arrays, "labels", rows, kinds, what, not schema.split)
    if schema.weight_column:
        needed = not schema.split
        weights = _entries(path, arrays, "weights", rows, "biuf", "numbers", needed)
    if schema.split:
        ids = _entries(path, arrays, "ids", rows, "Uiu", "texts or whole numbers", True)
    return make_table(
        path,
        schema,
        features,
        labels=labels,
        names=tuple(texts),
        ids=[str(entry) for entry in ids or ()],
        weights=weights,
    )


def _entries(
    path: Path,
    arrays: Mapping[str, Any],
    name: str,
    count: int,
    kinds: str,
    what: str,
    needed: bool,
) -> list[Any] | None:
    """Return the entries of an array of one axis, None where there is none."""
    array = arrays.get(name)
    if array is None:
        if needed:
            fault(path, f"must have an array {name!r}")
        return None
    if array.shape != (count,):
        fault(path, f"the array {name!r} must have {count} {what}")
    if array.dtype.kind not in kinds:
        fault(path, f"the array {name!r} must be of {what}")
    return list(array.tolist())


# -- LIBSVM's text, by scikit-learn


def read_libsvm(path: Path, features: int = 0) -> tuple[Any, Array]:
    """Read ``label index:value …``, a line an example, raw or packed.

    Parameters
    ----------
    path : Path
    features : int, optional
        p; then indices count from 1 to p: unlike scikit-learn this does not take a file
        with an index 0 for one that counts from 0, which another node's might not have.
        0: p is what the largest index says, and indices are counted from 1, or from 0
        where one of them is 0.

    Returns
    -------
    features : scipy.sparse.csr_array of shape (d, p)
        float64.
    labels : ndarray of shape (d,)
        float64, as they stand in the file.

    Raises
    ------
    DataFileError
        The file holds something else; names the file, and the line that is wrong.
    """
    need("sklearn", f"{path}, a file in LIBSVM's format,", "sklearn")
    lines = None
    with suppress(*UNPACKING_ERRORS), open_packed(path) as file:
        lines = file.readlines()
    if lines is None:
        fault(path, "the file cannot be read or unpacked")
    loaded = _svmlight(lines, features)
    if loaded is None:
        first, end = 0, len(lines)
        # half of the lines are in order, or the first bad one is among them
        while end - first > 1:
            middle = (first + end) // 2
            if _svmlight(lines[first:middle], features) is None:
                end = middle
            else:
                first = middle
        bounds = f", from 1 to {features}" if features else ""
        raise DataFileError(
            f"{path}, line {first + 1}: must be a label and index:value pairs of "
            f"finite numbers, the indices whole and ascending{bounds}"
        )
    matrix, targets = loaded
    if not matrix.shape[0] or not (features or matrix.nnz):
        fault(path, "the file has no examples with features")
    return scipy.sparse.csr_array(matrix), targets


def _svmlight(lines: list[bytes], features: int) -> tuple[Any, Array] | None:
    """Return what scikit-learn reads in some lines, None if it is not in order."""
    # half a second that other readers need not spend
    from sklearn.datasets import load_svmlight_file

    zero_based: Any = False if features else "auto"
    try:
        matrix, targets = load_svmlight_file(
            io.BytesIO(b"".join(lines)),
            n_features=features or None,
            zero_based=zero_based,
        )
    except MemoryError:
        raise
    except Exception:  # whatever it says, it may quote the file
        return None
    finite = np.isfinite(matrix.data).all() and np.isfinite(targets).all()
    return (matrix, targets) if finite else None


def _libsvm_table(path: Path, schema: Schema) -> Table:
    lacks = {
        "sample ids": schema.split,
        "names for features": bool(schema.names),
        "samples' weights": bool(schema.weight_column),
    }
    for what, needed in lacks.items():
        if needed:
            fault(path, f"LIBSVM's format has no {what}; use csv or npz")
    matrix, targets = read_libsvm(path, schema.features)
    return make_table(
        path, schema, matrix, labels=targets, columns=("label", "weights", "ids")
    )


_READERS: dict[tuple[str, ...], Callable[[Path, Schema], Table]] = {
    (".csv", ".csv.gz"): read_csv,
    (".npz",): read_npz,
    tuple(
        suffix + packed
        for suffix in (".svm", ".libsvm", ".txt")
        for packed in ("", ".gz", ".bz2")
    ): _libsvm_table,
}
