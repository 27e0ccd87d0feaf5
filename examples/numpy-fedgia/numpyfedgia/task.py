"""What is learnt: a robust linear regression, with a loss that fedtrellis has not."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes

Array = NDArray[np.float64]


class LogCosh:
    """f(x) = (1/d) Σ_k log cosh(⟨a_k, x⟩ − b_k) + (μ/2)‖x‖².

    Like the absolute error for large residuals, like half the square for small ones.

    Parameters
    ----------
    features : ndarray of shape (d, n)
        The rows a_k.
    targets : ndarray of shape (d,)
        The b_k.
    l2 : float
        μ.
    """

    def __init__(self, features: Array, targets: Array, l2: float) -> None:
        self.features = features
        self.targets = targets
        self.l2 = l2
        self.num_examples = len(targets)

    def value(self, x: Array) -> float:
        """Return f(x)."""
        # log cosh r = |r| + log(1 + e^(−2|r|)) − log 2, which cannot overflow
        r = np.abs(self.features @ x - self.targets)
        losses = r + np.log1p(np.exp(-2.0 * r)) - np.log(2.0)
        return float(losses.mean() + 0.5 * self.l2 * x @ x)

    def gradient(self, x: Array) -> Array:
        """Return ∇f(x)."""
        # (log cosh)′ = tanh
        slopes = np.tanh(self.features @ x - self.targets)
        gradient: Array = self.features.T @ slopes / self.num_examples + self.l2 * x
        return gradient

    def hessian_bound(self) -> Array:
        """Return Θ = AᵀA/d + μI, which no ∇²f(x) exceeds, as (log cosh)″ ≤ 1.

        For ``FedGiA(hessian="gram")``.
        """
        gram: Array = self.features.T @ self.features / self.num_examples
        return gram + self.l2 * np.eye(gram.shape[0])

    def lipschitz(self) -> float:
        """Return the largest eigenvalue of Θ, from which the server makes its σ."""
        return float(np.linalg.eigvalsh(self.hessian_bound())[-1])


@lru_cache
def load_patients() -> tuple[Array, Array]:
    """Return scikit-learn's diabetes data, standardised, the youngest first."""
    features, targets = load_diabetes(return_X_y=True, scaled=False)
    order = np.argsort(features[:, 0], kind="stable")
    features, targets = features[order], targets[order]
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return features, (targets - targets.mean()) / targets.std()


@lru_cache
def load_objective(partition_id: int, num_partitions: int, l2: float) -> LogCosh:
    """Return a node's loss: each has patients of one age.

    It is made once in a process: FedGiA keeps the factor of its linear system with it.
    """
    features, targets = load_patients()
    rows = np.array_split(np.arange(len(targets)), num_partitions)[partition_id]
    return LogCosh(features[rows], targets[rows], l2)
