"""A grid's nodes in processes of their own, a share of them in each.

A node's state stays with its process. The processes are copies of this one (they are
forked), so a ``client_fn`` may be any function, and what it has loaded is there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtrellis.settings import SettingsError
from fedtrellis.signals import deferred
from fedtrellis.wire.handling import Wave
from fedtrellis.wire.nodes import Delivery, Nodes

__all__ = ["Workers"]

# Seconds that a worker is given to end by itself, once its pipe is closed.
_PATIENCE = 5.0


class Workers:
    """Handles messages as :class:`~fedtrellis.wire.nodes.Nodes` does, in processes.

    Parameters
    ----------
    app : ClientApp
    contexts : mapping
        By node id; node number i goes to process i modulo ``count``, with the state
        that it has now.
    batched : bool
    count : int
        Processes.

    Raises
    ------
    SettingsError
        This system cannot fork.
    """

    def __init__(
        self, app: ClientApp, contexts: Mapping[int, Context], batched: bool, count: int
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                f"workers = {count} needs a system where processes can be forked, such "
                "as Linux; allowed here: 1"
            )
        self.app = app
        fork = multiprocessing.get_context("fork")
        self._stop = fork.Event()
        self._homes: dict[int, int] = {}
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ids = list(contexts)[number::count]
            self._homes |= dict.fromkeys(ids, number)
            nodes = Nodes(app, {i: contexts[i] for i in ids}, batched)
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

    def answer(self, deliveries: Sequence[Delivery], wave: Wave) -> list[Message | str]:
        """As :meth:`~fedtrellis.wire.nodes.Nodes.answer`; each process has its wave.

        An interruption lets each process finish the message that it has in hand, so
        that the nodes' states are whole.

        Raises
        ------
        RuntimeError
            A process has ended.
        """
        shares: dict[int, list[int]] = {}
        for index, delivery in enumerate(deliveries):
            home = self._homes[delivery.message.metadata.dst_node_id]
            shares.setdefault(home, []).append(index)
        found = self._ask(
            {
                home: ("answer", [deliveries[index] for index in indices])
                for home, indices in shares.items()
            }
        )
        answers = {
            index: answer
            for home, indices in shares.items()
            for index, answer in zip(indices, found[home], strict=True)
        }
        return [answers[index] for index in range(len(deliveries))]

    def states(self) -> dict[str, bytes]:
        """Every node's state as bytes, by client identity."""
        found = self._ask(dict.fromkeys(range(len(self._pipes)), ("states",)))
        return {
            name: state for share in found.values() for name, state in share.items()
        }

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`."""
        self._ask(dict.fromkeys(range(len(self._pipes)), ("load", dict(states))))

    def _ask(self, orders: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Send an order to each of some processes, and wait for what they return."""
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
    nodes: Nodes,
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
            if what == "answer":
                result: Any = nodes.answer(given[0], Wave(), stopped)
            else:
                result = getattr(nodes, what)(*given)
            pipe.send(("", result))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))
