"""A method of several waves a round, by somebody else, through the conversation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis import (
    Callback,
    LocalGrid,
    LoopStrategy,
    RoundRecord,
    RoundStrategy,
    StatefulClient,
    client_app,
)
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray, Layout

Arrays = list[NDArray[Any]]
NODES, ROUNDS = 4, 12


class Counter(StatefulClient):
    """Node k has the number k; counts the rounds that were used of its answers."""

    @property
    def number(self) -> float:
        return float(self.client_id)

    def fit_their_number(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[Arrays, int, dict[str, Any]]:
        return [np.array([self.number])], 1, {}

    def fit_their_distance(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[Arrays, int, dict[str, Any]]:
        self.state["rounds"] = self.state.get("rounds", np.zeros(1)) + 1
        return [np.array([(self.number - config["mean"]) ** 2])], 1, {}


class Spread(LoopStrategy):
    """The first wave asks for numbers, the second how far each is from their mean."""

    def setup(self, point: FloatArray, layout: Layout) -> None:
        self.counts = dict.fromkeys(self.clients, 0)

    def client_state(self, client: str) -> dict[str, FloatArray]:
        return {"rounds": np.array([float(self.counts[client])])}

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        self.sampled = self.sample(server_round)
        ask: dict[str, dict[str, Any]] = {name: {} for name in self.sampled}
        numbers = {
            answer.client: float(answer.arrays[0][0])
            for answer in conversation.ask(
                server_round, "train.their_number", ask, timeout
            )
        }
        self.used = []
        if not numbers:
            return None
        mean = float(np.mean(list(numbers.values())))
        asked = {name: {"mean": mean} for name in numbers}
        distances = []
        for answer in conversation.ask(
            server_round, "train.their_distance", asked, timeout
        ):
            conversation.note_version(answer)
            conversation.note_used(server_round, answer.client)
            self.counts[answer.client] += 1
            self.used.append(answer.client)
            distances.append(float(answer.arrays[0][0]))
        self.broadcast.replace(np.array([mean]))
        return {"variance": float(np.mean(distances))} if distances else None


def start(strategy: Spread, grid: LocalGrid) -> float:
    result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=ROUNDS)
    return float(result.arrays.to_numpy_ndarrays()[0][0])


def test_two_waves_a_round() -> None:
    strategy = Spread()
    assert start(strategy, LocalGrid(client_app(Counter), NODES)) == 1.5
    for record in strategy.history:
        assert (record.used, record.round_trips) == (NODES, 2)
        assert record.train == {"variance": 1.25}


def test_state_stays_in_step_whatever_is_lost() -> None:
    grid = LocalGrid(
        client_app(Counter), NODES, seed=3, request_loss=0.2, reply_loss=0.2
    )

    class Wipe(Callback):
        def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
            if record.round == 6:
                for context in grid._contexts.values():
                    context.state = RecordDict()
            if record.round == ROUNDS - 2:
                grid.faults = dict.fromkeys(grid.faults, 0.0)

    seen: dict[str, list[float]] = {}

    class Watched(Counter):
        def fit_their_distance(
            self, parameters: Arrays, config: dict[str, Any]
        ) -> tuple[Arrays, int, dict[str, Any]]:
            answer = super().fit_their_distance(parameters, config)
            seen.setdefault(self.client_id, []).append(float(self.state["rounds"][0]))
            return answer

    grid.client_app = client_app(Watched)
    strategy = Spread(callbacks=[Wipe()])
    assert start(strategy, grid) == 1.5
    assert any(record.rejected for record in strategy.history)
    # nothing was lost in the last two rounds: each client's count is the server's
    assert {name: int(counts[-1]) for name, counts in seen.items()} == strategy.counts


def test_it_is_no_strategy_of_one_wave() -> None:
    strategy = Spread()
    assert not isinstance(strategy, RoundStrategy)
    assert not hasattr(strategy, "aggregate")
    grid = LocalGrid(client_app(Counter), NODES)
    start(strategy, grid)
    message = "Spread has a loop and messages of its own, .* call its own start"
    empty = ArrayRecord(), ConfigRecord(), grid
    with pytest.raises(RuntimeError, match=message):
        strategy.configure_train(1, *empty)
    with pytest.raises(RuntimeError, match=message):
        strategy.aggregate_train(1, [])
    with pytest.raises(RuntimeError, match=message):
        strategy.configure_evaluate(1, *empty)
    with pytest.raises(RuntimeError, match=message):
        strategy.aggregate_evaluate(1, [])


def test_each_run_is_a_conversation_of_its_own() -> None:
    grid, strategy = LocalGrid(client_app(Counter), NODES), Spread()
    start(strategy, grid)
    first = strategy.conversation
    start(strategy, grid)
    assert strategy.conversation is not first
    assert strategy.conversation.session != first.session
    assert strategy.conversation.names == [str(k) for k in range(NODES)]
