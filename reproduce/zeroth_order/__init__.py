"""Wang et al., zeroth-order Riemannian federated learning, arXiv 2507.22855."""

from . import attack, claims, estimators, low_rank, pca

__all__ = ["ITEMS", "TITLE", "claims"]

TITLE = (
    "Federated Learning on Riemannian Manifolds: A Gradient-Free Projection-Based "
    "Approach, arXiv 2507.22855"
)

ITEMS = {**estimators.ITEMS, **attack.ITEMS, **low_rank.ITEMS, **pca.ITEMS}
