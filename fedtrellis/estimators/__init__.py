"""Linear models in scikit-learn's manner, for notebooks and scripts.

``fit`` takes what nodes hold, and plays the nodes in this process.
"""

from .linear_models import (
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedRidge,
    FederatedSVC,
)

__all__ = ["FederatedElasticNet", "FederatedLasso", "FederatedLogisticRegression"]
__all__ += ["FederatedRidge", "FederatedSVC"]
