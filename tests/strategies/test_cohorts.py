"""A wave of which no message is made is the same run.

That cohorts of all methods are their clients one by one is a contract of all methods.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from clients import FedAvgGDClient
from fedtrellis.objectives import LeastSquares
from strategies import FedAvgGD
from tests.harness import distance, grid_of, play

_RNG = np.random.default_rng(5)
#: Of uneven shares.
LOSSES = [
    LeastSquares(_RNG.standard_normal((size, 4)), _RNG.standard_normal(size))
    for size in (5, 9, 7, 12, 6, 8, 9)
]


def average(**grid: Any) -> Any:
    made = grid_of(Teller, LOSSES, **grid)
    return play(Listening(step_size=0.01), made, np.zeros(4), 2)


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
    one, *others = [average(**more) for more in options]
    for other in others:
        assert distance(one.models, other.models) <= 1e-12
        assert one.strategy.heard == other.strategy.heard
        for a, b in zip(one.strategy.history, other.strategy.history, strict=True):
            assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
            assert b.train == pytest.approx(a.train, rel=1e-6, abs=1e-12)
