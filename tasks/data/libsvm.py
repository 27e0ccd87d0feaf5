"""LIBSVM's text format: ``label index:value index:value …``, a line an example.

No message shows what a file holds, and no exception that does is chained.
"""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.extras import need

from ..base import DataFileError
from .packed import UNPACKING_ERRORS, open_packed
from .settings import Schema
from .table import NodeTable, fault, label_codes, to_number

__all__ = ["read_libsvm", "read_libsvm_table"]


def read_libsvm(
    path: Path,
    features: int | None = None,
    labels: Container[Any] | None = None,
) -> tuple[Any, NDArray[np.float64]]:
    """Read examples, raw or packed (:mod:`.packed`).

    Parameters
    ----------
    path : Path
    features : int, optional
        p; then indices count from 1 to p, and a fault is told with the pair that is
        wrong. By default p is what the largest index says, and indices are counted
        from 1, or from 0 where one of them is 0.
    labels : container, optional
        Those allowed; by default all numbers.

    Returns
    -------
    features : scipy.sparse.csr_array of shape (d, p)
        float64.
    labels : ndarray of shape (d,)
        float64, as they stand in the file.

    Raises
    ------
    DataFileError
        The file holds something else; names the file, and the line where it is one.
    """
    need("sklearn", f"{path}, a file in LIBSVM's format,", "sklearn")
    # half a second that other readers need not spend
    from sklearn.datasets import load_svmlight_file

    loaded = None
    try:
        with open_packed(path) as file:
            loaded = load_svmlight_file(
                file,
                n_features=features,
                zero_based="auto" if features is None else False,
            )
    except MemoryError:
        raise
    except Exception:  # whatever it says, it may quote the file
        pass
    if loaded is None:
        _tell_fault(path, features, labels)
    matrix, targets = loaded
    if features is None and not matrix.nnz:
        fault(path, "the file has no examples with features")
    if not matrix.shape[0]:
        fault(path, "the file has no examples")
    good = np.isfinite(matrix.data).all() and np.isfinite(targets).all()
    if not good or not (
        labels is None or all(label in labels for label in targets.tolist())
    ):
        _tell_fault(path, features, labels)
    return scipy.sparse.csr_array(matrix), targets


def read_libsvm_table(path: Path, schema: Schema) -> NodeTable:
    """Read a node's file.

    Indices count from 1 to ``data.features``: unlike scikit-learn this does not take
    a file with an index 0 for one that counts from 0, which another node's might not
    have. Where the number of features is open, it is :func:`read_libsvm`'s.

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
    if schema.weight_column:
        fault(path, "LIBSVM's format has no samples' weights; use csv or npz")
    codes = label_codes(schema)
    allowed = codes if schema.labels else None
    matrix, targets = read_libsvm(path, schema.features or None, allowed)
    if schema.target == "class":
        targets = np.array([codes.get(value) for value in targets.tolist()])
    wanted = None if schema.target == "none" else targets
    return NodeTable.of(matrix, wanted, (), (), schema, codes)


class _Fault(NamedTuple):
    kind: str
    column: str | None = None


def _tell_fault(
    path: Path, features: int | None, labels: Container[Any] | None
) -> NoReturn:
    """Find the line that is wrong; called once it is known that one is."""
    found, where, readable = None, 0, True
    try:
        # to the end: a file that cannot be unpacked is told as that
        with open_packed(path) as lines:
            for row, line in enumerate(lines, start=1):
                if found is None:
                    found, where = _fault_of(line, features, labels), row
    except UNPACKING_ERRORS:
        readable = False
    if not readable:
        fault(path, "the file cannot be read or unpacked")
    if found is None:
        fault(path, "cannot be read as LIBSVM's text format")
    if features is not None:
        fault(path, found.kind, where, found.column)
    # where the number of features is open, so is what a line was meant to be
    raise DataFileError(
        f"{path}, line {where}: must be a label and index:value pairs of finite "
        "numbers, the indices whole and ascending"
    )


def _fault_of(
    line: bytes, features: int | None, labels: Container[Any] | None
) -> _Fault | None:
    """Return what is wrong with a line, None if nothing is."""
    fields = line.split(b"#", 1)[0].split()
    if not fields:
        return None
    label = _number(fields[0])
    if not math.isfinite(label):
        return _Fault("must be a finite number", "label")
    if labels is not None and label not in labels:
        return _Fault("is not among the labels that the run allows", "label")
    first, end = (0, np.iinfo(np.int32).max) if features is None else (1, features)
    digits = 10 if features is None else 9
    last = first - 1
    for place, pair in enumerate(fields[1:], start=1):
        index, colon, value = pair.partition(b":")
        if not (colon and index.isdigit() and len(index) <= digits):
            return _Fault(f"pair {place} is no index:value")
        number = int(index)
        if not first <= number <= end:
            return _Fault(
                f"the index of pair {place} is not from 1 to data.features = {features}"
            )
        if number <= last:
            return _Fault(f"the index of pair {place} is not above the last")
        if not math.isfinite(_number(value)):
            return _Fault("must be a finite number", str(number))
        last = number
    return None


def _number(field: bytes) -> float:
    return to_number(field.decode("latin-1"))
