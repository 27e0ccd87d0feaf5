"""Who takes part: a node's identity, an X25519 key, and the roster of all of them.

The private half stays on the node, in a file of its own. Two nodes that know each
other's public half share a secret that nobody else can compute, a server that carries
all their messages included (RFC 7748; static-static, so it takes no message at all).
Every node has a roster of public keys, and none of it comes from the server: it is a
TOML file that people exchange, by a way that the server cannot change, and compare by
its digest (on the telephone)::

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

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.node_file import KeyFile, create_file, load_file
from fedtrellis.encryption.symmetric import Item, derive_key, encode_items

#: What a key file of an identity names where others name a cipher.
IDENTITY = "identity"

_LONGEST_NAME = 100
_VERSION = 1
# Of a digest that is compared by eye or ear: 128 bits, so that whoever may choose keys
# in two rosters needs 2^64 attempts to make them look alike
_SHOWN_DIGITS = 32
# X25519 computes modulo this
_PRIME = 2**255 - 19


def _check_name(name: str) -> None:
    """Raise EncryptionError if it cannot be the client id of a line NAME=PUBLIC."""
    good = name.isprintable() and name == name.strip() and "=" not in name
    if not good or name.startswith("#") or not 1 <= len(name) <= _LONGEST_NAME:
        raise EncryptionError(
            f"client id {name!r} must be 1 to {_LONGEST_NAME} printable characters "
            "without '=', and begin neither with '#' nor with a space"
        )


def exchange(private: X25519PrivateKey, public: bytes, whose: str) -> bytes:
    """X25519 of two nodes; EncryptionError if the public key is none."""
    try:
        # reduced, so that no key has two forms; a point of low order, with which every
        # secret would be zero, the library refuses
        if int.from_bytes(public, "little") < _PRIME:
            return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        pass
    raise EncryptionError(f"the public key of {whose} is not an X25519 key")


def public_line(name: str, public: bytes) -> str:
    """Return ``NAME=PUBLIC``, the line that others paste into their rosters."""
    return f"{name}={public.hex()}"


def parse_public(line: str) -> tuple[str, bytes]:
    """Return client id and public key of ``NAME=PUBLIC``; EncryptionError if it is not.

    A roster checks them further.
    """
    found = re.fullmatch(r"(.*)=([0-9a-fA-F]{64})", line.strip())
    if not found:
        form = "NAME=PUBLIC, with a public key of 64 hexadecimal digits"
        raise EncryptionError(f"{line.strip()[:200]!r} must be {form}")
    return found[1], bytes.fromhex(found[2])


class Identity:
    """The private key of one node.

    ``name`` is its client id; ``public``, 32 bytes, is for the others' rosters.
    """

    def __init__(self, name: str, private: X25519PrivateKey) -> None:
        _check_name(name)
        self.name = name
        self.public = private.public_key().public_bytes_raw()
        self._private = private

    def __repr__(self) -> str:
        return f"Identity({public_line(self.name, self.public)})"

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Make a new one."""
        return cls(name, X25519PrivateKey.generate())

    def to_bytes(self) -> bytes:
        """Return the bytes of its file; they are secret."""
        own = self._private.private_bytes_raw()
        return KeyFile(IDENTITY, 0, self.name.encode(), own).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """Inverse of :meth:`to_bytes`; EncryptionError if it is none, or damaged."""
        file = KeyFile.from_bytes(data)
        if file.backend != IDENTITY or file.secret is None:
            raise EncryptionError("this is not an identity of fedtrellis")
        private = X25519PrivateKey.from_private_bytes(file.secret)
        return cls(file.payload.decode(), private)

    def pair_secret(self, other_public: bytes) -> bytes:
        """Return the secret that this node shares with one other: 32 bytes.

        The same on both nodes: HKDF-SHA256 of X25519(own private, other's public),
        with both public keys, sorted, in its info. ``other_public`` comes from the
        roster, never from the server. An EncryptionError: it is no public key.
        """
        shared = exchange(self._private, other_public, "the other node")
        pair = sorted((self.public, other_public))
        return derive_key(shared, "fedtrellis pair", *pair)

    def derive(self, *context: Item) -> bytes:
        """Return a secret of 32 bytes for one use, of this node's key alone."""
        own = self._private.private_bytes_raw()
        return derive_key(own, "fedtrellis own", *context)


def write_identity(path: str | Path, name: str) -> Identity:
    """Make a new identity, and write it to a new file of mode 0600."""
    identity = Identity.generate(name)
    create_file(path, identity.to_bytes(), 0o600)
    return identity


def load_identity(path: str | Path) -> Identity:
    """Read a node's identity; EncryptionError if it is none, or open to others."""
    if not Path(path).expanduser().exists():
        raise EncryptionError(
            f"identity {str(path)!r} is not there. A lost one cannot be restored: make "
            "a new one (fedtrellis-keys identity), and give its public key to every "
            "node's roster"
        )
    return load_file(path, "identity", Identity.from_bytes)


def shown(digest: str) -> str:
    """Return the first 128 bits of a digest, in groups of four digits."""
    return " ".join(digest[i : i + 4] for i in range(0, _SHOWN_DIGITS, 4))


@dataclass(frozen=True)
class Roster:
    """The clients that a node knows, and their public keys.

    ``members`` has at least two, a public key of 32 bytes for each client id;
    ``digest`` is the SHA-256 of them all, whatever their order, in 64 hexadecimal
    digits. An EncryptionError: there are fewer, two with one key, or something is not a
    client id or not a public key.
    """

    members: dict[str, bytes]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            have = f"this one has {len(self.members)}"
            raise EncryptionError(f"a roster needs at least two nodes, {have}")
        owners: dict[bytes, str] = {}
        probe = X25519PrivateKey.generate()
        for name, public in self.members.items():
            _check_name(name)
            exchange(probe, public, repr(name))
            first = owners.setdefault(public, name)
            if first != name:
                both = f"{first!r} and {name!r} have the same public key in the roster"
                raise EncryptionError(f"{both}; each node needs one of its own")
        # sorted: a roster means the same in whatever order people have written it
        flat = [part for member in sorted(self.members.items()) for part in member]
        data = encode_items("fedtrellis roster", *flat)
        object.__setattr__(self, "digest", hashlib.sha256(data).hexdigest())

    def check(self, identity: Identity) -> None:
        """Raise EncryptionError unless a node is in it, with its public key."""
        found = self.members.get(identity.name)
        if found != identity.public:
            has = "no such node" if found is None else f"the public key {found.hex()}"
            raise EncryptionError(
                f"the roster (digest {shown(self.digest)}) must have this node, "
                f"{public_line(identity.name, identity.public)}, and has {has}"
            )

    def to_text(self) -> str:
        """Return the roster as TOML, sorted by client id."""
        lines = [
            "# fedtrellis-keys: public keys of the nodes that work together",
            *(f"roster = {_VERSION}", "", "[nodes]"),
            *(
                f'{json.dumps(name, ensure_ascii=False)} = "{public.hex()}"'
                for name, public in sorted(self.members.items())
            ),
        ]
        return "\n".join(lines) + "\n"


def is_roster(data: bytes) -> bool:
    """Whether bytes are meant as a roster, well-formed or not."""
    return re.search(rb"(?m)^\s*roster\s*=", data) is not None


def parse_roster(data: bytes) -> Roster:
    """Inverse of :meth:`Roster.to_text`, in bytes; EncryptionError if they are none."""
    try:
        content = tomllib.loads(data.decode())
    except ValueError as error:  # so is what is no UTF-8
        raise EncryptionError(f"roster is not TOML: {error}") from None
    version, nodes = content.get("roster"), content.get("nodes")
    if version != _VERSION or not isinstance(nodes, dict):
        needs = f"roster = {_VERSION} and a table [nodes], client id = public key"
        raise EncryptionError(f"a roster has {needs}")
    # parsed as the lines that people paste; a roster edited by hand is checked alike
    return Roster({name: parse_public(f"{name}={nodes[name]}")[1] for name in nodes})


def load_roster(path: str | Path) -> Roster:
    """Read a node's roster; EncryptionError if it is none, or others can change it."""
    return load_file(path, "roster", parse_roster)


def write_roster(path: str | Path, publics: Mapping[str, bytes]) -> Roster:
    """Write a roster to a new file, and return it; EncryptionError if that is none."""
    roster = Roster(dict(publics))
    create_file(path, roster.to_text().encode(), 0o644)
    return roster
