"""A wave of which no message is made: the same runs, unless somebody would see it.

That cohorts of all methods are their clients one by one is a contract of all methods.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from clients import FedAvgGDClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.objectives import LeastSquares
from strategies import FedAvgGD
from tests.harness import distance, grid_of, play

_RNG = np.random.default_rng(5)
#: Of uneven shares.
LOSSES = [
    LeastSquares(_RNG.standard_normal((size, 4)), _RNG.standard_normal(size))
    for size in (5, 9, 7, 12, 6, 8, 9)
]


def average(client: Any, strategy: Any = FedAvgGD, rounds: int = 2, **grid: Any) -> Any:
    made = grid_of(client, LOSSES, **grid)
    return play(strategy(step_size=0.01), made, np.zeros(4), rounds)


class Teller(FedAvgGDClient):
    """Answers in several arrays, with metrics of its own."""

    def steps(self, x: Any, config: Any) -> Any:
        point = yield from super().steps(x, config)
        mine = np.arange(int(self.client_id) + 1, dtype=np.uint16)
        return [point, mine], 7, {"loss": 0.5 * int(self.client_id), "steps": [1, 300]}


class Listening(FedAvgGD):
    """Averages, and notes down what it hears."""

    def setup(self, point: Any, layout: Any) -> None:
        self.heard: list[Any] = []

    def check(self, answer: Any) -> Any:
        self.heard.append((answer.metrics, answer.arrays[1].tolist()))
        assert not answer.arrays[0].flags.writeable
        return self.take_point(dataclasses.replace(answer, arrays=answer.arrays[:1]))


def test_answers_of_which_no_message_is_made_are_what_messages_bring() -> None:
    options: list[dict[str, Any]] = [{}, {"batched": True}, {"encode": True}]
    one, *others = [average(Teller, Listening, **more) for more in options]
    for other in others:
        assert distance(one.models, other.models) <= 1e-12
        assert one.strategy.heard == other.strategy.heard
        for a, b in zip(one.strategy.history, other.strategy.history, strict=True):
            assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
            assert b.train == pytest.approx(a.train, rel=1e-6, abs=1e-12)


class Watching(LocalGrid):
    """Sees what is sent."""

    seen = 0

    def push_messages(self, messages: Any) -> list[str]:
        wave = list(messages)
        self.seen += sum(m.metadata.message_type == "train" for m in wave)
        return super().push_messages(wave)


def test_whoever_overrides_the_grid_or_the_fit_is_asked() -> None:
    def client(context: Context) -> Any:
        return FedAvgGDClient(context, LOSSES[0])

    watching = Watching(client_app(client), 3, batched=True)
    play(FedAvgGD(step_size=0.01), watching, np.zeros(4), 2)
    assert watching.seen == 6

    class Overriding(FedAvgGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.full(4, 7.0)], 0, {}

    assert (average(Overriding, rounds=1, batched=True).model == 7.0).all()
