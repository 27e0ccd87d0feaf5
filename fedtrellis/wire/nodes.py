"""The nodes of a grid in this process, or spread over processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtrellis.settings import SettingsError
from fedtrellis.signals import deferred
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.client import MethodApp, Serving, serve, serve_together
from fedtrellis.wire.flower_internals import (
    records_from_bytes,
    records_to_bytes,
    reply_to,
)
from fedtrellis.wire.protocol import NodeReply, NodeRequest, client_identity

__all__ = ["Delivery", "Nodes", "Workers"]

# Seconds that a worker is given to end by itself, once its pipe is closed.
_PATIENCE = 5.0


@dataclass
class Delivery:
    """A message for a node, and what happens to the node's state with it.

    Attributes
    ----------
    message : Message
    wiped : bool
        Whether the node has lost its state before.
    forgotten : bool
        Whether it does not keep the new one.
    """

    message: Message
    wiped: bool = False
    forgotten: bool = False


def _never() -> bool:
    return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Nodes:
    """Some of a grid's nodes.

    Parameters
    ----------
    app : ClientApp
        Handles the messages to all of them.
    contexts : mapping
        By node id.
    batched : bool
        Whether clients that are asked together take their steps side by side.
    """

    def __init__(
        self, app: ClientApp, contexts: Mapping[int, Context], batched: bool
    ) -> None:
        self.app, self.contexts, self.batched = app, contexts, batched

    def ask(
        self,
        asked: Sequence[tuple[int, NodeRequest]],
        stopped: Callable[[], bool] = _never,
    ) -> list[NodeReply | str]:
        """The replies of nodes to requests, or why there is none, in their order.

        Parameters
        ----------
        asked : sequence of (int, NodeRequest)
            At most one to a node. Of a ``MethodApp``, and for one of its functions.
        stopped : callable
            Asked before each: whether the rest is not to be handled any more.
        """
        app = self.app
        assert isinstance(app, MethodApp)
        received: dict[Any, ReceivedModel] = {}
        servings = [
            Serving(
                app.node,
                app.functions[request.kind],
                request,
                self.contexts[node_id],
                received,
            )
            for node_id, request in asked
        ]
        replies: list[Any] = [None] * len(servings)
        if self.batched and not stopped():
            serve_together(servings, replies)
        else:
            for place, serving in enumerate(servings):
                replies[place] = (
                    InterruptedError("the wave was given up")
                    if stopped()
                    else serve(serving)
                )
        return [
            _reason(reply) if isinstance(reply, Exception) else reply
            for reply in replies
        ]

    def answer(
        self, deliveries: Sequence[Delivery], stopped: Callable[[], bool] = _never
    ) -> list[Message | str]:
        """The replies to messages, or why there is none, in their order.

        Parameters
        ----------
        deliveries : sequence of Delivery
            At most one to a node.
        stopped : callable
            As :meth:`ask` takes it.
        """
        app, before = self.app, {}
        answers: list[Message | str] = [""] * len(deliveries)
        asked: dict[int, tuple[int, NodeRequest]] = {}
        requests: dict[tuple[str, int], NodeRequest] = {}  # of contents in common
        for place, delivery in enumerate(deliveries):
            message = delivery.message
            context = self.contexts[message.metadata.dst_node_id]
            if delivery.wiped:
                context.state = RecordDict()
            if delivery.forgotten:
                kept = {name: record.copy() for name, record in context.state.items()}
                before[context.node_id] = RecordDict(kept)
            kind = message.metadata.message_type
            # an app that looks at its messages for itself may have changed meanwhile
            if isinstance(app, MethodApp) and app.plain and kind in app.functions:
                key, content = (kind, id(message.content)), message.content
                if key not in requests:
                    requests[key] = NodeRequest(kind, content)
                asked[place] = context.node_id, requests[key]
            elif stopped():
                answers[place] = _reason(InterruptedError("the wave was given up"))
            else:
                try:
                    answers[place] = app(message, context)
                except Exception as error:
                    answers[place] = _reason(error)
        replies = self.ask(list(asked.values()), stopped) if asked else []
        for place, reply in zip(asked, replies, strict=True):
            answers[place] = (
                reply
                if isinstance(reply, str)
                else reply_to(deliveries[place].message, reply.content)
            )
        for node_id, state in before.items():
            self.contexts[node_id].state = state
        return answers

    def states(self) -> dict[str, bytes]:
        """Every node's state as bytes, by client identity."""
        return {
            client_identity(context): records_to_bytes(context.state)
            for context in self.contexts.values()
        }

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`; nodes that are not named keep theirs."""
        for context in self.contexts.values():
            data = states.get(client_identity(context))
            if data is not None:
                context.state = records_from_bytes(data)


class Workers:
    """Nodes in processes, a share of them in each, where their states stay.

    The processes are copies of this one (they are forked), so a ``client_fn`` may be
    any function, and what it has loaded is there.

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

    def ask(self, asked: Sequence[tuple[int, NodeRequest]]) -> list[NodeReply | str]:
        """As :meth:`Nodes.ask`."""
        return self._share("ask", asked, [node_id for node_id, _ in asked])

    def answer(self, deliveries: Sequence[Delivery]) -> list[Message | str]:
        """As :meth:`Nodes.answer`."""
        ids = [delivery.message.metadata.dst_node_id for delivery in deliveries]
        return self._share("answer", deliveries, ids)

    def _share(self, what: str, given: Sequence[Any], ids: Sequence[int]) -> list[Any]:
        """Let each process do its share.

        An interruption lets each finish the request that it has in hand, so that the
        nodes' states are whole.

        Raises
        ------
        RuntimeError
            A process has ended.
        """
        shares: dict[int, list[int]] = {}
        for index, node_id in enumerate(ids):
            shares.setdefault(self._homes[node_id], []).append(index)
        found = self._ask(
            {
                home: (what, [given[index] for index in indices])
                for home, indices in shares.items()
            }
        )
        answers = {
            index: answer
            for home, indices in shares.items()
            for index, answer in zip(indices, found[home], strict=True)
        }
        return [answers[index] for index in range(len(given))]

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
            if what in ("ask", "answer"):
                given.append(stopped)
            result = getattr(nodes, what)(*given)
            pipe.send(("", result))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))
