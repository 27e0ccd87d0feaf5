"""A wave's clients as one stack, where no message need be made of what is said.

Between a server and nodes of one process a message that nobody looks at is made to be
taken apart again. Here requests that say the same are read once, clients' states are
read-only rows that stay arrays from round to round, and what the clients return is
copied, checked and measured together. Nothing else is different: whatever is out of the
ordinary is left to real messages, with nothing changed.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis.domains.atoms import PackedAtoms
from fedtrellis.wire.arrays import FloatArray, Layout, contents
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.cohort import most_of, parts
from fedtrellis.wire.cohort_work import run_together
from fedtrellis.wire.flower_internals import CHUNK_SIZE
from fedtrellis.wire.handling import Wave, make_client, metric_record
from fedtrellis.wire.message_size import arrays_bytes
from fedtrellis.wire.method_client import StatefulClient, takes_steps
from fedtrellis.wire.node_context import NodeContext
from fedtrellis.wire.own_arrays import RefusedError, checked, owned
from fedtrellis.wire.protocol import (
    EXAMPLES,
    RESTORE,
    ClientMemory,
    Named,
    client_identity,
    is_moderate,
)
from fedtrellis.wire.reply_sizes import Asked, ReplySizes

__all__ = ["Asked", "Heard", "Together"]

# Bytes of a model that is one chunk of a message, and small beside it.
_LARGEST_MODEL = CHUNK_SIZE // 2
_NONE: FloatArray = np.empty(0)
_NONE.flags.writeable = False


@dataclass(slots=True)
class Heard:
    """What an answer would have been, whose every check of the wire it would pass.

    Attributes
    ----------
    arrays : sequence of ndarray
        Read-only.
    metrics : dict
    numbers : ndarray of float64
    norm : float or None
        Of the only array, if it is one of floats.
    size : int
        Bytes of the message.
    """

    arrays: Sequence[NDArray[Any]]
    metrics: dict[str, Any]
    numbers: FloatArray
    norm: float | None
    size: int


class _Told:
    """What a request says, read once for all clients that it is for."""

    __slots__ = (
        "alike",
        "config",
        "content",
        "keeps_model",
        "model",
        "session",
        "stateful",
    )

    def __init__(self, content: RecordDict, config: Named) -> None:
        self.content, self.config = content, config
        self.session: str = config["session"]
        self.keeps_model = bool(config.get("keep-model", True))
        self.stateful = "used-round" in config
        # a whole model is the same one to all who keep nothing
        self.alike = not self.stateful and not self.keeps_model
        self.alike = self.alike and config["model-encoding"] in ("dense", "sparse")
        self.model: ReceivedModel | None = None


@dataclass(slots=True)
class _Begun:
    """A client that has taken its request."""

    asked: Asked
    told: _Told
    context: NodeContext
    before: ClientMemory
    memory: ClientMemory
    model: ReceivedModel
    client: Any
    done: bool = False


class _Reader:
    """Reads the requests of a wave."""

    def __init__(self, max_count: int, declined: set[str]) -> None:
        self.wave = Wave()
        self._max_count, self._declined = max_count, declined
        self._told: dict[int, _Told | None] = {}
        self._last: tuple[Message | None, _Told | None] = None, None

    def read(self, request: Message) -> _Told | None:
        """What a request says; None if there has to be a message, to say it."""
        if request is self._last[0]:
            return self._last[1]
        place = id(request)
        if place not in self._told:
            content = request.content
            try:
                told = _Told(content, self.wave.read(content, self._max_count))
            except Exception:
                # the message will say what is wrong
                self._told[place] = None
            else:
                declined = told.session in self._declined
                self._told[place] = None if declined else told
        self._last = request, self._told[place]
        return self._last[1]


class Together:
    """Answers waves of one kind, ``train``.

    Parameters
    ----------
    app : MethodApp
        A plain one.
    contexts : mapping
        Of the nodes.
    """

    def __init__(self, app: MethodApp, contexts: Mapping[int, Context]) -> None:
        self.app, self.contexts = app, contexts
        # sessions whose clients cannot be taken together: asked once, not every round
        self._declined: set[str] = set()
        self._sizes: tuple[Any, Any, Any] = {}, {}, {}

    def answer(self, asked: Sequence[Asked]) -> list[Heard | None]:
        """What each client answers; None where a message has to be sent after all.

        Parameters
        ----------
        asked : sequence of Asked
            At most one to a node; those with one request have it in common.
        """
        heard: list[Heard | None] = [None] * len(asked)
        if not self.app.plain:
            return heard
        reader = _Reader(self.app.node.max_count, self._declined)
        sizes = ReplySizes(*self._sizes)
        whole = 2 * len(asked) >= len(self.contexts)
        begun: dict[int, _Begun] = {}
        layout: Layout | None = None
        most, end = 1, len(asked) - 1
        for index, one in enumerate(asked):
            client = self._begin(one, reader)
            if client is not None:
                if client.model.layout is not layout:
                    layout = client.model.layout
                    most = most_of(layout)
                begun[index] = client
            # so many at a time, that what they need is still in the cache
            last = index == end
            if last or len(begun) >= most:
                for place, result in self._answer_some(begun, sizes, whole):
                    heard[place] = result
                begun = {}
                if not last and not gc.isenabled():
                    # cycles that clients have made
                    gc.collect(0)
        return heard

    def _answer_some(
        self, begun: Mapping[int, _Begun], sizes: ReplySizes, whole: bool
    ) -> Iterator[tuple[int, Heard | None]]:
        """What clients answer that have taken their requests, and who of them."""
        together: dict[Layout, list[int]] = defaultdict(list)
        try:
            for index, each in begun.items():
                if takes_steps(each.client):
                    together[each.model.layout].append(index)
                else:
                    yield index, self._answer_alone(each, sizes)
            for layout, members in together.items():
                for part in parts(members, layout):
                    results = self._answer([begun[i] for i in part], sizes, whole)
                    yield from zip(part, results, strict=True)
        finally:
            for each in begun.values():
                if not each.done:
                    each.context.put_back(each.before)

    def _begin(self, asked: Asked, reader: _Reader) -> _Begun | None:
        """Let a client take its request, as :meth:`Handling.begin` does."""
        told, context = reader.read(asked.request), self.contexts.get(asked.node_id)
        if told is None or type(context) is not NodeContext:
            return None
        before = context.memory(told.session)
        if before is None or client_identity(context) != asked.client:
            return None
        node, memory, model = self.app.node, before, told.model
        try:
            if model is None or before.model is not None:
                memory = before.copy()
                memory.take_request(
                    told.content, told.config, node.max_parameters, reader.wave.receive
                )
                model = cast(ReceivedModel, memory.model)
                if told.alike:
                    told.model, memory.model = model, None
            client = make_client(node.client_fn, context)
            if isinstance(client, StatefulClient):
                if RESTORE in contents(told.content):
                    client.check_restored(told.content)
                client.state = Named("the client's state", memory.arrays())
        except Exception:
            return None
        if context.looked_at or model.point.nbytes > _LARGEST_MODEL:
            context.put_back(before)
            self._declined.add(told.session)
            return None
        return _Begun(asked, told, context, before, memory, model, client)

    def _answer(
        self, clients: Sequence[_Begun], sizes: ReplySizes, whole: bool
    ) -> Sequence[Heard | None]:
        """What clients answer that take their steps side by side."""
        layers: dict[int, Any] = {}
        for each in clients:
            model = each.model
            if id(model) not in layers:
                layers[id(model)] = model.layout.layers(model.point)
        results = run_together(
            [each.client for each in clients],
            [layers[id(each.model)] for each in clients],
            [each.told.config for each in clients],
        )
        # whoever has raised fails in a message, and says so there
        done = [i for i, r in enumerate(results) if not isinstance(r, Exception)]
        heard: list[Heard | None] = [None] * len(clients)
        try:
            found = self._finish(
                [clients[i] for i in done], [results[i] for i in done], sizes, whole
            )
        except Exception:
            # and so does whoever's answer is none
            return heard
        for i, one in zip(done, found, strict=True):
            heard[i] = one
        return heard

    def _answer_alone(self, each: _Begun, sizes: ReplySizes) -> Heard | None:
        """What a client answers whose method is called by itself."""
        model, config = each.model, Named("the request's config", each.told.config)
        client: Any = each.client
        try:
            result = client.fit(model.layout.layers(model.point.copy()), config)
            return self._finish([each], [result], sizes, False)[0]
        except Exception:
            return None

    def _finish(
        self,
        clients: Sequence[_Begun],
        results: Sequence[Any],
        sizes: ReplySizes,
        whole: bool,
    ) -> list[Heard]:
        """Check the results, and keep the clients' states."""
        if not clients:
            return []
        arrays, norms, alike = checked([result[0] for result in results], whole)
        body: int | None = None
        heard = []
        for each, (_, examples, extra), own, norm in zip(
            clients, results, arrays, norms, strict=True
        ):
            told, metrics = each.told, extra
            if examples:
                metrics = {EXAMPLES: int(examples), **extra}
            metrics = dict(contents(metric_record(metrics))) if metrics else {}
            numbers = getattr(each.client, "numbers", None)
            if numbers is not None:
                numbers = numbers.astype("<f8")
                if not is_moderate(numbers):
                    raise RefusedError
            if body is None or not alike:
                body = arrays_bytes(
                    own.described()
                    if isinstance(own, PackedAtoms)
                    else tuple((a.dtype, a.shape) for a in own)
                )
            if body is None:
                # its size depends on what is in it: the session goes by messages
                self._declined.add(told.session)
                raise RefusedError
            version = each.model.version if told.keeps_model else None
            size = sizes.of(each.asked, told.config, version, body, metrics, numbers)
            numbers = _NONE if numbers is None else numbers
            heard.append(Heard(own, metrics, numbers, norm, size))
        # the state is written last: whatever raised before has changed nothing
        states = _states(clients, whole)
        for each, state in zip(clients, states, strict=True):
            memory, keeps_model = each.memory, each.told.keeps_model
            if state is not None:
                memory.note(each.told.config, state)
            if not keeps_model:
                memory.model = None
            each.done = True
            each.context.keep(memory, keeps_model)
        return heard


def _states(clients: Sequence[_Begun], whole: bool) -> list[dict[str, Any] | None]:
    """What each client's state is after the round, if it keeps one."""
    states: list[dict[str, Any] | None] = [
        dict(each.client.state)
        if each.told.stateful and isinstance(each.client, StatefulClient)
        else None
        for each in clients
    ]
    kept = [state for state in states if state is not None]
    for name in dict.fromkeys(name for state in kept for name in state):
        holders = [state for state in kept if name in state]
        rows, stack = owned([state[name] for state in holders], whole)
        for array in rows if stack is None else [stack]:
            if array.dtype.kind == "f" and not isfinite(array.sum()):
                raise RefusedError
        for state, row in zip(holders, rows, strict=True):
            state[name] = row
    return states
