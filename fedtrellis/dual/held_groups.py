"""A client's part of the alignment: its groups' samples, as it is given them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    holders : int
        |B_n|, how many clients hold the group.
    start : int
        Where its samples begin in the client's vectors, which go group by group.
    """

    group: int
    rows: IntArray
    holders: int
    start: int = 0

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.rows)

    @property
    def own(self) -> slice:
        """Where its samples stand in the client's vectors."""
        return slice(self.start, self.start + self.size)

    @staticmethod
    def pack(held: Iterable[HeldGroup]) -> tuple[dict[str, IntArray], dict[str, Any]]:
        """A client's groups as arrays of its state, and as entries of a request."""
        held = list(held)
        arrays: dict[str, IntArray] = {
            "rows": np.concatenate([one.rows for one in held]),
            "groups": np.array([one.group for one in held]),
            "sizes": np.array([one.size for one in held]),
        }
        return arrays, {"holders": [one.holders for one in held]}

    @classmethod
    def unpack(
        cls,
        state: Mapping[str, NDArray[Any]],
        holders: Sequence[int] | NDArray[Any],
        num_samples: int,
    ) -> list[HeldGroup]:
        """Inverse of :meth:`pack`.

        Parameters
        ----------
        state : mapping
            With the arrays. They come from the server, and say how long the client's
            vectors are.
        holders : sequence of int
        num_samples : int
            How many samples the client has.

        Raises
        ------
        ValueError
            If the groups do not deal out the client's samples.
        """
        rows, sizes, groups = state["rows"], state["sizes"], state["groups"]
        if (
            any(a.dtype.kind not in "iu" or a.ndim != 1 for a in (rows, sizes, groups))
            or len(np.unique(groups)) != len(groups)
            or len(sizes) != len(groups)
            or (sizes < 0).any()
            or sum(sizes.tolist()) != num_samples
            or not np.array_equal(np.sort(rows), np.arange(num_samples))
        ):
            raise ValueError(
                "rows, groups and sizes do not deal out this client's "
                f"{num_samples} samples"
            )
        rows = rows.astype(np.int64)
        stops = np.cumsum(sizes.astype(int)).tolist()
        starts = [0, *stops[:-1]]
        counts = np.asarray(holders).astype(int).tolist()
        return [
            cls(group, rows[start:stop], count, start)
            for group, start, stop, count in zip(
                groups.tolist(), starts, stops, counts, strict=True
            )
        ]
