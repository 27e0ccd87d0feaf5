"""Several classes, each against the rest: a sum of problems of two classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.regularized_loss import (
    Optimum,
    RegularizedLoss,
    central_optimum,
)
from fedtrellis.objectives.base import Objective
from fedtrellis.objectives.checks import check_point
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray

__all__ = ["OneAgainstRest"]


class OneAgainstRest(Objective):
    """P(W) = Σ_c P_c(w_c), W of shape (p, C), with P_c's labels +1 in class c, else −1.

    Parameters
    ----------
    features : array_like or scipy.sparse matrix of shape (N, p)
    classes : array_like of shape (N,)
        The samples' classes, numbers from 0 to C − 1.
    count : int
        C.
    loss : DualLoss
        One of labels −1 and +1.
    regularization : float
        λ above 0.
    penalty : Penalty, optional
        g of each class's weights.
    weights : array_like of shape (C, N), optional
        The samples' in each class's problem.

    Raises
    ------
    ValueError
        As of :class:`~fedtrellis.dual.regularized_loss.RegularizedLoss`.
    """

    def __init__(
        self,
        features: Any,
        classes: ArrayLike,
        count: int,
        loss: DualLoss,
        regularization: float,
        penalty: Penalty | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        each = [None] * count if weights is None else np.asarray(weights, float)
        self.classes = np.asarray(classes, dtype=np.float64)
        self.parts = [
            RegularizedLoss(
                features,
                np.where(self.classes == c, 1.0, -1.0),
                loss,
                regularization,
                penalty,
                each[c],
            )
            for c in range(count)
        ]
        (p,) = self.parts[0].shape
        self.shape = (p, count)
        self.num_examples = self.parts[0].num_examples

    def value(self, x: FloatArray) -> float:
        """Return P at a point of shape (p, C)."""
        W = check_point(x, self.shape)
        return sum(one.value(W[:, c]) for c, one in enumerate(self.parts))

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the parts' subgradients beside each other."""
        W = check_point(x, self.shape)
        return np.stack(
            [one.gradient(W[:, c]) for c, one in enumerate(self.parts)], axis=1
        )

    def metrics(self, x: FloatArray) -> dict[str, float]:
        """Return ``{"accuracy": ...}``: how often the class of largest score is it."""
        scores = np.asarray(self.parts[0].features @ check_point(x, self.shape))
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == self.classes))}

    def optimum(self, tolerance: float = 1e-9) -> Optimum:
        """Return the minimum, certified; α of shape (N, C).

        Raises
        ------
        RuntimeError
            A class's gap was not reached.
        """
        found = [central_optimum(one, tolerance) for one in self.parts]
        return Optimum(
            sum(one.value for one in found),
            sum(one.gap for one in found),
            np.stack([one.w for one in found], axis=1),
            np.stack([one.alpha for one in found], axis=1),
        )
