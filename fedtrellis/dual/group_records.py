"""A client's groups of samples, and what HyFDCA's server tells it of each.

α of a group's samples is on the clients that hold it, and moves by mixtures: α becomes
Σ_j θ_j a_j of points that those clients remember. A request says of each of a client's
groups where it stands, so that a client that missed nothing takes the last mixture, one
that has taken it already does not take it twice, and one that lacks more asks for help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.bundle import Mixture

__all__ = ["MAX_SHARES", "GroupStep", "HeldGroup"]

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


@dataclass(frozen=True)
class GroupStep:
    """Where one group stands.

    Attributes
    ----------
    group : int
        Which of the alignment's groups.
    step : int
        Mixtures taken so far; 0: α is still 0.
    alpha_id : int
        The id of the point that α is now.
    ids, weights : sequence of int, of float
        The last mixture: the points with weight, and their θ, class by class. Empty
        if there is none.
    keep : sequence of int
        The points to remember beside α.
    alpha : sequence of bytes or None
        enc(α), for a client that does not know it; else None.
    """

    group: int
    step: int
    alpha_id: int
    ids: Sequence[int] = ()
    weights: Sequence[float] = ()
    keep: Sequence[int] = ()
    alpha: Sequence[bytes] | None = field(default=None, repr=False)

    @classmethod
    def after(
        cls,
        group: int,
        step: int,
        alpha_id: int,
        mixture: Mixture | None,
        alpha: Sequence[bytes] | None = None,
    ) -> GroupStep:
        """The record of a group whose last mixture was this one, if it had any."""
        if mixture is None:
            return cls(group, step, alpha_id, alpha=alpha)
        return cls(
            group,
            step,
            alpha_id,
            mixture.ids.tolist(),
            mixture.weights.reshape(-1).tolist(),
            mixture.keep.tolist(),
            alpha,
        )

    @staticmethod
    def pack(records: Iterable[GroupStep]) -> dict[str, Any]:
        """A client's records as entries of a request.

        A ``ConfigRecord`` knows numbers and flat lists only: the lists have an entry
        for each group, or as many as the group's count says.
        """
        every = list(records)
        entries = {
            "groups": [r.group for r in every],
            "steps": [r.step for r in every],
            "alpha-ids": [r.alpha_id for r in every],
            "mix-counts": [len(r.ids) for r in every],
            "mix-ids": [i for r in every for i in r.ids],
            "mix-weights": [theta for r in every for theta in r.weights],
            "keep-counts": [len(r.keep) for r in every],
            "keep-ids": [i for r in every for i in r.keep],
        }
        alphas = {f"alpha/{r.group}": r.alpha for r in every if r.alpha is not None}
        return {**entries, **alphas}

    @classmethod
    def unpack(cls, config: Mapping[str, Any], classes: int = 1) -> list[GroupStep]:
        """Inverse of :meth:`pack`, of the ``config`` of a request.

        ``classes`` says how many θ a point has.

        Raises
        ------
        KeyError, ValueError
            An entry is missing, or the lists do not have one length.
        """
        counts = config["mix-counts"]
        each = [classes * count for count in counts]
        return [
            cls(g, step, alpha_id, ids, weights, keep, config.get(f"alpha/{g}"))
            for g, step, alpha_id, ids, weights, keep in zip(
                config["groups"],
                config["steps"],
                config["alpha-ids"],
                _cut(config["mix-ids"], counts),
                _cut(config["mix-weights"], each),
                _cut(config["keep-ids"], config["keep-counts"]),
                strict=True,
            )
        ]


def _cut(flat: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Cut a list into lists of the given lengths."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(flat[start : start + count]))
        start += count
    return parts
