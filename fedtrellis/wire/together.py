"""A wave's clients as one stack, where no message need be made of what is said.

Between a server and nodes of one process a message that nobody looks at is made to be
taken apart again. Here requests that say the same are read once, clients' states are
read-only rows that stay arrays from round to round, and what the clients return is
copied, checked and measured together. Nothing else is different: whatever is out of the
ordinary is left to real messages, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis.domains.atoms import PackedAtoms
from fedtrellis.wire.arrays import FloatArray, contents
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.cohort import Groups, parts
from fedtrellis.wire.flower_internals import CHUNK_SIZE
from fedtrellis.wire.handling import Wave, make_client, metric_record
from fedtrellis.wire.message_size import arrays_bytes
from fedtrellis.wire.method_client import StatefulClient, speaks_for
from fedtrellis.wire.node_context import NodeContext
from fedtrellis.wire.protocol import (
    EXAMPLES,
    LARGEST,
    RESTORE,
    ClientMemory,
    Named,
    client_identity,
    is_moderate,
)
from fedtrellis.wire.reply_sizes import Asked, ReplySizes

__all__ = ["Asked", "Heard", "Together"]

_KINDS = "fiub"  # of arrays that travel
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


class _RefusedError(Exception):
    """What a message would not get through."""


class _Told:
    """What a request says, read once for all clients that it is for."""

    __slots__ = ("config", "content", "keeps_model", "session", "stateful")

    def __init__(self, content: RecordDict, config: Named) -> None:
        self.content, self.config = content, config
        self.session: str = config["session"]
        self.keeps_model = bool(config.get("keep-model", True))
        self.stateful = "used-round" in config


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
        self._envelopes: dict[tuple[str, int, int], int] = {}
        self._names: dict[str, int] = {}

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
        wave, groups, begun = Wave(), Groups(), dict[int, _Begun]()
        told: dict[int, _Told | None] = {}
        whole = 2 * len(asked) >= len(self.contexts)
        try:
            for index, one in enumerate(asked):
                client = self._begin(one, wave, told)
                if client is not None:
                    begun[index] = client
                    layout, config = client.model.layout, client.told.config
                    groups.add(index, client.client, layout, config)
            sizes = ReplySizes(self._envelopes, self._names)
            for kind, layout, members in groups:
                for part in parts(members, layout):
                    results = self._answer(kind, [begun[i] for i in part], sizes, whole)
                    for index, result in zip(part, results, strict=True):
                        heard[index] = result
        finally:
            for client in begun.values():
                if not client.done:
                    client.context.put_back(client.before)
        return heard

    def _read(self, request: Message, wave: Wave) -> _Told | None:
        """What a request says; None if it is to be a message."""
        content = request.content
        try:
            told = _Told(content, wave.read(content, self.app.node.max_count))
        except Exception:
            # a message will say what is wrong
            return None
        return None if told.session in self._declined else told

    def _begin(
        self, asked: Asked, wave: Wave, read: dict[int, _Told | None]
    ) -> _Begun | None:
        """Let a client take its request, as :meth:`Handling.begin` does."""
        place = id(asked.request)
        if place not in read:
            read[place] = self._read(asked.request, wave)
        told, context = read[place], self.contexts.get(asked.node_id)
        if told is None or not isinstance(context, NodeContext):
            return None
        node, content = self.app.node, told.content
        before = context.memory(told.session)
        if before is None or client_identity(context) != asked.client:
            return None
        try:
            memory = before.copy()
            memory.take_request(content, told.config, node.max_parameters, wave.receive)
            client = make_client(node.client_fn, context)
            if isinstance(client, StatefulClient):
                if RESTORE in contents(content):
                    client.check_restored(content)
                client.state = Named("the client's state", memory.arrays())
        except Exception:
            return None
        model = cast(ReceivedModel, memory.model)
        if context.looked_at or model.point.nbytes > CHUNK_SIZE // 2:
            context.put_back(before)
            self._declined.add(told.session)
            return None
        return _Begun(asked, told, context, before, memory, model, client)

    def _answer(
        self, kind: type[Any], clients: Sequence[_Begun], sizes: ReplySizes, whole: bool
    ) -> Sequence[Heard | None]:
        """What the clients of a class that were asked the same answer."""
        try:
            results: Sequence[Any] | None = None
            if len(clients) > 1 and speaks_for(kind, "fit_many", "fit"):
                results = _all_of(kind, clients)
            if results is not None:
                return self._finish(clients, results, sizes, whole)
        except Exception:
            # whoever is at fault fails alone, and says so in a message
            return [None] * len(clients)
        heard: list[Heard | None] = []
        for each in clients:
            try:
                result = _alone(each)
                heard += self._finish([each], [result], sizes, False)
            except Exception:
                heard.append(None)
        return heard

    def _finish(
        self,
        clients: Sequence[_Begun],
        results: Sequence[Any],
        sizes: ReplySizes,
        whole: bool,
    ) -> list[Heard]:
        """Check the results, and keep the clients' states."""
        if len(results) != len(clients):
            raise _RefusedError
        arrays, norms, alike = _checked([result[0] for result in results], whole)
        body: int | None = None
        heard = []
        for each, result, own, norm in zip(
            clients, results, arrays, norms, strict=True
        ):
            metrics = {**({EXAMPLES: int(result[1])} if result[1] else {}), **result[2]}
            if metrics:
                metrics = dict(contents(metric_record(metrics)))
            numbers = getattr(each.client, "numbers", None)
            if numbers is not None:
                numbers = numbers.astype("<f8")
                if not is_moderate(numbers):
                    raise _RefusedError
            if body is None or not alike:
                body = arrays_bytes(
                    own.described()
                    if isinstance(own, PackedAtoms)
                    else tuple((a.dtype, a.shape) for a in own)
                )
            if body is None:
                # its size depends on what is in it: the session goes by messages
                self._declined.add(each.told.session)
                raise _RefusedError
            version = each.model.version if each.told.keeps_model else None
            config = each.told.config
            size = sizes.of(each.asked, config, version, body, metrics, numbers)
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


def _all_of(kind: type[Any], clients: Sequence[_Begun]) -> Sequence[Any] | None:
    """What the class's method for many makes of the clients."""
    layers: dict[int, Any] = {}
    for each in clients:
        model = each.model
        if id(model) not in layers:
            layers[id(model)] = model.layout.layers(model.point)
    made: Sequence[Any] | None = kind.fit_many(
        [each.client for each in clients],
        [layers[id(each.model)] for each in clients],
        clients[0].told.config,
    )
    return made


def _alone(each: _Begun) -> Any:
    """What a client's own method makes of what it alone has."""
    model, config = each.model, Named("the request's config", each.told.config)
    return each.client.fit(model.layout.layers(model.point.copy()), config)


def _owned(arrays: Sequence[Any], whole: bool) -> tuple[list[NDArray[Any]], Any]:
    """Read-only copies of arrays, and where they are alike their stack.

    Parameters
    ----------
    arrays : sequence of ndarray
    whole : bool
        Whether the copies may be rows of the stack, which is there as long as one is.
    """
    first = arrays[0]
    alike = isinstance(first, np.ndarray) and first.ndim > 0
    alike = alike and all(
        a.shape == first.shape and a.dtype == first.dtype for a in arrays
    )
    if not alike:
        copies = [np.array(array, order="C") for array in arrays]
    elif first.dtype.kind not in _KINDS:
        raise _RefusedError
    else:
        stack = np.stack(arrays)
        if whole:
            stack.flags.writeable = False
            return list(stack), stack
        copies = [row.copy() for row in stack]
    for copy in copies:
        if copy.dtype.kind not in _KINDS:
            raise _RefusedError
        copy.flags.writeable = False
    return copies, stack if alike else None


def _checked(
    answers: Sequence[Sequence[Any]], whole: bool
) -> tuple[Sequence[Sequence[NDArray[Any]]], list[float | None], bool]:
    """The arrays of each client as its own, which have passed the wire's checks.

    Returns
    -------
    (sequence of sequence of ndarray, list of float or None, bool)
        Beside the arrays the norm of one that is alone, and whether all clients' have
        the same shapes and dtypes.
    """
    norms: list[float | None] = [None] * len(answers)
    if all(type(a) is PackedAtoms and a.are_single for a in answers):
        packed = cast(Sequence[PackedAtoms], answers)
        values = [atom.values for one in packed for atom in one.atoms]
        if not is_moderate(np.concatenate(values)):
            raise _RefusedError
        return packed, norms, len({one.described() for one in packed}) == 1
    count = len(answers[0])
    if any(len(arrays) != count for arrays in answers):
        own = [_owned(arrays, False)[0] for arrays in answers]
        if not all(is_moderate(array) for arrays in own for array in arrays):
            raise _RefusedError
        return own, norms, False
    columns, alike = [], True
    for j in range(count):
        rows, stack = _owned([arrays[j] for arrays in answers], whole)
        columns.append(rows)
        if stack is None or stack.dtype.kind != "f":
            alike = alike and stack is not None
            if not all(map(is_moderate, rows)):
                raise _RefusedError
            continue
        flat = stack.reshape(len(rows), -1).astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", flat, flat)
        # Σ a_j² ≤ L² leaves none beyond L, and NaN is not at most anything
        if not (squares <= LARGEST**2).all() and not is_moderate(stack):
            raise _RefusedError
        if count == 1:
            norms = np.sqrt(squares).tolist()
    if not columns:
        return [[] for _ in answers], norms, True
    return [list(arrays) for arrays in zip(*columns, strict=True)], norms, alike


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
        rows, stack = _owned([state[name] for state in holders], whole)
        for array in rows if stack is None else [stack]:
            if array.dtype.kind == "f" and not isfinite(array.sum()):
                raise _RefusedError
        for state, row in zip(holders, rows, strict=True):
            state[name] = row
    return states
