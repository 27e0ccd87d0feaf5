"""A client's groups of samples, and what HyFDCA's server tells it of each.

α of a group's samples is on the clients that hold it, and moves by mixtures: α becomes
Σ_j θ_j a_j of points that those clients remember. A request says of each of a client's
groups where it stands, so that a client that missed nothing takes the last mixture, one
that has taken it already does not take it twice, and one that lacks more asks for help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Shares that the paper's steps may add to one sum, before it is encrypted anew.
MAX_SHARES = 64

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class HeldGroup:
    """One group as one of its holders has it.

    ``group`` is which of the alignment's groups, ``rows`` its samples as rows of this
    client's features, in the group's order; ``start`` is where they begin in the
    client's vectors, which go group by group.
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

        A ValueError: the groups do not deal out the client's ``num_samples`` samples.
        """
        rows, sizes, groups = state["rows"], state["sizes"], state["groups"]
        dealt = np.array_equal(np.sort(rows), np.arange(num_samples))
        if not dealt or sizes.sum() != num_samples or sizes.min(initial=1) < 1:
            why = f"do not deal out this client's {num_samples} samples"
            raise ValueError(f"rows, groups and sizes {why}")
        starts = (np.cumsum(sizes) - sizes).tolist()
        return [
            cls(group, rows[start : start + size].astype(np.int64), start)
            for group, size, start in zip(
                groups.tolist(), sizes.tolist(), starts, strict=True
            )
        ]


class GroupStep(NamedTuple):
    """Where one group stands.

    ``group`` is which of the alignment's groups, ``step`` how many mixtures it has
    taken (0: α is still 0), ``alpha_id`` the id of the point that α is now. ``ids`` and
    ``weights`` are the last mixture, the points with weight and their θ, class by
    class, and ``keep`` the points to remember beside α. ``alpha`` is enc(α), for a
    client that does not know it.
    """

    group: int
    step: int
    alpha_id: int
    ids: Sequence[int] = ()
    weights: Sequence[float] = ()
    keep: Sequence[int] = ()
    alpha: Sequence[bytes] | None = None

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
        """Inverse of :meth:`pack`; ``classes`` says how many θ a point has.

        A KeyError or ValueError: an entry is missing, or the lists do not have one
        length.
        """
        ids, weights = iter(config["mix-ids"]), iter(config["mix-weights"])
        kept = iter(config["keep-ids"])
        return [
            cls(
                group,
                step,
                alpha_id,
                list(islice(ids, count)),
                list(islice(weights, classes * count)),
                list(islice(kept, keep)),
                config.get(f"alpha/{group}"),
            )
            for group, step, alpha_id, count, keep in zip(
                config["groups"],
                config["steps"],
                config["alpha-ids"],
                config["mix-counts"],
                config["keep-counts"],
                strict=True,
            )
        ]
