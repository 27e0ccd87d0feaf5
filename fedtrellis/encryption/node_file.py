"""Files of a node: keys, which are written once, and what it keeps beside them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedtrellis.encryption.fixed_point import EncryptionError

__all__ = [
    "MOST_BYTES",
    "DamagedFileError",
    "NodeFile",
    "create_file",
    "private_folder",
    "read_file",
]

#: Of a key, a context or a roster.
MOST_BYTES = 1 << 20

_MAGIC = b"FTL-NODE"
_LENGTH_BYTES = 4
_DIGEST_BYTES = 32


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet; nothing is left behind on failure."""
    try:
        # O_EXCL: neither overwrites a file nor follows a link that somebody put there
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise EncryptionError(
            f"{str(path)!r} exists; keys are never overwritten"
        ) from None
    except OSError as error:
        raise EncryptionError(f"{str(path)!r} cannot be made: {_why(error)}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise EncryptionError(
            f"{str(path)!r} cannot be written: {_why(error)}"
        ) from error


def read_file(path: str | Path) -> tuple[bytes, int]:
    """Return the bytes of a key or context file, and its mode.

    Raises
    ------
    EncryptionError
        It cannot be read, or is too long to be one.
    """
    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            # of the open file: the path may mean another one a moment later
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise EncryptionError(f"{str(path)!r} cannot be read: {_why(error)}") from error
    if len(data) > MOST_BYTES:
        raise EncryptionError(f"{str(path)!r} is too long for a key or a context")
    return data, mode


class DamagedFileError(EncryptionError):
    """A node's file is not what the node wrote."""


def private_folder(path: str | Path) -> Path:
    """Return a folder of this user's that is closed to others, made if needed.

    Raises
    ------
    EncryptionError
        It cannot be made, is not this user's, or is open to others.
    """
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # of a link, not of where somebody made it point to
    except OSError as error:
        raise EncryptionError(f"{str(path)!r} cannot be made: {_why(error)}") from error
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
    in between.

    Parameters
    ----------
    path : Path
        In a folder that :func:`private_folder` made.
    durable : bool
        Whether :meth:`write` waits for the disk, so that a power cut takes nothing
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
            raise self._failed("read", error) from error
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        self._seen = digest
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            raise DamagedFileError(f"{str(self.path)!r} is damaged")
        start = len(_MAGIC) + _LENGTH_BYTES
        end = start + int.from_bytes(body[len(_MAGIC) : start], "big")
        content: dict[str, Any] = json.loads(body[start:end])
        return content, body[end:]

    def write(self, content: dict[str, Any], blob: bytes = b"") -> None:
        """Replace the file.

        Raises
        ------
        EncryptionError
            It cannot be written; or another process has written it since it was read.
        """
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
            raise self._failed("written", error) from error
        self._seen = digest

    def _on_disk(self) -> bytes | None:
        try:
            with self.path.open("rb") as file:
                file.seek(-min(_DIGEST_BYTES, os.fstat(file.fileno()).st_size), 2)
                return file.read()
        except FileNotFoundError:
            return None

    def _failed(self, what: str, error: OSError) -> EncryptionError:
        return EncryptionError(f"{str(self.path)!r} cannot be {what}: {_why(error)}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold a lock on the folder; it goes with the process, however that ends."""
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)
