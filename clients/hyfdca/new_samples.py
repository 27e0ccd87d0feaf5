"""Scores of new samples, of which several clients have some of the features."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

from .base import Config, Fit, as_arrays, loss_of
from .consent import targets_of
from .predictions import predictions_of
from .preparation import Preparation

__all__ = ["Scoring"]


class Scoring(Preparation):
    """Inner products of new samples, and what the sums say."""

    def fit_new_products(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """enc(x_{k,i}ᵀ w_k) of the new samples."""
        pinned = self._learn(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        (w,) = parameters
        if w.shape != (pinned["classes"], len(self.feature_names)):
            raise ValueError(f"the weights have shape {w.shape}")
        self._check_norm(pinned, w)
        columns = self._new_columns()
        products = np.stack([columns @ own for own in w])
        blobs: list[bytes] = []
        for g, rows in self._new_rows().items():
            holders = self.secrets.agreement.holders(g, new=True)
            label = ("new-product", g, pinned["prediction"])
            blobs += self._encrypt(holders, label, products[:, rows].reshape(-1))
        return as_arrays(blobs), 0, {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

        ``on_scores`` is given all scores that could be had, ``on_predictions`` what
        follows from them. The server reads the two
        means, so this is one of the answers that the node's rules count. Groups of
        which fewer samples than their ``least`` have labels are left out.
        """
        pinned = self._learn(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        n = len(self.new_samples.sample_ids)
        C = pinned["classes"]
        scores = np.full((C, n), np.nan)
        for g, rows in self._new_rows().items():
            if f"scores/{g}" in pinned:
                scores[:, rows] = self._decrypt(
                    pinned,
                    self.secrets.agreement.holders(g, new=True),
                    pinned[f"scores/{g}"],
                    ("new-product", g, pinned["prediction"]),
                    C * len(rows),
                ).reshape(C, len(rows))
        found = scores[0] if C == 1 else scores.T.copy()
        if self.on_scores is not None:
            self.on_scores(self.new_samples.sample_ids, found)
        self._deliver(pinned, found)
        return self._measured(pinned, scores)

    def _deliver(self, config: Config, scores: FloatArray) -> None:
        """Hand the predictions over to whoever wants them; they stay on this node."""
        assert self.new_samples is not None
        if self.on_predictions is None:
            return
        ids, labels = self.new_samples.sample_ids, self.new_samples.labels
        own = np.full(len(ids), np.nan) if labels is None else np.asarray(labels, float)
        self.on_predictions(predictions_of(loss_of(config), ids, scores, own))

    def _measured(
        self, config: Config, scores: FloatArray
    ) -> tuple[float, int, dict[str, Any]]:
        assert self.new_samples is not None
        labels = self.new_samples.labels
        n = scores.shape[1]
        y = np.full(n, np.nan) if labels is None else np.asarray(labels, dtype=float)
        known = ~np.isnan(y) & ~np.isnan(scores[0])
        least = self._rules_of(config).least
        for rows in self._new_rows().values():
            if known[rows].sum() < least:
                # the server chooses which groups are scored: a mean with this one and
                # a mean without it would give single losses away
                known[rows] = False
        if known.sum() < least:
            return 0.0, 0, {}
        self._count_answer(config, hashlib.sha256(scores.tobytes()).digest())
        self._open_ledger(config).save()
        loss = loss_of(config)
        y, z = y[known], scores[:, known]
        metrics = {}
        if len(z) > 1:
            metrics["accuracy"] = float((z.argmax(axis=0) == y).mean())
        elif loss.labels == "signs":
            metrics["accuracy"] = float((np.where(z[0] >= 0, 1.0, -1.0) == y).mean())
        # Σ over the classes, each against the rest
        losses = loss.value(z, targets_of(y, len(z)))
        return float(losses.sum(axis=0).mean()), int(known.sum()), metrics
