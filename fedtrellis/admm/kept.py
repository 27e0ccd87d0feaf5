"""What is costly to make of an objective, or of data, made once while that is alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
        try:
            made = self._entries[id(owner)][key]
        except KeyError:
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
