"""The nodes of a grid spread over processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from fedtrellis.settings import SettingsError
from fedtrellis.signals import deferred

__all__ = ["Workers"]

# Seconds that a worker is given to end by itself, once its pipe is closed.
_PATIENCE = 5.0


class Workers:
    """Nodes in processes, where their states stay.

    The processes are copies of this one (they are forked), so a ``client_fn`` may be
    any function, and what it has loaded is there. Each of ``shares`` is a ``Nodes``,
    with the states that they have now. SettingsError: this system cannot fork.
    """

    def __init__(self, shares: Iterable[Any]) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                f"workers = {len(list(shares))} needs a system where processes can be "
                "forked, such as Linux; allowed here: 1"
            )
        fork = multiprocessing.get_context("fork")
        self._stop = fork.Event()
        self._homes: dict[int, int] = {}
        self._pipes: list[Connection] = []
        self._processes = []
        for number, nodes in enumerate(shares):
            self.app = nodes.app
            self._homes |= dict.fromkeys(nodes.contexts, number)
            ours, theirs = fork.Pipe()
            self._pipes.append(ours)
            process = fork.Process(
                target=_serve,
                args=(nodes, theirs, list(self._pipes), self._stop.is_set),
                name=f"fedtrellis-worker-{number}",
                daemon=True,
            )
            process.start()
            self._processes.append(process)
            theirs.close()

    def ask(self, asked: Sequence[tuple[int, Any]]) -> list[Any]:
        """As ``Nodes.ask``."""
        return self._share("ask", asked, [node_id for node_id, _ in asked])

    def answer(self, deliveries: Sequence[Any]) -> list[Any]:
        """As ``Nodes.answer``."""
        ids = [delivery.message.metadata.dst_node_id for delivery in deliveries]
        return self._share("answer", deliveries, ids)

    def _share(self, what: str, given: Sequence[Any], ids: Sequence[int]) -> list[Any]:
        """Let each process do its share."""
        shares: dict[int, list[Any]] = {}
        homes = [self._homes[node_id] for node_id in ids]
        for home, one in zip(homes, given, strict=True):
            shares.setdefault(home, []).append(one)
        found = self._ask({home: (what, share) for home, share in shares.items()})
        answers = {home: iter(replies) for home, replies in found.items()}
        return [next(answers[home]) for home in homes]

    def states(self) -> dict[str, bytes]:
        """Every node's state as bytes, by client identity."""
        found = self._ask(dict.fromkeys(range(len(self._pipes)), ("states",)))
        return {name: share[name] for share in found.values() for name in share}

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`."""
        self._ask(dict.fromkeys(range(len(self._pipes)), ("load", dict(states))))

    def _ask(self, orders: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Send an order to each of some processes, and wait for what they return.

        An interruption lets each finish the request that it has in hand, so that the
        nodes' states are whole. RuntimeError: a process has ended.
        """
        waiting: dict[Connection, int] = {}
        results: dict[int, Any] = {}
        try:
            with deferred():  # half a message would be the end of a pipe
                for number, order in orders.items():
                    self._send(number, order)
                    waiting[self._pipes[number]] = number
            self._collect(waiting, results)
        except RuntimeError:
            self.close()
            raise
        except BaseException:
            self._stop.set()
            try:
                # what is on its way would be taken for the answer to something else
                self._collect(waiting, results)
                self._stop.clear()
            except BaseException:
                self.close()
                raise
            raise
        return results

    def _send(self, number: int, order: tuple[Any, ...]) -> None:
        try:
            self._pipes[number].send(order)
        except OSError:
            raise self._ended(number) from None

    def _collect(self, waiting: dict[Connection, int], results: dict[int, Any]) -> None:
        while waiting:
            for pipe in wait(list(waiting)):
                assert isinstance(pipe, Connection)
                number = waiting[pipe]
                with deferred():
                    try:
                        problem, result = pipe.recv()
                    except (EOFError, OSError):
                        raise self._ended(number) from None
                    del waiting[pipe]
                if problem:
                    who = f"worker {number} of {len(self._pipes)}"
                    raise RuntimeError(f"{who} failed: {problem}")
                results[number] = result

    def _ended(self, number: int) -> RuntimeError:
        process = self._processes[number]
        process.join(_PATIENCE)
        return RuntimeError(
            f"worker {number} of {len(self._pipes)} ended with exit code "
            f"{process.exitcode}, and its nodes' states with it; a checkpoint has "
            "those of its round"
        )

    def close(self) -> None:
        """End the processes; their nodes' states go with them."""
        for pipe in self._pipes:
            # a process that was forked since holds the pipe open, too
            with suppress(OSError), pipe:
                pipe.send(("end",))
        for process in self._processes:
            process.join(_PATIENCE)
            if process.exitcode is None:
                process.kill()
                process.join()


def _serve(
    nodes: Any,
    pipe: Connection,
    others: Sequence[Connection],
    stopped: Callable[[], bool],
) -> None:
    """What a process does until its pipe is closed."""
    # a signal is for the process that all belongs to, which then ends this one
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for other in others:  # or nobody would ever see that pipe closed
        other.close()
    parent = os.getppid()
    while True:
        try:
            while not pipe.poll(_PATIENCE):
                if os.getppid() != parent:  # it was killed
                    return
            what, *given = pipe.recv()
        except (EOFError, OSError):
            return
        if what == "end":
            return
        try:
            if what in ("ask", "answer"):
                given.append(stopped)
            result = getattr(nodes, what)(*given)
            pipe.send(("", result))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))
