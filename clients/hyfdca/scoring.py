"""Scores of new samples, of which several clients have some of the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.calibration import Sigmoid, shares
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray

from .preparation import learn
from .run import ClientRun, as_arrays, targets_of

__all__ = ["Predictions", "evaluate", "new_products", "predictions_of"]

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


def new_products(run: ClientRun) -> list[NDArray[Any]]:
    """enc(x_{k,i}ᵀ w_k) of the new samples."""
    learn(run)
    columns = run.new_columns
    products = np.stack([columns @ own for own in run.w])
    blobs: list[bytes] = []
    for g, rows in run.new_rows.items():
        holders = run.agreement.holders(g, new=True)
        label = ("new-product", g, run.config["prediction"])
        blobs += run.encrypt(holders, label, products[:, rows].reshape(-1))
    return as_arrays(blobs)


def evaluate(
    run: ClientRun,
    on_scores: Callable[[Sequence[str], FloatArray], None] | None,
    on_predictions: Callable[[Predictions], None] | None,
) -> tuple[float, int, dict[str, Any]]:
    """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

    ``on_scores`` is given all scores that could be had, ``on_predictions`` what follows
    from them. The server reads the two means. Groups of which fewer samples than the
    node's ``least`` have labels are left out.
    """
    learn(run)
    new, C = run.part.new_samples, run.config["classes"]
    if new is None:
        raise ValueError("this client has no new samples")
    n = len(new.sample_ids)
    scores = np.full((C, n), np.nan)
    for g, rows in run.new_rows.items():
        if f"scores/{g}" in run.config:
            holders = run.agreement.holders(g, new=True)
            label = ("new-product", g, run.config["prediction"])
            blobs = run.config[f"scores/{g}"]
            sums = run.decrypt(holders, blobs, label, C * len(rows))
            scores[:, rows] = sums.reshape(C, len(rows))
    y = np.full(n, np.nan) if new.labels is None else np.asarray(new.labels, float)
    found = scores[0] if C == 1 else scores.T.copy()
    if on_scores is not None:
        on_scores(new.sample_ids, found)
    if on_predictions is not None:
        on_predictions(predictions_of(run.loss, new.sample_ids, found, y))
    return _measured(run, scores, y)


def _measured(
    run: ClientRun, scores: FloatArray, y: FloatArray
) -> tuple[float, int, dict[str, Any]]:
    """What the server reads of the scores: mean loss, samples and accuracy."""
    known, least = ~np.isnan(y) & ~np.isnan(scores[0]), run.rules.least
    for rows in run.new_rows.values():
        if known[rows].sum() < least:
            # which groups are scored depends on who is there: a mean with this one and
            # a mean without it would give single losses away
            known[rows] = False
    if known.sum() < least:
        return 0.0, 0, {}
    y, z = y[known], scores[:, known]
    metrics = {}
    if len(z) > 1:
        metrics["accuracy"] = float((z.argmax(axis=0) == y).mean())
    elif run.loss.labels == "signs":
        metrics["accuracy"] = float((np.where(z[0] >= 0, 1.0, -1.0) == y).mean())
    # Σ over the classes, each against the rest
    losses = run.loss.value(z, targets_of(y, len(z)))
    return float(losses.sum(axis=0).mean()), int(known.sum()), metrics
