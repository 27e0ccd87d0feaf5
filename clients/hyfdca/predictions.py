"""What a node that is given scores of new samples makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtrellis.dual.calibration import Sigmoid, shares
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray

__all__ = ["Predictions", "predictions_of"]

# A sigmoid of fewer samples of a class, or outside of it, would be made of chance.
_LEAST = 5


class Predictions(NamedTuple):
    """Of new samples, on a node that holds some of their features.

    Attributes
    ----------
    sample_ids : sequence of str
    scores : ndarray of shape (n,), or (n, C) of C classes
        xᵀw; NaN where another holder of a sample did not take part.
    predicted : ndarray of shape (n,)
        −1 or 1; of several classes their number; of regressions the expected value.
    probabilities : ndarray of the scores' shape, or None
        σ(xᵀw) of the logistic loss, whose model says so; None of other losses.
    calibrated : ndarray of the scores' shape, or None
        By Platt's sigmoid, fitted to the new samples of which this node has labels, at
        least five of each class and of the rest; else None.
    """

    sample_ids: Sequence[str]
    scores: FloatArray
    predicted: FloatArray
    probabilities: FloatArray | None
    calibrated: FloatArray | None


def predictions_of(
    loss: DualLoss, sample_ids: Sequence[str], scores: FloatArray, labels: FloatArray
) -> Predictions:
    """Predict, and calibrate where there are labels enough.

    Parameters
    ----------
    loss : DualLoss
    sample_ids : sequence of str
    scores : ndarray of shape (n,) or (n, C)
    labels : ndarray of shape (n,)
        NaN where this node has none.
    """
    several = scores.ndim == 2
    there = ~np.isnan(scores if not several else scores.sum(axis=1))
    if several:
        filled = np.where(there[:, None], scores, 0.0).argmax(axis=1)
        predicted = np.where(there, filled, np.nan)
    elif loss.labels == "signs":
        predicted = np.where(there, np.where(scores >= 0.0, 1.0, -1.0), np.nan)
    else:
        predicted = np.exp(scores) if loss.labels == "counts" else scores
    if loss.labels != "signs":
        return Predictions(sample_ids, scores, predicted, None, None)
    probabilities = shares(scores) if loss.name == "logistic" else None
    known = there & ~np.isnan(labels)
    y = labels[known]
    positive = y[:, None] == np.arange(scores.shape[1]) if several else y > 0.0
    calibrated = None
    counts = np.minimum(positive.sum(axis=0), (~positive).sum(axis=0))
    if np.min(counts, initial=len(y)) >= _LEAST:
        sigmoid = Sigmoid.of(scores[known], positive)
        calibrated = sigmoid.probabilities(scores)
    return Predictions(sample_ids, scores, predicted, probabilities, calibrated)
