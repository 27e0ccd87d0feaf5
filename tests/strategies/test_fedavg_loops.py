"""FedAvg's family against plain NumPy loops, closed forms and optima."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import clients
import strategies
from fedtrellis.domains import Box, L1Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.server.callbacks import DivergedError
from tests.harness import Array, Played, distance, grid_of, play

N, P, SEED, ROUNDS, RADIUS = 5, 6, 3, 15, 1.5
# clients of unequal size: the mean must not weigh them by it
SIZES = [12, 7, 20, 9, 15]
_rng = np.random.default_rng(0)
A = [_rng.standard_normal((d, P)) for d in SIZES]
# every client has its own idea of x, so that F's minimum is nobody's
B = [a @ (2.0 * _rng.standard_normal(P)) for a in A]
LOSSES = [
    LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in zip(A, B, strict=True)
]
HESSIANS = [a.T @ a / len(a) + 0.1 * np.eye(P) for a in A]
RIGHT = [a.T @ b / len(b) for a, b in zip(A, B, strict=True)]
MEAN_HESSIAN, MEAN_RIGHT = np.mean(HESSIANS, axis=0), np.mean(RIGHT, axis=0)
START = np.full(P, 0.1)
# of five local steps these fit into a second, where all take so many seconds
TAKEN, SECONDS = (5, 3, 2, 1, 1), (0.9, 1.6, 2.4, 4.0, 30.0)
BALL = L1Ball(RADIUS)


def gradient(i: int, x: Array) -> Array:
    return np.asarray(HESSIANS[i] @ x - RIGHT[i])


def played(
    name: str, rounds: int = ROUNDS, losses: Any = LOSSES, **options: Any
) -> Played[Any]:
    first = [options.pop("domain")] if "domain" in options else []
    more = first if name == "NaiveFrankWolfe" else []
    settings = {"seed": SEED, "max_failed_rounds": 1000, **options}
    strategy, client = getattr(strategies, name), getattr(clients, f"{name}Client")
    slow = options.get("local_deadline") and (lambda i, _: SECONDS[i])
    grid = grid_of(client, losses, *more, seed=1, delay=slow)
    return play(strategy(*first, **settings), grid, START, rounds)


Sets = Sequence[Sequence[int]]


def local(
    i: int,
    t: int,
    x: Array,
    sizes: Any,
    batch: int = 0,
    pull: float = 0.0,
    towards: Any = 0.0,
    shift: Any = 0.0,
) -> Array:
    """Gradient steps of client i in round t; its batches are drawn one by one."""
    rng = generator(SEED, "mini-batch", str(i), t)
    for size in sizes:
        g = LOSSES[i].stochastic_gradient(x, rng, batch) if batch else gradient(i, x)
        x = x - size * (g + pull * (x - towards) + shift)
    return x


def fedavg(
    sets: Sets,
    k: int,
    a: float,
    schedule: str = "constant",
    fraction: float = 1.0,
    mu: float = 0.0,
    server: tuple[str, float] = ("", 1.0),
    taken: Sequence[int] = (99,) * N,
) -> Iterator[Array]:
    """With FedNova's x ← x − mean ‖a_i‖₁ · mean (x − x_i)/‖a_i‖₁, after τ_i steps."""
    x, step = START, fedopt(*server)
    for t, S in enumerate(sets, start=1):
        counts = k * (t - 1) + np.arange(1, k + 1)
        sizes = {
            "log": a / np.log2(counts + 1),
            "constant": np.full(k, a),
            "inverse-sqrt": a / np.sqrt(counts),
        }[schedule]
        # an independent ceiling: in whole thousandths
        whole = [-(-round(1000 * fraction) * d // 1000) for d in SIZES]
        batches = [0 if fraction == 1.0 else batch for batch in whole]
        norms, parts = [], []
        for i in S:
            steps = sizes[: taken[i]]
            end = local(i, t, x, steps, batches[i], mu, x)
            # a_i: what each gradient counts once later steps have pulled it back
            pulls = [np.prod(1 - mu * steps[j:]) for j in range(1, len(steps) + 1)]
            norms.append(np.abs(steps * pulls).sum())
            parts.append((end - x) / norms[-1])
        if parts:
            x = step(x, np.mean(norms) * np.mean(parts, axis=0))
        yield x


def fedopt(optimizer: str, eta: float) -> Callable[[Array, Array], Array]:
    """The server's step, which remembers its moments."""
    m = np.zeros(P)
    v = np.zeros(P) if optimizer == "adam" else np.full(P, 1e-6)

    def step(x: Array, change: Array) -> Array:
        nonlocal m, v
        if not optimizer:
            return x + eta * change
        if optimizer == "momentum":
            m = 0.9 * m + change
            return x + eta * m
        m = 0.9 * m + 0.1 * change
        sign = -1.0 if optimizer == "adam" else np.sign(v - change**2)
        v = (
            0.99 * v + 0.01 * change**2
            if optimizer == "adam"
            else v - 0.01 * (change**2 * sign)
        )
        return np.asarray(x + eta * m / (np.sqrt(v) + 1e-3))

    return step


def projected(sets: Sets, project: Any, k: int, size: float, batch: int) -> Any:
    x = START
    for t, S in enumerate(sets, start=1):
        if S:
            ends = [local(i, t, x, [size] * k, batch) for i in S]
            x = project(np.mean(ends, axis=0))
        yield x


def feddr(sets: Sets, project: Any, k: int, size: float, batch: int) -> Any:
    """With α = 1.7 and η = 2."""
    x, y = [START] * N, [START] * N
    reflected, x_bar = np.tile(START, (N, 1)), START
    for t, S in enumerate(sets, start=1):
        for i in S:
            y[i] = y[i] + 1.7 * (x_bar - x[i])
            x[i] = local(i, t, x[i], [size] * k, batch, 0.5, y[i])
            reflected[i] = 2 * x[i] - y[i]
        if S:
            x_bar = project(reflected.mean(axis=0))
        yield x_bar


def scaffold(sets: Sets, k: int, a: float) -> Iterator[Array]:
    """With option II of the paper."""
    x, c_i = START, dict.fromkeys(range(N), np.zeros(P))
    for t, S in enumerate(sets, start=1):
        c = np.mean(list(c_i.values()), axis=0)
        ends = {i: local(i, t, x, [a] * k, shift=c - c_i[i]) for i in S}
        for i, end in ends.items():
            c_i[i] = c_i[i] - c + (x - end) / (k * a)
        if ends:
            x = np.mean(list(ends.values()), axis=0)
        yield x


def error_feedback(sets: Sets, k: int, a: float) -> Iterator[Array]:
    """Two of six entries of each, and a server's momentum of 0.4."""
    x, m, errors = START, np.zeros(P), dict.fromkeys(range(N), np.zeros(P))
    for t, S in enumerate(sets, start=1):
        sent = []
        for i in S:
            wanted = errors[i] + local(i, t, x, [a] * k) - x
            kept = np.where(np.abs(wanted) >= np.sort(np.abs(wanted))[-2], wanted, 0.0)
            errors[i] = wanted - kept
            sent.append(kept)
        if S:
            m = 0.4 * m + np.mean(sent, axis=0)
            x = x + m
        yield x


def majority(sets: Sets, k: int, a: float, eta: float) -> Iterator[Array]:
    x = START
    for t, S in enumerate(sets, start=1):
        votes = sum((np.sign(local(i, t, x, [a] * k) - x) for i in S), np.zeros(P))
        x = x + eta * np.sign(votes)
        yield x


def naive(sets: Sets, schedule: str, p: float) -> Iterator[Array]:
    x = START
    for t, S in enumerate(sets, start=1):
        eta = {
            "convex": 2 / (p * (t - 1) + 2),
            "nonconvex": (p * ROUNDS + 1) ** (-2 / 3),
            "stochastic": 9 / (t + 8),
            "constant": 0.1,
        }[schedule]
        atoms = np.zeros(P)
        for i in S:
            g = gradient(i, x)
            j = np.argmax(np.abs(g))
            atoms[j] -= RADIUS * np.sign(g[j])
        if S:
            x = (1 - eta) * x + eta * atoms / len(S)
        yield x


Loop = Callable[[Sets], Iterator[Array]]
_FOUR: dict[str, Any] = {
    **{"local_steps": 4, "step_size": 0.15, "step_schedule": "constant"},
    "batch_fraction": 1.0,
}
# 5 % of the examples, and the step of its own: min b_i / (d_i r_i)
_OWN = min(
    ceil(0.05 * n) / n / loss.lipschitz() for n, loss in zip(SIZES, LOSSES, strict=True)
)
_FIT: dict[str, Any] = {"local_deadline": 1.0, "batch_fraction": 1.0}
_SIGN = {"compressor": "sign", "server_step_size": 0.25, "server_momentum": 0.0}
_TOP = {"kept_fraction": 0.3, "server_momentum": 0.4}
CASES: dict[str, tuple[str, dict[str, Any], Loop]] = {
    "local-sgd": (
        *("LocalSGD", {}),
        partial(fedavg, k=5, a=_OWN, schedule="log", fraction=0.05),
    ),
    "scaffold": ("Scaffold", _FOUR, partial(scaffold, k=4, a=0.15)),
    "top-k": ("CompressedSGD", _FOUR | _TOP, partial(error_feedback, k=4, a=0.15)),
    "sign": ("CompressedSGD", _FOUR | _SIGN, partial(majority, k=4, a=0.15, eta=0.25)),
}
for _schedule, _k, _part in (
    *(("log", 5, 1.0), ("constant", 1, 0.3)),
    ("inverse-sqrt", 5, 0.3),
):
    _steps: dict[str, Any] = {"step_schedule": _schedule, "step_size": 0.15}
    _steps |= {"local_steps": _k, "batch_fraction": _part}
    _loop = partial(fedavg, k=_k, a=0.15, schedule=_schedule, fraction=_part)
    _prox = _steps | {"proximal_weight": 0.7}
    CASES[f"fedavg-gd {_schedule}"] = "FedAvgGD", _steps, _loop
    CASES[f"fedprox {_schedule}"] = "FedProx", _prox, partial(_loop, mu=0.7)
    _loop = partial(_loop, mu=0.7, taken=TAKEN)
    CASES[f"fednova {_schedule}"] = "FedProx", _prox | {"local_deadline": 1.0}, _loop
for _kind in ("momentum", "adam", "yogi"):
    _own = _FOUR | {"optimizer": _kind, "server_step_size": 0.3}
    _loop = partial(fedavg, k=4, a=0.15, server=(_kind, 0.3))
    CASES[f"fedopt {_kind}"] = "FedOpt", _own, _loop
for _schedule in ("convex", "nonconvex", "stochastic", "constant"):
    # 3 of 5 clients in every round, where half of them are asked for
    for _sampling, _part in (("bernoulli", 0.6), ("fixed", 0.5)):
        _own = {"schedule": _schedule, "sampling": _sampling}
        _own |= {"step_size": 0.1} if _schedule == "constant" else {}
        _own |= {"domain": BALL, "participation": _part}
        _loop = partial(naive, schedule=_schedule, p=0.6)
        CASES[f"naive {_schedule} {_sampling}"] = "NaiveFrankWolfe", _own, _loop
for _domain, _batch in ((BALL, 0), (BALL, 4), (Box(-0.3, 0.4), 0)):
    _steps = {"local_steps": 3, "local_step_size": 0.15, "batch_size": _batch}
    _steps["domain"] = _domain
    _more: dict[str, Any] = {"k": 3, "size": 0.15, "batch": _batch}
    _loop = partial(projected, project=_domain.project, **_more)
    CASES[f"projected-fedavg {_domain} {_batch}"] = "ProjectedFedAvg", _steps, _loop
    _own = _steps | {"relaxation": 1.7, "proximal_step": 2.0}
    _loop = partial(feddr, project=_domain.project, **_more)
    CASES[f"feddr {_domain} {_batch}"] = "FedDR", _own, _loop


@pytest.mark.parametrize("name", CASES)
def test_every_model_is_the_loops(name: str) -> None:
    method, settings, loop = CASES[name]
    run = played(method, **{"participation": 0.6, **settings})
    models = list(loop(run.used))
    assert distance(run.models, models) < 1e-12
    assert np.array_equal(run.model, run.models[-1])
    assert np.abs(models[-1] - START).max() > 0.03
    sizes = {len(S) for S in run.used}
    assert sizes == {3} if "fixed" in name else len(sizes) > 2


def test_scaffold_ends_at_the_optimum_and_averages_do_not() -> None:
    optimum = np.linalg.solve(MEAN_HESSIAN, MEAN_RIGHT)
    run = played("Scaffold", 400, **_FOUR)
    assert np.abs(run.model - optimum).max() < 1e-9
    run = played("FedAvgGD", 400, **_FOUR)
    assert np.abs(run.model - optimum).max() > 1e-2


def test_unequal_work_ends_at_the_optimum_only_where_it_is_normalised() -> None:
    """But for an error that falls with the size of the steps."""
    optimum, x = np.linalg.solve(MEAN_HESSIAN, MEAN_RIGHT), START
    for _ in range(300):
        ends = [local(i, 1, x, [0.01] * TAKEN[i]) for i in range(N)]
        x = np.mean(ends, axis=0)
    runs = [played("FedAvg", 300, step_size=a, **_FIT) for a in (0.04, 0.02)]
    near, nearer = (distance(run.model, optimum) for run in runs)
    assert nearer < 0.6 * near < 0.1 * distance(x, optimum)


@pytest.mark.parametrize(("deadline", "steps"), [(0.1, 1), (100.0, 5)])
def test_equal_work_is_fedavg_bit_by_bit(deadline: float, steps: int) -> None:
    """And a round lasts as long as the steps that are taken."""
    own: dict[str, Any] = {**_FIT, "client_weights": "examples", "step_size": 0.1}
    run = played("FedAvg", **own | {"local_deadline": deadline})
    own |= {"local_deadline": None, "local_steps": steps}
    assert np.array_equal(run.models, played("FedAvg", **own).models)
    assert run.grid.clock() == pytest.approx(30.0 + ROUNDS * 6.0 * steps)


def test_steps_go_by_the_clock_and_impossible_numbers_are_refused() -> None:
    """A step that would end too late, by the mean of those before, is not begun.

    Clients with a ``fit`` of their own are not taken together.
    """

    class Declaring(clients.FedAvgGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            self.clock = iter((0.0, 1.0, 2.5, 5.0)).__next__
            arrays, _, metrics = super().fit(parameters, config)
            said = metrics["local-steps"], 0, 10**9, 2.0, True
            return arrays, 0, {"local-steps": said[int(self.client_id)]}

    strategy = strategies.FedAvgGD(step_size=0.1, local_deadline=4.0)
    run = play(strategy, grid_of(Declaring, LOSSES, batched=True), START, 2)
    assert run.used == [[0]] * 2
    assert run.watch.metrics[1]["local-steps"] == 3


def test_a_deadline_is_each_client_s_where_several_are_computed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    class Slow(LeastSquares):
        def gradient(self, x: Any) -> Any:
            now[0] += 1.0  # a second
            return super().gradient(x)

    losses = [Slow(a, b, scale="half-mean") for a, b in zip(A, B, strict=True)]
    monkeypatch.setattr(
        "clients.fedavg.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    strategy = strategies.FedAvgGD(step_size=0.01, local_deadline=3.0)
    grid = grid_of(clients.FedAvgGDClient, losses, batched=True)
    assert play(strategy, grid, START, 1).watch.metrics[0]["local-steps"] == 3


class Steep(LeastSquares):
    """Its gradients overflow."""

    def gradient(self, x: Any) -> Array:
        return np.full_like(x, -1.5e308)


@pytest.mark.filterwarnings("error")
def test_one_diverging_client_is_left_out() -> None:
    """The others go on, and the log of the round says why it is missing.

    Where there are no others, the run ends.
    """
    steep = LeastSquares(1e4 * A[0], B[0], scale="half-mean")
    long: Any = {"step_schedule": "constant", "local_steps": 40}
    run = played("FedAvgGD", 5, [steep, *LOSSES[1:]], step_size=0.1, **long)
    assert run.used == [[1, 2, 3, 4]] * 5
    assert distance(run.models, list(fedavg(run.used, 40, 0.1))) < 1e-12
    for record in run.strategy.history:
        ((who, why),) = record.rejected
        assert who == "0"
        assert "step-size = 0.1 is too long" in why
    # γ∇f_i overflows; or the sum of models whose entries are finite each
    for size in (1.0, 10.0):
        once = {"local_steps": 1, "step_size": size, "max_failed_rounds": 1}
        with pytest.raises(DivergedError, match="the local steps diverged"):
            played("FedAvgGD", 1, [Steep(A[0], B[0])] * 3, **once)
