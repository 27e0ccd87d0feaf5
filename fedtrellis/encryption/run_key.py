"""The key that the clients of a simulation share."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.keys import backend_class, load_key
from fedtrellis.encryption.node_file import private_folder

__all__ = ["remove_run_key", "run_ledgers", "shared_run_key"]

_SESSION = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ATTEMPTS = 10
# How long the key of a run that was killed is kept, for it to go on
_KEPT_SECONDS = 7 * 24 * 3600
# (process, session): a forked child reads the file again
_run_keys: dict[tuple[int, str], Cipher] = {}


def _run_directory() -> Path:
    """Return this user's directory for run keys, made if needed, and private."""
    return private_folder(Path(tempfile.gettempdir()) / f"fedtrellis-{os.getuid()}")


def _run_key_path(session: str) -> Path:
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise EncryptionError(
            f"session = {session!r} must be 1 to 100 letters, digits, '_' and '-'"
        )
    return _run_directory() / f"{session}.key"


def run_ledgers(session: str) -> Path:
    """Return the folder of the ledgers of a simulation's clients.

    It is removed with the run's key.
    """
    return _run_key_path(session).with_suffix(".ledgers")


def _make_run_key(path: Path, backend: str, bits: int) -> None:
    """Put a new key there unless another process has been faster."""
    _remove_left_behind(path.parent)
    data = backend_class(backend).generate(bits).secret_bytes()
    # mkstemp makes a file that only its owner can read (mode 0600)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # unlike a rename, a link appears complete and never replaces another's
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _remove_left_behind(directory: Path) -> None:
    """Remove keys of runs that ended long ago without removing theirs."""
    oldest = time.time() - _KEPT_SECONDS
    for path in directory.glob("*.key"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                shutil.rmtree(path.with_suffix(".ledgers"), ignore_errors=True)


def shared_run_key(
    session: str, backend: str = "stream", bits: int = 40, *, make: bool = True
) -> Cipher:
    """Return the key that the clients of one run on one machine share.

    The first process to ask makes it, in a private directory of this user's among the
    temporary files; :func:`remove_run_key` removes it, and if nobody calls that, a
    later run does after a week (a run that was killed may go on until then). For
    simulations only: the server could read it too.

    Parameters
    ----------
    session : str
        The run: letters, digits, ``_`` and ``-``.
    backend : str
    bits : int
        Fractional bits of the fixed point.
    make : bool
        Whether to make the key if there is none; else that is an error.

    Raises
    ------
    EncryptionError
        The session's name is malformed, its key is of another backend or of other
        bits or (without ``make``) not there, or the directory is not private.
    """
    path = _run_key_path(session)
    cipher = _run_keys.get((os.getpid(), session))
    for _ in range(_ATTEMPTS):
        if cipher is not None:
            break
        try:
            if not path.exists():
                if not make:
                    raise EncryptionError(
                        f"the key that this run's clients made is gone ({path}): it is "
                        "kept for a week, where the run was. A run that goes on later "
                        "or elsewhere needs a key pair (fedtrellis-keys)"
                    )
                _make_run_key(path, backend, bits)
            cipher = load_key(path)
        except (OSError, EncryptionError) as error:
            # its maker may have ended between our look and our reading
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, FileNotFoundError):
                raise
    if cipher is None:
        raise EncryptionError(f"the key of session {session!r} is removed all the time")
    if (cipher.name, cipher.coding.bits) != (backend, bits):
        raise EncryptionError(
            f"the key of session {session!r} is of backend {cipher.name!r} with "
            f"{cipher.coding.bits} bits, not of {backend!r} with {bits}"
        )
    _run_keys[os.getpid(), session] = cipher
    return cipher


def remove_run_key(session: str) -> None:
    """Remove a session's key from this machine and this process, if it is there."""
    _run_keys.pop((os.getpid(), session), None)
    _run_key_path(session).unlink(missing_ok=True)
    shutil.rmtree(run_ledgers(session), ignore_errors=True)
