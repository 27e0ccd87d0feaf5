"""Corrective FedFW is METHODS §5.1: round for round the plain loop beside it.

How far it goes and how it knows, what its clients say of x̄; states and ρ go on over
checkpoints, and a client's lie is its silence.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

from clients import FedFWClient
from fedtrellis import Callback, LocalGrid, RoundRecord
from fedtrellis.corrective.penalty import Balance
from fedtrellis.domains import (
    Domain,
    L1Ball,
    NuclearNormBall,
    Simplex,
)
from fedtrellis.objectives import LeastSquares, Logistic, MatrixCompletion
from strategies import FedFW
from tests.harness import Array, Recorder, app_of, grid_of, node_states, play
from tests.strategies import corrective_loop as plain
from tests.strategies.methods import EVERYTHING

cp: Any = importlib.import_module("cvxpy")


# ------------------------------------------------------------- problems, each twice


@dataclass
class Problem:
    """A problem of the package, and the same one for the plain loop."""

    objectives: list[Any]
    domain: Domain
    losses: list[plain.Loss]
    ball: plain.Ball
    start: Array
    steps: int = 8


def _of_vectors(kind: str, domain: Domain, ball: plain.Ball, start: Array) -> Problem:
    """Clients differ: in what they want, and in how their losses bend."""
    rng = np.random.default_rng(1 if kind == "squares" else 2)
    rows = 7 if kind == "squares" else 12
    a = rng.standard_normal((5, rows, start.size)) * rng.uniform(0.5, 2.0, (5, 1, 1))
    b = rng.standard_normal((5, rows)) + rng.standard_normal((5, 1))
    own, theirs, weight = LeastSquares, plain.least_squares, 5.0
    if kind == "logistic":
        b = (b > 0).astype(np.float64)
        own, theirs = Logistic, plain.logistic  # type: ignore[assignment]
    pairs = list(zip(a, b, strict=True))
    return Problem(
        [own(*pair, weight=weight) for pair in pairs],
        domain,
        [theirs(*pair, weight) for pair in pairs],
        ball,
        start,
    )


class Quartic:
    """A user's own class: Σ (X_ij − c_ij)⁴ + (X_ij − c_ij)², and no curvature."""

    num_examples = 1

    def __init__(self, centre: Array, weight: float) -> None:
        self.centre, self.weight = centre, weight

    def value(self, x: Array) -> float:
        away = x - self.centre
        return float(self.weight * np.sum(away**4 + away**2))

    def gradient(self, x: Array) -> Array:
        away = x - self.centre
        return np.asarray(self.weight * (4.0 * away**3 + 2.0 * away))


def _quartic() -> Problem:
    centres = np.random.default_rng(5).uniform(-0.5, 1.0, (4, 15))
    return Problem(
        [Quartic(centre, 3.0) for centre in centres],
        L1Ball(2.0),
        [plain.quartic(centre, 3.0) for centre in centres],
        plain.l1_ball(2.0),
        np.full(15, 0.05),
        steps=5,
    )


def _completion() -> Problem:
    rng = np.random.default_rng(4)
    shape, n, known = (9, 7), 4, 30
    target = rng.standard_normal((9, 2)) @ rng.standard_normal((2, 7))
    rows, columns = rng.integers(9, size=(n, known)), rng.integers(7, size=(n, known))
    values = target[rows, columns] + 0.1 * rng.standard_normal((n, known))
    radius = 0.6 * float(np.linalg.norm(target, "nuc"))
    parts = list(zip(rows, columns, values, strict=True))
    return Problem(
        [MatrixCompletion(*part, shape, weight=30.0) for part in parts],
        NuclearNormBall(radius),
        [plain.completion(*part, 30.0) for part in parts],
        plain.nuclear_ball(radius),
        np.zeros(shape),
        steps=4,
    )


_DIRICHLET = np.random.default_rng(0).dirichlet(np.ones(20)) * 2.0
_MAKERS: dict[str, Callable[[], Problem]] = {
    "squares, l1": lambda: _of_vectors(
        "squares", L1Ball(1.5), plain.l1_ball(1.5), np.full(20, 0.02)
    ),
    "squares, simplex": lambda: _of_vectors(
        "squares", Simplex(2.0), plain.simplex(2.0), _DIRICHLET
    ),
    "logistic, l1": lambda: _of_vectors(
        "logistic", L1Ball(2.0), plain.l1_ball(2.0), np.zeros(15)
    ),
    "logistic, simplex": lambda: _of_vectors(
        "logistic", Simplex(3.0), plain.simplex(3.0), np.full(15, 0.2)
    ),
    "quartic": _quartic,
    "completion": _completion,
}
PROBLEMS = tuple(_MAKERS)
# An exact step along v − u leaves both atoms alike, and rounding says which is the next
# to lose weight: pairwise steps on quadratics cannot be compared to the last digits.
CASES = [
    *[(name, "projected") for name in PROBLEMS],
    *[(name, "pairwise") for name in ("logistic, l1", "logistic, simplex", "quartic")],
]


@cache
def problem(name: str) -> Problem:
    return _MAKERS[name]()


@dataclass
class Rounds(Callback):
    """All that the server replays, after every round."""

    used: list[list[int]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if not record.round:
            return
        half, names = strategy.half, strategy.clients
        self.used.append([int(name) for name in strategy.used])
        self.kept.append(
            {
                "x": [strategy._client_iterate(name) for name in names],
                "y": [half._duals[name].copy() for name in names],
                "z": strategy.broadcast.model.copy(),
                "model": half.model.copy(),
                "rho": half.penalty or 0.0,
                "metrics": record.train,
            }
        )


@dataclass
class Run:
    """A run of the package: whose answers were used, what was replayed, by round."""

    strategy: FedFW
    grid: LocalGrid
    used: list[list[int]]
    rounds: list[dict[str, Any]]
    model: Array


def run(
    made: Problem,
    rounds: int,
    faults: Any = (),
    *,
    last_fault: int | None = None,
    client: Any = FedFWClient,
    **settings: Any,
) -> Run:
    watch = Rounds()
    own = {"local_steps": made.steps, "seed": 7, "max_failed_rounds": 1000}
    strategy = FedFW(made.domain, callbacks=[watch], **{**own, **settings})
    grid = grid_of(client, made.objectives, made.domain, **dict(faults))
    played = play(strategy, grid, made.start, rounds, last_fault=last_fault)
    return Run(strategy, grid, watch.used, watch.kept, played.model)


def loop(made: Problem, **options: Any) -> plain.Loop:
    return plain.Loop(made.losses, made.ball, made.start, made.steps, **options)


def check_beside(ran: Run, beside: plain.Loop, near: float = 1e-9) -> None:
    """x_i, y_i, z, x̄ and ρ are the loop's after every round."""
    for used, kept in zip(ran.used, ran.rounds, strict=True):
        beside.round(used)
        own = {
            "x": np.array(beside.x),
            "y": np.array(beside.y),
            "z": beside.z,
            "model": beside.mean,
            "rho": beside.rho or 0.0,
        }
        for key, value in own.items():
            theirs = np.array(kept[key])
            off = float(np.abs(theirs - value).max())
            # in units of what is compared, where that is large; ρ goes by differences
            # of what is compared, a hundredth as large
            off /= max(1.0, float(np.abs(theirs).max()))
            assert off < (100 * near if key == "rho" else near), key


# --------------------------------------------------------------------------- the rounds


@pytest.mark.parametrize(("name", "correction"), CASES)
def test_whatever_goes_wrong_it_is_the_loop_of_the_answers_used(
    name: str, correction: str
) -> None:
    """All eight faults at once; the nodes' states are the server's bit for bit."""
    faults = EVERYTHING | {"encode": True}
    options: dict[str, Any] = {"correction": correction, "participation": 0.8}
    ran = run(problem(name), 16, faults, last_fault=15, **options)
    assert all(ran.grid.fault_counts.values())
    assert ran.rounds[-1]["rho"] != ran.rounds[2]["rho"]
    check_beside(ran, loop(problem(name), pairwise=correction == "pairwise"))
    strategy, states = ran.strategy, node_states(ran.strategy, ran.grid)
    for client, state in states.items():
        expected = strategy.client_state(client)
        for key in ("x", "y"):
            if expected[key].dtype == state[key].dtype:
                assert state[key].tobytes() == expected[key].tobytes(), (client, key)
            else:  # no step of this client was used yet
                assert strategy.conversation.client(client).used_round == 0
    assert states.keys() >= set(strategy.used)
    assert strategy.used


def test_a_fixed_penalty_stays() -> None:
    made = problem("squares, l1")
    ran = run(made, 6, penalty=3.0, participation=0.6)
    assert {kept["rho"] for kept in ran.rounds} == {3.0}
    check_beside(ran, loop(made, penalty=3.0))


# ------------------------------------------------------------------------- checkpoints

NAME = "squares, l1"


def test_where_no_answer_was_used_before_the_checkpoint(tmp_path: Path) -> None:
    """Everything is lost up to the checkpoint, and the clients start after it."""
    path, lost = tmp_path / "checkpoint", {"request_loss": 1.0}
    with pytest.raises(RuntimeError, match="no usable answer"):
        run(problem(NAME), 3, lost, checkpoint=path)
    rest = run(problem(NAME), 6, resume=path)
    fresh = run(problem(NAME), 3)
    assert [kept["rho"] for kept in rest.rounds] == [k["rho"] for k in fresh.rounds]
    assert rest.model.tobytes() == fresh.model.tobytes()


@pytest.mark.parametrize(("before", "after"), [(None, 4.0), (4.0, None), (4.0, 9.0)])
def test_the_penalty_may_be_another_after_a_checkpoint(
    before: float | None, after: float | None, tmp_path: Path
) -> None:
    made, path = problem(NAME), tmp_path / "checkpoint"
    first = run(made, 5, penalty=before, checkpoint=path)
    rest = run(made, 16, penalty=after, resume=path)
    # what was replayed goes on; with no ρ of its own, from the one there was
    beside = loop(made, penalty=before)
    for used in first.used:
        beside.round(used)
    if after is None:
        assert rest.rounds[0]["metrics"]["penalty"] == before
        assert len({kept["rho"] for kept in rest.rounds}) > 2
        return
    beside.fixed = beside.rho = after
    assert {kept["rho"] for kept in rest.rounds} == {after}
    check_beside(rest, beside, 1e-8)


def test_a_balance_is_what_it_was_saved_as() -> None:
    """In every place of a window; where f is not convex it only rises in the end."""
    rng, names = np.random.default_rng(0), ("a", "b", "c")
    for convex in (True, False):
        balance, found = Balance(None, convex), []
        for turn in range(40):
            y, z = list(rng.standard_normal((3, 4))), rng.standard_normal(4)
            saved = Balance(None, convex)
            saved.load_state(balance.state(names), names)
            for one in (balance, saved):
                if turn == 1:
                    one.begin([1.0, 3.0, 0.0], y, z)
                    assert one.penalty == 2.0
                else:
                    one.observe(2, y, z)
            found.append(balance.penalty or 0.0)
            first, second = balance.state(names), saved.state(names)
            assert first.keys() == second.keys()
            for key, value in first.items():
                assert np.array_equal(value, second[key], equal_nan=True)
        assert (np.diff(found) < 0.0).any()
        assert (np.diff(found[32:]) < 0.0).any() == convex


# -------------------------------------------------------------------------------- lies

LIAR, HONEST, LONG = "1", 2, 7
Arrays = list[NDArray[Any]]
Lie = Callable[[Any, Arrays], Arrays]


def _at(place: int, change: Callable[[NDArray[Any]], Any]) -> Lie:
    return lambda _, arrays: [
        np.asarray(change(array)) if k == place else array
        for k, array in enumerate(arrays)
    ]


def _scalars(client: Any, arrays: Arrays) -> Arrays:
    client.numbers = np.array([1.0])
    return arrays


#: One of each form that a change travels in; ``test_iterates`` has many more.
LIES: list[tuple[str, str, Lie]] = [
    ("logistic, l1", "projected", _at(2, lambda a: a * 1e6)),
    ("logistic, l1", "projected", _at(0, lambda a: np.arange(len(a)) - 10**6)),
    ("logistic, l1", "projected", lambda _, arrays: []),
    ("logistic, l1", "projected", _scalars),
    ("logistic, l1", "pairwise", _at(1, lambda a: a * 1.001)),
    ("logistic, l1", "pairwise", _at(0, lambda a: a.astype(np.uint16) + 999)),
    ("completion", "projected", _at(0, lambda a: a * 1e6)),
    ("completion", "projected", _at(1, lambda a: a[:, :-1])),
]


def lying(name: str, correction: str, lie: Lie) -> Run:
    """A run whose client 1 changes itself and its answers from its third round on."""

    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            arrays, *rest = super().fit(parameters, config)
            if self.client_id == LIAR and config["server-round"] > HONEST:
                arrays = lie(self, arrays)
            return arrays, *rest

    return run(problem(name), LONG, client=Client, correction=correction)


def _silence(client: Any, arrays: Arrays) -> Arrays:
    raise RuntimeError("not today")


@pytest.mark.parametrize(("name", "correction", "lie"), LIES)
def test_a_lie_is_an_answer_that_never_came(
    name: str, correction: str, lie: Lie
) -> None:
    """The others' run is the same, bit for bit."""
    lied, without = (lying(name, correction, one) for one in (lie, _silence))
    others = len(lied.strategy.clients) - 1
    assert [len(used) for used in lied.used[HONEST:]] == [others] * (LONG - HONEST)
    for mine, theirs in zip(lied.rounds, without.rounds, strict=True):
        for key in ("x", "y", "z", "model"):
            assert np.array(mine[key]).tobytes() == np.array(theirs[key]).tobytes()
    for record in lied.strategy.history[HONEST:]:
        ((who, why),) = record.rejected
        assert who == LIAR
        assert len(why) > 15


@pytest.mark.parametrize("curvature", [1e140, 0.0])
def test_one_curvature_does_not_choose_where_the_penalty_starts(
    curvature: float,
) -> None:
    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            result = super().fit(parameters, config)
            if self.client_id == LIAR:
                self.numbers = np.array([curvature])
            return result

    made = problem("logistic, l1")
    honest, lied = run(made, 1), run(made, 1, client=Client)
    assert 0.2 < lied.rounds[0]["rho"] / honest.rounds[0]["rho"] < 5.0


# -------------------------------------------------------------------- how far, how near

N, P, RADIUS = 4, 12, 1.5


def known(kind: str, seed: int) -> tuple[list[Any], float]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((N, 6, P)), 2.0 * rng.standard_normal((N, 6))
    x = cp.Variable(P)
    if kind == "logistic":
        b = (b > 0).astype(np.float64)
        losses: list[Any] = [Logistic(*pair) for pair in zip(a, b, strict=True)]
        terms = [
            cp.sum(cp.logistic(u @ x) - cp.multiply(v, u @ x)) / 6
            for u, v in zip(a, b, strict=True)
        ]
    else:
        losses = [LeastSquares(*pair) for pair in zip(a, b, strict=True)]
        terms = [cp.sum_squares(u @ x - v) for u, v in zip(a, b, strict=True)]
    programme = cp.Problem(cp.Minimize(sum(terms) / N), [cp.norm1(x) <= RADIUS])
    programme.solve(solver=cp.CLARABEL)
    return losses, float(programme.value)


def mean(losses: list[Any], x: Array) -> float:
    return float(np.mean([loss.value(x) for loss in losses]))


@pytest.mark.parametrize("kind", ["least squares", "logistic"])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_lower_bound_is_one(kind: str, seed: int) -> None:
    """F* by CVXPY: never below the bound, in no round, and the bound comes near."""
    losses, lowest = known(kind, seed)
    strategy = FedFW(
        L1Ball(RADIUS),
        certificate=True,
        correction="pairwise" if seed else "projected",
        participation=0.6 if seed else 1.0,
        seed=seed,
    )
    grid = grid_of(FedFWClient, losses, L1Ball(RADIUS), reply_loss=0.03 * seed)
    ran = play(strategy, grid, np.zeros(P), 60)
    bounds = [m["lower-bound"] for m in ran.watch.metrics if "lower-bound" in m]
    assert len(bounds) > 50
    rounding = 1e-7 * (1.0 + abs(lowest))  # the solver's
    assert max(bounds) <= lowest + rounding
    value = mean(losses, ran.model)
    assert lowest - rounding <= value <= lowest + 1e-3 * abs(lowest)
    assert bounds[-1] >= lowest - 1e-3 * abs(lowest)


def test_no_bound_before_everybody_has_answered() -> None:
    losses, _ = known("least squares", 0)

    class Late(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            if self.client_id == "3" and config["server-round"] < 4:
                raise RuntimeError("not yet")
            return super().fit(parameters, config)

    grid = grid_of(Late, losses, L1Ball(RADIUS))
    ran = play(FedFW(L1Ball(RADIUS), certificate=True), grid, np.zeros(P), 5)
    said = ["lower-bound" in metrics for metrics in ran.watch.metrics]
    assert said == [False, False, False, True, True]


@pytest.mark.parametrize("certificate", [False, True])
def test_the_tolerance_ends_the_run(certificate: bool) -> None:
    losses, lowest = known("least squares", 1)
    rounds = {0.0: 300}
    for tolerance in (1e-2, 1e-5):
        strategy = FedFW(
            L1Ball(RADIUS), tolerance=tolerance, certificate=certificate, seed=1
        )
        grid = grid_of(FedFWClient, losses, L1Ball(RADIUS))
        ran = play(strategy, grid, np.zeros(P), 300)
        rounds[tolerance] = len(strategy.history)
        if certificate:
            assert mean(losses, ran.model) - lowest <= 2.0 * tolerance * lowest + 1e-7
        last = ran.watch.metrics[-1]
        points = [strategy._client_iterate(n) for n in strategy.clients]
        size = tolerance * max(float(np.linalg.norm(x)) for x in points)
        assert max(last["primal-residual"], last["dual-residual"]) <= size
    assert 2 < rounds[1e-2] < rounds[1e-5] < 300


@pytest.mark.parametrize(("name", "correction"), CASES)
def test_a_start_outside_the_set_is_projected(name: str, correction: str) -> None:
    """Every client answers from the first round on, as from the nearest point."""
    outside = dataclasses.replace(problem(name), start=problem(name).start + 5.0)
    inside = dataclasses.replace(outside, start=outside.domain.project(outside.start))
    runs = [run(m, 4, correction=correction) for m in (outside, inside)]
    assert runs[0].used == [list(range(len(outside.objectives)))] * 4
    assert outside.domain.contains(runs[0].model)
    assert runs[0].model.tobytes() == runs[1].model.tobytes()


def test_clients_evaluate_the_mean_and_keep_what_they_were_sent() -> None:
    """F by the clients is F(x̄), and the rounds are those of a run without that."""
    example, models = problem("squares, l1"), []

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        models.append(arrays.to_numpy_ndarrays()[0])
        return MetricRecord({"server": 0.0})

    ends, sent = [], []
    for every in (0, 1):
        strategy = FedFW(example.domain, seed=0, client_evaluate_every=every)
        app = app_of(FedFWClient, example.objectives, example.domain)
        grid = Recorder(app, len(example.objectives), encode=True)
        models.clear()
        play(strategy, grid, example.start, 6, evaluate_fn=note)
        ends.append(strategy.half.model.tobytes())
        kinds = [message.metadata.message_type for message in grid.sent]
        sent.append((kinds.count("train"), kinds.count("evaluate")))
    assert ends[0] == ends[1]
    assert sent == [(30, 0), (30, 30)]
    found = [r.client_evaluation for r in strategy.history if r.round]
    said = [evaluation["loss"] for evaluation in found if evaluation]
    values = [mean(example.objectives, x) for x in models[1:]]
    np.testing.assert_allclose(said, values, rtol=1e-12)
    # x̄ is not z, so that the two cannot be taken for each other
    assert np.abs(strategy.half.model - strategy.broadcast.model).max() > 1e-6


def test_a_client_with_nothing_to_say_takes_part() -> None:
    """A loss that is constant has no gradient, and no curvature along it."""
    objectives = [
        LeastSquares(np.zeros((2, 3)), np.ones(2)),
        LeastSquares(np.eye(3), np.array([2.0, 0.0, 0.0])),
    ]
    domain = L1Ball(1.0)
    run = play(FedFW(domain), grid_of(FedFWClient, objectives, domain), np.zeros(3), 60)
    assert all(used == [0, 1] for used in run.used)
    np.testing.assert_allclose(run.model, [1.0, 0.0, 0.0], atol=1e-6)
