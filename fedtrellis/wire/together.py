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
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray, contents
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.cohort import Groups, parts
from fedtrellis.wire.flower_internals import CHUNK_SIZE
from fedtrellis.wire.handling import Wave, make_client, metric_record
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


@dataclass(slots=True)
class _Begun:
    """A client that has taken its request."""

    asked: Asked
    context: NodeContext
    before: ClientMemory
    memory: ClientMemory
    config: Named
    client: Any
    done: bool = False

    @property
    def keeps_model(self) -> bool:
        """Whether the model is part of the client's state."""
        return bool(self.config.get("keep-model", True))

    @property
    def model(self) -> ReceivedModel:
        """What it was sent."""
        return cast(ReceivedModel, self.memory.model)


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
        whole = 2 * len(asked) >= len(self.contexts)
        try:
            for index, one in enumerate(asked):
                client = self._begin(one, wave)
                if client is not None:
                    begun[index] = client
                    groups.add(index, client.client, client.model.layout, client.config)
            sizes = ReplySizes(self._envelopes)
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

    def _begin(self, asked: Asked, wave: Wave) -> _Begun | None:
        """Let a client take its request, as :meth:`Handling.begin` does."""
        node, context = self.app.node, self.contexts.get(asked.node_id)
        content = asked.request.content
        if not isinstance(context, NodeContext):
            return None
        try:
            config = wave.read(content, node.max_count)
            session = config["session"]
            before = None if session in self._declined else context.memory(session)
            if before is None or client_identity(context) != asked.client:
                return None
            memory = before.copy()
            memory.take_request(content, config, node.max_parameters, wave.receive)
            client = make_client(node.client_fn, context)
            if isinstance(client, StatefulClient):
                if RESTORE in contents(content):
                    client.check_restored(content)
                client.state = Named("the client's state", memory.arrays())
        except Exception:
            # a message will say what is wrong
            return None
        begun = _Begun(asked, context, before, memory, config, client)
        if context.looked_at or begun.model.point.nbytes > CHUNK_SIZE // 2:
            context.put_back(before)
            self._declined.add(session)
            return None
        return begun

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
        arrays, norms = _checked([result[0] for result in results], whole)
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
            size = sizes.of(
                each.asked,
                each.config,
                each.model.version if each.keeps_model else None,
                own,
                metrics,
                numbers,
            )
            if size is None:
                self._declined.add(each.memory.session)
                raise _RefusedError
            numbers = _NONE if numbers is None else numbers
            heard.append(Heard(own, metrics, numbers, norm, size))
        # the state is written last: whatever raised before has changed nothing
        states = _states(clients, whole)
        for each, state in zip(clients, states, strict=True):
            memory, config = each.memory, each.config
            if state is not None:
                memory.note(config, state)
            keeps_model = each.keeps_model
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
        clients[0].config,
    )
    return made


def _alone(each: _Begun) -> Any:
    """What a client's own method makes of what it alone has."""
    model, config = each.model, Named("the request's config", each.config)
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
) -> tuple[list[Sequence[NDArray[Any]]], list[float | None]]:
    """The arrays of each client as its own, and the norm of one that is alone."""
    count = len(answers[0])
    norms: list[float | None] = [None] * len(answers)
    if any(len(arrays) != count for arrays in answers):
        own = [_owned(arrays, False)[0] for arrays in answers]
        if not all(is_moderate(array) for arrays in own for array in arrays):
            raise _RefusedError
        return list(own), norms
    columns = []
    for j in range(count):
        rows, stack = _owned([arrays[j] for arrays in answers], whole)
        columns.append(rows)
        if stack is None or stack.dtype.kind != "f":
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
    return [list(arrays) for arrays in zip(*columns, strict=True)] or [
        [] for _ in answers
    ], norms


def _states(clients: Sequence[_Begun], whole: bool) -> list[dict[str, Any] | None]:
    """What each client's state is after the round, if it keeps one."""
    states: list[dict[str, Any] | None] = [
        dict(each.client.state)
        if isinstance(each.client, StatefulClient) and "used-round" in each.config
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
