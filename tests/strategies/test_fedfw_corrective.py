"""Corrective FedFW is METHODS §5.1: round for round the plain loop below.

Sets and losses are the package's, which have tests of their own; all else is written
down once more, matrices whole.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sim
from clients import FedFWClient
from fedtrellis import Callback, RoundRecord
from fedtrellis.corrective.consensus import Balance
from fedtrellis.domains import Domain, L1Ball, NuclearNormBall, Simplex
from fedtrellis.objectives import LeastSquares, Logistic, MatrixCompletion
from strategies import FedFW
from tests.harness import Array, Distance, Played, grid_of, play
from tests.strategies.methods import EVERYTHING

cp: Any = importlib.import_module("cvxpy")


BALL = L1Ball(1.5)


class Loop:
    """The method; ``penalty`` is ρ for good, if it is given. Answers may come late."""

    late = False

    def __init__(self, made: Problem, penalty: float | None) -> None:
        self.losses, self.domain, self.k = made.losses, made.domain, made.steps
        self.n = len(made.losses)
        self.x = [made.start.copy() for _ in self.losses]
        self.y = [np.zeros_like(made.start) for _ in self.losses]
        self.z, self.mean = made.start.copy(), made.start.copy()
        self.fixed, self.rho = penalty, penalty
        self.changes = self.answers = 0
        self.mark: Any = None
        # z and ρ of requests that are not answered yet; answers since m grew
        self.sent: dict[int, Any] = {}
        self.since = np.zeros(self.n)

    def round(self, used: Sequence[int]) -> None:
        """One round in which the answers of these clients were used."""
        if not used:
            return
        now, bends = (self.z, self.rho or 0.0), []
        busy = self.sent if self.late else {}
        self.sent = {i: busy.get(i, now) for i in range(self.n)}
        for i in used:
            before, (self.at, rho) = self.x[i], self.sent.pop(i)
            self.x[i] = self._arrived(before, self._projected(i, rho))
            self.y[i] = self.y[i] + rho * (self.x[i] - self.at)
            way, gradient = self.x[i] - before, self.losses[i].gradient
            if way.any():
                turned = np.vdot(gradient(self.x[i]) - gradient(before), way)
                bends.append(float(abs(turned) / self.n / np.vdot(way, way)))
        self.mean = np.mean(self.x, axis=0)
        self.z = self.mean
        if self.rho is not None:
            self.z = self.mean + np.mean(self.y, axis=0) / self.rho
        if self.fixed is None:
            self._balance(list(used), [bend for bend in bends if bend > 0.0])

    def _balance(self, used: list[int], bends: list[float]) -> None:
        if self.rho is None:
            if bends:
                self.rho = float(np.median(bends))
                self.mark = np.array(self.y), self.z
            return
        self.answers += len(used)
        self.since[used] += 1
        if self.answers < 2 * self.n:
            return
        a = np.linalg.norm(np.array(self.y) - self.mark[0])
        b = self.rho * math.sqrt(self.n) * np.linalg.norm(self.z - self.mark[1])
        still = 1e-7 * self.rho * math.sqrt(self.n) * np.linalg.norm(self.z)
        if min(a, b) > 0.0 and max(a, b) > still:
            if self.changes == 0 or not self.late or self.since.min() >= 2:
                self.changes, self.since = self.changes + 1, np.zeros(self.n)
            c = min(10.0, math.exp(20.0 / self.changes**1.25))
            self.rho *= min(max(float(a / b), 1 / c), c)
        self.mark, self.answers = (np.array(self.y), self.z), 0

    def _gradient(self, i: int, x: Array, rho: float) -> Array:
        g = self.losses[i].gradient(x) / self.n
        return np.asarray(g + self.y[i] + rho * (x - self.at))

    def _value(self, i: int, x: Array, rho: float) -> float:
        away = x - self.at
        own = self.losses[i].value(x) / self.n
        return float(own + np.vdot(self.y[i], away) + rho / 2 * np.vdot(away, away))

    def _bend(self, i: int, x: Array, d: Array, rho: float) -> float | None:
        curvature = getattr(self.losses[i], "curvature", None)
        if curvature is None:
            return None
        return float(curvature(x, d) / (self.n * np.vdot(d, d)) + rho)

    def _length(self, i: int, x: Array, d: Array, slope: float, rho: float) -> float:
        """γ: the parabola's minimiser, shortened until L_i falls enough."""
        bend = self._bend(i, x, d, rho)
        gamma = 1.0
        if bend is not None and bend > 0.0:
            gamma = min(1.0, -slope / (bend * float(np.vdot(d, d))))
        if getattr(self.losses[i], "quadratic", False):
            return gamma
        here = self._value(i, x, rho)
        noise = 1e-14 * (1 + abs(here))
        while gamma >= 2.0**-40:
            there = self._value(i, x + gamma * d, rho)
            if there <= here + gamma * slope / 4 + noise:
                return gamma
            if bend is None:
                # the parabola through L_i(x), the slope and what was tried
                curve = 2 * (there - here - gamma * slope) / gamma**2
                gamma = min(gamma / 2, -slope / curve)
            else:
                gamma /= 2
        return 0.0

    def _onto(self, target: Array, face: Any) -> Array:
        if self.domain.sparse_atoms:
            return self.domain.project_on(target, face)
        return self.domain.project(target)

    def _projected(self, i: int, rho: float) -> Array:
        x = self.x[i]
        bound: float | None = None
        last: Any = None
        face = x != 0.0
        for _ in range(self.k):
            g = self._gradient(i, x, rho)
            face = face | (self.domain.lmo(g).dense() != 0.0)
            if bound is None and last is not None:
                way = x - last[0]
                bound = float(np.vdot(way, g - last[1]) / np.vdot(way, way))
            if bound is None:
                bound = self._bend(i, x, g, rho)
            if bound is None or bound <= 0.0:
                bound = float(np.linalg.norm(g)) / self.domain.diameter(x.shape)
            moved = self._onto(x - g / max(bound, rho), face)
            d = moved - x
            slope = float(np.vdot(g, d))
            if slope >= 0.0:
                break
            gamma = self._length(i, x, d, slope, rho)
            if gamma == 0.0:
                break
            bound, last = self._bend(i, x, d, rho), (x, g)
            x = moved if gamma == 1.0 else x + gamma * d
        return x

    def _arrived(self, before: Array, after: Array) -> Array:
        """What both sides make of the float16 shares of the largest change."""
        if isinstance(self.domain, NuclearNormBall):
            return after
        change = after - before
        largest = np.abs(change).max()
        if largest > 0.0:
            change = largest * (change / largest).astype(np.float16).astype(float)
        x = np.where(after == 0.0, 0.0, before + change)
        return x if self.domain.contains(x, 0.0) else self._onto(x, x != 0.0)


@dataclass
class Problem:
    losses: list[Any]
    domain: Domain
    start: Array
    steps: int = 8
    data: Any = ()


class Quartic(Distance):
    """3 Σ (X_ij − c_ij)⁴ + (X_ij − c_ij)², whose curvature nobody knows."""

    quadratic = False
    curvature: Any = None

    def value(self, x: Array) -> float:
        away = x - self.centre[0]
        return float(3.0 * np.sum(away**4 + away**2))

    def gradient(self, x: Array) -> Array:
        away = x - self.centre[0]
        return np.asarray(3.0 * (4.0 * away**3 + 2.0 * away))


@cache
def problem(name: str) -> Problem:
    """Clients differ: in what they want, and in how their losses bend."""
    rng = np.random.default_rng(1)
    if name == "quartic":
        losses: list[Any] = [Quartic(c) for c in rng.uniform(-0.5, 1.0, (4, 15))]
        return Problem(losses, L1Ball(2.0), np.full(15, 0.05), 5)
    if name == "completion":
        target = rng.standard_normal((9, 2)) @ rng.standard_normal((2, 7))
        rows, columns = rng.integers(9, size=(4, 30)), rng.integers(7, size=(4, 30))
        values = target[rows, columns] + 0.1 * rng.standard_normal((4, 30))
        parts = zip(rows, columns, values, strict=True)
        losses = [MatrixCompletion(*part, (9, 7), weight=30.0) for part in parts]
        ball = NuclearNormBall(0.6 * float(np.linalg.norm(target, "nuc")))
        return Problem(losses, ball, np.zeros((9, 7)), 4)
    own = {"squares": LeastSquares, "logistic": Logistic}[name.split(", ")[0]]
    a = rng.standard_normal((5, 12, 15)) * rng.uniform(0.5, 2.0, (5, 1, 1))
    b = rng.standard_normal((5, 12)) + rng.standard_normal((5, 1))
    b = b if own is LeastSquares else (b > 0).astype(np.float64)
    losses = [own(*pair, weight=5.0) for pair in zip(a, b, strict=True)]
    if name.endswith("l1"):
        return Problem(losses, BALL, np.full(15, 0.02), data=(a, b))
    return Problem(losses, Simplex(3.0), 3.0 * rng.dirichlet(np.ones(15)))


FAULTY = {"participation": 0.6, "faults": {"reply_loss": 0.1}}
CASES = ["squares, l1", "squares, simplex", "logistic, l1", "quartic", "completion"]


class Rounds(Callback):
    """All that the server replays, after every round."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round:
            half, names = strategy.half, strategy.clients
            kept = {
                "x": np.array([half._client_iterate(name) for name in names]),
                "y": np.array([half.duals[name] for name in names]),
                "z": strategy.broadcast.model.copy(),
                "mean": half.model.copy(),
                "rho": half.penalty or 0.0,
            }
            self.kept.append(kept)


def run(
    made: Problem,
    rounds: int,
    *,
    faults: Any = (),
    last_fault: int | None = None,
    client: Any = FedFWClient,
    **settings: Any,
) -> tuple[Played[FedFW], list[dict[str, Any]]]:
    watch = Rounds()
    own = {"local_steps": made.steps, "seed": 7, "max_failed_rounds": 1000}
    strategy = FedFW(made.domain, callbacks=[watch], **{**own, **settings})
    grid = grid_of(client, made.losses, made.domain, **dict(faults))
    return play(strategy, grid, made.start, rounds, last_fault=last_fault), watch.kept


def check_beside(ran: Any, beside: Loop, near: float = 1e-9) -> None:
    """x_i, y_i, z, x̄ and ρ are the loop's after every round."""
    played, rounds = ran
    for used, kept in zip(played.used, rounds, strict=True):
        beside.round(used)
        for key, theirs in kept.items():
            ours = getattr(beside, key)
            ours = np.asarray(0.0 if ours is None else ours)
            # in units of what is compared, where that is large; ρ goes by differences
            # of what is compared, a hundredth as large
            off = np.abs(theirs - ours).max() / max(1.0, np.abs(theirs).max())
            assert off < (100 * near if key == "rho" else near), key


@pytest.mark.parametrize("name", CASES)
def test_whatever_goes_wrong_it_is_the_loop_of_the_answers_used(name: str) -> None:
    """All eight faults at once."""
    made, faults = problem(name), EVERYTHING | {"encode": True}
    ran = run(made, 16, faults=faults, last_fault=15, participation=0.8)
    played, rounds = ran
    assert all(played.grid.fault_counts.values())
    assert rounds[-1]["rho"] != rounds[2]["rho"]
    check_beside(ran, Loop(made, None))


def test_late_answers_are_replayed_as_they_were_asked_for() -> None:
    """And how far ρ may still change goes by the client that answers least often."""
    faults = {"delay": lambda i, k: 8.0 if i == 1 else 1.0}
    made = problem("squares, l1")
    ran, beside = run(made, 18, faults=faults, quorum=4), Loop(made, None)
    beside.late = True
    check_beside(ran, beside, 1e-7)
    assert vars(ran[0].strategy.half)["balance"]._changes == beside.changes == 2


@pytest.mark.parametrize(("before", "after"), [(None, 4.0), (4.0, None), (4.0, 9.0)])
def test_the_penalty_may_be_fixed_and_another_after_a_checkpoint(
    before: float | None, after: float | None, tmp_path: Path
) -> None:
    made, path = problem("squares, l1"), tmp_path / "checkpoint"
    first, kept = run(made, 5, penalty=before, participation=0.6, checkpoint=path)
    assert before is None or {one["rho"] for one in kept} == {before}
    rest = run(made, 16, penalty=after, participation=0.6, resume=path)
    # what was replayed goes on; with no ρ of its own, from the one there was
    beside = Loop(made, before)
    check_beside((first, kept), beside)
    if after is None:
        assert rest[0].watch.metrics[0]["penalty"] == before
        assert len({one["rho"] for one in rest[1]}) > 2
        return
    beside.fixed = beside.rho = after
    assert {one["rho"] for one in rest[1]} == {after}
    check_beside(rest, beside, 1e-8)


@pytest.mark.parametrize(
    ("q", "convex", "falls"),
    [(None, True, True), (None, False, False)]
    + [(2.0, True, False), (0.4, True, False), (0.2, True, True)],
)
def test_a_balance_settles(q: float | None, convex: bool, falls: bool) -> None:
    """It only rises in the end where f is not convex, and ends where ρ is about right.

    ‖Y − Y'‖ = q ρ √n ‖z − z'‖ in every round, with a q at random where none is given.
    """
    rng, balance = np.random.default_rng(0), Balance(None, convex)
    y, z, found = np.zeros((2, 4)), np.zeros(4), []
    balance.begin([1.0, 3.0, 0.0], list(y), z)
    assert balance.penalty == 2.0
    for _ in range(90):
        way = rng.standard_normal(4)
        times = (balance.penalty or 0.0) * (q or rng.choice([0.1, 10.0]))
        y, z = y + times * way, z + way
        kept, balance = balance.state("01"), Balance(None, convex)
        balance.load_state(kept, "01")  # all that it knows
        balance.observe("01", list(y), z, "01")
        found.append(balance.penalty or 0.0)
    assert (np.diff(found[:8]) != 0.0).any()
    assert (np.diff(found[36:]) < 0.0).any() == falls


@pytest.mark.slow
def test_concave_losses_need_no_penalty_to_be_given() -> None:
    """z goes round for good if ρ stays where both ways are as long."""
    config = {"task": "kernel-pca", "method": "fedfw", "rounds": 400}
    for seed in (0, 4):
        experiment = sim.app.experiment(config | {"seed": seed})
        strategy = experiment.strategy()
        found = experiment.start(strategy).arrays.to_numpy_ndarrays()
        assert strategy.ending == "converged"
        assert experiment.task.metrics(found)["optimality-gap"] < 1e-7


@pytest.mark.parametrize("curvature", [1e140, 0.0])
def test_one_curvature_does_not_choose_the_first_penalty(curvature: float) -> None:
    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            result = super().fit(parameters, config)
            if self.client_id == "1":
                self.numbers = np.array([curvature])
            return result

    made = problem("logistic, l1")
    honest, lied = (run(made, 1, client=c)[1][0]["rho"] for c in (FedFWClient, Client))
    assert 0.2 < lied / honest < 5.0


def test_linear_losses_are_solved_and_a_median_s_rest_is_not_converged() -> None:
    e, made, domain = np.eye(3), SimpleNamespace, Simplex(1.0)
    costs = 10 * e[1] + e[2], 10 * e[0] + e[2]
    linear: Any = [made(value=c.dot, gradient=lambda x, c=c: c) for c in costs]
    near: Any = [Distance(c) for c in (e[0], e[0], 3 * e[2])]
    ends: Any = (linear, "mean", "converged"), (near, "median", "round limit")
    for losses, rule, end in ends:
        grid = grid_of(FedFWClient, losses, domain)
        strategy = FedFW(domain, aggregation=rule)
        x = play(strategy, grid, e[0], 300).model
        assert strategy.ending == end
        assert rule == "median" or np.abs(x - e[2]).max() < 1e-5


def test_a_start_outside_the_set_is_projected() -> None:
    """Every client answers from the first round on, as from the nearest point."""
    made = problem("completion")
    outside = replace(made, start=made.start + 5.0)
    inside = replace(made, start=made.domain.project(outside.start))
    (one, _), (other, _) = run(outside, 4), run(inside, 4)
    assert one.used == [list(range(len(made.losses)))] * 4
    assert one.model.tobytes() == other.model.tobytes()


@cache
def lowest(name: str) -> float:
    """F*, by CVXPY."""
    x, total = cp.Variable(15), 0.0
    for u, v in zip(*problem(name).data, strict=True):
        if name.startswith("logistic"):
            total += cp.sum(cp.logistic(u @ x) - cp.multiply(v, u @ x)) / 12
        else:
            total += cp.sum_squares(u @ x - v)
    programme = cp.Problem(cp.Minimize(total), [cp.norm1(x) <= BALL.radius])
    return float(programme.solve(solver=cp.CLARABEL))


def mean(losses: list[Any], x: Array) -> float:
    return float(np.mean([loss.value(x) for loss in losses]))


@pytest.mark.parametrize("name", ["squares, l1", "logistic, l1"])
@pytest.mark.parametrize("options", [{}, FAULTY])
def test_the_lower_bound_is_one(name: str, options: dict[str, Any]) -> None:
    """F* is never below it, in no round, and the bound comes near."""
    made, least = problem(name), lowest(name)
    played, _ = run(made, 60, certificate=True, **options)
    bounds = [m["lower-bound"] for m in played.watch.metrics if "lower-bound" in m]
    assert len(bounds) > 40
    rounding = 1e-7 * (1.0 + abs(least))  # the solver's
    assert max(bounds) <= least + rounding
    value = mean(made.losses, played.model)
    assert least - rounding <= value <= least + 1e-3 * abs(least)
    assert bounds[-1] >= least - 1e-3 * abs(least)


@pytest.mark.parametrize("certificate", [False, True])
def test_the_tolerance_ends_the_run(certificate: bool) -> None:
    name, rounds = "squares, l1", []
    for tolerance in (1e-2, 1e-5):
        ran, _ = run(problem(name), 300, tolerance=tolerance, certificate=certificate)
        strategy, last = ran.strategy, ran.watch.metrics[-1]
        rounds.append(len(strategy.history))
        gap = mean(problem(name).losses, ran.model) - lowest(name)
        assert not certificate or gap <= 2.0 * tolerance * lowest(name) + 1e-7
        points = [strategy.half._client_iterate(n) for n in strategy.clients]
        size = tolerance * max(float(np.linalg.norm(x)) for x in points)
        assert max(last["primal-residual"], last["dual-residual"]) <= size
    assert 2 < rounds[0] < rounds[1] < 300


def test_clients_evaluate_the_mean_and_keep_what_they_were_sent() -> None:
    """F by the clients is F(x̄), not F(z), and the rounds are those without that."""
    made = problem("squares, l1")
    plain, (ran, rounds) = (run(made, 6, client_evaluate_every=k) for k in (0, 1))
    for mine, theirs in zip(plain[1], rounds, strict=True):
        assert mine["mean"].tobytes() == theirs["mean"].tobytes()
    found = [r.client_evaluation for r in ran.strategy.history if r.round]
    said = [evaluation["loss"] for evaluation in found if evaluation]
    values = [mean(made.losses, kept["mean"]) for kept in rounds]
    np.testing.assert_allclose(said, values, rtol=1e-12)
    assert np.abs(rounds[-1]["mean"] - rounds[-1]["z"]).max() > 1e-6


def test_a_large_matrix_ends_at_the_minimum_by_its_leading_pairs() -> None:
    """F* by accelerated projected gradient steps on the whole matrix."""
    rng, shape = np.random.default_rng(3), (150, 130)
    target = rng.standard_normal((150, 2)) @ rng.standard_normal((2, 130))
    cells = rng.permutation(target.size)[:9000].reshape(3, -1)
    places = [np.unravel_index(own, shape) for own in cells]
    losses = [
        MatrixCompletion(r, c, target[r, c], shape, weight=3000.0) for r, c in places
    ]
    ball = NuclearNormBall(0.7 * float(np.linalg.norm(target, "nuc")))
    strategy = FedFW(ball, tolerance=1e-8)
    x = play(strategy, grid_of(FedFWClient, losses, ball), np.zeros(shape), 400).model
    seen = np.zeros(shape)
    seen.flat[cells.ravel()] = 1.0
    best = step = np.zeros(shape)
    for k in range(300):
        u, s, v = np.linalg.svd(step - seen * (step - target), full_matrices=False)
        # Σ max(σ − θ, 0) = radius, where Σ σ is more
        means = (np.cumsum(s) - ball.radius) / np.arange(1, len(s) + 1)
        shrunk = np.maximum(s - max(0.0, means[s > means][-1]), 0.0)
        last, best = best, (u * shrunk) @ v
        step = best + k / (k + 3.0) * (best - last)
    values = [float(np.sum(seen * (y - target) ** 2)) for y in (x, best)]
    first = float(np.sum(seen * target**2))
    assert values[0] - values[1] <= 1e-6 * (first - values[1])
    assert strategy.ending == "converged"
