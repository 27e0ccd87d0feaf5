"""Scores of new samples, of which several clients have some of the features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES

from .base import Fit, SplitClient, as_arrays, keyed_hashes, loss_of

__all__ = ["Scoring"]


class Scoring(SplitClient):
    """Inner products of new samples, and what the sums say."""

    def fit_new_samples(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Keyed hashes of the new samples' ids, if there are any."""
        ids = [] if self.new_samples is None else self.new_samples.sample_ids
        hashes = keyed_hashes(self._cipher(config), "new-sample", ids, HASH_BYTES)
        own = np.frombuffer(hashes, dtype=np.uint8).reshape(-1, HASH_BYTES)
        return [own], 0, {}

    def fit_new_products(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """enc(x_{k,i}ᵀ w_k) of the new samples."""
        self._cipher(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        (w,) = parameters
        products = np.asarray(self.new_samples.features @ w[0])
        blobs: list[bytes] = []
        for g, terms in zip(config["groups"], config["holders"], strict=True):
            what = ("new-product", g, config["prediction"])
            values = products[np.asarray(config[f"rows/{g}"])]
            blobs += self._encrypt(config, what, values, terms)
        return as_arrays(blobs), 0, {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

        ``on_scores`` is given all scores that could be had.
        """
        self._cipher(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        n = len(self.new_samples.sample_ids)
        scores = np.full(n, np.nan)
        for g, terms in zip(config["groups"], config["holders"], strict=True):
            if f"scores/{g}" in config:
                rows = np.asarray(config[f"rows/{g}"])
                what = ("new-product", g, config["prediction"])
                scores[rows] = self._decrypt(
                    config, f"scores/{g}", what, len(rows), terms
                )
        if self.on_scores is not None:
            self.on_scores(self.new_samples.sample_ids, scores)
        labels = self.new_samples.labels
        y = np.full(n, np.nan) if labels is None else np.asarray(labels, dtype=float)
        known = ~np.isnan(y) & ~np.isnan(scores)
        if not known.any():
            return 0.0, 0, {}
        loss = loss_of(config)
        y, z = y[known], scores[known]
        metrics = {}
        if loss.labels == "signs":
            metrics["accuracy"] = float((np.where(z >= 0, 1.0, -1.0) == y).mean())
        return float(loss.value(z, y).mean()), int(known.sum()), metrics
