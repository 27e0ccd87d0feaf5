"""What HyFDCA's server tells a client of one of its groups: the record, and its form.

α of a group's samples is on the clients that hold it, and moves by mixtures: α becomes
Σ_j θ_j a_j of points that those clients remember. A request says of each of a client's
groups where it stands, so that a client that missed nothing takes the last mixture, one
that has taken it already does not take it twice, and one that lacks more asks for help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtrellis.dual.bundle import Mixture

__all__ = ["GroupStep"]


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
