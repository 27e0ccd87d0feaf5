"""Readers of tables: csv by pandas, LIBSVM's text by scikit-learn, NumPy's archives.

:func:`read_table` takes the format from the file's name. pandas and scikit-learn are
imported when a file needs them: a node with NumPy's files has no use for either. A file
that does not hold what it should is a DataFileError, which names file, row and column.
"""

from __future__ import annotations

import dataclasses
import io
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.settings import SettingsError, need
from fedtrellis.tables import (
    UNPACKING_ERRORS,
    Column,
    agree,
    as_numbers,
    check_names,
    describe,
    expand,
    open_packed,
    read_frame,
)
from fedtrellis.wire.flower_internals import log

from ..base import Array, DataFileError, once_per_file
from .datasets import read_idx_pair, rows_of
from .table import (
    Schema,
    Table,
    fault,
    is_number,
    load_arrays,
    make_table,
    read_at_most,
)

_UNREADABLE = "the file cannot be read or unpacked"
# What holds the names of columns, and what messages call the labels of formats that
# have no column of them.
_FIRST, _NAMES = "the first line", "the array 'names'"
_LABEL = {"labels": "label"}


def node_path(node_config: Mapping[str, Any], key: str = "data") -> Path:
    """Return the file that a node's config names, by its absolute path."""
    value = node_config.get(key)
    path = Path(value).expanduser() if isinstance(value, str) else Path()
    if not path.is_absolute():
        given = f"= {value!r} must be an absolute path"
        given = "is missing" if value is None else given
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

    csv files and LIBSVM's text may be packed as ``.gz`` or ``.bz2``.
    """
    if path.is_dir():
        return read_idx_folder(path, schema)
    read = _READERS.get(_format(path))
    if read is None:
        names = "must end in .csv, .csv.gz, .npz, .npy, .svm, .libsvm or .txt"
        fault(path, f"the name {names}, or be that of a folder of idx files")
    return read(path, schema)


@once_per_file(64)
def _read_labelled(given: tuple[Schema, str, Any], path: Path) -> tuple[Any, Any]:
    """Return a csv or npz file's features and labels, a pandas frame and a series."""
    schema, bad_rows, texts = given
    need("pandas", f"{path}, a table,", "data")
    import pandas as pd

    where = _FIRST if _format(path) == ".csv" else _NAMES
    if where is _FIRST:
        label = [schema.label_column] * (schema.target == "class")
        frame = read_frame(path, bad_rows, texts=[*label, *texts])
        for name in (schema.label_column, *schema.ignored):
            if name not in frame:
                hint = "; data.label-column names it" * (name == schema.label_column)
                fault(path, f"{where} has no column {name!r}{hint}")
        columns = [*frame]
        entries = frame[schema.label_column]
        frame = frame.drop(columns=[schema.label_column, *schema.ignored])
    elif is_dense(path):
        open_schema = dataclasses.replace(schema, target="none", features=0)
        table = read_npz(path, open_schema, missing=True)
        names = table.names or _numbered(table.features.shape[1])
        frame = pd.DataFrame(table.features, columns=list(names))
        columns = [*frame]
        labels = load_arrays(path, ("labels",), needed=True)["labels"]
        if labels.shape != (len(frame),) or labels.dtype.kind not in "biufU":
            fault(path, f"the array 'labels' must be of {len(frame)} numbers or texts")
        entries = pd.Series(labels)
    else:
        fault(path, "has no columns that could be prepared")
    for name in (*schema.names, *schema.categories):
        if name not in frame:
            fault(path, f"{where} has no column {name!r}")
    for name in frame:
        if schema.names and name not in schema.names:
            place = columns.index(name) + 1
            fault(path, f"{where}: column {place} is not among data.feature-names")
    if schema.features not in (0, frame.shape[1]):
        kind = f"{frame.shape[1]} feature columns"
        fault(path, f"{kind}; data.features says {schema.features}")
    return frame, entries


def summary_of(
    schema: Schema, least: int, bad_rows: str, path: Path, texts: Iterable[str] = ()
) -> dict[str, Any]:
    """Return what the owner of a file says of its columns, see ``tables.describe``.

    ``texts`` are categories too, as other owners' files have them.
    """
    categories = (*schema.categories, *texts)
    frame = _read_labelled((schema, bad_rows, categories), path)[0]
    found = describe(frame, least, categories)
    return {name: found[name] for name in schema.names or found if name in found}


def read_columns(
    schema: Schema, bad_rows: str, path: Path, columns: Sequence[Column]
) -> Table:
    """Read what a preparation needs of a file; bad rows are refused, or dropped.

    Features are unscaled, NaN where a number is missing.
    """
    # of a category 007 is not 7
    texts = tuple(c.name for c in columns if c.kind == "category")
    frame, entries = _read_labelled((schema, bad_rows, texts), path)
    label = as_numbers(entries)[1] if schema.target == "number" else np.zeros(1, bool)
    if label.all():
        fault(
            path, "has no numbers; the task is a regression", None, schema.label_column
        )
    bad = {schema.label_column: entries.isna().to_numpy() | label}
    for column in columns:
        if column.name not in frame:
            fault(path, f"{_FIRST} has no column {column.name!r}")
        bad[column.name] = column.bad(frame[column.name])
    gone = np.any(list(bad.values()), axis=0)
    if gone.any() and bad_rows == "refuse":
        row = int(gone.argmax())
        name = next(name for name, cells in bad.items() if cells[row])
        hint = "data.bad-rows = 'drop' leaves such rows out"
        kind = f"is empty, or unlike the column's other cells; {hint}"
        fault(path, kind, row + 1, name)
    if gone.all():
        fault(path, "has no row that can be used")
    if gone.any():
        log(INFO, "%s: %d of %d rows are left out", path, gone.sum(), len(gone))
        frame, entries = frame[~gone], entries[~gone]
    checked = make_table(
        path,
        dataclasses.replace(schema, features=0, names=()),
        np.empty((len(frame), 0)),
        labels=entries,
        called={"labels": schema.label_column},
    )
    names = tuple(name for column in columns for name in column.features())
    return checked._replace(
        features=expand(columns, frame), names=names, columns=tuple(columns)
    )


@once_per_file(2)
def read_own_table(given: tuple[Schema, tuple[int, str] | None], path: Path) -> Table:
    """Read a file of the user's, once per process while it stays as it is.

    ``given`` are what it must hold, and ``data.least`` and ``data.bad-rows`` where it
    is to be prepared. A name that is none of the dense formats' is that of LIBSVM's
    text. Columns without names are ``feature-1`` and so on.
    """
    schema, prepared = given
    if prepared is None:
        table = (read_table if is_dense(path.name) else read_libsvm)(path, schema)
        return table._replace(names=table.names or _numbered(table.features.shape[1]))
    least, bad_rows = prepared
    columns, lines = agree([summary_of(schema, least, bad_rows, path)], least)
    for line in lines:
        log(INFO, "%s: %s", path, line)
    if not columns:
        fault(path, f"no column makes a feature: {'; '.join(lines[:3])}")
    return read_columns(schema, bad_rows, path, columns)


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(f"feature-{j}" for j in range(1, width + 1))


def _cells(path: Path, frame: Any) -> Array:
    """Return a frame's cells, (d, p); all must be finite numbers."""
    columns = [as_numbers(frame[name]) for name in frame]
    cells = np.column_stack([values for values, _ in columns])
    for row, place in np.argwhere(np.isnan(cells)):
        unlike = columns[place][1][row]
        kind = "must be a finite number" if unlike else "is empty"
        fault(path, kind, int(row) + 1, str(frame.columns[place]))
    return cells


def read_csv(path: Path, schema: Schema, *, header: Sequence[str] = ()) -> Table:
    """Read a text file with a first line of column names, raw or packed.

    ``header`` has them, where the file has no such line; rows count from 1 below it.
    """
    called = {"labels": schema.label_column, "ids": "id"}
    called["weights"] = schema.weight_column
    texts = ["id", *[schema.label_column] * (schema.target == "class")]
    frame = read_frame(path, names=header, texts=texts)
    names = [*frame]
    needed = [called[part] for part, must in schema.columns().items() if must]
    for name in (*schema.ignored, *needed):
        if name not in names:
            fault(path, f"{_FIRST} has no column {name!r}")
    apart = {schema.label_column, schema.weight_column, *needed, *schema.ignored}
    own = [name for name in names if name not in apart]
    # without a label's name the first line may be an example
    bare = not header and not schema.names and len(own) == len(names)
    if bare and any(map(is_number, names)):
        hint = "there are numbers in it (such names need data.feature-names)"
        fault(path, f"{_FIRST} must hold the columns' names; {hint}")
    if not own:
        fault(path, f"{_FIRST} names no feature")
    found: Any = {n: frame[called[n]] for n in schema.columns() if called[n] in names}
    found |= {"names": own, "where": _FIRST, "called": called, "columns": names}
    return make_table(path, schema, _cells(path, frame[own]), **found)


def read_ratings(path: Path, users: int = 0, items: int = 0) -> Table:
    """Read ratings as in MovieLens-100k's ``u.data``: user, item, rating in each line.

    Of a file whose first line names them the columns of these names. Users and items
    are whole numbers from 1 to ``users`` and ``items``, how many there are on all nodes
    together, 0: any. The features are user and item, counted from 0.
    """
    names = ("user", "item", "rating", "time")
    plain: Any = {"names": names, "separator": r"\s+"}
    named = b"rating" in read_at_most(path, 2**16).split(b"\n")[0]
    frame = read_frame(path, **({} if named else plain))
    for name in names[:3]:
        if name not in frame:
            fault(path, f"{_FIRST} has no column {name!r}")
    table = _cells(path, frame[[*names[:3]]])
    # no real number is near the limit; one that is would ask for terabytes
    for column, (name, count) in enumerate((("user", users), ("item", items))):
        most = count or 10**6
        good = (table[:, column] >= 1) & (table[:, column] <= most)
        wrong = np.flatnonzero(~good | (table[:, column] % 1 != 0))
        if len(wrong):
            kind = f"must be a whole number from 1 to {most}"
            fault(path, kind, int(wrong[0]) + 1, name)
    schema = Schema(2, names[:2], "number")
    features, ratings = table[:, :2] - 1.0, table[:, 2]
    return make_table(path, schema, features, names=names[:2], labels=ratings)


def read_npz(path: Path, schema: Schema, *, missing: bool = False) -> Table:
    """Read an archive of NumPy's, or one array, which is ``features``.

    ``features`` of shape (d, p), ``labels`` of shape (d,), numbers or texts; where
    the schema asks for them ``weights`` and ``ids`` of shape (d,), texts or whole
    numbers; ``names`` of the features. With ``missing``, features may be NaN.
    """
    arrays = load_arrays(path, ("features", "labels", "ids", "names", "weights"))
    features = arrays.get("features")
    if features is None or features.ndim != 2 or 0 in features.shape:
        fault(path, "must have an array 'features' of rows and columns, not empty")
    if features.dtype.kind not in "biuf":
        fault(path, "the array 'features' must be of numbers")
    rows, width = features.shape
    number = schema.target == "number"
    kinds = {
        "labels": ("biuf", "numbers") if number else ("biufU", "numbers or texts"),
        "weights": ("biuf", "numbers"),
        "ids": ("Uiu", "texts or whole numbers"),
        "names": ("Uiu", "texts"),
    }
    named = bool(schema.split or schema.names or schema.ignored)
    needed = {"names": named, **schema.columns()}
    found: dict[str, Any] = {}
    for name, must in needed.items():
        count, (kind, what) = width if name == "names" else rows, kinds[name]
        array = arrays.get(name)
        if array is None and must:
            fault(path, f"must have an array {name!r}")
        if array is not None:
            if array.shape != (count,) or array.dtype.kind not in kind:
                fault(path, f"the array {name!r} must be of {count} {what}")
            found[name] = array.tolist()
    names = [str(name).strip() for name in found.pop("names", ())]
    check_names(path, names, _NAMES)
    features = features.astype(np.float64)
    if schema.ignored:
        for name in schema.ignored:
            if name not in names:
                fault(path, f"{_NAMES} has no column {name!r}")
        features = features[:, [name not in schema.ignored for name in names]]
        names = [name for name in names if name not in schema.ignored]
    bad = np.isinf(features) if missing else ~np.isfinite(features)
    for row, column in np.argwhere(bad):
        name = names[column] if names else str(column + 1)
        fault(path, "must be a finite number", int(row) + 1, name)
    return make_table(path, schema, features, names=names, where=_NAMES, **found)


def read_idx_folder(path: Path, schema: Schema) -> Table:
    """Read a folder with one pair of idx files, as MNIST's; pixels go up to 1."""
    if schema.split or schema.names or schema.target == "number":
        fault(path, "idx files have images and their classes; the run needs csv or npz")
    found = []
    for end in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        files = [*path.glob(f"*{end}"), *path.glob(f"*{end}.gz")]
        if len(files) != 1:
            fault(path, f"has {len(files)} files *{end}[.gz]; exactly one is expected")
        found += files
    pixels, labels = read_idx_pair(*found)
    return make_table(found[1], schema, rows_of(pixels), labels=labels, called=_LABEL)


def read_libsvm(path: Path, schema: Schema) -> Table:
    """Read ``label index:value …``, a line an example, raw or packed.

    Where the schema has features, indices count from 1 to their number: unlike
    scikit-learn this does not take a file with an index 0 for one that counts from 0,
    which another node's might not have. The features are CSR.
    """
    named = schema.split or schema.names or schema.ignored or schema.categories
    if named or schema.weight_column:
        what = "no names for features, no ids and no weights"
        fault(path, f"LIBSVM's format has {what}; use csv or npz")
    need("sklearn", f"{path}, a file in LIBSVM's format,", "sklearn")
    lines, features = None, schema.features
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
    matrix, labels = loaded
    if not matrix.shape[0] or not (features or matrix.nnz):
        fault(path, "the file has no examples with features")
    matrix = scipy.sparse.csr_array(matrix)
    return make_table(path, schema, matrix, labels=labels, called=_LABEL)


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


_READERS: dict[str, Callable[[Path, Schema], Table]] = {
    ".csv": read_csv,
    **dict.fromkeys((".npz", ".npy"), read_npz),
    **dict.fromkeys((".svm", ".libsvm", ".txt"), read_libsvm),
}
