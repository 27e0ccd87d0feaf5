"""Which clients share which samples and features, found by keyed hashes of ids.

Samples and features are both split over clients. The server needs to know who holds a
sample with whom, and in which slot of a ciphertext its numbers stand, not which sample
it is: clients send keyed hashes (HMAC-SHA256) of their samples' ids, and the server
matches those.

Samples with the same holders make a **group**. A client is only ever sent ciphertexts
of whole groups that it holds, so it never sees a number of a sample that is not its
own; and within a group the samples stand in the order of their hashes, which says
nothing.

All clients agree on that, and on the run's settings, before any label leaves a client.
Every key and mask of the run follows from the digest of the :class:`Agreement`'s bytes,
so whoever was sent another one makes every sum noise. From then on requests say of each
of a client's groups where α stands (:class:`GroupStep`): a client that missed nothing
takes the last mixture, one that has taken it already does not take it twice, and one
that lacks more asks for help.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.block_sum import Introduction

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


#: Holders, as indices of members; number of samples; digest of their hashes.
GroupEntry = tuple[tuple[int, ...], int, str]


@dataclass(frozen=True)
class Agreement:
    """The parties of a run, who holds what, and what the run is about.

    ``settings`` are strings and numbers; ``features`` digests of the features' names,
    in the model's order; ``held`` says for each member which of them it holds, packed
    bits in hexadecimal. ``groups`` and ``new_groups``, of new samples, have holders as
    indices of members, the number of samples, and a digest of their hashes in order.
    """

    settings: Mapping[str, Any]
    members: tuple[Introduction, ...]
    features: tuple[str, ...]
    held: tuple[str, ...]
    groups: tuple[GroupEntry, ...]
    new_groups: tuple[GroupEntry, ...] = ()

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        members: Sequence[Introduction],
        alignment: Alignment,
        new: Sequence[Group] = (),
    ) -> Agreement:
        """Write down an alignment."""
        index = {member.name: i for i, member in enumerate(members)}
        held = np.zeros((len(members), len(alignment.feature_names)), dtype=np.bool_)
        for name, columns in alignment.columns.items():
            held[index[name], columns] = True
        groups, new_groups = (
            tuple((tuple(index[n] for n in g.holders), g.size, g.digest) for g in some)
            for some in (alignment.groups, new)
        )
        return cls(
            dict(settings),
            tuple(members),
            tuple(feature_digests(alignment.feature_names)),
            tuple(np.packbits(row).tobytes().hex() for row in held),
            groups,
            new_groups,
        )

    def to_bytes(self) -> bytes:
        """Return it as it travels: in one form, so that equal ones have equal bytes."""
        content = {
            "settings": self.settings,
            "members": [(own.name, own.key, own.fresh.hex()) for own in self.members],
            "features": self.features,
            "held": self.held,
            "groups": self.groups,
            "new-groups": self.new_groups,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    @lru_cache(maxsize=64)  # a client reads it for every message
    def from_bytes(data: bytes) -> Agreement:
        """Read what a server sent; ValueError if it is none."""
        try:
            content = json.loads(data)
            groups, new_groups = (
                tuple(
                    (tuple(holders), int(n), str(digest)) for holders, n, digest in some
                )
                for some in (content["groups"], content["new-groups"])
            )
            return Agreement(
                dict(content["settings"]),
                tuple(
                    Introduction(name, key, bytes.fromhex(fresh))
                    for name, key, fresh in content["members"]
                ),
                tuple(content["features"]),
                tuple(content["held"]),
                groups,
                new_groups,
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"the agreement is malformed: {error}") from None

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes: the run's id, under which its keys are derived."""
        return hashlib.sha256(self.to_bytes()).digest()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(member.name for member in self.members)

    @cached_property
    def holdings(self) -> NDArray[np.bool_]:
        """Which member holds which feature, shape (K, p)."""
        p = len(self.features)
        rows = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in self.held]
        return np.stack([np.unpackbits(row, count=p) for row in rows]).astype(np.bool_)

    def holders(self, group: int, new: bool = False) -> tuple[str, ...]:
        """The names of a group's holders."""
        groups = self.new_groups if new else self.groups
        return tuple(self.names[i] for i in groups[group][0])

    @cached_property
    def holder_sets(self) -> tuple[tuple[str, ...], ...]:
        """Every set of several holders, in the order in which groups name them."""
        groups = [*self.groups, *self.new_groups]
        sets = [tuple(self.names[i] for i in holders) for holders, _, _ in groups]
        return tuple(dict.fromkeys(holders for holders in sets if len(holders) > 1))


def needs_norms(settings: Mapping[str, Any]) -> bool:
    """Whether a step uses ‖x_i‖², so that clients have to share it."""
    return bool(settings["step"] == "line-search")


def feature_digests(names: Sequence[str]) -> list[str]:
    """Return 64 bits of SHA-256 of each name: clients compare them, and see no name."""
    return [hashlib.sha256(str(name).encode()).hexdigest()[:16] for name in names]


# ------------------------------------------------- what a client is told of its groups

#: Shares that the paper's steps may add to one sum, before it is encrypted anew.
MAX_SHARES = 64


@dataclass(frozen=True)
class HeldGroup:
    """One group as one of its holders has it.

    ``group`` is which of the alignment's groups, ``rows`` its samples as rows of this
    client's features, in the group's order; ``start`` is where they begin in the
    client's vectors, which go group by group.
    """

    group: int
    rows: IntArray
    start: int = 0

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.rows)

    @property
    def own(self) -> slice:
        """Where its samples stand in the client's vectors."""
        return slice(self.start, self.start + self.size)

    @cached_property
    def by_row(self) -> IntArray:
        """The samples in the order of their rows, which no pseudonym changes.

        Sums in this order are the same numbers in every run.
        """
        return np.argsort(self.rows)

    @staticmethod
    def pack(own: Mapping[int, IntArray]) -> dict[str, IntArray]:
        """A client's rows of its groups as arrays of its state."""
        rows = [own[g] for g in sorted(own)]
        return {
            "rows": np.concatenate([np.zeros(0, dtype=np.int64), *rows]),
            "groups": np.array(sorted(own), dtype=np.int64),
            "sizes": np.array([len(one) for one in rows], dtype=np.int64),
        }

    @classmethod
    def unpack(
        cls, state: Mapping[str, NDArray[Any]], num_samples: int, prefix: str = ""
    ) -> list[HeldGroup]:
        """Inverse of :meth:`pack`; ``prefix`` is that of the state's names.

        A ValueError: the groups do not deal out the client's ``num_samples`` samples.
        """
        rows, sizes, groups = (
            state[f"{prefix}{name}"] for name in ("rows", "sizes", "groups")
        )
        dealt = np.array_equal(np.sort(rows), np.arange(num_samples))
        if not dealt or sizes.sum() != num_samples or sizes.min(initial=1) < 1:
            why = f"do not deal out this client's {num_samples} samples"
            raise ValueError(f"rows, groups and sizes {why}")
        starts = (np.cumsum(sizes) - sizes).tolist()
        return [
            cls(group, rows[start : start + size].astype(np.int64), start)
            for group, size, start in zip(
                groups.tolist(), sizes.tolist(), starts, strict=True
            )
        ]


class GroupStep(NamedTuple):
    """Where one group stands.

    ``group`` is which of the alignment's groups, ``step`` how many mixtures it has
    taken (0: α is still 0), ``alpha_id`` the id of the point that α is now. ``ids`` and
    ``weights`` are the last mixture, the points with weight and their θ, class by
    class, and ``keep`` the points to remember beside α. ``alpha`` is enc(α), for a
    client that does not know it.
    """

    group: int
    step: int
    alpha_id: int
    ids: Sequence[int] = ()
    weights: Sequence[float] = ()
    keep: Sequence[int] = ()
    alpha: Sequence[bytes] | None = None

    @staticmethod
    def pack(records: Iterable[GroupStep]) -> dict[str, Any]:
        """A client's records as entries of a request.

        A ``ConfigRecord`` knows numbers and flat lists only: the lists have an entry
        for each group, or as many as the group's count says.
        """
        every = list(records)
        entries = {
            "groups": [r.group for r in every],
            "steps": [r.step for r in every],
            "alpha-ids": [r.alpha_id for r in every],
            "mix-counts": [len(r.ids) for r in every],
            "mix-ids": [i for r in every for i in r.ids],
            "mix-weights": [theta for r in every for theta in r.weights],
            "keep-counts": [len(r.keep) for r in every],
            "keep-ids": [i for r in every for i in r.keep],
        }
        alphas = {f"alpha/{r.group}": r.alpha for r in every if r.alpha is not None}
        return {**entries, **alphas}

    @classmethod
    def unpack(cls, config: Mapping[str, Any], classes: int = 1) -> list[GroupStep]:
        """Inverse of :meth:`pack`; ``classes`` says how many θ a point has.

        A KeyError or ValueError: an entry is missing, or the lists do not have one
        length.
        """
        ids, weights = iter(config["mix-ids"]), iter(config["mix-weights"])
        kept = iter(config["keep-ids"])
        return [
            cls(
                group,
                step,
                alpha_id,
                list(islice(ids, count)),
                list(islice(weights, classes * count)),
                list(islice(kept, keep)),
                config.get(f"alpha/{group}"),
            )
            for group, step, alpha_id, count, keep in zip(
                config["groups"],
                config["steps"],
                config["alpha-ids"],
                config["mix-counts"],
                config["keep-counts"],
                strict=True,
            )
        ]
