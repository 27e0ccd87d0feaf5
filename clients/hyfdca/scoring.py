"""Scores of new samples, of which several clients have some of the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.calibration import Sigmoid, shares
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray

from .preparation import learn
from .run import ClientRun, Predictions, as_arrays, targets_of

# A sigmoid of fewer samples of a class, or outside of it, would be made of chance.
_LEAST = 5


def predictions_of(
    loss: DualLoss, sample_ids: Sequence[str], scores: FloatArray, labels: FloatArray
) -> Predictions:
    """Predict from scores, (n,) or (n, C), and calibrate where there are labels enough.

    ``labels``, of shape (n,), are NaN where this node has none.
    """
    several = scores.ndim == 2
    there = ~np.isnan(scores if not several else scores.sum(axis=1))
    if several:
        predicted = np.where(there[:, None], scores, 0.0).argmax(axis=1)
    elif loss.labels == "signs":
        predicted = np.where(scores >= 0.0, 1.0, -1.0)
    else:
        predicted = np.exp(scores) if loss.labels == "counts" else scores
    predicted = np.where(there, predicted, np.nan)
    if loss.labels != "signs":
        return Predictions(sample_ids, scores, predicted, None, None)
    probabilities = shares(scores) if loss.name == "logistic" else None
    known = there & ~np.isnan(labels)
    y = labels[known]
    positive = y[:, None] == np.arange(scores.shape[1]) if several else y > 0.0
    calibrated = None
    counts = np.minimum(positive.sum(axis=0), (~positive).sum(axis=0))
    if np.min(counts, initial=len(y)) >= _LEAST:
        calibrated = Sigmoid.of(scores[known], positive).probabilities(scores)
    return Predictions(sample_ids, scores, predicted, probabilities, calibrated)


def new_products(run: ClientRun) -> list[NDArray[Any]]:
    """enc(x_{k,i}ᵀ w_k) of the new samples."""
    learn(run)
    assert run.part.new_samples is not None
    features = run.part.new_samples.features
    columns = run.standardized(features, run.new_rows, new=True)
    products = np.stack([columns @ own for own in run.w])
    blobs: list[bytes] = []
    for g, rows in run.new_rows.items():
        holders = run.agreement.holders(g, new=True)
        label = ("new-product", g, run.config["prediction"])
        blobs += run.encrypt(holders, label, products[:, rows].reshape(-1))
    return as_arrays(blobs)


def evaluate(run: ClientRun) -> tuple[float, int, dict[str, Any]]:
    """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

    The server reads the two means.
    """
    learn(run)
    part, C = run.part, run.config["classes"]
    new = part.new_samples
    assert new is not None
    n = len(new.sample_ids)
    scores = np.full((C, n), np.nan)
    for g, rows in run.new_rows.items():
        if blobs := run.config.get(f"scores/{g}"):
            holders = run.agreement.holders(g, new=True)
            label = ("new-product", g, run.config["prediction"])
            sums = run.decrypt(holders, blobs, label, C * len(rows))
            scores[:, rows] = sums.reshape(C, len(rows))
    y = np.full(n, np.nan) if new.labels is None else np.asarray(new.labels, float)
    found = scores[0] if C == 1 else scores.T.copy()
    if part.on_scores is not None:
        part.on_scores(new.sample_ids, found)
    if part.on_predictions is not None:
        part.on_predictions(predictions_of(run.loss, new.sample_ids, found, y))
    return _measured(run, scores, y)


def _measured(
    run: ClientRun, scores: FloatArray, y: FloatArray
) -> tuple[float, int, dict[str, Any]]:
    """Mean loss, samples and accuracy, of groups with ``least`` labels or more."""
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
    if run.loss.labels == "signs":
        found = z.argmax(axis=0) if len(z) > 1 else np.where(z[0] >= 0.0, 1.0, -1.0)
        metrics["accuracy"] = float((found == y).mean())
    # Σ over the classes, each against the rest
    losses = run.loss.value(z, targets_of(y, len(z)))
    return float(losses.sum(axis=0).mean()), int(known.sum()), metrics
