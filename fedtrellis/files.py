"""Files that are whole at every moment: each is replaced in one step, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray


def stamp(*paths: str | Path) -> tuple[int, ...]:
    """When files, or those in folders, were changed, and their sizes; () for none."""
    found: list[int] = []
    for place in (Path(path).expanduser() for path in paths if path):
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            with suppress(OSError):
                stat = file.stat()
                found += stat.st_mtime_ns, stat.st_size
    return tuple(found)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def replacing(
    path: Path, *, private: bool = False, durable: bool = True
) -> Iterator[BinaryIO]:
    """A file to write to, which replaces ``path``, on the disk by then, or nothing.

    A ``private`` one only its owner can read. One that is not ``durable`` is whole too,
    and the loss of power may take it.
    """
    # several processes may write one file, each in its turn
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        with naming(path):
            handle = os.open(temporary, flags, 0o600 if private else 0o666)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if not durable:
                # replacing one, file systems such as ext4 wait for the disk
                path.unlink(missing_ok=True)
            os.replace(temporary, path)
    finally:
        # on a full disk others need the room
        with suppress(OSError):
            temporary.unlink()


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a ``.npz`` file, by name; ValueError if it is none of numbers."""
    with path.open("rb") as raw:
        # NumPy takes anything else for a pickle, and names ways to load it unsafely
        if not is_zipfile(raw):
            raise ValueError("it is no .npz file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {}
            for name in file.files:
                try:
                    arrays[name] = np.asarray(file[name])
                except ValueError:
                    raise ValueError(f"its entry {name!r} is no array") from None
            return arrays
