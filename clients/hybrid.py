"""What the clients of split data have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.dual.weights import check_weights
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from fedtrellis.wire.client import StatefulClient


class SplitClient(StatefulClient):
    """Base class: a client that has some of the features of some of the samples."""

    weights: NDArray[Any] | None = None

    def __init__(
        self,
        context: Context,
        features: Any,
        feature_names: Sequence[str],
        sample_ids: Sequence[str],
        labels: NDArray[Any] | None = None,
        loss: str | None = None,
    ) -> None:
        super().__init__(context)
        self.features, self.feature_names = features, feature_names
        self.sample_ids, self.labels, self.loss = sample_ids, labels, loss

    def check_data(self, config: Mapping[str, Any]) -> None:
        """Raise a SettingsError, in one line, unless data and settings fit.

        ``config`` is what the server sent: ``loss``, ``smoothing`` and, if there are
        more than two, the number of ``classes``.
        """
        n, p = self.features.shape
        ids, names = len(self.sample_ids), self.feature_names
        labels: Any = self.labels
        # every sparse format, and an ndarray too, has what it holds there
        values = getattr(self.features, "data", self.features)
        try:
            for wrong, why in (
                (
                    (ids, len(names)) != (n, p),
                    f"features of shape {(n, p)} with {ids} sample ids and "
                    f"{len(names)} feature names",
                ),
                (any("\n" in s for s in names), "a feature's name has a line break"),
                (
                    not np.isfinite(np.asarray(values)).all(),
                    "the features are not finite",
                ),
                (
                    self.loss not in (None, config["loss"]),
                    f"loss = {config['loss']!r} on the server, {self.loss!r} here",
                ),
                (
                    labels is not None and np.shape(labels) != (n,),
                    f"labels have shape {np.shape(labels)}, expected {(n,)}",
                ),
            ):
                if wrong:
                    raise ValueError(why)
            if self.weights is not None:
                check_weights("weights", self.weights, n)
            if labels is None:
                return
            known = np.asarray(labels, dtype=np.float64)
            known, classes = known[~np.isnan(known)], config.get("classes", 1)
            if classes == 1:
                loss = make_loss(config["loss"], smoothing=config["smoothing"])
                loss.check_labels(known)
            elif not np.isin(known, np.arange(classes)).all():
                raise ValueError(
                    f"labels must be the numbers of {classes} classes, 0 to "
                    f"{classes - 1}"
                )
        except ValueError as error:
            raise SettingsError(f"client {self.client_id}: {error}") from None
