"""Rounds that wait for a quorum: late answers, silent clients, who makes up F."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from fedtrellis import Answer, Median
from tests.harness import Array, Stop, not_daily, play, refused
from tests.strategies import methods
from tests.strategies.methods import EVERY, EVERYTHING, LOSSES, Method

N = 6
Delay = Callable[[int, int], float]
#: Those with one last vector of each client on the server, which are exact.
VECTORS = {name: EVERY[name] for name in ("fedfw corrective", "feddr", "fedgia gram")}
BY_DAY = ["feddr", "fedgia gram", *not_daily("fedfw corrective")]
CHANGES = ("fedavg-gd", "local-sgd", "fedavg", "fedprox", "fedopt", "projected-fedavg")
LATE = {*VECTORS, *CHANGES, "fedlmo corrected", "fedlmo averaged"}
LATE |= {name for name in EVERY if name.split()[0] in (*CHANGES, "feddr")}
LATE |= {"fedlmo local", "fedfw certified"}


def slow(factor: float, *who: int) -> Delay:
    """Log-normal times, of some nodes so many times as long."""

    def delay(index: int, number: int) -> float:
        time = np.random.default_rng([index, number]).lognormal(sigma=0.3)
        return float(time * (factor if index in who else 1.0))

    return delay


@lru_cache
def minimiser(name: str, clients: tuple[int, ...]) -> Array:
    """Of the clients' losses over the method's set, by a plain loop."""
    A = np.concatenate([methods.A[i] for i in clients])
    b = np.concatenate([methods.B[i] for i in clients])
    sets = {"fedfw corrective": methods._DIAMOND, "feddr": methods._BALL}
    x, step = np.zeros(methods.P), 1.0 / np.linalg.norm(A, 2) ** 2
    for _ in range(3_000):
        x = x - step * A.T @ (A @ x - b)
        x = sets[name].project(x) if name in sets else x
    return x


@pytest.mark.parametrize(
    ("most", "faults"), [(1, {}), (10, EVERYTHING), *not_daily((10, {}), (50, {}))]
)
@pytest.mark.parametrize("name", VECTORS)
def test_late_vectors_find_minima(name: str, most: int, faults: dict[str, Any]) -> None:
    """With two nodes so many rounds late at most, and whatever else is lost."""

    def delay(index: int, number: int) -> float:
        rng = np.random.default_rng([index, number])
        return rng.uniform(1.0, most + 0.99) if index in (0, 3) else 1.0

    grid = VECTORS[name].grid(N, delay=delay, **faults)
    strategy = VECTORS[name].strategy(quorum=4)
    options: dict[str, Any] = {"timeout": 300.0, "last_fault": 150}
    played = play(strategy, grid, VECTORS[name].start, 200 + 20 * most, **options)
    came = [[t for t, used in enumerate(played.used) if i in used] for i in (0, 3)]
    late = max(int(np.diff(rounds).max()) - 1 for rounds in came)
    assert late == most or (faults and late > most)
    assert np.abs(played.model - minimiser(name, tuple(range(N)))).max() < 1e-6
    assert not played.strategy.caution


def test_late_changes_against_a_plain_loop() -> None:
    """FedAvg: x ← x + mean of (x_i − x_t)/√(1 + a), over answers as they come in."""
    times, rounds, quorum = slow(5.0, 1), 40, 4

    def delay(index: int, number: int) -> float:
        return times(index, number) if number > N else 0.0

    grid = EVERY["fedavg-gd"].grid(N, delay=delay)
    played = EVERY["fedavg-gd"].play(grid, rounds, quorum=quorum)
    x, now, number = np.zeros(methods.P), 0.0, N
    free, queue = set(range(N)), list[tuple[float, int, int, Array, Array]]()
    for t in range(1, rounds + 1):
        # the grid numbers the messages, introductions first, in the order of its nodes
        for i in sorted(free):
            number += 1
            point = x.copy()
            for k in range(3 * t - 2, 3 * t + 1):
                point -= 0.1 / np.log2(k + 1) * LOSSES[i].gradient(point)
            heapq.heappush(queue, (now + delay(i, number), i, t, x, point))
        free, points = set(), []
        while len(free) < quorum:
            now, i, asked, start, point = heapq.heappop(queue)
            free.add(i)
            points.append(x + (point - start) / np.sqrt(1.0 + t - asked))
        x = np.mean(points, axis=0)
        assert sorted(free) == played.used[t - 1]
        np.testing.assert_allclose(played.models[t - 1], x, atol=1e-12)
    assert grid.clock() == now


@pytest.mark.parametrize("name", ["fedlmo corrected", "fedlmo averaged"])
def test_a_late_gradient_or_momentum_weighs_less_too(name: str) -> None:
    strategy = EVERY[name].play(EVERY[name].grid(N), 5).strategy
    x = strategy.broadcast.model
    late = Answer("0", [x + 2.0, x - 4.0], {}, server_round=2, basis=x)
    strategy._loop.round = 5
    point, beside = strategy.check(late)
    np.testing.assert_allclose(point, x + 1.0)
    np.testing.assert_allclose(beside, 0.5 * (x - 4.0))


@pytest.mark.parametrize("name", BY_DAY)
def test_who_is_silent_leaves_f_and_returns(name: str, tmp_path: Any) -> None:
    """The minimum of the others meanwhile, and of all after its return."""

    def delay(index: int, number: int) -> float:
        return 300.0 if index == 5 and number > 5 * N and number < 7 * N else 1.0

    method = VECTORS[name]
    rest, whole = (minimiser(name, tuple(range(n))) for n in (N - 1, N))
    grid = method.grid(N, delay=delay)
    played = method.play(grid, 500, quorum=5, max_delay=20)
    members = [metrics["members"] for metrics in played.watch.metrics]
    assert members[0] == members[-1] == N
    back = members.index(N, members.index(N - 1))
    assert np.abs(played.models[back - 1] - rest).max() < 1e-6
    assert np.abs(played.model - whole).max() < 1e-6
    # one that never returns is named beside the result
    grid = method.grid(N, delay=lambda i, k: 1e9 if i == 5 and k > 5 * N else 1.0)
    how: Any = {"quorum": 5, "max_delay": 20}
    played = method.play(grid, 250, checkpoint=tmp_path / "c", **how)
    assert np.abs(played.model - rest).max() < 1e-6
    assert "F is of 5 of 6 clients at the end: client 5" in played.strategy.caution
    grid = method.grid(N, delay=lambda i, k: 1e9 if i == 5 and k > N else 1.0)
    played = method.play(grid, 260, resume=tmp_path / "c", **how)
    assert np.abs(played.model - rest).max() < 1e-6


def test_solved_means_that_every_member_has_agreed() -> None:
    """The rule holds early where one answer is missing; the run waits for that."""

    def delay(index: int, number: int) -> float:
        return 90.0 if index == 5 and number < 3 * N else 1.0

    method = EVERY["fedfw corrective"]
    grid = method.grid(N, delay=delay)
    played = method.play(grid, 900, quorum=5, tolerance=1e-6)
    assert played.strategy.ending == "converged"
    assert len(played.used) > 90
    whole = minimiser("fedfw corrective", tuple(range(N)))
    assert np.abs(played.model - whole).max() < 1e-4


@pytest.mark.parametrize("name", BY_DAY)
def test_a_resumed_run_asks_anew_who_owed_an_answer(name: str, tmp_path: Any) -> None:
    """A checkpoint knows of no messages: whoever owed an answer is asked anew."""
    method, file = VECTORS[name], tmp_path / "state.npz"
    grid = method.grid(N, delay=slow(10.0, 0))
    options: dict[str, Any] = {"quorum": 5, "checkpoint": file, "checkpoint_every": 1}
    method.play(grid, 400, callbacks=[Stop(37)], **options)
    played = method.play(grid, 400, resume=file, quorum=5)
    assert np.abs(played.model - minimiser(name, tuple(range(N)))).max() < 1e-6


@pytest.mark.parametrize("name", EVERY)
def test_methods_run_with_a_quorum_or_say_that_they_cannot(name: str) -> None:
    """With everything that can happen to messages; or by the setting and its value."""
    method: Method = EVERY[name]
    fewer, why = partial(method.strategy, local_deadline=2.0), "to .*allowed: auto"
    if name.split()[0] in CHANGES[:-1]:
        fewer, why = partial(fewer, aggregation="secure-sum"), "beside secure sums"
    refused(f"local-deadline = 2.0 does not apply {why}", fewer)
    if name not in LATE:
        refused("quorum = 0.5 .*allowed: 1", partial(method.strategy, quorum=0.5))
        return
    grid = method.grid(N, delay=slow(4.0, 1), **EVERYTHING)
    strategy = method.strategy(quorum=0.5)
    played = play(strategy, grid, method.start, 15, timeout=10.0)
    assert np.isfinite(played.model).all()


def test_answers_of_no_use_make_no_quorum() -> None:
    """A quick client that sends them does not end what the others work on."""
    method = EVERY["feddr"]

    def client(context: Any, loss: Any) -> Any:
        made = method.client(context, loss)
        if made.client_id == "0":
            made.fit = lambda parameters, config: ([np.nan * parameters[0]], 0, {})
        return made

    grid = replace(method, client=client).grid(N, delay=lambda i, k: 1.0 + 60.0 * i)
    played = method.play(grid, 9, quorum=2, max_failed_rounds=2)
    assert all(len(used) >= 2 for used in played.used)


def test_who_is_left_has_to_be_enough_for_so_many_liars() -> None:
    rule: Any = {"aggregation": Median(liars=2), "quorum": 3, "max_delay": 4}
    rule["max_failed_rounds"] = 3
    grid = EVERY["feddr"].grid(5, delay=lambda i, k: 1e9 if i > 2 and k > 10 else 1.0)
    run = partial(EVERY["feddr"].play, grid, 30, **rule)
    refused("enough for 2 that lie; there were 3", run, RuntimeError)


def test_nobody_waits_for_a_node_that_does_not_introduce_itself() -> None:
    """But before the start, where it is asked twice."""
    times = {5: 40.0}
    method = EVERY["feddr"]
    grid = method.grid(N, delay=lambda i, k: times.pop(i, 1.0))
    strategy = method.strategy(quorum=4)
    play(strategy, grid, method.start, 20, timeout=20.0)
    assert grid.clock() == 2 * 20.0 + 20.0
