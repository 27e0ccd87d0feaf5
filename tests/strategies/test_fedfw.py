"""FedFW, FedFW+ and FedFW-sto against plain NumPy loops, on every kind of model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import client_app
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Product,
    Simplex,
)
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from strategies import FedFW, NaiveFrankWolfe, ProjectedFedAvg
from tests.harness import (
    Array,
    Distance,
    Recorder,
    distance,
    grid_of,
    node_states,
    only_for,
    play,
)
from tests.strategies.methods import EVERYTHING, METHODS

N, P, RADIUS = 5, 12, 3.0


_rng = np.random.default_rng(0)
A, B = _rng.standard_normal((N, 6, P)), _rng.standard_normal((N, 6))
# f_i = n ‖A_i x − b_i‖², so that F = ‖Ax − b‖²
OBJECTIVES = [
    LeastSquares(a, b, weight=N, scale="sum") for a, b in zip(A, B, strict=True)
]


def arrays_of(
    strategy: Any,
    objectives: Sequence[Any],
    start: Sequence[Array],
    rounds: int,
    **options: Any,
) -> list[Array]:
    """The model's arrays after a run with FedFW's clients."""
    grid = grid_of(FedFWClient, objectives, strategy.domain, **options)
    return play(strategy, grid, start, rounds).arrays


# ------------------------------------------------------------ METHODS §1 in plain NumPy


def l1_oracle(g: Array) -> Array:
    s = np.zeros_like(g)
    j = int(np.argmax(np.abs(g)))
    s[j] = -RADIUS * np.sign(g[j])
    return s


SCHEDULES = ("convex", "nonconvex", "stochastic", "constant")
SAMPLINGS = ("bernoulli", "fixed")


def schedule(
    name: str, lam0: float, p: float, T: int, t: float
) -> tuple[float, float, float]:
    """η_t, λ_t, ρ_t; the constant schedule has η = 0.2 and ρ = 0.3."""
    rho = min(1.0, 4 / (t + 7) ** (2 / 3))
    if name == "convex":
        return 2 / (p * (t - 1) + 2), lam0 * math.sqrt(p * (t - 1) + 2), rho
    if name == "nonconvex":
        return (p * T + 1) ** (-2 / 3), lam0 * (p * T + 1) ** (1 / 3), rho
    if name == "stochastic":
        return 9 / (t + 8), lam0 * math.sqrt(t + 8), rho
    return 0.2, lam0, 1.0 if t == 1 else 0.3


def full_gradient(i: int, x: Array, t: int) -> Array:
    gradient: Array = 2 * N * A[i].T @ (A[i] @ x - B[i])
    return gradient


def loop(
    sets: Sequence[Sequence[int]],
    numbers: Callable[[float], tuple[float, float, float]],
    start: Array,
    *,
    variant: str = "plain",
    dual_penalty: float = 0.0,
    gradient: Callable[[int, Array, int], Array] = full_gradient,
    oracle: Callable[[Array], Array] = l1_oracle,
    n: int = N,
    k: int = 1,
    own: bool = True,
    noise: Callable[[int, int, float], Array] | None = None,
) -> tuple[Array, list[Array]]:
    """The method as METHODS §1 and §5.2 have it; ``sets[t − 1]`` take part in round t.

    ``numbers`` are η, λ, ρ of a step, counted from 1: of k a round, or of the client's
    own, and then λ goes by the mean over all clients.
    """
    x = [start.copy() for _ in range(n)]
    y = [np.zeros_like(start) for _ in range(n)]
    d: list[Array | None] = [None] * n
    taken = np.zeros(n)
    x_bar = start.copy()
    for t, S in enumerate(sets, start=1):
        before, mean = [z.copy() for z in x], taken.mean()
        for i in S:
            for j in range(1, k + 1):
                tau = (t - 1) * k + j
                eta, _, rho = numbers(taken[i] + 1 if own else tau)
                _, lam, _ = numbers(mean + j if own else tau)
                g = gradient(i, x[i], t) / n
                if variant == "augmented":
                    if j == 1:
                        y[i] = y[i] + dual_penalty * (x[i] - x_bar)
                    g = g + y[i]
                if variant == "stochastic":
                    old = d[i]
                    g = g if old is None else (1 - rho) * old + rho * g
                    d[i] = g
                if noise is not None:
                    g = g + noise(i, t, eta)
                s = oracle(g + lam * (x[i] - x_bar))
                x[i] = (1 - eta) * x[i] + eta * s
                taken[i] += 1
        x_bar = x_bar + sum(x[i] - before[i] for i in S) / n
    return x_bar, x


def sets_of(strategy: Any, rounds: int) -> list[list[int]]:
    return [[int(name) for name in strategy.sample(t)] for t in range(1, rounds + 1)]


def draws(seed: int, purpose: str) -> Callable[[int, int], np.random.Generator]:
    """A client's generator of a round, from which its steps draw one by one."""
    made: dict[tuple[int, int], np.random.Generator] = {}

    def draw(i: int, t: int) -> np.random.Generator:
        return made.setdefault((i, t), generator(seed, purpose, str(i), t))

    return draw


#: Schedule, what its t counts, who takes part, local steps.
RUNS = [
    *((name, "round", sampling, 1) for name in SCHEDULES for sampling in SAMPLINGS),
    *(("convex", "own", sampling, 3) for sampling in SAMPLINGS),
    *((name, "round", "bernoulli", 3) for name in SCHEDULES),
]


@pytest.mark.parametrize(("name", "count", "sampling", "k"), RUNS)
@pytest.mark.parametrize("variant", ["plain", "augmented", "stochastic"])
def test_run_equals_numpy_loop(
    variant: Any, name: Any, count: Any, sampling: Any, k: int
) -> None:
    p, rounds, seed, batch = 0.5, 40 // k, 7, 2
    strategy = FedFW(
        L1Ball(RADIUS),
        penalty=1.5,
        variant=variant,
        schedule=name,
        step_count=count,
        local_steps=k,
        step_size=0.2,
        **only_for(variant, dual_penalty=0.4, averaging=0.3, batch_size=batch),
        participation=p,
        sampling=sampling,
        seed=seed,
    )
    start = np.full(P, RADIUS / P / 2)
    (model,) = arrays_of(strategy, OBJECTIVES, [start], rounds)
    batches = draws(seed, "mini-batch")

    def batch_gradient(i: int, x: Array, t: int) -> Array:
        return OBJECTIVES[i].stochastic_gradient(x, batches(i, t), batch)

    sets = sets_of(strategy, rounds)
    # 3 of 5 clients in every round, where half of them were asked for
    share = 0.6 if sampling == "fixed" else p
    x_bar, x = loop(
        sets,
        # who counts steps needs no p
        lambda t: schedule(name, 1.5, 1.0 if count == "own" else share, k * rounds, t),
        start,
        variant=variant,
        dual_penalty=0.4,
        gradient=batch_gradient if variant == "stochastic" else full_gradient,
        k=k,
        own=count == "own",
    )
    assert np.abs(model - x_bar).max() < 1e-10
    for i in range(N):
        assert np.abs(strategy._client_iterate(str(i)) - x[i]).max() < 1e-10
    assert np.abs(model - np.mean(x, axis=0)).max() < 1e-10
    assert [record.sampled for record in strategy.history] == [len(s) for s in sets]
    assert [record.used for record in strategy.history] == [len(s) for s in sets]


# ------------------------------------------------------------------------- Appendix A


@pytest.mark.parametrize("domain", [Box(-1.0, 1.0), LInfBall(1.0)])
def test_appendix_a(domain: Domain) -> None:
    """min over [−1, 1] of ½(x − 3)² + ½(x + 1)²: naive stays at 0, FedFW+ finds 1."""
    # f_i = 2 · ½(x − c_i)², so that F = (1/2) Σ f_i
    objectives = [LeastSquares([[1.0]], [c], scale="sum") for c in (3.0, -1.0)]
    naive = NaiveFrankWolfe(domain)
    grid = grid_of(NaiveFrankWolfeClient, objectives, domain)
    stuck = play(naive, grid, np.zeros(1), 300).model
    assert stuck.item() == pytest.approx(0.0, abs=1e-12)
    (found,) = arrays_of(
        FedFW(domain, penalty=1.0, variant="augmented"), objectives, [np.zeros(1)], 600
    )
    assert found.item() == pytest.approx(1.0, abs=1e-2)


# --------------------------------------------------------- domains, layers and matrices


@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_noise_in_the_oracle_equals_numpy_loop(k: int, decay: bool) -> None:
    """σ √η_t of it, with each client's own η, or σ."""
    strategy = FedFW(
        L1Ball(RADIUS),
        penalty=1.5,
        variant="plain",
        local_steps=k,
        lmo_noise=2.0,
        lmo_noise_decay=decay,
        participation=0.5,
        seed=3,
    )
    (model,) = arrays_of(strategy, OBJECTIVES, [np.zeros(P)], 15)
    drawn = draws(3, "oracle noise")

    def noise(i: int, t: int, eta: float) -> Array:
        return drawn(i, t).normal(0.0, 2.0 * (math.sqrt(eta) if decay else 1.0), P)

    x_bar, _ = loop(
        sets_of(strategy, 15),
        lambda t: schedule("convex", 1.5, 1.0, 15, t),
        np.zeros(P),
        k=k,
        noise=noise,
    )
    assert np.abs(model - x_bar).max() < 1e-10


def nuclear_oracle(radius: float) -> Callable[[Array], Array]:
    def oracle(g: Array) -> Array:
        left, _, right = np.linalg.svd(g)
        atom: Array = -radius * np.outer(left[:, 0], right[0])
        return atom

    return oracle


def simplex_oracle(g: Array) -> Array:
    s = np.zeros_like(g)
    s.flat[int(np.argmin(g))] = 2.0
    return s


def both(g: Array) -> Array:
    """A part's oracle on its part of the gradient."""
    rest = -g[6:] / np.linalg.norm(g[6:])
    return np.concatenate([simplex_oracle(g[:6]), rest])


@pytest.mark.parametrize(
    ("domain", "oracle", "start"),
    [
        (NuclearNormBall(3.0), nuclear_oracle(3.0), np.zeros((4, 6))),
        (Simplex(2.0), simplex_oracle, np.full(9, 2 / 9)),
        (Box(-1.0, 0.5), lambda g: np.where(g > 0, -1.0, 0.5), np.zeros((2, 3))),
        (L2Ball(2.0), lambda g: -2 * g / np.linalg.norm(g), np.zeros((3, 1, 2))),
        (
            Product([Simplex(2.0), L2Ball(1.0)], [(2, 3), (4,)]),
            both,
            np.full(10, 1 / 3),
        ),
    ],
    ids=["nuclear", "simplex", "box", "l2", "product"],
)
def test_other_sets_equal_numpy_loop(
    domain: Domain, oracle: Callable[[Array], Array], start: Array
) -> None:
    rng = np.random.default_rng(8)
    centres = [rng.standard_normal(start.shape) for _ in range(N)]
    strategy = FedFW(
        domain, penalty=0.5, participation=0.7, variant="augmented", dual_penalty=0.2
    )
    (model,) = arrays_of(
        strategy, [Distance(c) for c in centres], [start], 50, encode=True
    )
    x_bar, x = loop(
        sets_of(strategy, 50),
        lambda t: schedule("convex", 0.5, 1.0, 50, t),
        start,
        variant="augmented",
        dual_penalty=0.2,
        gradient=lambda i, z, t: z - centres[i],
        oracle=oracle,
    )
    assert model.shape == start.shape
    assert np.abs(model - x_bar).max() < 1e-9
    assert domain.contains(model)
    for i in range(N):
        assert np.abs(strategy._client_iterate(str(i)) - x[i]).max() < 1e-9


# -------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"variant": "plain", "step_count": "own", "schedule": "nonconvex"},
            "is for schedule = 'convex'",
        ),
        ({"schedule": "constant"}, "allowed: convex, nonconvex"),
    ],
)
def test_bad_settings(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        FedFW(L1Ball(1.0), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [FedFW, ProjectedFedAvg])
@pytest.mark.parametrize(
    ("domain", "start", "rounds", "says"),
    [
        (BirkhoffPolytope(), [np.zeros(9)], 3, "square matrices"),
        (NuclearNormBall(1.0), [np.zeros((2, 2)), np.zeros(2)], 3, "matrices"),
        (Product([L1Ball(1.0)], [(4,)]), [np.zeros(5)], 3, "flat vector"),
        (L1Ball(1.0), [np.array([0.0, np.nan])], 3, "not finite"),
        (L1Ball(1.0), [np.array([0.0, np.inf])], 3, "not finite"),
        (L1Ball(1.0), [np.zeros(2)], 0, "num_rounds = 0"),
    ],
    ids=["birkhoff", "nuclear", "product", "nan", "inf", "rounds"],
)
def test_bad_model_stops_before_any_message(
    make: Any, domain: Domain, start: list[Array], rounds: int, says: str
) -> None:
    grid = Recorder(client_app(lambda context: None), 3)
    with pytest.raises(ValueError, match=says) as caught:
        make(domain).start(
            grid=grid, initial_arrays=ArrayRecord(start), num_rounds=rounds
        )
    assert "\n" not in str(caught.value)
    assert not grid.sent


# ----------------------------------------------- cut in two, Flower's calls, lost d_i


def check_mean(strategy: Any) -> None:
    points = [strategy._client_iterate(name) for name in strategy.clients]
    assert distance(strategy.broadcast.model, np.mean(points, axis=0)) < 1e-9


def test_stochastic_with_everything() -> None:
    """What the server cannot give back (d_i) is lost, x_i is not."""
    method = METHODS["fedfw stochastic"]
    ran = method.play(method.grid(10, **EVERYTHING), 60, last_fault=59)
    check_mean(ran.strategy)
    assert ran.strategy.history[-1].used == 10
    states = node_states(ran.strategy, ran.grid)
    assert len(states) == 10
    for name, state in states.items():
        assert "y" not in state
        assert distance(state["x"], ran.strategy._client_iterate(name)) < 1e-9


@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_more_rounds_do_not_change_the_step_that_was_planned(
    method: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """η = (pT + 1)^(−2/3) with the T of the beginning, resumed once and again."""

    def start(rounds: int, **options: Any) -> float:
        options |= {"variant": "plain"} if method is FedFW else {}
        client = FedFWClient if method is FedFW else NaiveFrankWolfeClient
        strategy = method(L1Ball(RADIUS), schedule="nonconvex", **options)
        grid = grid_of(client, OBJECTIVES, L1Ball(RADIUS))
        play(strategy, grid, np.zeros(P), rounds)
        assert len(strategy.history) == rounds
        half = strategy.half if method is FedFW else strategy
        return float(half._schedule.step(rounds))

    path = tmp_path / "checkpoint.npz"
    assert start(8, checkpoint=path) == 9.0 ** (-2 / 3)
    for rounds in (12, 20):
        caplog.clear()
        assert start(rounds, resume=path, checkpoint=path) == 9.0 ** (-2 / 3)
        assert "with T = 8," in caplog.text
