"""The best that is known of each class: the lowest P, of which w, and the highest D."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

__all__ = ["Certificate"]


class Certificate:
    """Lowest P and highest D so far, class by class: the gap is the sum over them.

    Parameters
    ----------
    classes : int
        C.

    Attributes
    ----------
    primals, duals : ndarray of shape (C,)
    w : ndarray of shape (C, p) or None
        Of each class the w that has its lowest P; None: no P is known yet.
    """

    def __init__(self, classes: int) -> None:
        self.primals: FloatArray = np.full(classes, inf)
        self.duals: FloatArray = np.full(classes, -inf)
        self.w: FloatArray | None = None

    def note(
        self, primals: FloatArray | None, duals: FloatArray | None, w: FloatArray
    ) -> None:
        """Take in what an iteration certifies: P of each class's w, and D."""
        if duals is not None:
            self.duals = np.maximum(self.duals, duals)
        if primals is None:
            return
        better = primals < self.primals
        own = w if self.w is None else self.w
        self.w = np.where(better[:, None], w, own)
        self.primals = np.minimum(primals, self.primals)

    @property
    def gap(self) -> float:
        """Σ over the classes of the lowest P less the highest D."""
        return float((self.primals - self.duals).sum())

    @property
    def primal(self) -> float:
        """Σ over the classes of the lowest P."""
        return float(self.primals.sum())

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it as arrays; those of one class without its axis."""
        arrays = {"best-dual": _short(self.duals)}
        if self.w is not None:
            arrays |= {"best-primal": _short(self.primals), "best-w": _short(self.w)}
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        C = len(self.duals)
        self.duals = state["best-dual"].reshape(C)
        if "best-w" in state:
            self.primals = state["best-primal"].reshape(C)
            self.w = state["best-w"].reshape(C, -1)


def _short(array: FloatArray) -> NDArray[Any]:
    return np.asarray(array[0] if len(array) == 1 else array)
