"""A wave's clients at once against one after the other: the same runs."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context

from clients import FedAvgGDClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from fedtrellis.wire.local_work import run_together
from strategies import FedAvgGD
from tests.harness import Played, distance, grid_of, node_states, play
from tests.strategies.methods import EVERY, EVERYTHING, of_dtype, on

#: Uneven shares; the largest is more than twice the smallest.
SIZES = (5, 9, 7, 12, 6, 8, 9)


class Own(LeastSquares):
    """An objective that nobody can stack."""

    stack: Any = None


@cache
def losses(kind: str) -> list[Any]:
    rng = np.random.default_rng(5)
    made: list[Any] = []
    for size in SIZES:
        X = rng.standard_normal((size, 4))
        b = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * rng.standard_normal(size)
        if kind == "squares":
            made.append(LeastSquares(X, b, scale="half-mean", l2=0.01, weight=2.0))
        elif kind == "own":
            made.append(Own(X, b, scale="half-mean"))
        elif kind == "logistic":
            made.append(Logistic(X, b > 0.0, l2=0.1))
        else:
            made.append(MultinomialLogistic(X, rng.integers(0, 3, size), 3, l2=0.01))
    return made


#: That cohorts of all methods are their clients one by one is a contract of all
#: methods, with shares of one size; here these differ.
CASES = {
    kind: on(losses(kind), np.zeros((5, 3) if kind == "mlr" else 4), 8)(
        method, batch_fraction=part, step_size=0.05
    )
    for kind, method, part in (
        *(("squares", "FedAvgGD", 1.0), ("own", "FedAvgGD", 0.4)),
        *(("logistic", "FedProx", 1.0), ("mlr", "Scaffold", 1.0)),
    )
}


def average(client: Any, strategy: Any = FedAvgGD, rounds: int = 2, **grid: Any) -> Any:
    made = grid_of(client, losses("squares"), **grid)
    return play(strategy(step_size=0.01), made, np.zeros(4), rounds)


def check_same(one: Played[Any], many: Played[Any], near: float = 1e-12) -> None:
    """Models, metrics and what the nodes keep, to rounding."""
    assert one.used == many.used
    assert distance(one.models, many.models) <= near
    for a, b in zip(one.strategy.history, many.strategy.history, strict=True):
        same = ("sampled", "used", "round_trips", "rejected", "bytes_up", "bytes_down")
        assert all(getattr(a, name) == getattr(b, name) for name in same)
        assert b.train == pytest.approx(a.train, rel=1e-6, abs=near)
    assert one.grid.fault_counts == many.grid.fault_counts
    assert one.grid._handled == many.grid._handled
    for before, after in zip(
        *(g.grid._contexts.values() for g in (one, many)), strict=True
    ):
        assert before.state.keys() == after.state.keys()
    first, second = (node_states(ran.strategy, ran.grid) for ran in (one, many))
    assert first.keys() == second.keys()
    for name, state in first.items():
        assert state.keys() == second[name].keys()
        assert all(distance(state[key], second[name][key]) <= near for key in state)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types of the messages that clients are sent."""
    found: list[str] = []
    push = LocalGrid.push_messages

    def noted(self: LocalGrid, messages: Any) -> Any:
        wave = list(messages)
        found.extend(message.metadata.message_type for message in wave)
        return push(self, wave)

    monkeypatch.setattr(LocalGrid, "push_messages", noted)
    return found


@pytest.mark.parametrize(
    ("dtype", "faults"), [("float64", EVERYTHING), ("float32", {})]
)
@pytest.mark.parametrize("name", CASES)
def test_a_cohort_is_its_clients_one_by_one(
    name: str,
    dtype: str,
    faults: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
) -> None:
    """The same answers, models, metrics and states, and no message is made of them."""
    counts: list[int] = []

    def counted(clients: Any, *given: Any) -> Any:
        counts.append(len(clients))
        return run_together(clients, *given)

    def run(**options: Any) -> Played[Any]:
        case = of_dtype(CASES[name], dtype)
        grid = case.grid(len(SIZES), seed=3, **faults, **options)
        return case.play(grid, 8, seed=1, participation=0.7)

    monkeypatch.setattr("fedtrellis.wire.client.run_together", counted)
    one = run()
    assert not counts
    sent.clear()
    many = run(batched=True)
    assert max(counts) > 1  # clients did go together
    assert faults or set(sent) == {"query.hello"}
    assert many.models[-1].dtype == dtype
    check_same(one, many, 1e-12 if dtype == "float64" else 1e-5)


def test_a_subclass_with_a_fit_of_its_own_is_not_taken_together() -> None:
    class Overriding(FedAvgGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.full(4, 7.0)], 0, {}

    assert (average(Overriding, rounds=1, batched=True).model == 7.0).all()


class Teller(FedAvgGDClient):
    """Answers in several arrays and with metrics of its own."""

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


def test_answers_of_which_no_message_is_made_are_what_messages_bring(
    sent: list[str],
) -> None:
    one = average(Teller, Listening)
    sent.clear()
    many = average(Teller, Listening, batched=True)
    assert set(sent) == {"query.hello"}
    check_same(one, many)
    assert one.strategy.heard == many.strategy.heard
    encoded = [average(Teller, Listening, batched=b, encode=True) for b in (0, 1)]
    assert set(sent) == {"query.hello", "train"}
    sizes = [[r.bytes_up for r in ran.strategy.history] for ran in encoded]
    assert sizes[0] == sizes[1]


class Fickle(FedAvgGDClient):
    """Counts its rounds; client 2 raises after writing to its node's state."""

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context, objective)
        own: Any = context.state.get("own", {"rounds": 0})
        context.state["own"] = ConfigRecord({"rounds": own["rounds"] + 1})
        self.context = context

    def steps(self, x: Any, config: Any) -> Any:
        point = yield from super().steps(x, config)
        if self.client_id == "2" and config["server-round"] % 2:
            self.context.state["left"] = ConfigRecord({"behind": 1})
            raise ArithmeticError("client 2 cannot")
        return point


def test_who_is_at_fault_fails_alone_and_leaves_nothing_behind() -> None:
    runs = [average(Fickle, rounds=4, batched=b) for b in (False, True)]
    check_same(*runs)
    why = [("2", "error 2: ArithmeticError: client 2 cannot")]
    assert [r.rejected for r in runs[1].strategy.history] == [why, []] * 2
    for ran in runs:
        states: list[Any] = [c.state for c in ran.grid._contexts.values()]
        # the introduction makes a client as well
        counts = [state["own"]["rounds"] for state in states]
        assert counts == [3 if k == 2 else 5 for k in range(len(SIZES))]
        assert all("left" not in state for state in states)


class Watching(LocalGrid):
    """Sees what is sent."""

    seen = 0

    def push_messages(self, messages: Any) -> list[str]:
        wave = list(messages)
        self.seen += sum(m.metadata.message_type == "train" for m in wave)
        return super().push_messages(wave)


class Around:
    """A grid around another one."""

    seen = 0

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Any) -> list[str]:
        wave = list(messages)
        self.seen += sum(m.metadata.message_type == "train" for m in wave)
        return self.grid.push_messages(wave)


def test_whoever_overrides_the_grid_or_has_mods_sees_every_message() -> None:
    through: list[str] = []

    def mod(message: Any, context: Context, call_next: Any) -> Any:
        through.append(message.metadata.message_type)
        return call_next(message, context)

    def client(context: Context) -> Any:
        return FedAvgGDClient(context, losses("squares")[0])

    def go(grid: Any) -> Any:
        play(FedAvgGD(step_size=0.01), grid, np.zeros(4), 2)
        return grid

    app = client_app(client)
    go(LocalGrid(client_app(client, mods=[mod]), 3, batched=True))
    assert through.count("train") == 6
    assert go(Watching(app, 3, batched=True)).seen == 6
    assert go(Around(LocalGrid(app, 3, batched=True))).seen == 6
    other, waves = LocalGrid(app, 3, batched=True), []
    push = other.push_messages
    other.push_messages = lambda wave: waves.append(1) or push(wave)  # type: ignore
    go(other)
    assert len(waves) == 3


class Unshared(LocalGrid):
    """Nobody may share what a message holds where somebody could change it."""


@pytest.mark.parametrize(
    ("name", "encode"),
    [("fedavg-gd", False), ("fedfw corrective", True), ("fedgia", False)],
)
def test_contents_in_common_change_nothing(name: str, encode: bool) -> None:
    method, options = EVERY[name], {"seed": 3, "encode": encode, **EVERYTHING}
    shared = method.grid(7, **options)
    apart = Unshared(shared.client_app, 7, **options)
    assert (shared.untouched, apart.untouched) == (True, False)
    check_same(method.play(shared, 8), method.play(apart, 8), 0.0)
    assert (shared.bytes_down, shared.bytes_up) == (apart.bytes_down, apart.bytes_up)
