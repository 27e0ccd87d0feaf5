"""A file of the user's that says which client holds which rows and columns."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from ..base import DataFileError
from .partition import Indices, Share

__all__ = ["read_partition_file"]


def read_partition_file(
    path: Path, clients: int, num_rows: int, names: Sequence[str]
) -> list[Share]:
    """Read who holds what from a file of the user's, TOML or (``.json``) JSON.

    It has a list ``clients``, in their order, each with ``rows`` and ``columns``. Both
    are lists, or one, of whole numbers from 0, of ranges ``"first:end"`` without their
    end, as in Python (``":"`` is all of them), and for columns of names::

        [[clients]]
        rows = ["0:900", 1200]
        columns = [":32", "bias"]

    Parameters
    ----------
    path : Path
    clients : int
        How many it must have.
    num_rows : int
    names : sequence of str
        Of the columns.

    Raises
    ------
    DataFileError
        The file is something else, gives an entry to two clients, or to none.
    """
    try:
        text = path.read_text(encoding="utf-8")
        parts = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    # UnicodeDecodeError, JSONDecodeError and TOMLDecodeError are ValueErrors
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise DataFileError(f"{path}: cannot be read: {reason}") from error
    listed = parts.get("clients") if isinstance(parts, dict) else None
    if not isinstance(listed, list) or not all(isinstance(c, dict) for c in listed):
        raise DataFileError(
            f"{path}: must have a list 'clients' of rows and columns each"
        )
    if len(listed) != clients:
        raise DataFileError(
            f"{path}: has {len(listed)} clients; the run has {clients} of them"
        )
    known = {name: number for number, name in enumerate(names)}
    shares = []
    for number, client in enumerate(listed):
        where = f"{path}, client {number}"
        unknown = set(client) - {"rows", "columns"}
        if unknown:
            raise DataFileError(
                f"{where}: {min(unknown)!r} is not known; allowed: columns, rows"
            )
        rows = _selected(f"{where}, rows", client.get("rows"), num_rows, {})
        columns = _selected(
            f"{where}, columns", client.get("columns"), len(names), known
        )
        shares.append(Share(rows, columns))
    _check_cover(path, shares, num_rows, names)
    return shares


def _selected(where: str, value: Any, count: int, known: Mapping[str, int]) -> Indices:
    """Return the indices that a list of numbers, ranges and names stands for."""
    chosen = np.zeros(count, dtype=np.bool_)
    for item in value if isinstance(value, list) else [value]:
        picked: slice | int
        if isinstance(item, str) and item in known:
            picked = known[item]
        elif isinstance(item, str) and item.count(":") == 1:
            ends = [end.strip() for end in item.split(":")]
            if not all(end == "" or end.isdecimal() for end in ends):
                raise DataFileError(f"{where}: {item!r} is no range first:end")
            first, end = int(ends[0] or 0), int(ends[1] or count)
            if not first < end <= count:
                raise DataFileError(
                    f"{where}: {item!r} is no range within 0:{count} that has any"
                )
            picked = slice(first, end)
        elif type(item) is int and 0 <= item < count:
            picked = item
        else:
            names = ", or a name" if known else ""
            raise DataFileError(
                f"{where}: {item!r} is no number from 0 to {count - 1} and no range "
                f"such as '0:{count}'{names}"
            )
        chosen[picked] = True
    if not chosen.any():
        raise DataFileError(f"{where}: there are none")
    return np.flatnonzero(chosen)


def _membership(sets: Sequence[Indices], count: int) -> Any:
    """Return the sets as rows of a CSR matrix of ones."""
    starts = np.concatenate(([0], np.cumsum([len(part) for part in sets])))
    ones = np.ones(starts[-1])
    shape = (len(sets), count)
    return scipy.sparse.csr_array((ones, np.concatenate(sets), starts), shape=shape)


def _check_cover(
    path: Path, shares: Sequence[Share], num_rows: int, names: Sequence[str]
) -> None:
    """Find out whether every entry has one client.

    Raises
    ------
    DataFileError
        Two clients hold one, or none does; names one such entry.
    """
    rows = _membership([share.rows for share in shares], num_rows)
    columns = _membership([share.columns for share in shares], len(names))
    both = (rows @ rows.T).multiply(columns @ columns.T)
    overlap = scipy.sparse.coo_array(scipy.sparse.triu(both, k=1))
    if overlap.nnz:
        one, other = int(overlap.row[0]), int(overlap.col[0])
        row = np.intersect1d(shares[one].rows, shares[other].rows)[0]
        column = np.intersect1d(shares[one].columns, shares[other].columns)[0]
        raise DataFileError(
            f"{path}: clients {one} and {other} both hold row {row}, column {column} "
            f"({names[column]}); every entry must belong to exactly one client"
        )
    # Nobody's are twice in it now, so the sizes tell.
    held = rows.T @ np.array([len(share.columns) for share in shares])
    missing = np.flatnonzero(held < len(names))
    if len(missing):
        row = missing[0]
        covered = np.zeros(len(names), dtype=np.bool_)
        for share in shares:
            if row in share.rows:
                covered[share.columns] = True
        column = np.flatnonzero(~covered)[0]
        raise DataFileError(
            f"{path}: row {row}, column {column} ({names[column]}) belongs to no "
            "client; every entry must belong to exactly one"
        )
