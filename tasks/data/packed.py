"""Files that may be packed, as the ends of their names say: .gz, .bz2 and .xz."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ..base import DataFileError

__all__ = ["UNPACKING_ERRORS", "UnpackingError", "open_packed", "read_at_most"]

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}

#: What reading a damaged packed file may raise, or one that is not packed at all.
UNPACKING_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


class UnpackingError(DataFileError):
    """A packed file cannot be decompressed."""


def open_packed(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed as its name's end says.

    Raises
    ------
    OSError
        There is no such file, or it may not be read. What is wrong with its content
        shows while reading, as one of :data:`UNPACKING_ERRORS`.
    """
    file: BinaryIO = _OPENERS.get(path.suffix, open)(path, "rb")
    return file


def read_at_most(path: Path, limit: int) -> bytes:
    """Return at most ``limit`` bytes of what a file holds, decompressed.

    Raises
    ------
    UnpackingError
        Its message may quote the first bytes.
    OSError
        As of :func:`open_packed`.
    """
    with open_packed(path) as stream:
        try:
            return stream.read(limit)
        except UNPACKING_ERRORS as error:
            # a disk's error has a number; bz2's and gzip's of a file's content have not
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UnpackingError(f"{path}: cannot be decompressed: {error}") from error
