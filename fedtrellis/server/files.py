"""Writing files of which nobody ever sees a half, also when the disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

__all__ = ["append_lines", "naming", "overwrite", "replacing"]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` if nothing is raised.

    With ``sync`` it is on the disk by then. An OSError names the file; what stood at
    ``path`` still does.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        # on a full disk others need the room
        with suppress(OSError):
            temporary.unlink()
        raise


def append_lines(path: Path, lines: Iterable[str], sync: bool = False) -> None:
    """Add whole lines, given without their ends, to a file, or none of them.

    With ``sync`` they are on the disk by then. An OSError names the file.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    # unbuffered: what could not be written must not come out when the file is closed
    with naming(path), path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, data)
        except BaseException:
            with suppress(OSError):
                file.truncate(size)
            raise
        if sync:
            os.fsync(file.fileno())


def overwrite(path: Path, data: bytes) -> None:
    """Write over a file, for which the room that it has may be enough.

    An OSError names the file, which holds what it held.
    """
    with naming(path), path.open("r+b", buffering=0) as file:
        before = file.read()
        try:
            file.seek(0)
            _write_all(file, data)
        except OSError:
            file.seek(0)
            _write_all(file, before)
            raise
        finally:
            file.truncate()


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # a disk that gets full takes some of it first
        rest = rest[file.write(rest) :]
