"""Writing files of which nobody ever sees a half, and errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["append_lines", "naming", "replacing"]


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

    With ``sync`` it is on the disk by then. What stood at ``path`` still does after an
    error.
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

    With ``sync`` they are on the disk by then.
    """
    size = path.stat().st_size if path.exists() else 0
    try:
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.truncate(path, size)
        raise
