"""Key files, and backends by their names."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path

from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.key_format import is_key, unpack_key
from fedtrellis.encryption.node_file import create_file, read_file

__all__ = [
    "BACKENDS",
    "backend_class",
    "load_evaluation",
    "load_key",
    "write_key_pair",
]

#: Where each backend is, by its name; imported when it is needed.
BACKENDS = {
    "stream": ("fedtrellis.encryption.cipher", "Cipher"),
    "tenseal-bfv": ("fedtrellis.encryption.bfv", "BfvCipher"),
    "none": ("fedtrellis.encryption.cipher", "PlainCipher"),
}


def backend_class(name: str) -> type[Cipher]:
    """Return a backend by its name.

    Raises
    ------
    EncryptionError
        There is none of this name.
    """
    if name not in BACKENDS:
        allowed = ", ".join(BACKENDS)
        raise EncryptionError(
            f"encryption backend {name!r} is not known; allowed: {allowed}"
        )
    module, attribute = BACKENDS[name]
    found: type[Cipher] = getattr(importlib.import_module(module), attribute)
    return found


def _from_bytes(data: bytes) -> Cipher:
    return backend_class(unpack_key(data).backend).from_bytes(data)


def write_key_pair(
    key_path: str | Path,
    context_path: str | Path,
    backend: str = "stream",
    bits: int = 40,
) -> Cipher:
    """Make a new key, and write it and its evaluation context to new files.

    Parameters
    ----------
    key_path : str or Path
        For the clients, all of them: mode 0600. Whoever has it reads everything.
    context_path : str or Path
        For the server: mode 0644. Nothing in it is secret.
    backend : str
        ``"stream"``, ``"tenseal-bfv"``, or ``"none"``, which encrypts nothing.
    bits : int
        Fractional bits of the fixed point.

    Returns
    -------
    Cipher
        With the secret.

    Raises
    ------
    EncryptionError
        A file exists or cannot be written; then neither is left behind.
    """
    key, context = Path(key_path).expanduser(), Path(context_path).expanduser()
    for path in (key, context):
        if os.path.lexists(path):
            raise EncryptionError(f"{str(path)!r} exists; keys are never overwritten")
    cipher = backend_class(backend).generate(bits)
    create_file(key, cipher.secret_bytes(), 0o600)
    try:
        create_file(context, cipher.evaluation_bytes(), 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            key.unlink()
        raise
    return cipher


def load_key(path: str | Path) -> Cipher:
    """Read the clients' key.

    Raises
    ------
    EncryptionError
        The file cannot be read, can be read or changed by others than its owner, or is
        not a key.
    """
    data, mode = read_file(path)
    if not is_key(data):
        unpack_key(data)  # says if it is something else entirely
        raise EncryptionError(
            f"{str(path)!r} is an evaluation context, for the server; clients need "
            "the key"
        )
    if mode & 0o077:
        raise EncryptionError(
            f"key file {str(path)!r} is open to others (mode {mode:04o}); "
            f"chmod 600 it, and if others may have read it, make a new one"
        )
    return _from_bytes(data)


def load_evaluation(source: str | Path | bytes) -> Cipher:
    """Read the server's evaluation context.

    Parameters
    ----------
    source : str, Path or bytes
        A path, or the context itself.

    Raises
    ------
    EncryptionError
        It contains a secret key, which must never reach a server (it is refused
        before the secret is read); or it cannot be read.
    """
    data = source if isinstance(source, bytes) else read_file(source)[0]
    if is_key(data):
        raise EncryptionError(
            "this contains the clients' secret key, and a server must not have it; "
            "give it the context file"
        )
    return _from_bytes(data)
