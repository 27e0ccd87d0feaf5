"""What HyFDCA's clients share before round 1: keys, an agreement, labels, sums."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment, align, needs_norms
from fedtrellis.dual.weights import (
    BALANCED,
    PARTS,
    STATISTICS,
    ColumnScales,
    labels_of,
    of_parts,
)
from fedtrellis.encryption import Cipher, backend_class, load_evaluation
from fedtrellis.encryption.block_sum import ATTEMPT_BYTES
from fedtrellis.encryption.fixed_point import Words
from fedtrellis.server.conversation import Answer
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import Blobs
from .settings import HyFDCASettings
from .steps import add_shares, read_blobs, total_over

Rest = Mapping[str, list[NDArray[Any]]]
#: By holders and recipient: the holders' key, sealed.
Sealed = dict[tuple[tuple[str, ...], str], bytes]
#: A group's labels and how many sent them, norms and weights: sums of ciphertexts.
Labels = dict[str, Blobs]


def key_kind(strategy: HyFDCASettings) -> str:
    """Which kind of keys the clients have: all of them the same."""
    words = {"roster": "identity and roster", "key": "key-file", "run": "no key"}
    kinds = {
        f"client {name}": str(strategy.announced(name, "key-kind", "run"))
        for name in strategy.clients
    }
    found = {who: words.get(kind, kind) for who, kind in kinds.items()}
    _check_alike(found, "the clients do not have one kind of keys")
    kind = next(iter(kinds.values()))
    if kind == "roster" and strategy.encryption == "tenseal-bfv":
        raise SettingsError(
            "encryption = 'tenseal-bfv' needs one key for all clients, and these have "
            "identities and a roster; allowed: 'stream'"
        )
    return kind


def _check_alike(found: Mapping[str, str], problem: str, advice: str = "") -> None:
    """Raise SettingsError, and say who has what, unless all have the same."""
    owners: dict[str, list[str]] = {}
    for who, value in found.items():
        owners.setdefault(value, []).append(who)
    if len(owners) > 1:
        listed = [f"{', '.join(own)}: {value}" for value, own in owners.items()]
        raise SettingsError(f"{problem} ({'; '.join(listed)}){advice}")


def match_ids(strategy: HyFDCASettings) -> dict[str, dict[str, bytes]]:
    """Have two clients evaluate everybody's blinded ids; returns entries by client.

    Neither learns an id, nor could try one without the other.
    """
    evaluators, owners = strategy.clients[:2], list(strategy.clients)
    config, points = strategy.phase_config(), dict[str, bytes]()

    def take_points(answer: Answer) -> None:
        (points[answer.client],) = _read_points(answer.arrays, 1)

    strategy.ask_everyone("train.blind", config, take_points)
    asked = {**config, "owners": owners}
    asked |= {f"points/{i}": points[owner] for i, owner in enumerate(owners)}
    found: dict[str, dict[str, bytes]] = {name: {} for name in owners}

    def take_evaluated(answer: Answer) -> None:
        evaluated = _read_points(answer.arrays, len(owners))
        i = evaluators.index(answer.client)
        for owner, own in zip(owners, evaluated, strict=True):
            if len(own) != len(points[owner]):
                raise ValueError("the answer has another number of points")
            found[owner][f"points/{i}"] = own

    strategy.ask_everyone("train.evaluate", asked, take_evaluated, evaluators)
    return found


def _read_points(arrays: Sequence[NDArray[Any]], count: int) -> list[bytes]:
    """Points as bytes; ValueError if they are none."""
    if len(arrays) != count or any(a.dtype != np.uint8 or a.size % 32 for a in arrays):
        raise ValueError("the answer's points are malformed")
    return [a.tobytes() for a in arrays]


def settle_cipher(strategy: HyFDCASettings, kind: str, rest: Rest) -> Cipher:
    """What the server adds ciphertexts with: never a secret key.

    ``rest`` has by client, in order: its key's name, fresh key, new samples' hashes
    and, where the clients of a simulation made a BFV key, its context.
    """
    given = strategy.given_cipher
    if strategy.encryption == "tenseal-bfv":
        # raises if a client sent its key
        first = next(iter(rest.values()))
        cipher = given or load_evaluation(first[3].tobytes())
    else:
        backend = backend_class(strategy.encryption)
        # what adds ciphertexts of any key: a context that is nobody's
        cipher = backend.from_bytes(backend.generate().evaluation_bytes())
    if kind == "roster":
        return cipher
    prints = {f"client {name}": own[0].tobytes().decode() for name, own in rest.items()}
    if given is not None:
        prints = {"server": given.fingerprint, **prints}
    _check_alike(
        prints,
        f"the clients{' and the server' * ('server' in prints)} do not have one key "
        "between them",
        "; make one with fedtrellis-keys, and give every node the same key-file",
    )
    return cipher


def align_new_samples(alignment: Alignment, rest: Rest) -> Alignment | None:
    """Who holds which new samples together; None if there are none."""
    names = alignment.feature_names
    hashes = {name: own[2] for name, own in rest.items() if len(own[2])}
    if not hashes:
        return None
    features = {name: [names[i] for i in alignment.columns[name]] for name in hashes}
    try:
        found = align(hashes, features)
        if found.overlaps() and not alignment.overlaps():
            raise ValueError("several clients hold the same columns of one of them")
    except ValueError as error:
        raise SettingsError(f"new samples cannot be scored: {error}") from None
    return found


def ask_agreement(strategy: HyFDCASettings) -> Sealed:
    """Have every client check the agreement; returns holders' keys, sealed."""
    sealed: Sealed = {}

    def take(answer: Answer) -> None:
        (boxes,) = read_blobs(answer.arrays, [len(answer.arrays)])
        sets = [s for s in strategy.agreement.holder_sets if s[0] == answer.client]
        wanted = [(holders, other) for holders in sets for other in holders[1:]]
        if len(boxes) not in (0, len(wanted)):
            raise ValueError("the answer does not have a sealed key for each holder")
        sealed.update(zip(wanted, boxes, strict=False))

    strategy.ask_everyone("train.agree", strategy.phase_config(), take)
    return sealed


def ask_labels(strategy: HyFDCASettings) -> list[Labels]:
    """Have the clients share labels and norms under encryption; by group."""
    alignment, cipher = strategy.alignment, strategy.cipher
    settings, overlaps = strategy.agreement.settings, alignment.overlaps()
    sent = ["labels", "counts", *["norms"] * needs_norms(settings)]
    if settings.get("weighted"):
        sent += ["weight-counts", "weights"]
    shares: dict[tuple[int, str], dict[str, Blobs]] = {}
    tags: dict[str, list[NDArray[np.uint64]]] = {}

    def entries(name: str) -> dict[str, Any]:
        tagged = {"tag-groups": overlaps[name]} if name in overlaps else {}
        return {**strategy.phase_config(), **tagged}

    def take(answer: Answer) -> None:
        own_groups = alignment.client_groups(answer.client)
        keys = [(g, what) for g in own_groups for what in sent]
        counts = [cipher.blocks(alignment.groups[g].size) for g, _ in keys]
        tagged = len(overlaps.get(answer.client, []))
        parts = read_blobs(answer.arrays, [*counts, *[1] * tagged])
        for key, own in zip(keys, parts, strict=False):
            cipher.add([own])  # an answer with a spoilt one is asked for again
            shares.setdefault(key, {})[answer.client] = own
        tags[answer.client] = [
            np.frombuffer(blob, dtype="<u8") for (blob,) in parts[len(keys) :]
        ]

    strategy.ask_everyone("train.labels", entries, take)
    labels: list[Labels] = [{} for _ in alignment.groups]
    for (g, what), own in shares.items():
        in_order = {name: own[name] for name in alignment.groups[g].holders}
        total, _ = add_shares(strategy, in_order)
        if total is None:
            who = ", ".join(in_order)
            raise TimeoutError(f"client {who}: no ciphertexts that can be added")
        labels[g][what] = total
    _check_entries(overlaps, tags)
    return labels


def _check_entries(
    overlaps: Mapping[str, list[int]], tags: Mapping[str, list[NDArray[Any]]]
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


def ask_sums(strategy: HyFDCASettings) -> tuple[ColumnScales | None, FloatArray | None]:
    """Ask all clients for sums of their columns and weights; masks cancel in the sum.

    Returns what columns are shifted and divided by, if that is done; and what weights
    are normalised by, shape (T,), if there are any.
    """
    alignment, settings = strategy.alignment, strategy.agreement.settings
    p, rule = len(alignment.feature_names), strategy.class_rule
    weighted = "weighted" in settings
    T = len(labels_of(strategy.classes)) if rule == BALANCED else 1
    T = T if weighted or rule else 0
    rows = (STATISTICS + weighted) if strategy.standardize else 0
    words: dict[str, Words] = {}

    def take(answer: Answer) -> None:
        size = PARTS * (rows * len(alignment.columns[answer.client]) + T) + 1
        (own,) = answer.arrays
        if own.dtype != np.uint64 or own.shape != (size,):
            raise ValueError("the answer does not have the sums of its columns")
        words[answer.client] = own

    config = {**strategy.phase_config(), "attempt": secrets.token_bytes(ATTEMPT_BYTES)}
    strategy.ask_everyone("train.columns", config, take)
    total, rest = total_over(alignment, words, PARTS * rows)
    totals = _totals(strategy, of_parts(rest.reshape(PARTS, T))) if T else None
    if not rows:
        return None, totals
    found = of_parts(total.reshape(PARTS, rows, p))
    return _scales(alignment, found, strategy.penalty.free), totals


def _totals(strategy: HyFDCASettings, totals: FloatArray) -> FloatArray:
    """The same totals, if weights can be normalised by them."""
    if (totals == 0.0).any():
        if strategy.class_rule != BALANCED:
            raise SettingsError("the weights of all samples are 0, none above 0")
        label = labels_of(strategy.classes)[int(np.argmin(totals != 0.0))]
        raise SettingsError(
            f"class_weight = 'balanced': no sample of any weight is of class {label:g}"
        )
    if not (np.isfinite(totals) & (totals > 0.0)).all():
        raise SettingsError(
            "the sums of the weights contradict each other: the clients were not asked "
            "alike, or one of them reports what is not so"
        )
    return totals


def _scales(alignment: Alignment, found: FloatArray, free: int) -> ColumnScales:
    """Means and scales from the sums, if they can be sums of columns."""
    sums, squares, *weights = found
    N = alignment.num_samples
    counts = np.zeros(len(alignment.feature_names), dtype=np.int64)
    for group in alignment.groups:
        held = [alignment.columns[name] for name in group.holders]
        counts[np.unique(np.concatenate(held))] += group.size
    # Cauchy and Schwarz: (Σ s x)² ≤ Σ s Σ s x²
    mass = np.maximum(weights[0], 0.0) if weights else N
    bound = np.sqrt(mass * np.maximum(squares, 0.0))
    if (squares < 0.0).any() or (np.abs(sums) > bound * (1.0 + 1e-9)).any():
        raise SettingsError(
            "the sums of the columns over their holders contradict each other: the "
            "clients were not asked alike, or one of them reports what is not so"
        )
    return ColumnScales.of(sums, squares, counts, N, *weights, free=free)
