"""Dadras et al., federated Frank-Wolfe, arXiv 2408.10090 and the workshop paper."""

from reproduce.common import Item

from . import (
    ablations,
    accuracy,
    assignment,
    beyond,
    claims,
    convergence,
    corrective,
    corrective_penalty,
    inner_steps,
    leakage,
    movielens,
    own_steps,
    penalty,
    qaplib,
    rates,
    statements,
    traffic,
)

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = "Federated Frank-Wolfe Algorithm, arXiv 2408.10090, and its 2022 workshop paper"

ITEMS: dict[str, Item] = {
    **accuracy.items(),
    **leakage.ITEMS,
    **ablations.ITEMS,
    **convergence.ITEMS,
    **movielens.ITEMS,
    **assignment.ITEMS,
    **qaplib.ITEMS,
    **corrective.ITEMS,
    **corrective_penalty.ITEMS,
    **inner_steps.ITEMS,
    **beyond.ITEMS,
    **own_steps.ITEMS,
    **penalty.ITEMS,
    **traffic.ITEMS,
    **rates.ITEMS,
    **statements.ITEMS,
}
