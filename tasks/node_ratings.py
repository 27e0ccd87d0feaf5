"""A node's own ratings, for matrix completion."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import numpy as np

from .node_settings import Schema
from .node_table import NodeTable, fault

__all__ = ["read_node_ratings"]


def read_node_ratings(path: Path, users: int, items: int) -> NodeTable:
    """Read ratings as in MovieLens-100k's ``u.data``: user, item, rating in each line.

    With tabs or spaces between; what stands behind the rating (a time) is not read.
    Users and items are whole numbers from 1.

    Parameters
    ----------
    path : Path
    users, items : int
        How many there are on all nodes together.

    Returns
    -------
    NodeTable
        Features of shape (d_i, 2): user and item, counted from 0; the ratings.

    Raises
    ------
    DataFileError
        A line that is something else; names file, row (the line) and column, and shows
        nothing of what is there.
    """
    values = array("d")
    with path.open(encoding="latin-1") as lines:
        for row, line in enumerate(lines, start=1):
            fields = line.split()
            if len(fields) not in (3, 4):
                fault(
                    path,
                    f"{len(fields)} fields; user, item and rating, and a "
                    "time if you like, are expected",
                    row,
                )
            for name, count, text in zip(
                ("user", "item"), (users, items), fields[:2], strict=True
            ):
                good = text.isascii() and text.isdigit() and len(text) < 10
                if not good or not 1 <= int(text) <= count:
                    fault(
                        path,
                        f"must be a whole number from 1 to {count}, as "
                        f"matrix-completion.{name}s says",
                        row,
                        name,
                    )
                values.append(int(text) - 1)
            values.append(_rating(fields[2]))
            if not math.isfinite(values[-1]):
                fault(path, "must be a finite number", row, "rating")
    if not values:
        fault(path, "there are no ratings")
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, 3)
    schema = Schema(2, ("user", "item"), "number")
    return NodeTable.of(table[:, :2], table[:, 2].copy(), ("user", "item"), (), schema)


def _rating(text: str) -> float:
    try:
        return math.nan if "_" in text or not text.isascii() else float(text)
    except ValueError:
        return math.nan
