"""What HyFDCA's clients agree on before round 1: one key, and labels and norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment
from fedtrellis.encryption import Cipher, load_evaluation
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError

from ..hybrid import SETUP_ATTEMPTS, Blobs, add_shares
from .steps import as_array, read_blobs, split_blobs

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["Labels", "ask_labels", "settle_cipher"]


@dataclass
class Labels:
    """A group's labels, how many said them, and ‖x_i‖², as sums of ciphertexts."""

    sums: Blobs = field(default_factory=list)
    counts: Blobs = field(default_factory=list)
    norms: Blobs = field(default_factory=list)

    def state(self) -> dict[str, NDArray[np.uint8]]:
        """All of it as arrays, for a checkpoint."""
        return {
            f"{name}/{i}": as_array(blob)
            for name, blobs in vars(self).items()
            for i, blob in enumerate(blobs)
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, NDArray[Any]], prefix: str, count: int
    ) -> Labels:
        """Inverse of :meth:`state`, for ``count`` ciphertexts and prefixed names."""
        blobs = {
            item.name: [
                state[f"{prefix}{item.name}/{i}"].tobytes() for i in range(count)
            ]
            for item in fields(cls)
        }
        return cls(**blobs)


def settle_cipher(
    rest: Mapping[str, list[NDArray[Any]]], given: Cipher | None
) -> Cipher:
    """The evaluation context, the same for all, and never a secret key.

    Parameters
    ----------
    rest : mapping
        By client, in order: its key's fingerprint, and its context if none is given.
    given : Cipher or None
        The server's own context.

    Raises
    ------
    SettingsError, EncryptionError
        Clients and server do not have one key between them, or a client sent its key.
    """
    prints: dict[str, list[str]] = {}
    cipher = given
    for name in rest:
        fingerprint = rest[name][0].tobytes().decode()
        prints.setdefault(fingerprint, []).append(name)
        if cipher is None:
            # raises if a client sent its key
            cipher = load_evaluation(rest[name][1].tobytes())
    assert cipher is not None
    if len(prints) > 1 or cipher.fingerprint not in prints:
        found = "; ".join(
            f"client {', '.join(names)}: {key}" for key, names in prints.items()
        )
        raise SettingsError(
            "the clients and the server do not have one key between them "
            f"(server: {cipher.fingerprint}; {found}); make a pair with "
            "fedtrellis-keys, and give every node the same key-file"
        )
    return cipher


def ask_labels(
    strategy: HyFDCA, conversation: Conversation, cipher: Cipher, timeout: float
) -> list[Labels]:
    """Have the clients share labels and norms under encryption; by group.

    Raises
    ------
    SettingsError
        A client refused, or a sample's value of a feature is held twice.
    TimeoutError
        A client never answered, or never with ciphertexts that can be added.
    """
    alignment = strategy.alignment
    overlaps = alignment.overlaps()
    shares: dict[int, dict[str, list[Blobs]]] = {}
    tags: dict[str, list[NDArray[np.uint64]]] = {}

    def entries(name: str) -> dict[str, Any]:
        config = strategy.phase_config()
        if name in overlaps:
            config["tag-groups"] = overlaps[name]
        return config

    def take(answer: Answer) -> None:
        own = alignment.client_groups(answer.client)
        counts = [cipher.blocks(alignment.groups[g].size) for g in own]
        tagged = len(overlaps.get(answer.client, []))
        lengths = [*(count for count in counts for _ in range(3)), *[1] * tagged]
        parts = split_blobs(read_blobs(answer.arrays), lengths)
        for i, g in enumerate(own):
            shares.setdefault(g, {})[answer.client] = parts[3 * i : 3 * i + 3]
        tags[answer.client] = [
            np.frombuffer(blob, dtype="<u8") for (blob,) in parts[3 * len(own) :]
        ]

    waiting: list[str] = list(strategy.clients)
    for _ in range(SETUP_ATTEMPTS):
        strategy.ask_everyone(
            conversation, "train.labels", entries, take, timeout, waiting
        )
        labels, waiting = _add_labels(conversation, alignment, cipher, shares)
        if not waiting:
            break
    else:
        raise TimeoutError(
            f"client {', '.join(waiting)} sent no ciphertexts that can be added "
            "before round 1 (train.labels)"
        )
    _check_entries(overlaps, tags)
    return labels


def _add_labels(
    conversation: Conversation,
    alignment: Alignment,
    cipher: Cipher,
    shares: Mapping[int, Mapping[str, list[Blobs]]],
) -> tuple[list[Labels], list[str]]:
    """Each group's sums, and the clients whose ciphertexts arrived spoilt."""
    labels, again = [], set()
    for g, group in enumerate(alignment.groups):
        sums = []
        for i in range(3):
            own = {name: shares[g][name][i] for name in group.holders}
            added, spoilt = add_shares(cipher, own)
            for name, why in spoilt.items():
                conversation.reject(name, why)
            again |= set(spoilt)
            sums.append(added or [])
        labels.append(Labels(*sums))
    return labels, sorted(again)


def _check_entries(
    overlaps: dict[str, list[int]], tags: dict[str, list[NDArray[Any]]]
) -> None:
    """No sample's value of a feature may count twice."""
    seen: dict[int, list[tuple[str, NDArray[Any]]]] = {}
    for name, groups in overlaps.items():
        for g, own in zip(groups, tags[name], strict=True):
            for other, theirs in seen.get(g, []):
                both = np.intersect1d(own, theirs)
                if len(both):
                    raise SettingsError(
                        f"clients {other} and {name} both hold {len(both)} of the "
                        "same entries (a sample's value of a feature); each must "
                        "be held by one client only"
                    )
            seen.setdefault(g, []).append((name, own))
