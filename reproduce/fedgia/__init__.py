"""Zhou and Li, "Efficient and Convergent Federated Learning", arXiv 2205.01438."""

from . import claims, figures, tables, tuned

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = "Efficient and Convergent Federated Learning (FedGiA), arXiv 2205.01438"

ITEMS = {**tables.ITEMS, **tuned.ITEMS, **figures.ITEMS}
