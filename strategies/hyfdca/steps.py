"""What both kinds of iteration of HyFDCA are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment
from fedtrellis.encryption import Cipher, EncryptionError
from fedtrellis.encryption.block_sum import total_of
from fedtrellis.encryption.fixed_point import Words
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import Blobs
from .settings import HyFDCASettings

__all__ = [
    "Steps",
    "add_shares",
    "blobs_of",
    "pack",
    "read_blobs",
    "split_blobs",
    "total_over",
    "unpack",
]

State = dict[str, NDArray[Any]]


class Steps(ABC):
    """The server's side of an iteration.

    Attributes
    ----------
    w : ndarray of shape (p,) or (C, p)
        The weights, of C classes a row each.
    certified : ndarray of shape (p,) or (C, p)
        The weights that the last ``primal`` among the metrics is of.
    primals, duals : ndarray of shape (C,) or None
        P of each class's certified weights, and D, of this iteration; None: not known.
    lag : int
        How many moves they were behind ``w`` when that iteration began.
    """

    w: FloatArray
    certified: FloatArray
    primals: FloatArray | None = None
    duals: FloatArray | None = None
    lag: int = 0

    def __init__(self, strategy: HyFDCASettings) -> None:
        self.strategy = strategy
        self.alignment = strategy.alignment

    def iterate(
        self,
        conversation: Conversation,
        server_round: int,
        extra: Mapping[str, Any],
        available: Sequence[str],
        timeout: float,
    ) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""
        # what all of its waves have in common
        self._wave = (conversation, server_round, timeout)
        self._extra = {**extra, **self.strategy.phase_config()}
        self.primals = self.duals = None
        return self._iterate(available)

    @abstractmethod
    def _iterate(self, available: Sequence[str]) -> tuple[set[str], dict[str, float]]:
        """The waves of an iteration."""

    @abstractmethod
    def restored(self, client: str) -> None:
        """Hear that a client has no state any more."""

    @abstractmethod
    def reached(self) -> Any:
        """Something that differs whenever anything has come closer to a move."""

    @abstractmethod
    def state(self) -> State:
        """All that the next iteration needs, as arrays, for a checkpoint."""

    @abstractmethod
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""

    # ------------------------------------------------------------------------- helpers

    def _ask(
        self,
        kind: str,
        entries: Callable[[str], Mapping[str, Any]],
        clients: Sequence[str],
        take: Callable[[Answer], None],
        attempts: int | None = None,
    ) -> set[str]:
        conversation, server_round, timeout = self._wave
        return self.strategy.ask(
            conversation, server_round, kind, entries, clients, take, timeout, attempts
        )

    def _used(self, client: str) -> None:
        """An answer was used that changes the client's state."""
        conversation, server_round, _ = self._wave
        conversation.note_used(server_round, client)

    def _shared_groups(self, client: str) -> list[int]:
        groups = self.alignment.groups
        return [g for g in self.alignment.client_groups(client) if groups[g].shared]

    def _read(
        self, arrays: Sequence[NDArray[Any]], groups: Sequence[int]
    ) -> list[Blobs]:
        """An answer's ciphertexts, of C numbers for each of some groups' samples."""
        cipher, C = self.strategy.cipher, self.strategy.classes
        counts = [cipher.blocks(C * self.alignment.groups[g].size) for g in groups]
        return split_blobs(read_blobs(arrays), counts)

    def _add(self, shares: Mapping[str, Blobs]) -> tuple[Blobs | None, set[str]]:
        """The sum of shares; or None, and whose are to be had again."""
        total, spoilt = add_shares(self.strategy.cipher, shares)
        for name, why in spoilt.items():
            self.strategy.conversation.reject(name, why)
        return total, set(spoilt)


def add_shares(
    cipher: Cipher, shares: Mapping[str, Blobs]
) -> tuple[Blobs | None, dict[str, str]]:
    """Add several clients' ciphertexts, or say whose cannot be added, and why.

    Returns the sum; or None, and by client why its share has to be had again.
    """
    try:
        return cipher.add(list(shares.values())), {}
    except EncryptionError as error:
        spoilt = {}
        for name, blobs in shares.items():
            try:
                cipher.add([blobs])
            except EncryptionError as own:
                spoilt[name] = str(own)
        # each is good by itself, and together they are not: all over again
        return None, spoilt or dict.fromkeys(shares, str(error))


def read_blobs(arrays: Sequence[NDArray[Any]]) -> Blobs:
    """Ciphertexts from an answer's arrays; ValueError if they are none."""
    for array in arrays:
        if array.dtype != np.uint8 or array.ndim != 1:
            raise ValueError("the answer has arrays that are no ciphertexts")
    return [array.tobytes() for array in arrays]


def split_blobs(blobs: Blobs, counts: Sequence[int]) -> list[Blobs]:
    """Cut a list into lists of the given lengths; ValueError if they do not fit."""
    if len(blobs) != sum(counts):
        raise ValueError(
            f"the answer has {len(blobs)} ciphertexts, expected {sum(counts)}"
        )
    stops = np.cumsum([0, *counts]).tolist()
    return [blobs[start:stop] for start, stop in pairwise(stops)]


def total_over(
    alignment: Alignment, terms: Mapping[str, Words], rows: int
) -> tuple[Words, Words]:
    """Add up what all clients have hidden; ValueError where the masks do not cancel.

    Returns the sums of each feature's words, shape (rows, p), and of those after them.
    """
    p, places = len(alignment.feature_names), []
    for name, own in terms.items():
        columns = alignment.columns[name]
        ends = len(own) - 1 - rows * len(columns)
        where = p * np.arange(rows)[:, None] + columns
        places.append(np.append(where.reshape(-1), rows * p + np.arange(ends)))
    total = total_of(list(terms.values()), len(terms), places, rows * p + ends)
    return total[: rows * p].reshape(rows, p), total[rows * p :]


def pack(tree: Mapping[Any, Any], prefix: str = "") -> State:
    """Mappings and lists of arrays, numbers, texts and bytes as arrays by path.

    None, and what has nothing in it, is left out.
    """
    flat: State = {}
    for key, leaf in tree.items():
        path = f"{prefix}{key}"
        if isinstance(leaf, Mapping):
            flat |= pack(leaf, f"{path}/")
        elif isinstance(leaf, list):
            flat |= pack(dict(enumerate(leaf)), f"{path}/")
        elif isinstance(leaf, bytes):
            flat[path] = np.frombuffer(leaf, dtype=np.uint8)
        elif leaf is not None:
            flat[path] = np.asarray(leaf)
    return flat


def unpack(flat: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Inverse of :func:`pack`: mappings, with arrays at the ends."""
    tree: dict[str, Any] = {}
    for path, array in flat.items():
        *above, last = path.split("/")
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = array
    return tree


def blobs_of(tree: Mapping[str, NDArray[Any]]) -> Blobs:
    """A list of bytes, unpacked."""
    return [tree[str(i)].tobytes() for i in range(len(tree))]
