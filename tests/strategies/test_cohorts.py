"""A wave's clients at once against one after the other: the same runs."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

import clients
from clients import FedAvgGDClient
from fedtrellis import LocalGrid, MethodClient, client_app
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.local_work import run_together
from fedtrellis.wire.protocol import ClientMemory
from strategies import FedAvgGD
from tests.harness import Played, Stop, grid_of, play
from tests.strategies.methods import (
    EVERY,
    EVERYTHING,
    METHODS,
    A,
    B,
    Method,
    of_dtype,
    on,
)

#: Uneven shares; the largest is more than twice the smallest.
SIZES = (5, 9, 7, 12, 6, 8, 9)


class Own(LeastSquares):
    """An objective that nobody can stack."""

    stack: Any = None


@lru_cache(maxsize=8)
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


def uneven(method: Method) -> Method:
    """A method on shares of unlike sizes, where its losses are squares."""
    own = method.losses[: len(SIZES)]
    if method.losses is METHODS["fedavg-gd"].losses:
        own = [
            LeastSquares(a[:size], b[:size], scale="half-mean", l2=0.01)
            for a, b, size in zip(A, B, SIZES, strict=False)
        ]
    return dataclasses.replace(method, losses=own)


def kind_of(method: Method) -> Any:
    context = Context(0, 0, {"partition-id": 0}, RecordDict(), {})
    return type(method.client(context, method.losses[0]))


def works_together(kind: Any) -> bool:
    """Whether clients of a class take their steps side by side."""
    alone = kind.fit is not MethodClient.fit or kind.steps is MethodClient.steps
    return not alone


#: Every method whose client's work is its ``steps``, and other losses.
CASES = {
    name: uneven(method)
    for name, method in EVERY.items()
    if works_together(kind_of(method))
}
for _kind, _part in (
    ("squares", 1.0),
    ("own", 0.4),
    ("logistic", 1.0),
    ("classes", 0.4),
):
    _on = on(losses(_kind), np.zeros((5, 3) if _kind == "classes" else 4), 8)
    CASES[_kind] = _on("FedAvgGD", batch_fraction=_part)


def grid_for(case: Method, **options: Any) -> LocalGrid:
    return case.grid(len(SIZES), **{"seed": 3, **options})


def run(case: Method, grid: LocalGrid, **settings: Any) -> Played[Any]:
    return case.play(grid, 8, **{"seed": 1, "participation": 0.7, **settings})


def test_every_client_that_computes_together_is_here() -> None:
    offer = {
        kind
        for name in clients.__all__
        if works_together(kind := getattr(clients, name))
    }
    assert offer == {kind_of(case) for case in CASES.values()}


def assert_same(one: Played[Any], many: Played[Any], tolerance: float = 1e-12) -> None:
    """Check that two runs are the same, models and metrics to rounding."""
    assert one.used == many.used
    for before, after in zip(one.models, many.models, strict=True):
        np.testing.assert_allclose(after, before, rtol=0.0, atol=tolerance)
    for a, b in zip(one.strategy.history, many.strategy.history, strict=True):
        assert (a.sampled, a.used, a.round_trips) == (b.sampled, b.used, b.round_trips)
        assert a.rejected == b.rejected
        assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
        assert a.train.keys() == b.train.keys()
        for name, value in a.train.items():
            assert b.train[name] == pytest.approx(value, rel=1e-6, abs=tolerance)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients have taken their steps side by side each time."""
    counts: list[int] = []
    run = run_together

    def counted(clients: Any, *given: Any) -> Any:
        counts.append(len(clients))
        return run(clients, *given)

    monkeypatch.setattr("fedtrellis.wire.client.run_together", counted)
    return counts


def assert_same_states(one: LocalGrid, many: LocalGrid, tolerance: float) -> None:
    """Check that the nodes keep the same, in records that whoever looks finds."""
    for a, b in zip(one._contexts.values(), many._contexts.values(), strict=True):
        assert a.state.keys() == b.state.keys()
        first, second = (ClientMemory.load(c.state, None) for c in (a, b))
        for kept, found in zip(first[2:], second[2:], strict=True):
            assert kept.round == found.round
            assert kept.arrays.keys() == found.arrays.keys()
            for name, array in kept.arrays.items():
                np.testing.assert_allclose(
                    decode(found.arrays[name]), decode(array), rtol=0.0, atol=tolerance
                )


@pytest.mark.parametrize(
    ("dtype", "faults"), [("float64", EVERYTHING), ("float32", {})]
)
@pytest.mark.parametrize("name", CASES)
def test_a_cohort_is_its_clients_one_by_one(
    name: str, dtype: str, faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers, models, metrics and states, and no message is made of them."""
    case, counts = of_dtype(CASES[name], dtype), spy(monkeypatch)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    one = run(case, grid := grid_for(case, **faults))
    assert not counts
    sent = messages(monkeypatch)
    many = run(case, batched := grid_for(case, batched=True, **faults))
    assert max(counts) > 1  # clients did go together
    assert faults or set(sent) == {"query.hello"}
    assert many.models[-1].dtype == dtype
    assert_same(one, many, tolerance)
    assert grid.fault_counts == batched.fault_counts
    assert grid._handled == batched._handled
    assert_same_states(grid, batched, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_from_one_kind_to_the_other(name: str, tmp_path: Path) -> None:
    case, path, first = CASES[name], tmp_path / "checkpoint", len(name) % 2 == 0
    whole = run(case, grid_for(case))
    halves: dict[str, Any] = {"checkpoint": path, "callbacks": [Stop(4)]}
    run(case, grid_for(case, batched=first), checkpoint_every=1, **halves)
    rest = run(case, grid_for(case, batched=not first), resume=path)
    np.testing.assert_allclose(rest.models[-1], whole.models[-1], rtol=0.0, atol=1e-12)
    assert rest.used == whole.used[4:]


class Overriding(FedAvgGDClient):
    """Another ``fit``, which ``steps`` knows nothing of."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return [np.full(4, 7.0)], 0, {}


def test_a_subclass_with_a_fit_of_its_own_is_not_taken_together() -> None:
    grid = grid_of(Overriding, losses("squares"), batched=True)
    assert (
        play(FedAvgGD(step_size=0.01), grid, np.zeros(4), rounds=1).model == 7.0
    ).all()


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


def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types of the messages that clients are sent from now on."""
    sent: list[str] = []
    push = LocalGrid.push_messages

    def noted(self: LocalGrid, messages: Any) -> list[str]:
        wave = list(messages)
        sent.extend(message.metadata.message_type for message in wave)
        return push(self, wave)

    monkeypatch.setattr(LocalGrid, "push_messages", noted)
    return sent


def test_answers_of_which_no_message_is_made_are_what_messages_bring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(**options: Any) -> Played[Any]:
        return play(
            Listening(step_size=0.01),
            grid_of(Teller, losses("squares"), **options),
            np.zeros(4),
            3,
        )

    one = run()
    sent = messages(monkeypatch)
    many = run(batched=True)
    assert set(sent) == {"query.hello"}
    assert_same(one, many, 1e-12)
    assert one.strategy.heard == many.strategy.heard
    encoded = [run(batched=b, encode=True).strategy for b in (False, True)]
    assert set(sent) == {"query.hello", "train"}
    bytes_up = [[r.bytes_up for r in one.history] for one in encoded]
    assert bytes_up[0] == bytes_up[1]


class Writing(FedAvgGDClient):
    """Counts its rounds among the records of its node."""

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context, objective)
        own: Any = context.state.get("own", {"rounds": 0})
        context.state["own"] = ConfigRecord({"rounds": own["rounds"] + 1})
        self.context = context


class Fickle(Writing):
    """Client 2 raises, alone and in company, after writing to its node's state."""

    def steps(self, x: Any, config: Any) -> Any:
        point = yield from super().steps(x, config)
        if self.client_id == "2" and config["server-round"] % 2:
            self.context.state["left"] = ConfigRecord({"behind": 1})
            raise ArithmeticError("client 2 cannot")
        return point


def test_who_is_at_fault_fails_alone_and_leaves_nothing_behind() -> None:
    grids = [grid_of(Fickle, losses("squares"), batched=b) for b in (False, True)]
    runs = [
        play(FedAvgGD(step_size=0.01), grid, np.zeros(4), rounds=4) for grid in grids
    ]
    assert_same(runs[0], runs[1])
    for grid in grids:
        # the introduction makes a client as well
        counts = [c.state["own"]["rounds"] for c in grid._contexts.values()]
        assert counts == [3 if k == 2 else 5 for k in range(len(SIZES))]
    why = [("2", "error 2: ArithmeticError: client 2 cannot")]
    assert [r.rejected for r in runs[1].strategy.history] == [why, []] * 2
    for a, b in zip(*(grid._contexts.values() for grid in grids), strict=True):
        assert "left" not in b.state
        assert a.state.keys() == b.state.keys()


class Watching(LocalGrid):
    """Sees what is sent."""

    seen = 0

    def push_messages(self, messages: Any) -> list[str]:
        wave = list(messages)
        self.seen += sum(m.metadata.message_type == "train" for m in wave)
        return super().push_messages(wave)


class Around:
    """A grid around another one."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid, self.seen = grid, 0

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

    app = client_app(client)
    modified = LocalGrid(client_app(client, mods=[mod]), 3, batched=True)
    play(FedAvgGD(step_size=0.01), modified, np.zeros(4), rounds=2)
    assert through.count("train") == 6
    grid = Watching(app, 3, batched=True)
    play(FedAvgGD(step_size=0.01), grid, np.zeros(4), rounds=2)
    assert grid.seen == 6
    outer = Around(LocalGrid(app, 3, batched=True))
    play(FedAvgGD(step_size=0.01), cast(LocalGrid, outer), np.zeros(4), rounds=2)
    assert outer.seen == 6
    other, seen = LocalGrid(app, 3, batched=True), []
    push = other.push_messages
    other.push_messages = lambda wave: seen.append(1) or push(wave)  # type: ignore
    play(FedAvgGD(step_size=0.01), other, np.zeros(4), rounds=2)
    assert len(seen) == 3


class Unshared(LocalGrid):
    """Nobody may share what a message holds where somebody could change it."""


@pytest.mark.parametrize(
    ("name", "encode"),
    [("fedavg-gd", False), ("fedfw corrective", True), ("fedgia", False)],
)
def test_contents_in_common_change_nothing(name: str, encode: bool) -> None:
    case = CASES[name]
    grids = [grid_for(case, encode=encode, **EVERYTHING)]
    given = grids[0].client_app
    grids.append(Unshared(given, len(SIZES), seed=3, encode=encode, **EVERYTHING))
    runs = [run(case, grid) for grid in grids]
    assert [grid.untouched for grid in grids] == [True, False]
    assert_same(runs[0], runs[1], 0.0)
    assert grids[0].bytes_down == grids[1].bytes_down
    assert grids[0].bytes_up == grids[1].bytes_up
    assert grids[0].fault_counts == grids[1].fault_counts
    assert_same_states(grids[0], grids[1], 0.0)
