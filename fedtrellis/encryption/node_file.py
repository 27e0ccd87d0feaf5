"""Files of a node: keys, which are written once, and what it keeps beside them.

A key or an evaluation context is a magic, the backend's name, the fractional bits; then
the clients' secret of 32 bytes (a key) or the fingerprint of 8 (a context); then what
the backend keeps; then a SHA-256 of all that, which finds damage and protects against
nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.symmetric import KEY_BYTES

__all__ = [
    "DamagedFileError",
    "KeyFile",
    "NodeFile",
    "check_mode",
    "create_file",
    "is_key",
    "load_file",
    "pack_key",
    "private_folder",
    "read_file",
    "unpack_key",
]

T = TypeVar("T")

#: Of a key, a context or a roster.
_MOST_BYTES = 1 << 20
_DIGEST_BYTES = 32

#: What nobody else may do with a file, by what it is: the bits, and what is said.
_CLOSED = {
    "key file": (
        0o077,
        "is open to others",
        "chmod 600 it, and if others may have read it, make a new one",
    ),
    "roster": (
        0o022,
        "can be changed by others",
        "chmod 644 it, and compare its digest with the other nodes'",
    ),
}
_CLOSED["identity"] = _CLOSED["key file"]


def _failed(path: Path, what: str, error: OSError) -> EncryptionError:
    why = error.strerror or str(error)
    return EncryptionError(f"{str(path)!r} cannot be {what}: {why}")


def create_file(path: str | Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet; nothing is left behind on failure."""
    path = Path(path).expanduser()
    try:
        # O_EXCL: neither overwrites a file nor follows a link that somebody put there
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise EncryptionError(
            f"{str(path)!r} exists; keys are never overwritten"
        ) from None
    except OSError as error:
        raise _failed(path, "made", error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise _failed(path, "written", error) from error


def read_file(path: str | Path) -> tuple[bytes, int]:
    """Return a file's bytes and its mode; EncryptionError if it cannot be a node's."""
    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            # of the open file: the path may mean another one a moment later
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _failed(path, "read", error) from error
    if len(data) > _MOST_BYTES:
        raise EncryptionError(f"{str(path)!r} is too long for a key or a context")
    return data, mode


def check_mode(path: str | Path, mode: int, what: str) -> None:
    """Raise EncryptionError if others can do with a file what only its owner may."""
    bits, state, remedy = _CLOSED[what]
    if mode & bits:
        raise EncryptionError(
            f"{what} {str(path)!r} {state} (mode {mode:04o}); {remedy}"
        )


def load_file(path: str | Path, what: str, parse: Callable[[bytes], T]) -> T:
    """Read a node's file, check its mode, and parse it; errors name the file."""
    data, mode = read_file(path)
    check_mode(path, mode, what)
    try:
        return parse(data)
    except EncryptionError as error:
        raise EncryptionError(f"{str(path)!r}: {error}") from None


# ------------------------------------------------------------------------- key files

_KEY_MAGIC = b"FTL-KEY1"
_CONTEXT_MAGIC = b"FTL-CTX1"
_FINGERPRINT_BYTES = 8
_FIXED = struct.Struct("<BBI")  # length of the name, fractional bits, length of payload


@dataclass(frozen=True)
class KeyFile:
    """A key or an evaluation context, parsed; no library has seen its payload yet.

    ``fingerprint`` has 16 hexadecimal digits. ``secret`` is the clients', of 32 bytes;
    None in an evaluation context.
    """

    backend: str
    bits: int
    fingerprint: str
    payload: bytes = field(repr=False)
    secret: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_secret(
        cls, backend: str, bits: int, payload: bytes, secret: bytes
    ) -> KeyFile:
        """A key; its fingerprint follows from everything in it."""
        text = f"fingerprint {backend} {bits}".encode()
        message = struct.pack("<I", len(text)) + text + hashlib.sha256(payload).digest()
        mark = hmac.digest(secret, message, "sha256")[:_FINGERPRINT_BYTES].hex()
        return cls(backend, bits, mark, payload, secret)


def pack_key(file: KeyFile) -> bytes:
    """Return the bytes of a key, or of a context where there is no secret."""
    name = file.backend.encode()
    fixed = _FIXED.pack(len(name), file.bits, len(file.payload))
    magic = _CONTEXT_MAGIC if file.secret is None else _KEY_MAGIC
    identity = file.secret or bytes.fromhex(file.fingerprint)
    body = b"".join((magic, fixed, name, identity, file.payload))
    return body + hashlib.sha256(body).digest()


def is_key(data: bytes) -> bool:
    """Whether bytes are those of a key, which has a secret."""
    return data.startswith(_KEY_MAGIC)


def unpack_key(data: bytes) -> KeyFile:
    """Inverse of :func:`pack_key`; EncryptionError if it is neither, or damaged."""
    secret = is_key(data)
    if not secret and not data.startswith(_CONTEXT_MAGIC):
        raise EncryptionError("this is neither a key nor a context of fedtrellis")
    start = len(_KEY_MAGIC) + _FIXED.size
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(body) < start:
        raise EncryptionError("key or context is cut off")
    if hashlib.sha256(body).digest() != digest:
        raise EncryptionError("key or context is damaged: its own checksum is wrong")
    length, bits, size = _FIXED.unpack_from(body, len(_KEY_MAGIC))
    middle = start + length
    end = middle + (KEY_BYTES if secret else _FINGERPRINT_BYTES)
    name, identity, payload = body[start:middle], body[middle:end], body[end:]
    if len(payload) != size or not name.isascii():
        raise EncryptionError("key or context is malformed")
    if secret:
        return KeyFile.of_secret(name.decode(), bits, payload, identity)
    return KeyFile(name.decode(), bits, identity.hex(), payload)


# --------------------------------------------------------- what a node keeps of a run

_MAGIC = b"FTL-NODE"
_LENGTH_BYTES = 4


class DamagedFileError(EncryptionError):
    """A node's file is not what the node wrote."""


def private_folder(path: str | Path) -> Path:
    """Return a folder of this user's, made if needed; an error if it is not private."""
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # of a link, not of where somebody made it point to
    except OSError as error:
        raise _failed(path, "made", error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EncryptionError(f"{str(path)!r} is not a directory of this user's")
    if found.st_mode & 0o077:
        raise EncryptionError(
            f"{str(path)!r} is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
            "; chmod 700 it"
        )
    return path


class NodeFile:
    """A file that is replaced whole, by one process at a time.

    After a crash it says what it said before or after the last :meth:`write`, nothing
    in between. ``path`` is in a folder that :func:`private_folder` made; where it is
    ``durable``, :meth:`write` waits for the disk, so that a power cut takes nothing
    back.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self.path, self.durable = path, durable
        self._seen: bytes | None = None

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """Return what the file says, and the bytes that belong to it; None: no file.

        Raises
        ------
        DamagedFileError
            It is not as it was written; :meth:`write` replaces it all the same.
        EncryptionError
            It cannot be read.
        """
        try:
            with self._locked():
                data = self.path.read_bytes()
        except FileNotFoundError:
            self._seen = None
            return None
        except OSError as error:
            raise _failed(self.path, "read", error) from error
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        self._seen = digest
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            raise DamagedFileError(f"{str(self.path)!r} is damaged")
        start = len(_MAGIC) + _LENGTH_BYTES
        end = start + int.from_bytes(body[len(_MAGIC) : start], "big")
        content: dict[str, Any] = json.loads(body[start:end])
        return content, body[end:]

    def write(self, content: dict[str, Any], blob: bytes = b"") -> None:
        """Replace the file; EncryptionError if it cannot be, or another process did."""
        text = json.dumps(content).encode()
        size = len(text).to_bytes(_LENGTH_BYTES, "big")
        body = b"".join((_MAGIC, size, text, blob))
        digest = hashlib.sha256(body).digest()
        temporary = self.path.with_suffix(".tmp")
        try:
            with self._locked() as folder:
                if self._on_disk() != self._seen:
                    raise EncryptionError(
                        f"{str(self.path)!r} was changed by another process; a client "
                        "must run once at a time"
                    )
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                    file.write(body + digest)
                    file.flush()
                    if self.durable:
                        os.fsync(file.fileno())
                if not self.durable:
                    # replacing one, file systems such as ext4 wait for the disk
                    self.path.unlink(missing_ok=True)
                os.replace(temporary, self.path)
                if self.durable:
                    os.fsync(folder)  # the new name too
        except OSError as error:
            raise _failed(self.path, "written", error) from error
        self._seen = digest

    def _on_disk(self) -> bytes | None:
        try:
            with self.path.open("rb") as file:
                file.seek(-min(_DIGEST_BYTES, os.fstat(file.fileno()).st_size), 2)
                return file.read()
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold a lock on the folder; it goes with the process, however that ends."""
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)
