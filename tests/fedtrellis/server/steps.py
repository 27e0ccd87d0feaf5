"""A method small enough to replay by hand, for tests of the loop around it.

Client i keeps x_i (0 at first) and in round t takes the step x_i ← x_i + t (i + 1) of
which it sends both the step and x_i; the server keeps a copy of every x_i, and the
model is their mean. The copy and what the client sends must agree, whatever gets lost.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis import LocalGrid, RoundRecord, RoundStrategy, StatefulClient, client_app
from fedtrellis.server.callbacks import Call
from fedtrellis.server.conversation import Answer
from fedtrellis.wire.arrays import Layout
from tests.harness import number_of

Arrays = list[NDArray[Any]]
Config = dict[str, Any]
Point = NDArray[np.float64]

SIZE = 3
EVERY = range(3)


class StepClient(StatefulClient):
    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        step = np.full(SIZE, config["server-round"] * (int(self.client_id) + 1.0))
        self.state["x"] = self.state["x"] + step
        return [step, self.state["x"]], 1, {}

    def evaluate(self, parameters: Arrays, config: Config) -> Any:
        return float(parameters[0][0]), int(self.client_id) + 1, {}


class Steps(RoundStrategy):
    def setup(self, point: Point, layout: Layout) -> None:
        if not layout.point_shape == (SIZE,):
            raise ValueError(f"the model has shape {layout.point_shape}")
        self.x = {name: np.zeros(SIZE) for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {"for": client}

    def check(self, answer: Answer) -> Point:
        if [array.shape for array in answer.arrays] != [(SIZE,), (SIZE,)]:
            raise ValueError(f"shapes {[array.shape for array in answer.arrays]}")
        step, x = answer.arrays
        # an AssertionError is no ValueError: it ends the run
        assert np.array_equal(x, self.x[answer.client] + step), answer.client
        return step

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        for name, step in answers.items():
            self.x[name] = self.x[name] + step
        self.broadcast.replace(np.mean(list(self.x.values()), axis=0))
        return {"mean": float(self.broadcast.model[0])}

    def client_state(self, client: str) -> dict[str, Point]:
        return {"x": self.x[client]}

    def state(self) -> dict[str, NDArray[Any]]:
        return self.x

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.x = {name: np.array(state[name]) for name in self.clients}


def grid_of(
    nodes: int = 3, mod: Any = None, client: Any = StepClient, **options: Any
) -> LocalGrid:
    app = client_app(client, mods=[mod] if mod else None)
    return LocalGrid(app, nodes, **options)


def start(
    strategy: RoundStrategy, grid: LocalGrid, rounds: int = 4, **options: Any
) -> Result:
    return strategy.start(grid, ArrayRecord([np.zeros(SIZE)]), rounds, **options)


def model_of(result: Result) -> list[float]:
    (array,) = result.arrays.to_numpy_ndarrays()
    return [float(x) for x in array]


def expected(used: Mapping[int, Iterable[int]], clients: int = 3) -> Any:
    """The model when in round t the clients used[t] took part."""
    total = sum(t * (i + 1) for t, who in used.items() for i in who)
    return pytest.approx([total / clients] * SIZE, rel=1e-14)


def used_of(strategy: Steps) -> list[int]:
    return [record.used for record in strategy.history if record.round]


def failing(rounds: Mapping[int, Iterable[int]]) -> Any:
    """Some clients' errors, by round."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        turn = int(message.metadata.group_id)
        if number_of(context) in rounds.get(turn, ()):
            raise RuntimeError(f"disk full in round {turn}")
        return cast(Message, call_next(message, context))

    return mod


def at(actions: Mapping[int, Callable[[], Any]]) -> Call:
    """Do something after some rounds."""

    def act(record: RoundRecord) -> None:
        actions.get(record.round, lambda: None)()

    return Call(act)


class Remote:
    """Nodes of a grid of this process, of which a run knows no more than of others."""

    def __init__(self, inner: LocalGrid) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in ("get_node_ids", "get_nodes", "push_messages", "pull_messages"):
            raise AttributeError(name)
        return getattr(self.inner, name)
