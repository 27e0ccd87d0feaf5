"""Dadras et al., federated Frank-Wolfe, arXiv 2408.10090 and the workshop paper."""

from reproduce.common import Item

from . import (
    ablations,
    accuracy,
    assignment,
    claims,
    convergence,
    leakage,
    oracles,
    ours,
    traffic,
)

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = "Federated Frank-Wolfe Algorithm, arXiv 2408.10090, and its 2022 workshop paper"

ITEMS: dict[str, Item] = {
    **accuracy.ITEMS,
    **leakage.ITEMS,
    **ablations.ITEMS,
    **convergence.ITEMS,
    **assignment.ITEMS,
    **oracles.ITEMS,
    **ours.ITEMS,
    **traffic.ITEMS,
}
