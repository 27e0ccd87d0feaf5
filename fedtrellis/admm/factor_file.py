"""A private file that keeps what is costly to compute from a client's data.

On a node where every message is a process of its own nothing stays in memory between
rounds. The file holds up to three entries, a Lipschitz constant, a diagonal above the
Hessian and one factor, each with a fingerprint of all that it was computed from: one
that does not match is as good as none. Only its owner can read it, because a factor
reveals the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives.checks import is_sparse

__all__ = ["FactorFile", "fingerprint"]

_LOGGER = getLogger("flwr")  # Flower's, by its name: this lies below the wire
_FORMAT = 2
_FINGERPRINT = "fingerprint"
# What reading a truncated, damaged or foreign file may raise.
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def fingerprint(kind: str, data: Any, *numbers: Any) -> bytes:
    """Return a hash of a matrix and of what else a result depends on.

    Parameters
    ----------
    kind : str
        What is computed.
    data : ndarray or scipy.sparse.csr_array
        All its bytes, shapes and dtypes count.
    *numbers : float or ndarray of float64

    Returns
    -------
    bytes
        32 bytes, equal in every process.
    """
    parts = [data.data, data.indices, data.indptr] if is_sparse(data) else [data]
    parts += [np.asarray(number, dtype=np.float64) for number in numbers]
    arrays = [np.ascontiguousarray(part) for part in parts]
    header = (
        _FORMAT,
        kind,
        tuple(map(int, data.shape)),
        [
            (array.dtype.str, np.shape(part))
            for array, part in zip(arrays, parts, strict=True)
        ],
    )
    digest = hashlib.blake2b(repr(header).encode(), digest_size=32)
    for array in arrays:
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


class FactorFile:
    """The file of one client; see the module.

    Parameters
    ----------
    path : str or None
        An ``.npz`` file, made where there is none, in a folder that there is. None or
        empty: nothing is kept.

    Raises
    ------
    ValueError
        The path is not a text, its folder does not exist, or it is a folder.
    """

    def __init__(self, path: str | None) -> None:
        self._name = path
        if path is None or path == "":
            return
        if not isinstance(path, str):
            raise ValueError(f"factor-file = {path!r} must be the path of a file")
        self._path = Path(path).expanduser()
        if not self._path.parent.is_dir():
            raise ValueError(f"factor-file = {path!r}: its folder does not exist")
        if self._path.is_dir():
            raise ValueError(f"factor-file = {path!r} is a folder; it must be a file")

    def get(
        self,
        entry: str,
        compute: Callable[[], Mapping[str, Any]],
        kind: str,
        data: Any,
        *numbers: Any,
    ) -> Mapping[str, Any]:
        """Return the arrays of an entry, computed and kept where they are not there.

        Parameters
        ----------
        entry : str
            ``"lipschitz"``, ``"majoriser"`` or ``"factor"``.
        compute : callable
            Returns the arrays by name.
        kind, data, *numbers
            All that they depend on, as :func:`fingerprint` takes it.

        Raises
        ------
        ValueError
            The file cannot be written.
        """
        if not self._name:
            return compute()
        key = fingerprint(kind, data, *numbers)
        try:
            arrays = self._read(entry)
            if arrays.pop(_FINGERPRINT).tobytes() == key:
                return arrays
            reason = "is of other data or settings"
        except FileNotFoundError:
            reason = "is not there"
        except _UNREADABLE as error:
            reason = f"cannot be read ({type(error).__name__}: {error})"
        _LOGGER.info(
            "factor-file %r: the %s %s, computing it", self._name, entry, reason
        )
        computed = {name: np.asarray(array) for name, array in compute().items()}
        mark = np.frombuffer(key, dtype=np.uint8)
        self._write(entry, {**computed, _FINGERPRINT: mark})
        return computed

    def _read(self, entry: str) -> dict[str, Any]:
        """Return the arrays of an entry; other entries are not read."""
        prefix = entry + "/"
        with np.load(self._path, allow_pickle=False) as file:
            if prefix + _FINGERPRINT not in file.files:
                raise FileNotFoundError(entry)
            return {
                name.removeprefix(prefix): file[name]
                for name in file.files
                if name.startswith(prefix)
            }

    def _write(self, entry: str, arrays: Mapping[str, Any]) -> None:
        entries = {entry: arrays}
        for other in {"lipschitz", "majoriser", "factor"} - {entry}:
            with contextlib.suppress(*_UNREADABLE):
                entries[other] = self._read(other)
        flat = {f"{e}/{n}": a for e, part in entries.items() for n, a in part.items()}
        temporary = None
        try:
            # mkstemp makes a file that only its owner can read or write (mode 0600)
            handle, temporary = tempfile.mkstemp(
                dir=self._path.parent, prefix=self._path.name, suffix=".tmp"
            )
            with os.fdopen(handle, "wb") as file:
                save: Any = np.savez
                save(file, **flat)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            why = error.strerror or str(error)
            raise ValueError(
                f"factor-file = {self._name!r} cannot be written: {why}"
            ) from error
