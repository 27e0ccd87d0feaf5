"""What HyFDCA's clients agree on before round 1: one key, and labels and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import needs_norms
from fedtrellis.dual.alignment import Alignment, align
from fedtrellis.encryption import Cipher, backend_class, load_evaluation
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import SETUP_ATTEMPTS, Conversation
from fedtrellis.settings import SettingsError

from ..hybrid import Blobs, add_shares
from .steps import as_array, read_blobs, split_blobs

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = [
    "MAC_BYTES",
    "Labels",
    "align_new_samples",
    "ask_agreement",
    "ask_labels",
    "match_ids",
    "settle_cipher",
]

MAC_BYTES = 32


@dataclass
class Labels:
    """A group's labels, how many sent them, and ‖x_i‖², as sums of ciphertexts.

    Norms are there only if a step uses them, weights and how many sent them only if
    samples have some.
    """

    sums: Blobs = field(default_factory=list)
    counts: Blobs = field(default_factory=list)
    norms: Blobs = field(default_factory=list)
    weight_counts: Blobs = field(default_factory=list)
    weights: Blobs = field(default_factory=list)

    @staticmethod
    def sent(settings: Mapping[str, Any]) -> list[str]:
        """Which of them clients send, in their order."""
        weighted = bool(settings.get("weighted"))
        return [
            *("sums", "counts"),
            *["norms"] * needs_norms(settings),
            *["weight_counts", "weights"] * weighted,
        ]

    def entries(self, g: int) -> dict[str, Blobs]:
        """What a client is given of them, of group g."""
        names = {"sums": "labels", "weight_counts": "weight-counts"}
        return {
            f"{names.get(name, name)}/{g}": blobs
            for name, blobs in vars(self).items()
            if blobs
        }

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
                state[f"{prefix}{item.name}/{i}"].tobytes()
                for i in range(count)
                if f"{prefix}{item.name}/{i}" in state
            ]
            for item in fields(cls)
        }
        return cls(**blobs)


def match_ids(
    strategy: HyFDCA, conversation: Conversation, timeout: float
) -> dict[str, dict[str, Any]]:
    """Have two clients evaluate everybody's blinded ids; returns entries by client.

    The two are the first in the clients' order. Neither learns an id, nor could try
    one without the other; the server carries points that look random, and MACs.
    """
    evaluators = strategy.clients[:2]
    config = {**strategy.phase_config(), "evaluators": evaluators}
    points: dict[str, bytes] = {}
    macs: dict[str, list[bytes]] = {}

    def take_points(answer: Answer) -> None:
        blobs, tags = read_points(answer.arrays, 1, len(evaluators) * MAC_BYTES)
        points[answer.client] = blobs[0]
        macs[answer.client] = _cut(tags[0])

    strategy.ask_everyone(
        conversation, "train.blind", lambda name: config, take_points, timeout
    )
    owners = list(strategy.clients)
    found: dict[str, dict[str, Any]] = {
        name: {"evaluators": evaluators} for name in owners
    }

    def entries(name: str) -> dict[str, Any]:
        asked: dict[str, Any] = {**config, "owners": owners}
        for i, owner in enumerate(owners):
            asked[f"points/{i}"] = points[owner]
            asked[f"mac/{i}"] = macs[owner][evaluators.index(name)]
        return asked

    def take_evaluated(answer: Answer) -> None:
        evaluated, tags = read_points(answer.arrays, len(owners), MAC_BYTES)
        i = evaluators.index(answer.client)
        for owner, blob, mac in zip(owners, evaluated, tags, strict=True):
            if len(blob) != len(points[owner]):
                raise ValueError("the answer has another number of points")
            found[owner] |= {f"points/{i}": blob, f"mac/{i}": mac}

    strategy.ask_everyone(
        conversation, "train.evaluate", entries, take_evaluated, timeout, evaluators
    )
    return found


def read_points(
    arrays: Sequence[NDArray[Any]], count: int, size: int
) -> tuple[list[bytes], list[bytes]]:
    """Points and MACs in turn, as bytes; ValueError if they are none."""
    if len(arrays) != 2 * count or any(a.dtype != np.uint8 for a in arrays):
        raise ValueError("the answer has no points")
    points = [np.ascontiguousarray(a).tobytes() for a in arrays[::2]]
    macs = read_blobs(arrays[1::2])
    if any(len(mac) != size for mac in macs) or any(len(p) % 32 for p in points):
        raise ValueError("the answer's points or MACs are malformed")
    return points, macs


def _cut(macs: bytes) -> list[bytes]:
    return [macs[i : i + MAC_BYTES] for i in range(0, len(macs), MAC_BYTES)]


def settle_cipher(strategy: HyFDCA, rest: Mapping[str, list[NDArray[Any]]]) -> Cipher:
    """What the server adds ciphertexts with: never a secret key.

    Parameters
    ----------
    strategy : HyFDCA
    rest : mapping
        By client, in order: its key's name, nonce, new samples' hashes and, where the
        clients of a simulation made a BFV key, its context.

    Raises
    ------
    SettingsError, EncryptionError
        Clients and server do not have one key between them, or a client sent its key.
    """
    given = strategy.given_cipher
    if strategy.encryption == "tenseal-bfv":
        # raises if a client sent its key
        first = next(iter(rest.values()))
        cipher = given or load_evaluation(first[3].tobytes())
    else:
        cipher = backend_class(strategy.encryption).adder()
    kind = {
        str(strategy._client_properties(name).get("key-kind", "run")) for name in rest
    }
    if kind == {"roster"}:
        return cipher
    prints: dict[str, list[str]] = {}
    for name, (fingerprint, *_) in rest.items():
        prints.setdefault(fingerprint.tobytes().decode(), []).append(name)
    server = "" if given is None else f"server: {given.fingerprint}; "
    if len(prints) > 1 or (given is not None and given.fingerprint not in prints):
        found = "; ".join(
            f"client {', '.join(names)}: {key}" for key, names in prints.items()
        )
        who = "clients" if given is None else "clients and the server"
        raise SettingsError(
            f"the {who} do not have one key between them ({server}{found}); make one "
            "with fedtrellis-keys, and give every node the same key-file"
        )
    return cipher


def align_new_samples(
    strategy: HyFDCA, rest: Mapping[str, list[NDArray[Any]]]
) -> Alignment | None:
    """Who holds which new samples together; None if there are none."""
    names = strategy.alignment.feature_names
    hashes = {name: own[2] for name, own in rest.items() if len(own[2])}
    if not hashes:
        return None
    features = {
        name: [names[i] for i in strategy.alignment.columns[name]] for name in hashes
    }
    try:
        return align(hashes, features)
    except ValueError as error:
        raise SettingsError(f"new samples cannot be scored: {error}") from None


def ask_agreement(
    strategy: HyFDCA, conversation: Conversation, timeout: float
) -> tuple[dict[str, list[bytes]], dict[tuple[tuple[str, ...], str], bytes]]:
    """Have every client check the agreement; returns MACs and sealed keys.

    Returns
    -------
    (dict, dict)
        By sender its MACs for all members, in their order; and by holders and
        recipient the holders' key.

    Raises
    ------
    SettingsError
        A client does not agree.
    """
    agreement = strategy.agreement
    confirmations: dict[str, list[bytes]] = {}
    sealed: dict[tuple[tuple[str, ...], str], bytes] = {}

    def take(answer: Answer) -> None:
        macs, *boxes = read_blobs(answer.arrays)
        if len(macs) != MAC_BYTES * len(agreement.members):
            raise ValueError("the answer does not have a MAC for each client")
        confirmations[answer.client] = _cut(macs)
        wanted = [
            (holders, other)
            for holders in agreement.holder_sets
            if holders[0] == answer.client
            for other in holders[1:]
        ]
        if len(boxes) not in (0, len(wanted)):
            raise ValueError("the answer does not have a sealed key for each holder")
        sealed.update(zip(wanted, boxes, strict=False))

    strategy.ask_everyone(
        conversation, "train.agree", lambda name: strategy.phase_config(), take, timeout
    )
    return confirmations, sealed


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
    sent = Labels.sent(strategy.agreement.settings)
    each = len(sent)
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
        lengths = [*(count for count in counts for _ in range(each)), *[1] * tagged]
        parts = split_blobs(read_blobs(answer.arrays), lengths)
        for i, g in enumerate(own):
            shares.setdefault(g, {})[answer.client] = parts[each * i : each * (i + 1)]
        tags[answer.client] = [
            np.frombuffer(blob, dtype="<u8") for (blob,) in parts[each * len(own) :]
        ]

    waiting: list[str] = list(strategy.clients)
    for _ in range(SETUP_ATTEMPTS):
        strategy.ask_everyone(
            conversation, "train.labels", entries, take, timeout, waiting
        )
        labels, waiting = _add_labels(conversation, alignment, cipher, shares, sent)
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
    sent: Sequence[str],
) -> tuple[list[Labels], list[str]]:
    """Each group's sums, and the clients whose ciphertexts arrived spoilt."""
    labels, again = [], set()
    for g, group in enumerate(alignment.groups):
        sums = {}
        for i, what in enumerate(sent):
            own = {name: shares[g][name][i] for name in group.holders}
            added, spoilt = add_shares(cipher, own)
            for name, why in spoilt.items():
                conversation.reject(name, why)
            again |= set(spoilt)
            sums[what] = added or []
        labels.append(Labels(**sums))
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
