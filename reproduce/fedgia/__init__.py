"""Zhou and Li, "Efficient and Convergent Federated Learning", arXiv 2205.01438."""

from reproduce.common import Item

from . import claims, figures, tables, theory, tuned

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = "Efficient and Convergent Federated Learning (FedGiA), arXiv 2205.01438"

ITEMS = {
    "table-3-v1": Item(
        "table III, example V.1: four algorithms on linear regression",
        tables.compute_v1,
        tables.render_v1,
    ),
    "v1-tuned": Item(
        "example V.1 and harder ones, every method tuned with one budget",
        tuned.compute_tuned,
        tuned.render_tuned,
    ),
    "table-3-qot": Item(
        "table III, example V.2: logistic regression on QSAR oral toxicity",
        tables.compute_qot,
        tables.render_qot,
    ),
    "table-3-sct": Item(
        "table III, example V.2: logistic regression on Santander's transactions",
        tables.compute_sct,
        tables.render_sct,
    ),
    "qot-scaling": Item(
        "QSAR oral toxicity under other scalings, t and H",
        tables.compute_scaling,
        tables.render_scaling,
    ),
    "figure-1": Item(
        "objective and error over iterations, by k_0",
        figures.compute_figure_1,
        figures.render_figure_1,
    ),
    "figure-2": Item(
        "rounds and seconds over k_0, by the number of clients m",
        figures.compute_figure_2,
        figures.render_figure_2,
    ),
    "figure-3": Item(
        "rounds and seconds over the selected fraction s",
        figures.compute_figure_3,
        figures.render_figure_3,
    ),
    "figure-4": Item(
        "objective over rounds, four algorithms",
        figures.compute_figure_4,
        figures.render_figure_4,
    ),
    "rate": Item(
        "theorem IV.3: the smallest gradient over rounds, five seeds",
        theory.compute_rate,
        theory.render_rate,
    ),
}
