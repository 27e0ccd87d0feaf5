"""What all clients of a run agree on before any label leaves a client.

The server writes it down. Every key and mask of the run follows from the digest of its
bytes, so whoever was sent another one makes every sum noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment, Group
from fedtrellis.encryption.block_sum import Introduction

BoolArray = NDArray[np.bool_]
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

    @classmethod
    def from_bytes(cls, data: bytes) -> Agreement:
        """Read what a server sent; ValueError if it is none, or contradicts itself."""
        return _parse(data)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes: the run's id, under which its keys are derived."""
        return hashlib.sha256(self.to_bytes()).digest()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(member.name for member in self.members)

    def index(self, name: str) -> int:
        """Which member this is; ValueError if it is none."""
        if name not in self.names:
            raise ValueError(f"client {name} is not in the agreement")
        return self.names.index(name)

    @cached_property
    def holdings(self) -> BoolArray:
        """Which member holds which feature, shape (K, p)."""
        p = len(self.features)
        rows = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in self.held]
        return np.stack([np.unpackbits(row, count=p) for row in rows]).astype(np.bool_)

    @cached_property
    def holders_of_features(self) -> NDArray[np.int64]:
        """|K_m| of each feature, shape (p,)."""
        counts: NDArray[np.int64] = self.holdings.sum(axis=0)
        return counts

    def held_groups(self, member: int) -> list[int]:
        """The groups of whose holders a member is one."""
        groups = enumerate(self.groups)
        return [g for g, (holders, _, _) in groups if member in holders]

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


def second_holder(holders: Sequence[str]) -> str:
    """Who reports a group's sums beside its first holder; the first if it is alone."""
    return holders[min(1, len(holders) - 1)]


def needs_norms(settings: Mapping[str, Any]) -> bool:
    """Whether a step uses ‖x_i‖², so that clients have to share it."""
    kinds = {*settings["proposals"], *settings["local-proposals"]}
    safe = settings["step"] in ("bundle", "line-search")
    return safe and not kinds.isdisjoint(("coordinate", "passes"))


def feature_digests(names: Sequence[str]) -> list[str]:
    """Return 64 bits of SHA-256 of each name: clients compare them, and see no name."""
    return [hashlib.sha256(str(name).encode()).hexdigest()[:16] for name in names]


# A client reads it for every message, and a process has many clients.
@lru_cache(maxsize=64)
def _parse(data: bytes) -> Agreement:
    try:
        content = json.loads(data)
        groups, new_groups = (
            tuple((tuple(holders), int(n), str(digest)) for holders, n, digest in some)
            for some in (content["groups"], content["new-groups"])
        )
        found = Agreement(
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
        K, everyone = len(found.members), set(range(len(found.members)))
        fits = (
            found.to_bytes() == data
            and K == len(set(found.names)) == len(found.held) > 0
            and {2 * -(-len(found.features) // 8)} == set(map(len, found.held))
            and found.holdings.any(axis=1).all()
            and all(
                size > 0 and holders and len(set(holders) & everyone) == len(holders)
                for holders, size, _ in (*groups, *new_groups)
            )
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"the agreement is malformed: {error}") from None
    if not fits:
        raise ValueError("the agreement is malformed")
    return found
