"""What is costly to compute from a client's data: kept in this process, or in a file.

On a node where every message is a process of its own nothing stays in memory between
rounds. The file holds up to three entries, a Lipschitz constant, a diagonal above the
Hessian and one factor, each with a fingerprint of all that it was computed from: one
that does not match is as good as none. Only its owner can read it, because a factor
reveals the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from fedtrellis.files import replacing
from fedtrellis.objectives.base import is_sparse

__all__ = ["FactorFile", "KeptFor", "fingerprint"]

T = TypeVar("T")

_LOGGER = getLogger("flwr")  # Flower's, by its name: this lies below the wire
_FORMAT = 3
_FINGERPRINT = "fingerprint"
# What reading a truncated, damaged or foreign file may raise.
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class KeptFor(Generic[T]):
    """The values used last of every object that is alive, by its identity.

    ``most`` values of an object are kept, none of one that cannot be weakly referenced.
    A value must not refer to its object, which it would keep alive.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[int, dict[Any, T]] = {}
        self._lock = threading.Lock()

    def get(
        self,
        owner: Any,
        key: Any,
        make: Callable[[], T],
        worth: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return the object's value of a key; it is made, and kept if ``worth`` it."""
        made = self._entries.get(id(owner), {}).get(key)
        if made is None:
            # Other threads go on meanwhile; two may both make the same one.
            made = make()
            if not worth(made):
                return made
        with self._lock:
            if id(owner) not in self._entries:
                try:
                    weakref.finalize(owner, self._entries.pop, id(owner), None)
                except TypeError:
                    return made
            values = self._entries.setdefault(id(owner), {})
            # the last used stands last
            made = values[key] = values.pop(key, made)
            if len(values) > self._most:
                del values[next(iter(values))]
            return made


def fingerprint(kind: str, data: Any, *numbers: Any) -> bytes:
    """Return 32 bytes, the same in every process, for all that a result depends on.

    What is computed (``kind``); the bytes, shape and dtype of a dense or CSR matrix;
    and numbers, or arrays of float64.
    """
    parts = [data.data, data.indices, data.indptr] if is_sparse(data) else [data]
    parts += [np.asarray(number, dtype=np.float64) for number in numbers]
    shapes = [np.shape(part) for part in (data, *parts)]
    header = _FORMAT, kind, [tuple(map(int, shape)) for shape in shapes]
    digest = hashlib.blake2b(repr(header).encode(), digest_size=32)
    for part in parts:
        array = np.ascontiguousarray(part)
        digest.update(array.dtype.str.encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


class FactorFile:
    """The file of one client, an ``.npz``; None or an empty path: nothing is kept.

    It is made where there is none; ValueError where it cannot be.
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
        """Return the arrays of an entry by name, computed and kept where need be.

        ``"lipschitz"``, ``"majoriser"`` or ``"factor"``; kind, data and numbers are all
        that the arrays depend on, as :func:`fingerprint` takes it.
        """
        if not self._name:
            return compute()
        key = fingerprint(kind, data, *numbers)
        prefix, mark = entry + "/", entry + "/" + _FINGERPRINT
        try:
            arrays = self._read(lambda name: name.startswith(prefix))
            if mark not in arrays:
                reason = "is not there"
            elif arrays.pop(mark).tobytes() == key:
                return {name.removeprefix(prefix): a for name, a in arrays.items()}
            else:
                reason = "is of other data or settings"
        except FileNotFoundError:
            reason = "is not there"
        except _UNREADABLE as error:
            reason = f"cannot be read ({type(error).__name__}: {error})"
        _LOGGER.info(
            "factor-file %r: the %s %s, computing it", self._name, entry, reason
        )
        computed = {name: np.asarray(array) for name, array in compute().items()}
        arrays = {prefix + name: array for name, array in computed.items()}
        arrays[mark] = np.frombuffer(key, dtype=np.uint8)
        with contextlib.suppress(*_UNREADABLE):
            arrays |= self._read(lambda name: not name.startswith(prefix))
        self._write(arrays)
        return computed

    def _read(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        with np.load(self._path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if wanted(name)}

    def _write(self, arrays: Mapping[str, Any]) -> None:
        save: Any = np.savez
        try:
            with replacing(self._path, private=True) as file:
                save(file, **arrays)
        except OSError as error:
            why = error.strerror or str(error)
            raise ValueError(
                f"factor-file = {self._name!r} cannot be written: {why}"
            ) from error
