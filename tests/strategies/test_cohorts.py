"""A wave's clients at once against one after the other: the same runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context

import clients
from clients import (
    CompressedSGDClient,
    FedAvgGDClient,
    FedDRClient,
    FedFWClient,
    FedGiAClient,
    FedLMOClient,
    FedOptClient,
    FedProxClient,
    FirstOrderRFLClient,
    LocalSGDClient,
    NaiveFrankWolfeClient,
    ProjectedFedAvgClient,
    ScaffoldClient,
    ZerothOrderRFLClient,
)
from fedtrellis import LocalGrid, MethodClient, client_app
from fedtrellis.domains import L1Ball
from fedtrellis.manifolds import Sphere
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.local_work import run_together
from fedtrellis.wire.protocol import ClientMemory
from strategies import (
    CompressedSGD,
    FedAvgGD,
    FedDR,
    FedFW,
    FedGiA,
    FedLMO,
    FedOpt,
    FedProx,
    FirstOrderRFL,
    LocalSGD,
    NaiveFrankWolfe,
    ProjectedFedAvg,
    Scaffold,
    ZerothOrderRFL,
)
from tests.harness import Array, Played, Stop, grid_of, play

#: Uneven shares; the largest is more than twice the smallest.
SIZES = (5, 9, 7, 12, 6, 8, 9)
FAULTS = {
    "request_loss": 0.08,
    "wipe": 0.05,
    "crash": 0.08,
    "state_loss": 0.05,
    "reply_loss": 0.08,
    "late_reply": 0.05,
    "garbage": 0.08,
    "duplicate": 0.05,
}


class Own(LeastSquares):
    """An objective that nobody can stack."""

    stack: Any = None


@lru_cache(maxsize=8)
def losses(kind: str) -> list[Any]:
    """One for each node."""
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


def start_of(kind: str) -> Array:
    """The model that runs of a loss begin with."""
    return np.zeros((5, 3) if kind == "classes" else 4)


@dataclasses.dataclass(frozen=True)
class Case:
    """A method on a loss."""

    name: str
    strategy: Callable[..., Any]
    client: Callable[..., Any]
    kind: str
    more: tuple[Any, ...] = ()
    start: Array | None = None

    def grid(self, **options: Any) -> LocalGrid:
        """The nodes."""
        return grid_of(self.client, losses(self.kind), *self.more, seed=3, **options)

    def play(self, grid: LocalGrid, rounds: int = 8, **settings: Any) -> Played[Any]:
        """A run."""
        strategy = self.strategy(seed=1, participation=0.7, **settings)
        start = start_of(self.kind) if self.start is None else self.start
        return play(strategy, grid, start, rounds=rounds)


def cases() -> list[Case]:
    """Every method whose client's work is its ``steps``."""
    ball, sphere = L1Ball(2.0), Sphere((4,))
    first = np.array([1.0, 0.0, 0.0, 0.0])

    def of(method: Any, *given: Any, **settings: Any) -> Callable[..., Any]:
        return lambda **more: method(*given, **settings, **more)

    made = [
        Case(f"fedavg-gd {kind}", FedAvgGD, FedAvgGDClient, kind)
        for kind in ("squares", "own", "logistic", "classes")
    ]
    made += [
        Case("batches", of(FedAvgGD, batch_fraction=0.4), FedAvgGDClient, "classes"),
        Case("local-sgd", LocalSGD, LocalSGDClient, "squares"),
        Case("fedopt", FedOpt, FedOptClient, "squares"),
        Case("fedprox", FedProx, FedProxClient, "logistic"),
        Case("projected", of(ProjectedFedAvg, ball, batch_size=3),
             ProjectedFedAvgClient, "logistic"),
        Case("feddr", of(FedDR, ball, local_steps=3), FedDRClient, "squares"),
        Case("fedgia", of(FedGiA, sigma=1.0, tolerance=0.0), FedGiAClient, "logistic"),
        Case("scaffold", Scaffold, ScaffoldClient, "logistic"),
        Case("compressed", of(CompressedSGD, kept_fraction=0.5), CompressedSGDClient,
             "squares"),
        Case("naive", of(NaiveFrankWolfe, ball), NaiveFrankWolfeClient, "logistic",
             (ball,)),
        Case("fedgia gram", of(FedGiA, sigma=1.0, tolerance=0.0, hessian="gram"),
             FedGiAClient, "squares"),
    ]  # fmt: skip
    made += [
        Case(f"fedlmo {variant}", of(FedLMO, variant=variant, local_steps=2),
             FedLMOClient, "classes")
        for variant in ("server", "local", "corrected", "averaged", "ef21")
    ]  # fmt: skip
    made += [
        Case(f"fedfw {variant} {steps}",
             of(FedFW, ball, variant=variant, penalty=penalty, local_steps=steps),
             FedFWClient, "logistic", (ball,))
        for variant, penalty, steps in (
            ("plain", 0.1, 1), ("plain", None, 2),
            ("augmented", 0.1, 1), ("augmented", None, 3), ("stochastic", 0.1, 2),
            ("corrective", None, 2),
        )
    ]  # fmt: skip
    made += [
        Case("first-order-rfl", of(FirstOrderRFL, sphere, step_size=0.05),
             FirstOrderRFLClient, "squares", (sphere,), first),
        Case("zeroth-order-rfl", of(ZerothOrderRFL, sphere, step_size=0.01, samples=6),
             ZerothOrderRFLClient, "squares", (sphere,), first),
    ]  # fmt: skip
    return made


def test_every_client_that_computes_together_is_here() -> None:
    offer = {
        kind
        for kind in (getattr(clients, name) for name in clients.__all__)
        if kind.fit is MethodClient.fit and kind.steps is not MethodClient.steps
    }
    assert offer == {case.client for case in cases()}


def assert_same(one: Played[Any], many: Played[Any], tolerance: float) -> None:
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


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["calm", "faults"])
def test_a_cohort_is_its_clients_one_by_one(
    case: Case, faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = spy(monkeypatch)
    one = case.play(grid := case.grid(**faults))
    assert not counts
    many = case.play(batched := case.grid(batched=True, **faults))
    assert max(counts) > 1  # clients did go together
    assert_same(one, many, 1e-12)
    assert grid.fault_counts == batched.fault_counts
    assert grid._handled == batched._handled


@pytest.mark.parametrize("case", cases()[:1], ids=lambda case: case.name)
def test_encoded_messages_have_the_same_bytes(case: Case) -> None:
    grids = [case.grid(encode=True, batched=batched) for batched in (False, True)]
    one, many = (case.play(grid) for grid in grids)
    assert_same(one, many, 1e-12)
    assert grids[0].bytes_up == grids[1].bytes_up > 0
    assert grids[0].bytes_down == grids[1].bytes_down > 0


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_float32(case: Case) -> None:
    first = start_of(case.kind) if case.start is None else case.start
    start: Any = first.astype(np.float32)
    single = dataclasses.replace(case, start=start)
    one, many = (single.play(single.grid(batched=batched)) for batched in (False, True))
    assert one.models[-1].dtype == many.models[-1].dtype == np.float32
    assert_same(one, many, 1e-5)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_run_goes_on_from_one_kind_to_the_other(case: Case, tmp_path: Path) -> None:
    whole = case.play(case.grid())
    for first in (False, True):
        path = tmp_path / f"{first}"
        case.play(
            case.grid(batched=first),
            checkpoint=path,
            checkpoint_every=1,
            callbacks=[Stop(4)],
        )
        rest = case.play(case.grid(batched=not first), resume=path)
        np.testing.assert_allclose(
            rest.models[-1], whole.models[-1], rtol=0.0, atol=1e-12
        )
        assert rest.used == whole.used[4:]


class Faulty(FedAvgGDClient):
    """Client 2 raises, alone and in company."""

    def steps(self, x: Any, config: Any) -> Any:
        if self.client_id == "2":
            raise ArithmeticError("client 2 cannot")
        return super().steps(x, config)


def test_who_is_at_fault_fails_alone() -> None:
    runs = [
        play(
            FedAvgGD(),
            grid_of(Faulty, losses("squares"), batched=batched),
            np.zeros(4),
            rounds=2,
        )
        for batched in (False, True)
    ]
    assert_same(runs[0], runs[1], 1e-12)
    reasons = {tuple(record.rejected) for record in runs[1].strategy.history}
    assert reasons == {(("2", "error 2: ArithmeticError: client 2 cannot"),)}


class Overriding(FedAvgGDClient):
    """Another ``fit``, which ``steps`` knows nothing of."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return [np.full(4, 7.0)], 0, {}


def test_a_subclass_with_a_fit_of_its_own_is_not_taken_together() -> None:
    grid = grid_of(Overriding, losses("squares"), batched=True)
    assert (play(FedAvgGD(), grid, np.zeros(4), rounds=1).model == 7.0).all()


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
            Listening(), grid_of(Teller, losses("squares"), **options), np.zeros(4), 3
        )

    one = run()
    sent = messages(monkeypatch)
    many = run(batched=True)
    assert set(sent) == {"query.hello"}
    assert_same(one, many, 1e-12)
    assert one.strategy.heard == many.strategy.heard
    assert len(run(batched=True, encode=True).models) == 3
    assert set(sent) == {"query.hello", "train"}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_whoever_looks_finds_the_state_in_records(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many = case.grid(), case.grid(batched=True)
    case.play(one)
    sent = messages(monkeypatch)
    case.play(many)
    assert set(sent) == {"query.hello"}
    for a, b in zip(one._contexts.values(), many._contexts.values(), strict=True):
        assert a.state.keys() == b.state.keys()
        assert ClientMemory.load(a.state, None).session
        first, second = (ClientMemory.load(c.state, None) for c in (a, b))
        for kept, found in zip(first[2:], second[2:], strict=True):
            arrays, others = kept.arrays, found.arrays
            assert (kept.round, arrays.keys()) == (found.round, others.keys())
            for name, array in arrays.items():
                np.testing.assert_allclose(
                    decode(others[name]), decode(array), rtol=0.0, atol=1e-12
                )


class Writing(FedAvgGDClient):
    """Counts its rounds among the records of its node."""

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context, objective)
        own: Any = context.state.get("own", {"rounds": 0})
        context.state["own"] = ConfigRecord({"rounds": own["rounds"] + 1})


def test_records_of_a_clients_own_stay() -> None:
    grids = [grid_of(Writing, losses("squares"), batched=b) for b in (False, True)]
    runs = [play(FedAvgGD(), grid, np.zeros(4), rounds=4) for grid in grids]
    assert_same(runs[0], runs[1], 1e-12)
    for grid in grids:
        # the introduction makes a client as well
        counts = [c.state["own"]["rounds"] for c in grid._contexts.values()]
        assert counts == [5] * len(SIZES)


class Fickle(FedAvgGDClient):
    """Client 2 writes to its node's state, and raises every other round."""

    def steps(self, x: Any, config: Any) -> Any:
        point = yield from super().steps(x, config)
        if self.client_id == "2" and config["server-round"] % 2:
            self.context.state["left"] = ConfigRecord({"behind": 1})
            raise ArithmeticError("client 2 cannot")
        return point

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context, objective)
        self.context = context


def test_a_failed_round_leaves_nothing_behind() -> None:
    grids = [grid_of(Fickle, losses("squares"), batched=b) for b in (False, True)]
    runs = [play(FedAvgGD(), grid, np.zeros(4), rounds=4) for grid in grids]
    assert_same(runs[0], runs[1], 1e-12)
    for a, b in zip(*(grid._contexts.values() for grid in grids), strict=True):
        assert "left" not in b.state
        assert a.state.keys() == b.state.keys()


class Broken(LeastSquares):
    """A gradient that is no number away from 0."""

    stack: Any = None

    def gradient(self, x: Any) -> Any:
        return super().gradient(x) if not x.any() else np.full_like(x, np.nan)


@pytest.mark.parametrize("batched", [False, True])
def test_a_gradient_that_is_no_number_is_not_called_a_long_step(batched: bool) -> None:
    own = losses("squares")
    broken = Broken(np.eye(4), np.ones(4))
    grid = grid_of(FedAvgGDClient, [*own[:2], broken], batched=batched)
    run = play(FedAvgGD(local_steps=3), grid, np.zeros(4), rounds=1)
    ((name, reason),) = run.strategy.history[0].rejected
    assert (name, reason) == (
        "2",
        "error 2: FloatingPointError: the objective's gradient is not a number",
    )


class Weighted(FedAvgGD):
    """Tells each client another step size."""

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        entries = super().instruction(server_round, client)
        return {**entries, "step-size": 0.001 * (1 + int(client))}


def test_a_subclass_that_tells_each_its_own_is_asked_for_each() -> None:
    runs = [
        play(Weighted(), grid_of(FedAvgGDClient, losses("squares"), batched=batched),
             np.zeros(4), rounds=2)
        for batched in (False, True)
    ]  # fmt: skip
    assert_same(runs[0], runs[1], 1e-12)
    alike = play(FedAvgGD(), grid_of(FedAvgGDClient, losses("squares")), np.zeros(4), 2)
    assert np.abs(alike.model - runs[0].model).max() > 1e-3


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


def test_whoever_overrides_the_grid_sees_every_message() -> None:
    app = client_app(lambda context: FedAvgGDClient(context, losses("squares")[0]))
    grid = Watching(app, 3, batched=True)
    play(FedAvgGD(), grid, np.zeros(4), rounds=2)
    assert grid.seen == 6
    outer = Around(LocalGrid(app, 3, batched=True))
    play(FedAvgGD(), cast(LocalGrid, outer), np.zeros(4), rounds=2)
    assert outer.seen == 6
    other, seen = LocalGrid(app, 3, batched=True), []
    push = other.push_messages
    other.push_messages = lambda wave: seen.append(1) or push(wave)  # type: ignore
    play(FedAvgGD(), other, np.zeros(4), rounds=2)
    assert len(seen) == 3


def test_mods_are_run_around_every_message() -> None:
    seen: list[str] = []

    def mod(message: Any, context: Context, call_next: Any) -> Any:
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    app = client_app(
        lambda context: FedAvgGDClient(context, losses("squares")[0]), mods=[mod]
    )
    play(FedAvgGD(), LocalGrid(app, 3, batched=True), np.zeros(4), rounds=2)
    assert seen.count("train") == 6


class Unshared(LocalGrid):
    """Nobody may share what a message holds where somebody could change it."""


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "fedfw", "fedgia"])
def test_contents_in_common_change_nothing(method: str, encode: bool) -> None:
    each = losses("squares")
    ball = L1Ball(radius=2.0)
    made: dict[str, Callable[[], Any]] = {
        "fedavg": lambda: FedAvgGD(step_size=0.1, participation=0.6),
        "fedfw": lambda: FedFW(domain=ball, participation=0.6),
        "fedgia": lambda: FedGiA(participation=0.6),
    }

    def client_fn(context: Context) -> Any:
        objective = each[int(context.node_config["partition-id"])]
        if method == "fedfw":
            return FedFWClient(context, objective, ball)
        return {"fedavg": FedAvgGDClient, "fedgia": FedGiAClient}[method](
            context, objective
        )

    runs, grids = [], []
    options: Any = {"seed": 3, "encode": encode, **FAULTS}
    for kind in (LocalGrid, Unshared):
        grid = kind(client_app(client_fn), len(each), **options)
        runs.append(play(made[method](), grid, np.zeros(4), rounds=12))
        grids.append(grid)
    assert [grid.untouched for grid in grids] == [True, False]
    assert_same(runs[0], runs[1], 0.0)
    assert grids[0].bytes_down == grids[1].bytes_down
    assert grids[0].bytes_up == grids[1].bytes_up
    assert grids[0].fault_counts == grids[1].fault_counts
    for one, other in zip(
        grids[0]._contexts.values(), grids[1]._contexts.values(), strict=True
    ):
        own, theirs = (
            ClientMemory.load(c.state, r.strategy.conversation.session)
            for c, r in ((one, runs[0]), (other, runs[1]))
        )
        for kept, found in zip(own[2:], theirs[2:], strict=True):
            mine, its = kept.arrays, found.arrays
            assert (kept.round, mine.keys()) == (found.round, its.keys())
            assert all(np.array_equal(decode(mine[k]), decode(its[k])) for k in mine)
