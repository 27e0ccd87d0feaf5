"""Where an iteration's time goes: local work, encryption, messages, server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, cast

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedtrellis.wire.local_grid
from clients import HybridFedAvgClient, HyFDCAClient, HyFEMClient
from fedtrellis.encryption import Cipher
from fedtrellis.wire.local_grid import LocalGrid
from strategies.hyfdca.mixtures import MixtureSteps

__all__ = ["PARTS", "Clock", "IterationTimes", "SplitGrid", "instrumented"]

#: What the time is split into. ``local``: a client's own computation; ``messages``:
#: making, encoding, decoding and reading them, and clients' state; ``search``: the
#: server's step.
PARTS = ("local", "encrypt", "add", "decrypt", "messages", "search")
ENCRYPTION = ("encrypt", "add", "decrypt")


class Clock:
    """Adds up seconds of this process's work by name.

    Inner calls' time is not their caller's, and other processes' work is nobody's.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._stack: list[str] = []
        self._since = 0.0

    def _lap(self) -> None:
        now = time.process_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside under a name."""
        self._lap()
        self._stack.append(name)
        try:
            yield
        finally:
            self._lap()
            self._stack.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted under a name."""

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return call


def _family(*classes: type) -> list[type]:
    """The classes and their own bases, those of fedtrellis left out; each once."""
    bases = dict.fromkeys(base for kind in classes for base in kind.__mro__)
    return [base for base in bases if base.__module__.startswith("clients.")]


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Have the clients, the ciphers and the server's search tell the clock."""
    fits = [
        (owner, name, "local")
        for owner in _family(HyFDCAClient, HybridFedAvgClient, HyFEMClient)
        for name in vars(owner)
        if name.startswith("fit_") or name == "fit"
    ]
    targets: list[tuple[Any, str, str]] = [
        *fits,
        (Cipher, "encrypt", "encrypt"),
        (Cipher, "decrypt", "decrypt"),
        (Cipher, "add", "add"),
        (fedtrellis.wire.local_grid, "through_bytes", "messages"),
        (MixtureSteps, "_search", "search"),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in targets]
    try:
        for owner, name, part in targets:
            setattr(owner, name, clock.timed(part, vars(owner)[name]))
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


@dataclass
class IterationTimes:
    """One iteration's seconds of processor time.

    Attributes
    ----------
    parts : dict
        By :data:`PARTS`, of all clients one after the other.
    total : float
        The whole iteration; what is in no part counts as messages.
    slowest_computation, slowest_encryption : float
        As if clients worked at the same time: of each wave the slowest client's, and
        the server's.
    """

    parts: dict[str, float]
    total: float
    slowest_computation: float
    slowest_encryption: float

    @property
    def encryption(self) -> float:
        """Encrypting, adding and decrypting."""
        return sum(self.parts[name] for name in ENCRYPTION)

    @property
    def messages(self) -> float:
        """All that is neither computation nor encryption."""
        return self.total - self.encryption - self.parts["local"] - self.parts["search"]


@dataclass
class _Wave:
    computation: list[float] = field(default_factory=list)
    encryption: list[float] = field(default_factory=list)
    inside: float = 0.0


class SplitGrid(LocalGrid):
    """A grid that notes, for each wave, what each client's message took."""

    def __init__(
        self, app: ClientApp, num_nodes: int, clock: Clock, **options: Any
    ) -> None:
        super().__init__(app, num_nodes, **options)
        self.clock = clock
        self.waves: list[_Wave] = []
        self._since = time.process_time()
        self._app = app
        self.client_app = cast(ClientApp, self._handle)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Begin a wave."""
        self.waves.append(_Wave())
        began = time.process_time()
        ids = super().push_messages(messages)
        self.waves[-1].inside = time.process_time() - began
        return ids

    def _handle(self, message: Message, context: Context) -> Message:
        before = dict(self.clock.seconds)
        began = time.process_time()
        with self.clock.part("messages"):
            reply = self._app(message, context)
        passed = time.process_time() - began
        after = self.clock.seconds
        secret = sum(after[name] - before[name] for name in ENCRYPTION)
        self.waves[-1].encryption.append(secret)
        self.waves[-1].computation.append(passed - secret)
        return reply

    def take(self, before: Mapping[str, float]) -> IterationTimes:
        """An iteration's times, from what the clock said before it; begins the next.

        The first has all that came before it, too.
        """
        now = time.process_time()
        total, self._since = now - self._since, now
        parts = {name: self.clock.seconds[name] - before[name] for name in PARTS}
        waves = [wave for wave in self.waves if wave.computation]
        adding = parts["add"]
        inside = sum(wave.inside for wave in self.waves)
        server = max(total - inside - adding, 0.0)
        result = IterationTimes(
            parts,
            total,
            server + sum(max(wave.computation) for wave in waves),
            adding + sum(max(wave.encryption) for wave in waves),
        )
        self.waves.clear()
        return result
