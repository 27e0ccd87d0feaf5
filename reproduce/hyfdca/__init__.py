"""Overman, Blum and Klabjan, HyFDCA, arXiv 2210.08106."""

from . import at_size, central, claims, comparisons, figures, honest_server, tables

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = "A Primal-Dual Algorithm for Hybrid Federated Learning, arXiv 2210.08106"

ITEMS = {
    **tables.ITEMS,
    **figures.ITEMS,
    **comparisons.ITEMS,
    **at_size.ITEMS,
    **central.ITEMS,
    **honest_server.ITEMS,
}
