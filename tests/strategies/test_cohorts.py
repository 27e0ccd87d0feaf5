"""A wave's clients at once, and no message of it: the same runs.

That cohorts of all methods are their clients one by one is a contract of all methods,
with shares of one size; here these differ, and clients say and do more.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from clients import FedAvgGDClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from fedtrellis.wire.local_work import run_together
from strategies import FedAvgGD
from tests.harness import Played, distance, grid_of, node_states, play
from tests.strategies.methods import EVERYTHING, on

#: Uneven shares; the largest is more than twice the smallest.
SIZES = (5, 9, 7, 12, 6, 8, 9)


class Own(LeastSquares):
    """An objective that nobody can stack."""

    stack: Any = None


def losses(kind: str) -> list[Any]:
    rng = np.random.default_rng(5)
    made: list[Any] = []
    own: dict[str, Any]
    for size in SIZES:
        X = rng.standard_normal((size, 4))
        b = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * rng.standard_normal(size)
        classes = rng.integers(0, 3, size)
        own = {
            "squares": LeastSquares(X, b, scale="half-mean", l2=0.01, weight=2.0),
            "own": Own(X, b, scale="half-mean"),
            "logistic": Logistic(X, b > 0.0, l2=0.1),
            "mlr": MultinomialLogistic(X, classes, 3, l2=0.01),
        }
        made.append(own[kind])
    return made


def average(client: Any, strategy: Any = FedAvgGD, rounds: int = 2, **grid: Any) -> Any:
    made = grid_of(client, losses("squares"), **grid)
    return play(strategy(step_size=0.01), made, np.zeros(4), rounds)


def check_same(one: Played[Any], many: Played[Any]) -> None:
    """Models, metrics and what the nodes keep, to rounding."""
    assert one.used == many.used
    assert distance(one.models, many.models) <= 1e-12
    for a, b in zip(one.strategy.history, many.strategy.history, strict=True):
        same = ("sampled", "used", "round_trips", "rejected", "bytes_up", "bytes_down")
        assert all(getattr(a, name) == getattr(b, name) for name in same)
        assert b.train == pytest.approx(a.train, rel=1e-6, abs=1e-12)
    first, second = (node_states(ran.strategy, ran.grid) for ran in (one, many))
    assert first.keys() == second.keys()
    for name, state in first.items():
        assert state.keys() == second[name].keys()
        assert all(distance(state[key], second[name][key]) <= 1e-12 for key in state)


@pytest.mark.parametrize("faults", [EVERYTHING, {}])
@pytest.mark.parametrize(
    ("kind", "method", "part"),
    [
        *(("squares", "FedAvgGD", 1.0), ("own", "FedAvgGD", 0.4)),
        *(("logistic", "FedProx", 1.0), ("mlr", "Scaffold", 1.0)),
    ],
)
def test_a_cohort_of_uneven_shares_is_its_clients_one_by_one(
    kind: str,
    method: str,
    part: float,
    faults: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def counted(clients: Any, *given: Any) -> Any:
        counts.append(len(clients))
        return run_together(clients, *given)

    monkeypatch.setattr("fedtrellis.wire.client.run_together", counted)
    start = np.zeros((5, 3) if kind == "mlr" else 4)
    case = on(losses(kind), start, 8)(method, batch_fraction=part, step_size=0.05)
    one, many = (
        case.play(case.grid(7, seed=3, batched=b, **faults), 8, participation=0.7)
        for b in (False, True)
    )
    assert max(counts) > 1  # clients did go together
    check_same(one, many)


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
        check_same(one, other)
        assert one.strategy.heard == other.strategy.heard


class Watching(LocalGrid):
    """Sees what is sent."""

    seen = 0

    def push_messages(self, messages: Any) -> list[str]:
        wave = list(messages)
        self.seen += sum(m.metadata.message_type == "train" for m in wave)
        return super().push_messages(wave)


def test_whoever_overrides_the_grid_or_the_fit_or_has_mods_is_asked() -> None:
    through: list[str] = []

    def mod(message: Any, context: Context, call_next: Any) -> Any:
        through.append(message.metadata.message_type)
        return call_next(message, context)

    def client(context: Context) -> Any:
        return FedAvgGDClient(context, losses("squares")[0])

    modded = LocalGrid(client_app(client, mods=[mod]), 3, batched=True)
    play(FedAvgGD(step_size=0.01), modded, np.zeros(4), 2)
    assert through.count("train") == 6
    watching = Watching(client_app(client), 3, batched=True)
    play(FedAvgGD(step_size=0.01), watching, np.zeros(4), 2)
    assert watching.seen == 6

    class Overriding(FedAvgGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.full(4, 7.0)], 0, {}

    assert (average(Overriding, rounds=1, batched=True).model == 7.0).all()
