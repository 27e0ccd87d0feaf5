"""Which clients share which samples and features, found by keyed hashes of ids.

Samples and features are both split over clients. The server needs to know who holds a
sample with whom, and in which slot of a ciphertext its numbers stand, not which sample
it is: clients send keyed hashes (HMAC-SHA256) of their samples' ids, and the server
matches those.

Samples with the same holders make a **group**. A client is only ever sent ciphertexts
of whole groups that it holds, so it never sees a number of a sample that is not its
own; and within a group the samples stand in the order of their hashes, which says
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Bytes of a sample's keyed hash: 128 bits, so that two ids never meet by accident.
HASH_BYTES = 16

IntArray = NDArray[np.int64]


class Group(NamedTuple):
    """The samples that one set of clients holds.

    ``holders`` are B_n, the same for every sample of the group, in the clients' order;
    ``digest`` is the SHA-256 of the samples' hashes in the group's order, hexadecimal.
    """

    holders: tuple[str, ...]
    size: int
    digest: str = ""

    @property
    def shared(self) -> bool:
        """Whether more than one client holds it, so that sums have to be encrypted."""
        return len(self.holders) > 1


@dataclass
class Alignment:
    """The split of the data, as the server knows it.

    Every sample is in exactly one of the ``groups``; ``rows`` has for each client and
    each of its groups the client's own row numbers of the group's samples, in the
    group's order; ``columns`` for each client the indices of its features, in its
    order, among the model's ``feature_names``.
    """

    groups: list[Group]
    rows: dict[str, dict[int, IntArray]]
    feature_names: list[str]
    columns: dict[str, IntArray]

    @property
    def num_samples(self) -> int:
        """N."""
        return sum(group.size for group in self.groups)

    @property
    def vertical(self) -> bool:
        """Whether every client holds every sample."""
        return all(len(group.holders) == len(self.rows) for group in self.groups)

    @property
    def horizontal(self) -> bool:
        """Whether no sample is shared."""
        return not any(group.shared for group in self.groups)

    def client_groups(self, client: str) -> list[int]:
        """Indices of the groups that a client holds, ascending."""
        return sorted(self.rows[client])

    def overlaps(self) -> dict[str, list[int]]:
        """Groups of clients who share features with another holder of the group.

        Whether they also share entries (a sample's value of a feature), which would
        count twice in every sum, only they can tell.
        """
        found: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups):
            columns = np.concatenate([self.columns[name] for name in group.holders])
            if len(np.unique(columns)) < len(columns):
                for name in group.holders:
                    found.setdefault(name, []).append(index)
        return found


def align(
    hashes: Mapping[str, NDArray[np.uint8]],
    features: Mapping[str, Sequence[str]],
    feature_names: Sequence[str] | None = None,
    parts: int = 1,
    allow_unheld: bool = False,
) -> Alignment:
    """Match clients by their samples' hashes and their features' names.

    Of each client, in order, the hashes of its samples, an array of shape (n_k, 16),
    and its features' names: I_k and M_k of the paper. ``feature_names`` is the model's
    order, by default that of the clients and of each client's own; with
    ``allow_unheld`` it may have some that nobody holds, whose weights stay 0. Samples
    of one set of holders are cut into so many ``parts``, at most one a sample. A
    ValueError: a client has a sample or a feature twice, holds one that the model has
    not, or nobody holds a feature of the model.
    """
    names = list(hashes)
    for name, array in hashes.items():
        if array.shape[1:] != (HASH_BYTES,) or array.dtype != np.uint8:
            raise ValueError(f"client {name}: its samples' hashes are malformed")
        if not len(array) or not len(features[name]):
            raise ValueError(f"client {name} has no samples or no features")
    named = chain(*features.values()) if feature_names is None else feature_names
    order = list(dict.fromkeys(named))
    places = {feature: i for i, feature in enumerate(order)}
    columns = {}
    for name, own in features.items():
        if unknown := [feature for feature in own if feature not in places]:
            why = f"which is not among the model's {len(order)} features"
            raise ValueError(f"client {name} has feature {unknown[0]!r}, {why}")
        if len(set(own)) < len(own):
            raise ValueError(f"client {name} names a feature twice")
        columns[name] = np.array([places[feature] for feature in own], np.int64)
    unheld = np.setdiff1d(np.arange(len(order)), np.concatenate([*columns.values()]))
    if len(unheld) and not allow_unheld:
        which = f"{order[int(unheld[0])]!r} of the model ({len(unheld)} in all)"
        raise ValueError(f"feature {which} is held by no client")

    # one key a sample, and who holds it
    keys = np.concatenate([np.ascontiguousarray(hashes[n]) for n in names])
    as_void = keys.view(f"V{HASH_BYTES}").reshape(-1)
    unique, sample = np.unique(as_void, return_inverse=True)
    client = np.repeat(np.arange(len(names)), [len(hashes[n]) for n in names])
    row = np.concatenate([np.arange(len(hashes[n])) for n in names])
    by_sample = np.lexsort((client, sample))
    sample, client, row = sample[by_sample], client[by_sample], row[by_sample]
    twice = (np.diff(sample) == 0) & (np.diff(client) == 0)
    if twice.any():
        who = names[int(client[int(np.argmax(twice))])]
        raise ValueError(f"client {who} has {int(twice.sum())} sample ids twice")

    starts = np.searchsorted(sample, np.arange(len(unique) + 1))
    members: dict[tuple[int, ...], list[int]] = {}
    for index, held in enumerate(np.split(client, starts[1:-1])):
        members.setdefault(tuple(held.tolist()), []).append(index)

    groups: list[Group] = []
    rows: dict[str, dict[int, IntArray]] = {name: {} for name in names}
    for holders in sorted(members):
        holders_of = tuple(names[i] for i in holders)
        # unique keys are sorted, so the samples come in the order of their hashes
        samples = np.array(members[holders])
        for part in np.array_split(samples, min(parts, len(samples))):
            for position, name in enumerate(holders_of):
                rows[name][len(groups)] = row[starts[part] + position]
            digest = hashlib.sha256(unique[part].tobytes()).hexdigest()
            groups.append(Group(holders_of, len(part), digest))
    return Alignment(groups, rows, order, columns)
