"""The nodes of a grid spread over processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing import connection
from threading import Thread
from typing import Any

from fedtrellis.settings import SettingsError
from fedtrellis.signals import deferred

# Seconds that a worker is given to end by itself.
_PATIENCE = 5.0


class Workers:
    """Nodes in processes, where their states stay: a pool of one for each share.

    The processes are copies of this one (they are forked), so a ``client_fn`` may be
    any function, and what it has loaded is there. Each of ``shares`` is a ``Nodes``,
    with the states that they have now. SettingsError: this system cannot fork.
    """

    def __init__(self, shares: Iterable[Any]) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                f"workers = {len(list(shares))} needs a system that forks; allowed: 1"
            )
        fork = multiprocessing.get_context("fork")
        self._stop = fork.Event()
        self._homes: dict[int, int] = {}
        self._pools: list[ProcessPoolExecutor] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for number, nodes in enumerate(shares):
            self.app = nodes.app
            self._homes |= dict.fromkeys(nodes.contexts, number)
            pool = ProcessPoolExecutor(1, fork, _start, (nodes, self._stop.is_set))
            self._pools.append(pool)
            pid = pool.submit(os.getpid).result()
            children = multiprocessing.active_children()
            self._processes += [child for child in children if child.pid == pid]

    def ask(
        self, asked: Sequence[tuple[int, Any]], paces: Mapping[int, tuple[float, int]]
    ) -> list[Any]:
        """As ``Nodes.ask``, where each process does its share."""
        shares: dict[int, list[Any]] = {}
        for node_id, request in asked:
            shares.setdefault(self._homes[node_id], []).append((node_id, request))
        found = self._ask({h: ("ask", share, paces) for h, share in shares.items()})
        answers = {home: iter(replies) for home, replies in found.items()}
        return [next(answers[self._homes[node_id]]) for node_id, _ in asked]

    def states(self, names: Collection[str] | None = None) -> dict[str, bytes]:
        """As ``Nodes.states``."""
        found = self._ask(dict.fromkeys(range(len(self._pools)), ("states", names)))
        return {name: share[name] for share in found.values() for name in share}

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`."""
        self._ask(dict.fromkeys(range(len(self._pools)), ("load", dict(states))))

    def _ask(self, orders: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """What processes return for an order to each; RuntimeError: one has ended."""
        futures: dict[int, Future[Any]] = {}
        try:
            with deferred():
                for number, order in orders.items():
                    futures[number] = self._pools[number].submit(_do, *order)
            return {number: future.result() for number, future in futures.items()}
        except BrokenExecutor:
            self.close()
            codes = [process.exitcode for process in self._processes]
            ended = ", ".join(str(code) for code in codes if code)
            raise RuntimeError(
                f"a worker ended with exit code {ended}, and its nodes' states with "
                "it; a checkpoint has those of its round"
            ) from None
        except BaseException:
            # each finishes its request, so that the nodes' states are whole
            self._stop.set()
            try:
                wait(futures.values())
            finally:
                self._stop.clear()
            raise

    def close(self) -> None:
        """End the processes; their nodes' states go with them."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            if not connection.wait([process.sentinel], _PATIENCE):
                process.kill()
            process.join()


# ------------------------------------------------------------- within such a process

_nodes: Any


def _start(nodes: Any, stopped: Callable[[], bool]) -> None:
    global _nodes
    _nodes, nodes.stopped = nodes, stopped
    # a signal is for the process that all belongs to, which then ends this one
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Let this process end once the one that started it has, even if that is killed."""
    parent: Any = multiprocessing.parent_process()
    # it is joined without a limit of time, and without an exception
    watch = Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True)
    watch.start()


def _do(what: str, *given: Any) -> Any:
    return getattr(_nodes, what)(*given)
