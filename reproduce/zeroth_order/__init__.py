"""Wang et al., zeroth-order Riemannian federated learning, arXiv 2507.22855."""

from reproduce.common import Item

from . import attack, claims, estimators, low_rank, pca

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = (
    "Federated Learning on Riemannian Manifolds: A Gradient-Free Projection-Based "
    "Approach, arXiv 2507.22855"
)

ITEMS = {
    "figure-2": Item(
        "kernel PCA in one place: estimator (7) against (6), by seconds",
        estimators.compute_figure_2,
        estimators.render_figure_2,
    ),
    "figure-3": Item(
        "attacked images, before and after",
        attack.compute_figure_3,
        attack.render_figure_3,
    ),
    "figure-4": Item(
        "attack: by the number of local steps τ",
        attack.compute_figure_4,
        attack.render_figure_4,
    ),
    "figure-5": Item(
        "attack: by the number of clients n",
        attack.compute_figure_5,
        attack.render_figure_5,
    ),
    "figure-6": Item(
        "attack: by the number of directions m",
        attack.compute_figure_6,
        attack.render_figure_6,
    ),
    "figure-7": Item(
        "low-rank network: by the number of clients n",
        low_rank.compute_figure_7,
        low_rank.render_figure_7,
    ),
    "figure-8": Item(
        "low-rank network: by the number of directions m",
        low_rank.compute_figure_8,
        low_rank.render_figure_8,
    ),
    "figure-9": Item(
        "low-rank network: by the rank R, and with gradients",
        low_rank.compute_figure_9,
        low_rank.render_figure_9,
    ),
    "theorem": Item(
        "rate of the squared gradient map: values beside gradients",
        pca.compute_theorem,
        pca.render_theorem,
    ),
    "federated-pca": Item(
        "principal components of data dealt by label; not in the paper",
        pca.compute_pca,
        pca.render_pca,
    ),
}
