"""What every client of split data finds out about its own part before round 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtrellis.dual.weights import check_weights
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError

__all__ = ["check_split_data"]


def check_split_data(client: Any, config: Mapping[str, Any]) -> None:
    """Raise a SettingsError, in one line, unless a client's data and settings fit.

    ``config`` is what the server sent: ``loss``, ``smoothing`` and, if there are more
    than two, the number of ``classes``.
    """
    who = f"client {client.client_id}"
    n, p = client.features.shape
    if len(client.sample_ids) != n or len(client.feature_names) != p:
        raise SettingsError(
            f"{who}: features of shape {(n, p)} with {len(client.sample_ids)} sample "
            f"ids and {len(client.feature_names)} feature names"
        )
    if any("\n" in name for name in client.feature_names):
        raise SettingsError(f"{who}: a feature's name has a line break")
    # every sparse format, and an ndarray too, has what it holds there
    values = getattr(client.features, "data", client.features)
    if not np.isfinite(np.asarray(values)).all():
        raise SettingsError(f"{who}: the features are not finite")
    if client.loss is not None and client.loss != config["loss"]:
        raise SettingsError(
            f"{who}: loss = {config['loss']!r} on the server, {client.loss!r} here"
        )
    weights = getattr(client, "weights", None)
    if weights is not None:
        try:
            check_weights("weights", weights, n)
        except ValueError as error:
            raise SettingsError(f"{who}: {error}") from None
    if client.labels is None:
        return
    if np.shape(client.labels) != (n,):
        raise SettingsError(
            f"{who}: labels have shape {np.shape(client.labels)}, expected {(n,)}"
        )
    labels = np.asarray(client.labels, dtype=np.float64)
    try:
        loss = make_loss(config["loss"], smoothing=config["smoothing"])
        known = labels[~np.isnan(labels)]
        classes = config.get("classes", 1)
        if classes > 1 and not np.isin(known, np.arange(classes)).all():
            raise ValueError(
                f"labels must be the numbers of {classes} classes, 0 to {classes - 1}"
            )
        if classes == 1:
            loss.check_labels(known)
    except ValueError as error:
        raise SettingsError(f"{who}: {error}") from None
