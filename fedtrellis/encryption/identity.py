"""A node's identity: an X25519 key, by which two nodes share a secret.

The private half stays on the node, in a file of its own. The public half is what the
other nodes pin in their rosters (:mod:`fedtrellis.encryption.roster`). Two nodes that
pin each other share a secret that nobody else can compute, a server that carries all
their messages included (RFC 7748; static-static, so it takes no message at all).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.labels import Item, derive_key
from fedtrellis.encryption.node_file import create_file, read_file

__all__ = [
    "PUBLIC_BYTES",
    "Identity",
    "check_name",
    "check_public",
    "is_identity",
    "load_identity",
    "parse_public",
    "public_line",
    "write_identity",
]

#: Bytes of a public key.
PUBLIC_BYTES = 32

_MAGIC = b"FTL-IDN1"
_PRIVATE_BYTES = 32
_DIGEST_BYTES = 32
_LONGEST_NAME = 100
# X25519 computes modulo this
_PRIME = 2**255 - 19


def check_name(name: str) -> str:
    """Return a client's id if it can be one of a roster.

    Raises
    ------
    EncryptionError
        It is not 1 to 100 printable characters, has an ``=``, begins with ``#``, or
        begins or ends with a space.
    """
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= _LONGEST_NAME
        or not name.isprintable()
        or name != name.strip()
        or name.startswith("#")
        or "=" in name
    ):
        raise EncryptionError(
            f"client id {name!r} must be 1 to {_LONGEST_NAME} printable characters "
            "without '=', and begin neither with '#' nor with a space"
        )
    return name


def check_public(public: bytes, name: str) -> bytes:
    """Return a public key if it is one.

    Raises
    ------
    EncryptionError
        It has another length, is no reduced number, or is one of the few points with
        which every secret is the same.
    """
    good = len(public) == PUBLIC_BYTES
    good = good and int.from_bytes(public, "little") < _PRIME
    if good:
        try:
            # a point of low order gives zero, which the library refuses
            X25519PrivateKey.generate().exchange(
                X25519PublicKey.from_public_bytes(public)
            )
        except ValueError:
            good = False
    if not good:
        raise EncryptionError(f"the public key of {name!r} is not an X25519 key")
    return public


def public_line(name: str, public: bytes) -> str:
    """Return ``NAME=PUBLIC``, the line that others paste into their rosters."""
    return f"{name}={public.hex()}"


def parse_public(line: str) -> tuple[str, bytes]:
    """Return the client id and the public key of a line ``NAME=PUBLIC``.

    Raises
    ------
    EncryptionError
        It is no such line; or the name or the key is not one.
    """
    name, equals, text = line.strip().rpartition("=")
    try:
        public = bytes.fromhex(text)
    except ValueError:
        public = b""
    if not equals or len(text) != 2 * PUBLIC_BYTES or len(public) != PUBLIC_BYTES:
        raise EncryptionError(
            f"{line.strip()[:200]!r} must be NAME=PUBLIC, with a public key of "
            f"{2 * PUBLIC_BYTES} hexadecimal digits"
        )
    return check_name(name), check_public(public, name)


class Identity:
    """The private key of one node.

    Parameters
    ----------
    name : str
        Its client id.
    private : X25519PrivateKey

    Attributes
    ----------
    name : str
    public : bytes
        32 bytes, for the others' rosters.
    """

    def __init__(self, name: str, private: X25519PrivateKey) -> None:
        self.name = check_name(name)
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
        name = self.name.encode()
        body = b"".join(
            (
                _MAGIC,
                len(name).to_bytes(2, "big"),
                name,
                self._private.private_bytes_raw(),
            )
        )
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """Inverse of :meth:`to_bytes`.

        Raises
        ------
        EncryptionError
            These are no identity's bytes, or they are damaged.
        """
        if not is_identity(data):
            raise EncryptionError("this is not an identity of fedtrellis")
        start = len(_MAGIC) + 2
        middle = start + int.from_bytes(data[len(_MAGIC) : start], "big")
        end = middle + _PRIVATE_BYTES
        if (
            len(data) != end + _DIGEST_BYTES
            or hashlib.sha256(data[:end]).digest() != data[end:]
        ):
            raise EncryptionError("identity is damaged: its own checksum is wrong")
        try:
            name = data[start:middle].decode()
        except UnicodeDecodeError:
            raise EncryptionError("identity has a malformed name") from None
        return cls(name, X25519PrivateKey.from_private_bytes(data[middle:end]))

    def pair_secret(self, other_public: bytes) -> bytes:
        """Return the secret that this node shares with one other: 32 bytes.

        The same on both nodes: HKDF-SHA256 of X25519(own private, other's public),
        with both public keys, sorted, in its info.

        Parameters
        ----------
        other_public : bytes
            From the roster, never from the server.

        Raises
        ------
        EncryptionError
            It is not a public key, or is this node's own.
        """
        check_public(other_public, "the other node")
        if other_public == self.public:
            raise EncryptionError(
                f"{self.name!r} shares a secret with other nodes, not with itself"
            )
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(other_public))
        pair = sorted((self.public, other_public))
        return derive_key(shared, "fedtrellis pair", *pair)

    def derive(self, *context: Item) -> bytes:
        """Return a secret of 32 bytes that follows from this node's key alone.

        Parameters
        ----------
        *context : bytes, str or int
            Its use; another one gives another secret.
        """
        own = self._private.private_bytes_raw()
        return derive_key(own, "fedtrellis own", *context)


def is_identity(data: bytes) -> bool:
    """Whether bytes are those of an identity."""
    return data[: len(_MAGIC)] == _MAGIC


def write_identity(path: str | Path, name: str) -> Identity:
    """Make a new identity, and write it to a new file of mode 0600.

    Raises
    ------
    EncryptionError
        The file exists or cannot be written, or the name cannot be a client id.
    """
    identity = Identity.generate(name)
    create_file(Path(path).expanduser(), identity.to_bytes(), 0o600)
    return identity


def load_identity(path: str | Path) -> Identity:
    """Read a node's identity.

    Raises
    ------
    EncryptionError
        The file is not there (a lost identity cannot be restored), cannot be read, can
        be read or changed by others than its owner, or is not an identity.
    """
    try:
        data, mode = read_file(path)
    except EncryptionError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise EncryptionError(
                f"identity {str(path)!r} is not there. A lost one cannot be restored: "
                "make a new one (fedtrellis-keys identity), and give its public key to "
                "every node's roster"
            ) from error
        raise
    if mode & 0o077:
        raise EncryptionError(
            f"identity {str(path)!r} is open to others (mode {mode:04o}); chmod 600 "
            "it, and if others may have read it, make a new one"
        )
    try:
        return Identity.from_bytes(data)
    except EncryptionError as error:
        raise EncryptionError(f"{str(path)!r}: {error}") from None
