"""The ledger: what a node remembers, on its own disk, of one run.

A server may restart, go back, ask again, or say that it did. What the node has agreed
to, how often it has answered and which of its nonces are used up is therefore the
node's own to remember, in a file that is replaced whole: after a crash it says what it
said before or after the last :meth:`Ledger.save`, nothing in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.labels import encode_items

__all__ = ["NONCE_BYTES", "Ledger", "private_folder"]

#: Bytes of the nonce that a client contributes to the next round.
NONCE_BYTES = 16

_MAGIC = b"FTL-LGR1"
_LENGTH_BYTES = 4
_DIGEST_BYTES = 32
_OLD = ".old"
# fields that JSON holds as they are
_PLAIN = (
    *("session", "client", "agreement", "holding", "epoch", "answers", "refusals"),
    *("resumes", "version", "weights", "query", "shared", "secret", "evaluated"),
    *("answered", "scales"),
)


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
        why = error.strerror or str(error)
        raise EncryptionError(f"{str(path)!r} cannot be made: {why}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EncryptionError(f"{str(path)!r} is not a directory of this user's")
    if found.st_mode & 0o077:
        raise EncryptionError(
            f"{str(path)!r} is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
            "; chmod 700 it"
        )
    return path


def _read(path: Path) -> bytes:
    """Return a ledger's bytes, of the one before if a crash came between the two."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return path.with_suffix(_OLD).read_bytes()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold a lock on a folder; it goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


@dataclass
class Ledger:
    """What one client remembers of one run; made by :meth:`open`.

    Parameters
    ----------
    path : Path
        Its file.
    session, client : str
        Whose it is.
    durable : bool
        Whether :meth:`save` waits for the disk, so that even a power cut takes nothing
        back.
    agreement : str or None
        Digest of what the client agreed to.
    epoch : int
        How often the run was started again.
    nonce : bytes
        What the client contributes to the next round's masks; random, used once.
    secret : str
        Random, of this client in this run alone; hexadecimal.
    answers, refusals, resumes : int
        So many, in this run.
    version, weights, query : int, str, str
        The last iteration that it answered in, a digest of its weights then, and one
        of everybody's.
    shared : list of str
        For each member of the run, a digest of the weights that both were sent then.
    holding : str
        A digest of which of its samples it has in which group.
    answered : str
        A digest of what its last answer was made from.
    scales : str
        One of what its columns are shifted and divided by.
    evaluated : str
        A digest of the blinded ids that it evaluated for the run.
    stored : (bytes, bytes) or None
        The last question and its answer, which is what a retry is answered with.
    """

    path: Path
    session: str
    client: str
    durable: bool
    agreement: str | None = None
    epoch: int = 0
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))
    secret: str = field(default_factory=lambda: secrets.token_hex(32))
    answers: int = 0
    refusals: int = 0
    resumes: int = 0
    version: int = -1
    weights: str = ""
    query: str = ""
    shared: list[str] = field(default_factory=list)
    holding: str = ""
    evaluated: str = ""
    answered: str = ""
    scales: str = ""
    stored: tuple[bytes, bytes] | None = None
    # digest of the file as this process last saw it
    _seen: bytes | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls, directory: str | Path, session: str, client: str, durable: bool
    ) -> Ledger:
        """Read a client's ledger of a run, or begin one (it is written by ``save``).

        Parameters
        ----------
        directory : str or Path
            The node's; made, with mode 0700, if it is not there.
        session, client : str
        durable : bool

        Raises
        ------
        EncryptionError
            The folder is open to others, or the ledger cannot be read or is damaged.
        """
        folder = private_folder(directory)
        # a digest: the session is the server's word, and no part of a path
        mark = hashlib.sha256(encode_items("ledger", session, client)).hexdigest()
        path = folder / f"{mark[:32]}.ledger"
        ledger = cls(path, session, client, durable)
        try:
            with _locked(folder):  # or a name may be looked for while it changes
                data = _read(path)
        except FileNotFoundError:
            return ledger
        except OSError as error:
            why = error.strerror or str(error)
            raise EncryptionError(
                f"ledger {str(path)!r} cannot be read: {why}"
            ) from error
        try:
            ledger._take(data)
        except (ValueError, KeyError, TypeError) as error:
            raise EncryptionError(
                f"ledger {str(path)!r} is damaged: without it this node does not know "
                "what it has agreed to and answered: start a new run"
            ) from error
        return ledger

    def replay(self, question: bytes) -> bytes | None:
        """Return the answer that this question got, if it is the last that got one."""
        if self.stored is None or self.stored[0] != question:
            return None
        return self.stored[1]

    def record(self, question: bytes, answer: bytes) -> None:
        """Write down an answer before it leaves, and draw the next nonce.

        The question was asked under the present nonce, which is thereby used up: the
        same question again is answered by :meth:`replay`, another one needs the new
        nonce.

        Raises
        ------
        EncryptionError
            It cannot be written; then the answer must not leave.
        """
        self.stored = (question, answer)
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.save()

    def save(self) -> None:
        """Replace the file by what this object says now.

        Raises
        ------
        EncryptionError
            It cannot be written; or another process has written it since it was read,
            so that this object's nonce and counts are out of date.
        """
        data = self._bytes()
        # of a fixed name: what a crash leaves behind is overwritten by the next
        temporary = self.path.with_suffix(".tmp")
        try:
            with _locked(self.path.parent) as folder:
                if self._on_disk() != self._seen:
                    raise EncryptionError(
                        f"ledger {str(self.path)!r} was changed by another process; "
                        f"{self.client!r} must run once at a time"
                    )
                handle = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
                )
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    if self.durable:
                        os.fsync(file.fileno())
                if not self.durable:
                    self._step_aside()
                os.replace(temporary, self.path)
                self.path.with_suffix(_OLD).unlink(missing_ok=True)
                self._seen = data[-_DIGEST_BYTES:]
                if self.durable:
                    os.fsync(folder)  # the new name too
        except OSError as error:
            why = error.strerror or str(error)
            raise EncryptionError(
                f"ledger {str(self.path)!r} cannot be written: {why}"
            ) from error

    def _step_aside(self) -> None:
        """Make room for the new file, which then replaces none.

        Replacing one makes file systems such as ext4 wait for the disk, which takes a
        hundred times as long as all the rest.
        """
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self.path.with_suffix(_OLD))

    def _on_disk(self) -> bytes | None:
        """Return the digest at the end of the file, None where there is none."""
        try:
            return _read(self.path)[-_DIGEST_BYTES:]
        except FileNotFoundError:
            return None

    def _bytes(self) -> bytes:
        """Magic, length, JSON; the stored answer; SHA-256 of all that."""
        content: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        content["nonce"] = self.nonce.hex()
        question, answer = self.stored or (b"", b"")
        content["question"] = question.hex() if self.stored else None
        text = json.dumps(content).encode()
        body = b"".join(
            (_MAGIC, len(text).to_bytes(_LENGTH_BYTES, "big"), text, answer)
        )
        return body + hashlib.sha256(body).digest()

    def _take(self, data: bytes) -> None:
        """Inverse of :meth:`_bytes`; ValueError and its like where it is damaged."""
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if body[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != digest:
            raise ValueError("magic or checksum")
        start = len(_MAGIC) + _LENGTH_BYTES
        end = start + int.from_bytes(body[len(_MAGIC) : start], "big")
        content = json.loads(body[start:end])
        if (content["session"], content["client"]) != (self.session, self.client):
            raise ValueError("of another client or session")
        for name in _PLAIN:
            setattr(self, name, content[name])
        self.nonce = bytes.fromhex(content["nonce"])
        question = content["question"]
        if question is not None:
            self.stored = (bytes.fromhex(question), body[end:])
        self._seen = digest
