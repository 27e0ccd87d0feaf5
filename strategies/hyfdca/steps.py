"""What both kinds of iteration of HyFDCA are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption import Cipher
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import Blobs, add_shares

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["Steps", "as_array", "proposal_kinds", "read_blobs", "split_blobs"]


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

    def __init__(self, strategy: HyFDCA) -> None:
        self.strategy = strategy
        self.alignment = strategy.alignment

    @abstractmethod
    def iterate(
        self,
        conversation: Conversation,
        server_round: int,
        extra: Mapping[str, Any],
        available: Sequence[str],
        timeout: float,
    ) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""

    @abstractmethod
    def restored(self, client: str) -> None:
        """Hear that a client has no state any more."""

    @abstractmethod
    def reached(self) -> Any:
        """Something that differs whenever anything has come closer to a move."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[Any]]:
        """All that the next iteration needs, as arrays, for a checkpoint."""

    @abstractmethod
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""

    # ------------------------------------------------------------------------- helpers

    def _begin(
        self,
        conversation: Conversation,
        server_round: int,
        extra: Mapping[str, Any],
        timeout: float,
    ) -> None:
        """Note down what all waves of an iteration have in common."""
        self._wave = (conversation, server_round, timeout)
        self._extra = {**extra, **self.strategy.phase_config()}
        self.primals = self.duals = None

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
        conversation.note_used(client, server_round)

    def _shared_groups(self, client: str) -> list[int]:
        groups = self.alignment.groups
        return [g for g in self.alignment.client_groups(client) if groups[g].shared]

    @property
    def _cipher(self) -> Cipher:
        assert self.strategy.cipher is not None
        return self.strategy.cipher

    def _blocks(self, g: int) -> int:
        """Number of ciphertexts of C numbers for each of a group's samples."""
        count = self.strategy.classes * self.alignment.groups[g].size
        return self._cipher.blocks(count)

    def _add(self, shares: Mapping[str, Blobs]) -> tuple[Blobs | None, set[str]]:
        """The sum of shares; or None, and whose are to be had again."""
        total, spoilt = add_shares(self._cipher, shares)
        for name, why in spoilt.items():
            self.strategy.conversation.reject(name, why)
        return total, set(spoilt)


def proposal_kinds(strategy: HyFDCA, shared: bool) -> list[str]:
    """What clients propose for a group, in order."""
    # the Poisson loss's dual point has no bound: e^z of a w that is far off
    bounded = strategy.loss != "poisson"
    kind = "dual-point" if bounded and not strategy.secure_sum else "proximal"
    kinds = [kind if strategy.step == "bundle" else "coordinate"]
    if not shared and strategy.local_passes:
        beside = strategy.step == "bundle"
        kinds = [*kinds, "passes"] if beside else ["passes"]
    return kinds


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
    parts, start = [], 0
    for count in counts:
        parts.append(blobs[start : start + count])
        start += count
    return parts


def as_array(data: bytes) -> NDArray[np.uint8]:
    """Bytes as an array, for a checkpoint."""
    return np.frombuffer(data, dtype=np.uint8)
