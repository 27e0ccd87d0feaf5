"""What is computed from an object, kept in this process for as long as that lives."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["KeptFor"]

T = TypeVar("T")


class KeptFor(Generic[T]):
    """The values used last of every object, by its identity: it needs no hash.

    An object that cannot be weakly referenced has none. A value must not refer to its
    object, which it would keep alive.

    Parameters
    ----------
    most : int
        Values that are kept of an object.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[int, tuple[weakref.ref[Any], OrderedDict[Any, T]]] = {}
        # Re-entrant: collecting garbage may drop an entry in a thread that holds it.
        self._lock = threading.RLock()

    def get(
        self,
        owner: Any,
        key: Any,
        make: Callable[[], T],
        worth: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return the object's value of a key; it is made, and kept if ``worth`` it."""
        with self._lock:
            values = self._find(owner)
            if values is not None and key in values:
                values.move_to_end(key)
                return values[key]
        # Other threads go on meanwhile; two that ask for the same one may both make it.
        made = make()
        if not worth(made):
            return made
        with self._lock:
            values = self._find(owner)
            if values is None:
                number, values = id(owner), OrderedDict()
                try:
                    reference = weakref.ref(owner, lambda r: self._drop(number, r))
                except TypeError:
                    return made
                self._entries[number] = reference, values
            made = values.setdefault(key, made)
            values.move_to_end(key)
            while len(values) > self._most:
                values.popitem(last=False)
            return made

    def _find(self, owner: Any) -> OrderedDict[Any, T] | None:
        entry = self._entries.get(id(owner))
        # the number may have been that of an object whose entry is still to be dropped
        return entry[1] if entry is not None and entry[0]() is owner else None

    def _drop(self, number: int, reference: weakref.ref[Any]) -> None:
        with self._lock:
            # the number may be another object's by now
            if number in self._entries and self._entries[number][0] is reference:
                del self._entries[number]
