"""A client of HyFDCA: its data, its keys, its node's rules and its ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.encryption import Cipher
from fedtrellis.encryption.identity import Identity
from fedtrellis.encryption.ledger import Ledger
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.encryption.roster import Roster
from fedtrellis.objectives.losses import DualLoss, make_loss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient

from .predictions import Predictions
from .rules import NodeRules
from .secrets import Secrets

__all__ = [
    "HOLDING",
    "Config",
    "Fit",
    "IntArray",
    "NewSamples",
    "SplitClient",
    "as_arrays",
    "keyed_hashes",
    "loss_of",
]

IntArray = NDArray[np.int64]
#: What a phase returns.
Fit = tuple[list[NDArray[Any]], int, dict[str, Any]]
Config = Mapping[str, Any]

#: The client's samples and new samples, group by group, as its state has them.
HOLDING = ("rows", "groups", "sizes", "new-rows", "new-groups", "new-sizes")


class NewSamples(NamedTuple):
    """Samples to be scored, as one client knows them.

    Attributes
    ----------
    features : ndarray or scipy sparse array of shape (n, p_k)
        The columns are those of the client's training data.
    sample_ids : sequence of str
    labels : ndarray of shape (n,) or None
        To measure loss and accuracy; NaN where there is none.
    """

    features: Any
    sample_ids: Sequence[str]
    labels: NDArray[Any] | None = None


class SplitClient(StatefulClient):
    """A client of HyFDCA without its phases.

    Parameters are those of ``HyFDCAClient``.
    """

    #: A server may give these back to a client that lost them, and nothing else.
    restorable: ClassVar[frozenset[str]] = frozenset((*HOLDING, "agreement"))

    def __init__(
        self,
        context: Context,
        features: Any,
        feature_names: Sequence[str],
        sample_ids: Sequence[str],
        labels: NDArray[Any] | None = None,
        loss: str | None = None,
        key: Cipher | str | Path | None = None,
        new_samples: NewSamples | None = None,
        on_scores: Callable[[Sequence[str], FloatArray], None] | None = None,
        *,
        identity: Identity | str | Path | None = None,
        roster: Roster | str | Path | None = None,
        ledger: str | Path | None = None,
        rules: NodeRules | None = None,
        on_predictions: Callable[[Predictions], None] | None = None,
        weights: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(context)
        self.features = features
        self.feature_names = feature_names
        self.sample_ids = sample_ids
        self.labels = labels
        self.weights = weights
        self.loss = loss
        self.node = NodeSecrets(
            self.client_id,
            context.node_config,
            key=key,
            identity=identity,
            roster=roster,
            ledger=ledger,
        )
        self.new_samples = new_samples
        self.on_scores = on_scores
        self.on_predictions = on_predictions
        self._rules = rules
        self._groups: tuple[Any, dict[int, HeldGroup]] | None = None  # and the state
        self._secrets: Secrets | None = None

    # ------------------------------------------------------------------ keys and rules

    @property
    def announcement(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What the server learns before round 1: kind of key, noise and weights."""
        noisy = self._rules_of({}).noise > 0.0
        found: dict[str, Any] = {"key-kind": self.key_kind, "noisy": noisy}
        return found if self.weights is None else {**found, "weighted": True}

    @property
    def key_kind(self) -> str:
        """``roster``, ``key`` or, where the clients make a key for the run, ``run``."""
        return self.node.kind

    def _common_key(self, config: Config) -> Cipher:
        """The key that all clients have, if it is the run's."""
        return self.node.common_key(
            config["session"],
            config["encryption"],
            config.get("key"),
            own=bool(config.get("own-key")),
        )

    def _rules_of(self, config: Config) -> NodeRules:
        """The node's rules; in a simulation the run's wishes, too."""
        if self._rules is not None:
            return self._rules
        wishes = config if self.key_kind == "run" else {}
        known = {k: wishes[k] for k in ("least", "exposed", "noise") if k in wishes}
        return NodeRules.of({**known, **self.context.node_config})

    def _open_ledger(self, config: Config) -> Ledger:
        """What this node remembers of the run."""
        return self.node.ledger(config["session"])


@lru_cache(maxsize=8)
def _make_loss(name: str, smoothing: float) -> DualLoss:
    return make_loss(name, smoothing=smoothing)


def loss_of(config: Config) -> DualLoss:
    """The loss of the run."""
    return _make_loss(config["loss"], config["smoothing"])


def keyed_hashes(
    cipher: Cipher, purpose: str, names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under a key of clients, cut to ``length`` bytes."""
    import hmac

    key = cipher.derive("alignment", purpose)
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def as_arrays(blobs: Sequence[bytes]) -> list[NDArray[Any]]:
    """Ciphertexts, as ``fit`` returns them."""
    return [np.frombuffer(blob, dtype=np.uint8) for blob in blobs]
