"""Linear models in scikit-learn's manner, for notebooks and scripts.

``fit`` takes what nodes hold, and plays the nodes in this process.
"""

from .classifiers import FederatedLogisticRegression, FederatedSVC
from .regressors import FederatedElasticNet, FederatedLasso, FederatedRidge

__all__ = [
    "FederatedElasticNet",
    "FederatedLasso",
    "FederatedLogisticRegression",
    "FederatedRidge",
    "FederatedSVC",
]
