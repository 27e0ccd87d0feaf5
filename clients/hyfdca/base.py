"""What all phases of a client of HyFDCA need: its key, its groups, its draws."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.encryption import (
    Cipher,
    EncryptionError,
    decrypt_vector,
    encrypt_vector,
    load_key,
    shared_run_key,
)
from fedtrellis.objectives.losses import Loss, make_loss
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.protocol import RestoreNeededError

__all__ = [
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

# Entries of a request that list groups of this client's samples.
_GROUPS = (
    "groups",
    "products",
    "backup",
    "propose",
    "local",
    "report",
    "dual",
    "moved",
    "renew",
    "tag-groups",
)


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
    ) -> None:
        super().__init__(context)
        self.features = features
        self.feature_names = feature_names
        self.sample_ids = sample_ids
        self.labels = labels
        self.loss = loss
        self.key = key
        self.new_samples = new_samples
        self.on_scores = on_scores
        self._groups: tuple[Any, dict[int, HeldGroup]] | None = None  # and the state

    def _cipher(self, config: dict[str, Any]) -> Cipher:
        """The client's key, if it is the run's (once the server knows which)."""
        expected = config.get("key")
        cipher = self._own_cipher(config, expected)
        if expected not in (None, cipher.fingerprint):
            raise EncryptionError(
                f"this client's key has fingerprint {cipher.fingerprint}, that of the "
                f"run has {expected}"
            )
        return cipher

    def _own_cipher(self, config: dict[str, Any], expected: str | None) -> Cipher:
        if isinstance(self.key, Cipher):
            return self.key
        path = self.key or self.context.node_config.get("key-file")
        if path:
            return _load_key(str(path))
        if config.get("own-key"):
            raise SettingsError(
                f"client {self.client_id} has no key: start the node with "
                "--node-config 'key-file=\"PATH\"', a key made by fedtrellis-keys"
            )
        return shared_run_key(
            config["session"], config["encryption"], make=expected is None
        )

    def _encrypt(
        self,
        config: dict[str, Any],
        what: tuple[str, int, int],
        values: ArrayLike,
        terms: int,
    ) -> list[bytes]:
        """Numbers for the server to add to so many others; ``what`` is its label's."""
        cipher, label = self._cipher(config), self._label(config, *what)
        return encrypt_vector(cipher, values, label, terms)

    def _decrypt(
        self,
        config: dict[str, Any],
        key: str,
        what: tuple[str, int, int],
        count: int,
        terms: int | None = None,
    ) -> FloatArray:
        """The numbers that an entry of the request has, if it is what it should be."""
        cipher, label = self._cipher(config), self._label(config, *what)
        return decrypt_vector(cipher, config[key], label, count, terms)

    def _held(self, holders: Sequence[int] | None = None) -> dict[int, HeldGroup]:
        """The client's groups, in the order of the state's vectors.

        ``holders`` says how many clients hold each, as long as the state does not.
        """
        if self._groups is None or self._groups[0] is not self.state:
            known = self.state["holders"] if holders is None else holders
            n = self.features.shape[0]
            groups = HeldGroup.unpack(self.state, known, n)
            self._groups = self.state, {held.group: held for held in groups}
        return self._groups[1]

    def _check_groups(self, config: dict[str, Any]) -> None:
        """Raise ValueError if the server asks for samples that this client has not."""
        if "groups" not in self.state:
            raise RestoreNeededError("this client has no alignment")
        own = set(self.state["groups"].astype(int).tolist())
        for key in _GROUPS:
            strange = [g for g in config.get(key, []) if g not in own]
            if strange:
                raise ValueError(f"{key} names group {strange[0]!r}, not held here")

    def _label(
        self, config: dict[str, Any], what: str, group: int, version: int
    ) -> str:
        """What a ciphertext is; of another run, group or iteration it is another."""
        return f"{config['session']}/{what}/{group}/{version}"

    def _rng(self, config: dict[str, Any], purpose: str) -> np.random.Generator:
        """Random numbers that all clients of the run can draw, and the server not."""
        data = f"{config['session']}/{purpose}".encode()
        digest = self._cipher(config).mac("draw", data)
        words = np.frombuffer(digest, dtype="<u4").tolist()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

    def _drawn(
        self, config: dict[str, Any], held: HeldGroup, version: int
    ) -> IntArray | None:
        """The samples of a group that move in this step; None: all."""
        fraction = config["local-fraction"]
        if fraction == 1.0:
            return None
        count = max(1, ceil(fraction * held.size - 1e-9))
        rng = self._rng(config, f"draw/{held.group}/{version}")
        return np.sort(rng.choice(held.size, size=count, replace=False))


@lru_cache(maxsize=4)
def _load_key(path: str) -> Cipher:
    return load_key(path)


@lru_cache(maxsize=8)
def _make_loss(name: str, smoothing: float) -> Loss:
    return make_loss(name, smoothing=smoothing)


def loss_of(config: dict[str, Any]) -> Loss:
    """The loss that the server names."""
    return _make_loss(config["loss"], config["smoothing"])


def keyed_hashes(
    cipher: Cipher, purpose: str, names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under the clients' key, cut to ``length`` bytes."""
    import hmac

    key = cipher.mac("alignment", purpose.encode())
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def as_arrays(blobs: Sequence[bytes]) -> list[NDArray[Any]]:
    """Ciphertexts, as ``fit`` returns them."""
    return [np.frombuffer(blob, dtype=np.uint8) for blob in blobs]
