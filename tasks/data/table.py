"""What a node's file holds, whatever its format, and how its faults are told.

Also what a field's text is worth as a number, for all readers.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST

from ..base import DataFileError
from .settings import Schema

__all__ = [
    "NodeTable",
    "check_width",
    "fault",
    "is_number",
    "label_codes",
    "to_number",
    "to_weight",
]


class NodeTable(NamedTuple):
    """A node's examples, checked; arrays are read-only.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d_i, p_i)
        float64.
    targets : ndarray of shape (d_i,) or None
        Classes counted from 0 or numbers, float64; NaN for a sample without a label.
    names : tuple of str
        The features' names; none where the format has no names.
    ids : tuple of str
        The samples', where they are split; else none.
    labels : tuple of str or float
        The classes' labels by their numbers, where the schema lists none.
    weights : ndarray of shape (d_i,) or None
        What each sample counts, NaN where the file does not say; None: all alike.
    """

    features: Any
    targets: NDArray[np.float64] | None
    names: tuple[str, ...]
    ids: tuple[str, ...]
    labels: tuple[str | float, ...] = ()
    weights: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        features: Any,
        targets: NDArray[np.float64] | None,
        names: tuple[str, ...],
        ids: tuple[str, ...],
        schema: Schema,
        codes: LabelCodes | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> NodeTable:
        """Make one, read-only; a split sample's labels are dropped if none is known."""
        found = () if codes is None or schema.labels else tuple(codes)
        if schema.split and targets is not None and np.isnan(targets).all():
            targets = None
        if schema.split and weights is not None and np.isnan(weights).all():
            weights = None
        for part in (features, targets, weights):
            if isinstance(part, np.ndarray):
                part.setflags(write=False)
        return cls(features, targets, names, ids, found, weights)

    def columns_digest(self) -> str:
        """Return what tells whether two nodes' columns are the same, in one order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:32]


class LabelCodes(dict[str | float, float]):
    """The number of every label, by its text and by its value."""


class OpenCodes(LabelCodes):
    """Numbers labels as they come; one that is a number goes by its value."""

    def get(self, key: str | float, default: Any = None) -> Any:
        """Return a label's number, a new one's too."""
        if isinstance(key, str):
            value = to_number(key)
            key = value if math.isfinite(value) else key
        return self.setdefault(key, float(len(self)))


def label_codes(schema: Schema) -> LabelCodes:
    """Return the number of every allowed label; all are where the schema lists none."""
    if schema.target == "class" and not schema.labels:
        return OpenCodes()
    codes = LabelCodes()
    if schema.target != "class":
        return codes
    for code, label in enumerate(schema.labels):
        codes[label] = float(code)
        try:
            codes.setdefault(float(label), float(code))
        except ValueError:
            continue
    return codes


def fault(
    path: Path, kind: str, row: int | None = None, column: str | None = None
) -> NoReturn:
    """Raise a DataFileError: where, and what kind of fault; never what stands there.

    Not to be called within an ``except``: a chained exception could say it.
    """
    where = str(path)
    if row is not None:
        where += f", row {row}"
    if column is not None:
        where += f", column {column[:60]!r}"
    raise DataFileError(f"{where}: {kind}")


def to_weight(text: str, schema: Schema) -> float | str:
    """Return a sample's weight, or what is wrong with it."""
    if not text.strip():
        return math.nan if schema.split else "is empty"
    value = to_number(text)
    good = value == 0.0 or (value >= LIGHTEST and math.isfinite(value))
    return value if good else f"must be 0 or a finite number from {LIGHTEST:g} on"


def check_width(path: Path, width: int, schema: Schema) -> None:
    """Check the number of features, unless it is open.

    Raises
    ------
    DataFileError
    """
    few = width < schema.features and not schema.split
    if schema.features and (few or width > schema.features):
        fault(path, f"{width} feature columns; data.features says {schema.features}")


def is_number(text: str) -> bool:
    """Return whether Python takes a text for a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_number(text: str) -> float:
    """Return a number, NaN for anything else.

    Python takes 1_0 for ten, and digits of any script; NumPy does not.
    """
    if "_" in text or not text.isascii() or not is_number(text):
        return math.nan
    return float(text)
