"""What tests of methods share: a strategy run in this process, and what came of it.

A grid is made of a client's class and one loss for each node, a run of a strategy and a
grid::

    grid = grid_of(FedFWClient, OBJECTIVES, domain, reply_loss=0.2)
    run = play(FedFW(domain, variant="plain"), grid, np.zeros(9), rounds=30)
    run.model, run.used, run.strategy.history
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from numpy.typing import NDArray

import sim
from fedtrellis import Callback, LocalGrid, RoundRecord, SettingsError, client_app
from fedtrellis.server.records import Checkpoint
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.protocol import ClientMemory
from strategies import FedFW

Array = NDArray[np.float64]
S = TypeVar("S")


def encode_message(message: Message) -> tuple[Message, int]:
    """A message that Flower has encoded and decoded, and bytes of its objects."""
    with no_object_id_recompute():
        objects = get_all_nested_objects(message)
        contents = {name: item.deflate() for name, item in objects.items()}
        size = sum(map(len, contents.values()))
        decoded = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(decoded, Message)
    decoded.metadata.__dict__["_message_id"] = message.metadata.message_id
    return decoded, size


def wait_for(
    condition: Callable[[], object],
    limit: float,
    what: str,
    more: Callable[[], str] = str,
    every: float = 0.2,
) -> None:
    """Until it holds; what is missing after so many seconds, and more that is known."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"after {limit} s: {what}\n{more()}"
        time.sleep(every)


def number_of(context: Context) -> int:
    """The number of a node, its ``partition-id``."""
    return int(context.node_config["partition-id"])


def app_of(client: Callable[..., Any], losses: Sequence[Any], *more: Any) -> ClientApp:
    """The ClientApp of clients that are given their context, own loss and ``more``."""
    return client_app(
        lambda context: client(context, losses[number_of(context)], *more)
    )


def grid_of(
    client: Callable[..., Any], losses: Sequence[Any], *more: Any, **options: Any
) -> LocalGrid:
    """A LocalGrid of such clients; the options, faults among them, are the grid's."""
    return LocalGrid(app_of(client, losses, *more), len(losses), **options)


def calm(grid: LocalGrid) -> None:
    """End the faults."""
    grid.faults = dict.fromkeys(grid.faults, 0.0)


def contexts(grid: LocalGrid) -> dict[int, Context]:
    """Flower's contexts, by the numbers of the nodes."""
    return {number_of(context): context for context in grid._contexts.values()}


def restart(grid: LocalGrid, number: int, *, moves: bool) -> None:
    """A node loses all state, and ``moves`` to another id, as a new SuperNode has."""
    (old,) = (k for k, c in grid._contexts.items() if number_of(c) == number)
    context = grid._contexts.pop(old)
    context.node_id, context.state = old + moves, RecordDict()
    grid._contexts[context.node_id] = context


def memory_of(strategy: Any, context: Context) -> ClientMemory:
    """What a client keeps of a strategy's run between its messages."""
    memory, known = ClientMemory.load(context.state), strategy.conversation
    return memory if memory.session == known.session + known.epoch else ClientMemory()


def node_states(strategy: Any, grid: LocalGrid) -> dict[str, dict[str, Array]]:
    """By client, its state after the last of its rounds that the server used.

    Clients that have neither that nor the one before it are left out: they will ask.
    """
    states = {}
    for number, context in contexts(grid).items():
        name, memory = str(number), memory_of(strategy, context)
        used = strategy.conversation.clients[name].used_round
        for kept in (memory.committed, memory.provisional):
            if kept.round == used:
                states[name] = {key: decode(a) for key, a in kept.arrays.items()}
    return {name: states[name] for name in strategy.clients if name in states}


def distance(a: Any, b: Any) -> float:
    """The largest difference of two arrays' entries; infinite if one is not finite."""
    difference = float(np.abs(np.asarray(a) - np.asarray(b)).max(initial=0.0))
    return difference if np.isfinite(difference) else np.inf


class Distance:
    """½‖x − c‖² of one array or of a list of layers, in the dtype of x.

    A user's own plain class.
    """

    num_examples, quadratic = 1, True

    def __init__(self, *centre: Array) -> None:
        self.centre = centre

    def _away(self, x: Any) -> list[NDArray[Any]]:
        layers = x if isinstance(x, list) else [x]
        pairs = zip(layers, self.centre, strict=True)
        return [np.asarray(a - c, a.dtype) for a, c in pairs]

    def value(self, x: Any) -> float:
        """The value."""
        return 0.5 * sum(float(np.vdot(part, part)) for part in self._away(x))

    def gradient(self, x: Any) -> Any:
        """In the form of x."""
        parts = self._away(x)
        return parts if isinstance(x, list) else parts[0]

    def curvature(self, x: Any, d: Any) -> float:
        """‖d‖²."""
        return float(np.vdot(d, d))


class Stop(Callback):
    """Ends a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        """Whether it ends here."""
        return record.round == self.after


class Watch(Callback):
    """Notes down every round: whose answers were used, the model, the metrics.

    The grid's faults end after the round ``last_fault``.
    """

    def __init__(self, grid: LocalGrid, last_fault: int | None = None) -> None:
        self.grid, self.last_fault = grid, last_fault
        self.used: list[list[int]] = []
        self.models: list[Array] = []
        self.metrics: list[dict[str, float]] = []

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Note a round down; round 0 is none, but the evaluation of the start."""
        if record.round:
            self.used.append([int(name) for name in strategy.used])
            self.models.append(strategy.broadcast.model.copy())
            self.metrics.append(record.train)
        if record.round == self.last_fault:
            calm(self.grid)


class Recorder(LocalGrid):
    """A grid that keeps every message, and can lose or wipe what a test names.

    Training's requests and answers are kept by round and number of the node; so are
    named those requests that get lost, and the nodes that forget before the next one.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[Message] = []
        self.missed: set[tuple[int, int]] = set()
        self.wiped: set[tuple[int, int]] = set()
        self.requests: dict[tuple[int, int], list[Message]] = {}
        self.answers: dict[tuple[int, int], list[Message]] = {}

    def _where(self, message: Message, node: int) -> tuple[int, int]:
        return int(message.metadata.group_id or 0), number_of(self._contexts[node])

    def _strikes(self, message: Message) -> set[str]:
        self.sent.append(message)
        strikes = super()._strikes(message)
        if message.metadata.message_type == "train":
            where = self._where(message, message.metadata.dst_node_id)
            self.requests.setdefault(where, []).append(message)
            if where in self.missed:
                strikes.add("request_loss")
            elif where in self.wiped:
                strikes.add("wipe")
                self.wiped.discard(where)
        return strikes

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """What has come, noted down."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.message_type == "train":
                where = self._where(reply, reply.metadata.src_node_id)
                self.answers.setdefault(where, []).append(reply)
        return replies

    @property
    def pairs(self) -> list[tuple[Message, Message]]:
        """The answers to training, each with the request that it answers."""
        asked = {message.metadata.message_id: message for message in self.sent}
        replies = chain.from_iterable(self.answers.values())
        return [(asked[reply.metadata.reply_to_message_id], reply) for reply in replies]


@dataclass
class Played(Generic[S]):
    """A run, and what it was made of; the arrays are the model in the end."""

    strategy: S
    grid: LocalGrid
    arrays: list[Array]
    watch: Watch

    @property
    def model(self) -> Array:
        """The model in the end, where it is one array."""
        (model,) = self.arrays
        return model

    @property
    def used(self) -> list[list[int]]:
        """Whose answers were used, by round."""
        return self.watch.used

    @property
    def models(self) -> list[Array]:
        """The model after each round."""
        return self.watch.models


def only_for(variant: str, **settings: Any) -> dict[str, Any]:
    """Of some settings of FedFW, those that apply to a variant."""
    fields = {field.name: field for field in dataclasses.fields(FedFW)}
    return {
        name: value
        for name, value in settings.items()
        if variant in fields[name].metadata["only"]["variant"]
    }


def play(
    strategy: S,
    grid: LocalGrid,
    start: NDArray[Any] | Sequence[NDArray[Any]],
    rounds: int,
    *,
    last_fault: int | None = None,
    **options: Any,
) -> Played[S]:
    """Run a strategy, and watch it; more options are those of ``strategy.start``."""
    method: Any = strategy
    watch = Watch(grid, last_fault)
    method.callbacks.insert(0, watch)
    arrays = [start] if isinstance(start, np.ndarray) else list(start)
    result = method.start(
        grid=grid, initial_arrays=ArrayRecord(arrays), num_rounds=rounds, **options
    )
    return Played(strategy, grid, result.arrays.to_numpy_ndarrays(), watch)


def run_app(
    settings: Mapping[str, Any],
    num_nodes: int,
    results: Path,
    *,
    grid: type[LocalGrid] = LocalGrid,
    **options: Any,
) -> Path:
    """Run the app in this process, and return the record's folder.

    The settings are those besides the defaults; options are the grid's.
    """
    config = sim.app.default_config() | dict(settings) | {"results-dir": str(results)}
    made = grid(sim.client_app, num_nodes, run_config=config, **options)
    return sim.app.run(made, config)


def not_daily(*values: Any) -> list[Any]:
    """Parameters that are too slow for every day."""
    given = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*value, marks=pytest.mark.slow) for value in given]


def in_part(values: Iterable[Any], every: int = 2) -> list[Any]:
    """Parameters of which every second, or other, is enough for a day."""
    given = enumerate(values)
    return [v if i % every == 0 else not_daily(v)[0] for i, v in given]


def refused(match: str, make: Callable[[], Any], kind: Any = SettingsError) -> str:
    """What the error says: it matches, and is one line."""
    with pytest.raises(kind, match=match) as error:
        make()
    assert "\n" not in str(error.value)
    return str(error.value)


def readable(
    terms: Mapping[bytes, Mapping[str, Any]], sizes: Iterable[int]
) -> set[Any]:
    """The sets of clients whose terms of a secure sum have masks that cancel.

    Their last words count them.
    """
    found: set[tuple[str, ...]] = set()
    for answers in terms.values():
        for size in sizes:
            for chosen in combinations(sorted(answers), size):
                total = sum(int(answers[name][-1]) for name in chosen)
                if total % 2**64 == size:
                    found.add(chosen)
    return found


def history_of(record: Path) -> list[dict[str, Any]]:
    """The rounds that a run's record has so far, whole lines only."""
    path = record / "history.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.is_file() else ""
    return [json.loads(line) for line in whole.splitlines()]


def saved_round(record: Path) -> int:
    """The round of a record's checkpoint."""
    return Checkpoint(record / "checkpoint.npz")._last_round


def model_of(record: Path) -> Array:
    """The first, and mostly the only, array of a record's model."""
    with np.load(record / "model.npz") as arrays:
        model: Array = arrays["0"]
    return model


def run_program(page: Path) -> dict[str, Any]:
    """What a page's only program defines."""
    (block,) = programs(page)
    names: dict[str, Any] = {"__name__": "page"}
    exec(block, names)
    return names


def programs(page: Path) -> list[str]:
    """A page's Python, as it is written from inside the repository."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ours = r"from fedtrellis\.(strategies|clients|tasks) "
    return [re.sub(ours, r"from \1 ", block) for block in blocks]


def entrant(
    name: str, gradients: Any, x: Any, counts: Any, step: float, alpha: float, ball: Any
) -> Any:
    """The model of a plug-in of the matrix after rounds of ``counts`` local steps."""
    z, own = x, np.zeros((len(gradients), x.size))
    for count in counts:
        ends = np.tile(z, (len(own), 1))
        for i, gradient in enumerate(gradients):
            if name == "ef21":  # one entry is sent
                change = gradient(x) - own[i]
                own[i, abs(change).argmax()] += change[abs(change).argmax()]
                ends[i] -= step * own[i]
                continue
            for _ in range(count):
                pull = alpha * (ends[i] - x) if name == "feddyn" else 0.0
                ends[i] -= step * (gradient(ball.project(ends[i])) - own[i] + pull)
        z = ends.mean(axis=0)
        if name == "proxskip":
            own += 0.2 / step * (z - ends)
        if name == "feddyn":
            own -= alpha * (ends - x)
            z = z - own.mean(axis=0) / alpha
        x = ball.project(z)
    return x
