"""Overman, Blum and Klabjan, HyFDCA, arXiv 2210.08106."""

from reproduce.common import Item

from . import figures, steps, tables

__all__ = ["ITEMS", "TITLE"]

TITLE = "A Primal-Dual Algorithm for Hybrid Federated Learning, arXiv 2210.08106"

ITEMS = {
    "table-5": Item(
        "the centralised optimum, certified",
        tables.compute_table_5,
        tables.render_table_5,
    ),
    "figure-3": Item(
        "HyFDCA, HybridFedAvg and HyFEM over iterations",
        figures.compute_figure_3,
        figures.render_figure_3,
    ),
    "figures-6-8": Item(
        "HyFDCA by the number of clients and the fraction that is there",
        figures.compute_figures_6_8,
        figures.render_figures_6_8,
    ),
    "tables-6-8": Item(
        "computation and encryption of an iteration, measured",
        tables.compute_tables_6_8,
        tables.render_tables_6_8,
    ),
    "steps": Item(
        "steps compared, by iteration and by round trip; not in the paper",
        steps.compute_steps,
        steps.render_steps,
    ),
    "availability": Item(
        "clients away: the default rule and the paper's stale values",
        steps.compute_availability,
        steps.render_availability,
    ),
}
