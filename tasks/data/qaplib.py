"""Instances of the quadratic assignment problem: chr12a, and QAPLIB's two formats."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Array, DataFileError

__all__ = ["Instance", "chr12a", "read_instance", "read_solution"]


class Instance(NamedTuple):
    """A QAPLIB instance: minimise Σ_ij A_ij B_{p(i), p(j)} over permutations p.

    ``optimum`` is the best cost known, None where it is not known.
    """

    A: Array
    B: Array
    optimum: float | None


def chr12a() -> Instance:
    """Return QAPLIB's chr12a, 12 facilities."""
    # beside this module, whichever of its two names the package is imported under
    text = resources.files(__package__).joinpath("chr12a.json").read_text("utf-8")
    stored = json.loads(text)
    A, B = (np.array(stored[name], dtype=np.float64) for name in "AB")
    return Instance(A, B, float(stored["optimum"]))


def _numbers(path: Path) -> Array:
    """Return all numbers of a text file; line breaks mean nothing in QAPLIB."""
    numbers: list[float] = []
    with path.open(encoding="latin-1") as lines:
        for count, line in enumerate(lines, start=1):
            try:
                numbers.extend(map(float, line.replace(",", " ").split()))
            except ValueError as error:
                raise DataFileError(f"{path}, line {count}: not numbers") from error
    values = np.array(numbers)
    if not np.isfinite(values).all():
        raise DataFileError(f"{path}: not all numbers are finite")
    return values


def _order(path: Path, values: Array) -> int:
    if not len(values) or values[0] < 1 or values[0] % 1:
        raise DataFileError(f"{path}: must start with the order n, a whole number >= 1")
    return int(values[0])


def read_instance(path: Path) -> Instance:
    """Read a QAPLIB ``.dat`` file: n, then the n × n matrices A and B.

    Raises
    ------
    DataFileError
        The file holds something else.
    """
    values = _numbers(path)
    n = _order(path, values)
    if len(values) != 1 + 2 * n * n:
        raise DataFileError(
            f"{path}: order {n} asks for {2 * n * n} entries of A and B, "
            f"the file has {len(values) - 1}"
        )
    A, B = values[1:].reshape(2, n, n)
    if not A.any() or not B.any():
        raise DataFileError(f"{path}: A or B has zeros only")
    return Instance(A, B, None)


def read_solution(path: Path, order: int) -> tuple[float, NDArray[np.intp]]:
    """Read a QAPLIB ``.sln`` file: n, the cost, and a permutation of 1 … n.

    Returns
    -------
    cost : float
    permutation : ndarray of int of shape (n,)
        Counted from 0.

    Raises
    ------
    DataFileError
        The file holds something else.
    """
    values = _numbers(path)
    n = _order(path, values)
    if n != order or len(values) != 2 + n:
        raise DataFileError(
            f"{path}: must hold {order}, the cost and {order} places; "
            f"it starts with {n} and has {len(values)} numbers"
        )
    if not np.array_equal(np.sort(values[2:]), np.arange(1, n + 1)):
        raise DataFileError(f"{path}: the places are no permutation of 1 to {n}")
    return float(values[1]), values[2:].astype(np.intp) - 1
