"""Files that may be packed, as the ends of their names say, and zip archives of one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from .table import fault

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}

#: What reading a damaged packed file may raise, or one that is not packed at all;
#: RuntimeError is how zipfile asks for a password.
UNPACKING_ERRORS = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError),
)


def open_packed(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed as its name's end says.

    Of a zip archive, whatever its name, the one csv file in it. What is wrong with the
    content shows while reading, as one of :data:`UNPACKING_ERRORS`.
    """
    if not zipfile.is_zipfile(path):
        return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if name.lower().endswith(".csv")]
    if len(names) != 1:
        fault(path, f"the archive has {len(names)} csv files; it must have exactly one")
    return cast(BinaryIO, archive.open(names[0]))


def read_at_most(path: Path, limit: int) -> bytes:
    """Return at most ``limit`` bytes of what a file holds, decompressed."""
    with open_packed(path) as stream:
        try:
            return stream.read(limit)
        except UNPACKING_ERRORS as error:
            # a disk's error has a number; bz2's and gzip's of a file's content have not
            if isinstance(error, OSError) and error.errno is not None:
                raise
    fault(path, "cannot be decompressed")


def load_arrays(path: Path, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` archive, all or those of some names.

    One with Python objects is refused.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = [name for name in archive.files if not wanted or name in wanted]
            return {name: archive[name] for name in names}
    except (ValueError, AttributeError, TypeError, *UNPACKING_ERRORS):
        pass
    fault(path, "cannot be read as an archive of arrays of numbers and texts")
