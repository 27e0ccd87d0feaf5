"""What every client of split data finds out about its own part before round 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtrellis.dual.weights import check_weights
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

__all__ = ["check_split_data"]


def check_split_data(client: Any, config: Mapping[str, Any]) -> None:
    """Raise a SettingsError, in one line, unless a client's data and settings fit.

    ``config`` is what the server sent: ``loss``, ``smoothing`` and, if there are more
    than two, the number of ``classes``.
    """
    n, p = client.features.shape
    ids, names, labels = len(client.sample_ids), client.feature_names, client.labels
    # every sparse format, and an ndarray too, has what it holds there
    values = getattr(client.features, "data", client.features)
    weights = getattr(client, "weights", None)
    try:
        for wrong, why in (
            (
                (ids, len(names)) != (n, p),
                f"features of shape {(n, p)} with {ids} sample ids and {len(names)} "
                "feature names",
            ),
            (any("\n" in name for name in names), "a feature's name has a line break"),
            (not np.isfinite(np.asarray(values)).all(), "the features are not finite"),
            (
                client.loss not in (None, config["loss"]),
                f"loss = {config['loss']!r} on the server, {client.loss!r} here",
            ),
            (
                labels is not None and np.shape(labels) != (n,),
                f"labels have shape {np.shape(labels)}, expected {(n,)}",
            ),
        ):
            if wrong:
                raise ValueError(why)
        if weights is not None:
            check_weights("weights", weights, n)
        if labels is not None:
            _check_labels(np.asarray(labels, dtype=np.float64), config)
    except ValueError as error:
        raise SettingsError(f"client {client.client_id}: {error}") from None


def _check_labels(labels: FloatArray, config: Mapping[str, Any]) -> None:
    loss = make_loss(config["loss"], smoothing=config["smoothing"])
    known, classes = labels[~np.isnan(labels)], config.get("classes", 1)
    if classes == 1:
        loss.check_labels(known)
    elif not np.isin(known, np.arange(classes)).all():
        raise ValueError(
            f"labels must be the numbers of {classes} classes, 0 to {classes - 1}"
        )
