"""Overman, Blum and Klabjan, HyFDCA, arXiv 2210.08106."""

from reproduce.common import Item

from . import (
    at_size,
    central,
    chosen_w,
    claims,
    figures,
    honest_server,
    latency,
    proposals,
    seeds,
    steps,
    tables,
)

__all__ = ["ITEMS", "TITLE", "claims"]

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
    # made of what figure 3 and tables 6 to 8 have measured
    "figure-5": Item(
        "figure 3's runs over round trips and over time",
        latency.compute_figure_5,
        latency.render_figure_5,
    ),
    "figure-3-seeds": Item(
        "figure 3's comparisons with several seeds",
        seeds.compute_seeds,
        seeds.render_seeds,
    ),
    "one-against-rest": Item(
        "MNIST, each digit against the rest: P*, the paper's step and ours",
        at_size.compute_one_against_rest,
        at_size.render_one_against_rest,
    ),
    "full-data": Item(
        "all samples of MNIST and Covtype: HyFDCA, HybridFedAvg and HyFEM",
        at_size.compute_full_data,
        at_size.render_full_data,
    ),
    "central": Item(
        "theorems 4.5, 4.8 and 4.11: the paper's step against a central solver",
        central.compute_central,
        central.render_central,
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
    "proposals": Item(
        "iterations by what clients propose, with sums over all of them",
        proposals.compute_proposals,
        proposals.render_proposals,
    ),
    "honest-server": Item(
        "rows that a server finds in what it is sent",
        honest_server.compute_honest_server,
        honest_server.render_honest_server,
    ),
    "chosen-w": Item(
        "rows that a server finds by choosing w, against answers granted",
        chosen_w.compute_chosen_w,
        chosen_w.render_chosen_w,
    ),
    "collusion": Item(
        "rows that a server finds with one client's help",
        honest_server.compute_collusion,
        honest_server.render_collusion,
    ),
}
