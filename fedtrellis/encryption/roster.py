"""The roster: which clients take part, and by which public keys they are known.

Every node has one, and none of it comes from the server: it is what keeps a server
from putting keys of its own in their place. It is a TOML file that people exchange, by
a way that the server cannot change, and compare by its digest (on the telephone)::

    roster = 1

    [nodes]
    "clinic-a" = "5f0c...c2"
    "clinic-b" = "a91e...07"
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.identity import (
    Identity,
    check_name,
    check_public,
    parse_public,
)
from fedtrellis.encryption.labels import encode_items
from fedtrellis.encryption.node_file import create_file, read_file

__all__ = [
    "Roster",
    "is_roster",
    "load_roster",
    "parse_roster",
    "shown",
    "write_roster",
]

_VERSION = 1
# Of a digest that is compared by eye or ear: 128 bits, so that whoever may choose keys
# in two rosters needs 2^64 attempts to make them look alike
_SHOWN_DIGITS = 32


def shown(digest: str) -> str:
    """Return the first 128 bits of a digest, in groups of four digits."""
    return " ".join(digest[i : i + 4] for i in range(0, _SHOWN_DIGITS, 4))


@dataclass(frozen=True)
class Roster:
    """The clients that a node knows, and their public keys.

    Parameters
    ----------
    members : dict
        Client id → public key of 32 bytes, at least two of them.

    Attributes
    ----------
    digest : str
        SHA-256 of all members, whatever their order: 64 hexadecimal digits.

    Raises
    ------
    EncryptionError
        There are fewer than two members, two with one key, or something is not a client
        id or not a public key.
    """

    members: dict[str, bytes]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise EncryptionError(
                f"a roster needs at least two nodes, this one has {len(self.members)}"
            )
        owners: dict[bytes, str] = {}
        for name, public in self.members.items():
            check_public(public, check_name(name))
            first = owners.setdefault(public, name)
            if first != name:
                raise EncryptionError(
                    f"{first!r} and {name!r} have the same public key in the roster; "
                    "each node needs an identity of its own"
                )
        # sorted: a roster means the same in whatever order people have written it
        flat = [part for member in sorted(self.members.items()) for part in member]
        data = encode_items("fedtrellis roster", *flat)
        object.__setattr__(self, "digest", hashlib.sha256(data).hexdigest())

    def public(self, name: str) -> bytes:
        """Return a client's public key.

        Raises
        ------
        EncryptionError
            The roster does not have this client.
        """
        if name not in self.members:
            raise EncryptionError(f"{name!r} is not in this node's roster")
        return self.members[name]

    def check(self, identity: Identity) -> None:
        """Check that a node's own identity is in it.

        Raises
        ------
        EncryptionError
            It is not, or with another public key.
        """
        pinned = self.members.get(identity.name)
        if pinned is None:
            raise EncryptionError(
                f"this node, {identity.name!r}, is not in its roster (which has "
                f"{len(self.members)} nodes, digest {shown(self.digest)})"
            )
        if pinned != identity.public:
            raise EncryptionError(
                f"the roster has another public key for this node, {identity.name!r}: "
                f"{pinned.hex()}, and its identity has {identity.public.hex()}. Either "
                "the identity was made anew or the roster was changed"
            )

    def to_text(self) -> str:
        """Return the roster as TOML, sorted by client id."""
        lines = [
            f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(public.hex())}"
            for name, public in sorted(self.members.items())
        ]
        head = ["# fedtrellis-keys: public keys of the nodes that work together"]
        head += [f"roster = {_VERSION}", "", "[nodes]"]
        return "\n".join([*head, *lines]) + "\n"


def is_roster(data: bytes) -> bool:
    """Whether bytes are meant as a roster, well-formed or not."""
    return re.search(rb"(?m)^\s*roster\s*=", data) is not None


def parse_roster(data: bytes) -> Roster:
    """Inverse of :meth:`Roster.to_text`, in bytes.

    Raises
    ------
    EncryptionError
        The bytes are not a roster's.
    """
    try:
        content = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise EncryptionError("roster is not text") from None
    except tomllib.TOMLDecodeError as error:
        raise EncryptionError(f"roster is not TOML: {error}") from None
    version, nodes = content.get("roster"), content.get("nodes")
    if version != _VERSION or not isinstance(nodes, dict):
        raise EncryptionError(
            f"a roster has roster = {_VERSION} and a table [nodes], client id = "
            "public key"
        )
    members = {}
    for name, public in nodes.items():
        # parsed as the line that people paste; a roster edited by hand is checked alike
        key, value = parse_public(f"{check_name(name)}={public}")
        members[key] = value
    return Roster(members)


def load_roster(path: str | Path) -> Roster:
    """Read a node's roster.

    Raises
    ------
    EncryptionError
        The file cannot be read, can be changed by others than its owner, or is not a
        roster.
    """
    data, mode = read_file(path)
    if mode & 0o022:
        raise EncryptionError(
            f"roster {str(path)!r} can be changed by others (mode {mode:04o}); "
            "chmod 644 it, and compare its digest with the other nodes'"
        )
    try:
        return parse_roster(data)
    except EncryptionError as error:
        raise EncryptionError(f"{str(path)!r}: {error}") from None


def write_roster(path: str | Path, publics: Mapping[str, bytes]) -> Roster:
    """Write a roster to a new file, and return it.

    Raises
    ------
    EncryptionError
        The file exists or cannot be written, or the roster is not one.
    """
    roster = Roster(dict(publics))
    create_file(Path(path).expanduser(), roster.to_text().encode(), 0o644)
    return roster
