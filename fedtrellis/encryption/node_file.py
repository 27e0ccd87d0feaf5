"""Files of a node: keys, which are written once, and what it keeps beside them.

A key file is a magic, the name of what it is for, the fractional bits; then a secret of
32 bytes (a key, or an identity) or the fingerprint of 8 (an evaluation context); then
what else belongs to it; then a SHA-256 of all that, which finds damage and protects
against nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.symmetric import KEY_BYTES
from fedtrellis.files import replacing

T = TypeVar("T")

_DIGEST_BYTES = 32
# How long files of a run are kept that nobody removes: a node never hears that a run
# is over, and one that was killed may go on.
_KEPT_SECONDS = 7 * 24 * 3600

#: What nobody else may do with a file: the bits, and what is said.
_SECRET = (
    0o077,
    "is open to others",
    "chmod 600 it, and if others may have read it, make a new one",
)
_PINNED = (
    0o022,
    "can be changed by others",
    "chmod 644 it, and compare its digest with the other nodes'",
)


@contextlib.contextmanager
def _said(path: Path, what: str) -> Iterator[None]:
    """What the system says of a file, as one line of ours."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, FileExistsError):
            why = "it exists, and keys are never overwritten"
        raise EncryptionError(f"{str(path)!r} cannot be {what}: {why}") from error


def create_file(path: str | Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet; nothing is left behind on failure."""
    path = Path(path).expanduser()
    with _said(path, "made"):
        # O_EXCL: neither overwrites a file nor follows a link that somebody put there
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with _said(path, "written"), contextlib.ExitStack() as undone:
        undone.callback(path.unlink)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        undone.pop_all()


def read_file(path: str | Path, what: str = "") -> tuple[bytes, int]:
    """Return a file's bytes and its mode, which must suit ``what`` it is, if given."""
    path = Path(path).expanduser()
    with _said(path, "read"), path.open("rb") as file:
        # of the open file: the path may mean another one a moment later
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        data = file.read()
    bits, state, remedy = _PINNED if what == "roster" else _SECRET
    if what and mode & bits:
        where = f"{what} {str(path)!r} {state} (mode {mode:04o})"
        raise EncryptionError(f"{where}; {remedy}")
    return data, mode


def load_file(path: str | Path, what: str, parse: Callable[[bytes], T]) -> T:
    """Read a node's file, check its mode, and parse it; errors name the file."""
    data, _ = read_file(path, what)
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

    ``backend`` is the cipher's name, or "identity". ``secret`` has 32 bytes; None in an
    evaluation context. ``fingerprint`` has 16 hexadecimal digits, and that of a key
    follows from everything in it.
    """

    backend: str
    bits: int
    payload: bytes = field(repr=False)
    secret: bytes | None = field(default=None, repr=False)
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.secret is not None:
            text = f"fingerprint {self.backend} {self.bits}".encode()
            digest = hashlib.sha256(self.payload).digest()
            message = struct.pack("<I", len(text)) + text + digest
            mark = hmac.digest(self.secret, message, "sha256")[:_FINGERPRINT_BYTES]
            object.__setattr__(self, "fingerprint", mark.hex())

    def to_bytes(self) -> bytes:
        """Return the bytes of a key, or of a context where there is no secret."""
        name = self.backend.encode()
        fixed = _FIXED.pack(len(name), self.bits, len(self.payload))
        magic = _CONTEXT_MAGIC if self.secret is None else _KEY_MAGIC
        mark = self.secret or bytes.fromhex(self.fingerprint)
        body = b"".join((magic, fixed, name, mark, self.payload))
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyFile:
        """Inverse of :meth:`to_bytes`; EncryptionError if it is none, or damaged."""
        if not data.startswith((_KEY_MAGIC, _CONTEXT_MAGIC)):
            raise EncryptionError("this is neither a key nor a context of fedtrellis")
        secret, start = data.startswith(_KEY_MAGIC), len(_KEY_MAGIC) + _FIXED.size
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise EncryptionError("this is damaged: its own checksum is wrong")
        length, bits, _ = _FIXED.unpack_from(body, len(_KEY_MAGIC))
        middle = start + length
        end = middle + (KEY_BYTES if secret else _FINGERPRINT_BYTES)
        name, mark, payload = body[start:middle], body[middle:end], body[end:]
        if secret:
            return cls(name.decode(), bits, payload, mark)
        return cls(name.decode(), bits, payload, fingerprint=mark.hex())


# --------------------------------------------------------- what a node keeps of a run

_MAGIC = b"FTL-NODE"
_LENGTH_BYTES = 4


class DamagedFileError(EncryptionError):
    """A node's file is not what the node wrote."""


def private_folder(path: str | Path) -> Path:
    """Return a folder of this user's, made if needed; an error if it is not private."""
    path = Path(path).expanduser()
    with _said(path, "made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # of a link, not of where somebody made it point to
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not own or found.st_mode & 0o077:
        raise EncryptionError(
            f"{str(path)!r} must be a folder of this user's that nobody else can open "
            f"(mode {stat.S_IMODE(found.st_mode):04o}; chmod 700 it)"
        )
    return path


def remove_expired(folder: Path, pattern: str) -> None:
    """Remove files that nobody has written for a week, and folders of their names."""
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                shutil.rmtree(path.with_suffix(".ledgers"), ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold a lock on a folder; it goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


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

    def read(self) -> tuple[dict[str, Any], bytes]:
        """Return what the file says, and the bytes that belong to it.

        Nothing where there is no file. A DamagedFileError: it is not as it was written;
        :meth:`write` replaces it all the same.
        """
        with _said(self.path, "read"), locked(self.path.parent):
            if not self.path.exists():
                self._seen = None
                return {}, b""
            data = self.path.read_bytes()
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
        with _said(self.path, "written"), locked(self.path.parent) as folder:
            if self._on_disk() != self._seen:
                why = "was changed by another process; a client must run once at a time"
                raise EncryptionError(f"{str(self.path)!r} {why}")
            with replacing(self.path, private=True, durable=self.durable) as file:
                file.write(body + digest)
            if self.durable:
                os.fsync(folder)  # the new name too
        self._seen = digest

    def _on_disk(self) -> bytes | None:
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(-min(_DIGEST_BYTES, os.fstat(file.fileno()).st_size), 2)
            return file.read()
