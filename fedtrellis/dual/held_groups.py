"""A client's part of the alignment: its groups' samples, as it is given them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_SHARES", "HeldGroup"]

#: Shares that the paper's steps may add to one sum, before it is encrypted anew.
MAX_SHARES = 64

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class HeldGroup:
    """One group as one of its holders has it.

    Attributes
    ----------
    group : int
        Which of the alignment's groups.
    rows : ndarray of int64, shape (n_g,)
        The group's samples as rows of this client's features, in the group's order.
    start : int
        Where its samples begin in the client's vectors, which go group by group.
    """

    group: int
    rows: IntArray
    start: int = 0

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.rows)

    @property
    def own(self) -> slice:
        """Where its samples stand in the client's vectors."""
        return slice(self.start, self.start + self.size)

    @cached_property
    def by_row(self) -> IntArray:
        """The samples in the order of their rows, which no pseudonym changes.

        Sums in this order are the same numbers in every run.
        """
        return np.argsort(self.rows)

    @staticmethod
    def pack(held: Iterable[HeldGroup]) -> dict[str, IntArray]:
        """A client's groups as arrays of its state."""
        held = list(held)
        rows = [one.rows for one in held]
        return {
            "rows": np.concatenate([np.zeros(0, dtype=np.int64), *rows]),
            "groups": np.array([one.group for one in held], dtype=np.int64),
            "sizes": np.array([one.size for one in held], dtype=np.int64),
        }

    @classmethod
    def unpack(
        cls, state: Mapping[str, NDArray[Any]], num_samples: int
    ) -> list[HeldGroup]:
        """Inverse of :meth:`pack`.

        Parameters
        ----------
        state : mapping
            With the arrays.
        num_samples : int
            How many samples the client has.

        Raises
        ------
        ValueError
            If the groups do not deal out the client's samples.
        """
        rows, sizes, groups = state["rows"], state["sizes"], state["groups"]
        dealt = np.array_equal(np.sort(rows), np.arange(num_samples))
        if not dealt or sizes.sum() != num_samples or sizes.min(initial=1) < 1:
            raise ValueError(
                "rows, groups and sizes do not deal out this client's "
                f"{num_samples} samples"
            )
        stops = np.cumsum(sizes).tolist()
        return [
            cls(group, rows[stop - size : stop].astype(np.int64), stop - size)
            for group, size, stop in zip(
                groups.tolist(), sizes.tolist(), stops, strict=True
            )
        ]
