"""Ratings, for matrix completion: MovieLens-100k's file, and a node's own."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Array, DataFileError
from .settings import Schema
from .table import NodeTable, fault, to_number

__all__ = ["Ratings", "read_node_ratings", "read_ratings"]

Indices = NDArray[np.intp]

# The radius that the paper takes for MovieLens-100k.
_RADIUS = 7000.0


class Ratings(NamedTuple):
    """Observed entries of a matrix of a shape, and a radius that suits it."""

    rows: Indices
    columns: Indices
    values: Array
    shape: tuple[int, int]
    radius: float

    def select(self, index: Indices) -> Ratings:
        """Return some of the entries."""
        return self._replace(
            rows=self.rows[index],
            columns=self.columns[index],
            values=self.values[index],
        )


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
            values.append(to_number(fields[2]))
            if not math.isfinite(values[-1]):
                fault(path, "must be a finite number", row, "rating")
    if not values:
        fault(path, "there are no ratings")
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, 3)
    schema = Schema(2, ("user", "item"), "number")
    return NodeTable.of(table[:, :2], table[:, 2].copy(), ("user", "item"), (), schema)


def read_ratings(path: Path) -> Ratings:
    """Read ``u.data``: user, item, rating and time in lines, with tabs between.

    Users and items are whole numbers from 1; the matrix has as many rows and columns
    as the largest of them. The time is checked to be a number and not used.

    Returns
    -------
    Ratings
        In the file's order.

    Raises
    ------
    DataFileError
        A line that is something else, or fewer than two lines; names file and line.
    """
    ids: list[tuple[int, int]] = []
    values: list[float] = []
    with path.open(encoding="latin-1") as lines:
        for count, line in enumerate(lines, start=1):
            fields = line.rstrip("\r\n").split("\t")
            try:
                user, item, rating = int(fields[0]), int(fields[1]), float(fields[2])
                int(fields[3])
                good = len(fields) == 4 and user >= 1 and item >= 1
            except (ValueError, IndexError):
                good = False
            # No real id is near this; one that is would ask for a matrix of terabytes.
            if not good or max(user, item) > 10**6 or not math.isfinite(rating):
                raise DataFileError(
                    f"{path}, line {count}: must be user, item (whole numbers from 1), "
                    "rating and time with tabs between"
                )
            ids.append((user - 1, item - 1))
            values.append(rating)
    if len(values) < 2:
        raise DataFileError(f"{path}: {len(values)} ratings; at least 2 are needed")
    rows, columns = np.array(ids, dtype=np.intp).T.copy()
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    return Ratings(rows, columns, np.array(values), shape, _RADIUS)
