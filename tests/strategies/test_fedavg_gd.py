"""FedAvgGD, LocalSGD and FedProx against plain NumPy loops and closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clients import FedAvgGDClient, FedProxClient, LocalSGDClient
from fedtrellis.domains import L1Ball
from fedtrellis.local_steps import step_size_at
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from strategies import FedAvgGD, FedProx, LocalSGD, ProjectedFedAvg
from tests.harness import Array, Watch, grid_of, play

N, P, SEED, ROUNDS = 5, 6, 3, 12
# clients of unequal size: the mean must not weigh them by it
SIZES = [12, 7, 20, 9, 15]
_rng = np.random.default_rng(0)
A = [_rng.standard_normal((d, P)) for d in SIZES]
# every client has its own idea of x, so that F's minimum is nobody's
B = [a @ (2.0 * _rng.standard_normal(P)) for a in A]
QUADRATICS = [
    LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in zip(A, B, strict=True)
]
HESSIANS = [a.T @ a / len(a) + 0.1 * np.eye(P) for a in A]
LIPSCHITZ = max(float(np.linalg.eigvalsh(H)[-1]) for H in HESSIANS)
START = np.full(P, 0.1)
KINDS: list[tuple[Any, Any]] = [
    (FedAvgGD, FedAvgGDClient),
    (LocalSGD, LocalSGDClient),
    (FedProx, FedProxClient),
]
CLIENTS: dict[Any, Any] = dict(KINDS)


def played(
    make: Any,
    rounds: int = ROUNDS,
    *,
    objectives: Sequence[Any] = QUADRATICS,
    start: Sequence[Array] = (START,),
    **options: Any,
) -> tuple[Any, list[Array], Watch]:
    grid = grid_of(CLIENTS[make], objectives, seed=1)
    strategy = make(**{"seed": SEED, "max_failed_rounds": 1000, **options})
    run = play(strategy, grid, start, rounds)
    return strategy, run.arrays, run.watch


def gradient(i: int, x: Array) -> Array:
    g: Array = A[i].T @ (A[i] @ x - B[i]) / len(B[i]) + 0.1 * x
    return g


def loop(
    sets: Sequence[Sequence[int]],
    *,
    k_0: int,
    a: float,
    schedule: str = "log",
    fraction: float = 1.0,
    mu: float = 0.0,
) -> list[Array]:
    """The model after every round, by the text of the algorithm."""
    x, k, models = START, 0, []
    for t, S in enumerate(sets, start=1):
        local = []
        for i in S:
            rng = generator(SEED, "mini-batch", str(i), t)
            x_i = x
            for j in range(1, k_0 + 1):
                gamma = {
                    "log": a / np.log2(k + j + 1),
                    "constant": a,
                    "inverse-sqrt": a / np.sqrt(k + j),
                }[schedule]
                if fraction == 1.0:
                    g = gradient(i, x_i)
                else:
                    # an independent ceiling: in whole thousandths
                    batch = -(-round(1000 * fraction) * SIZES[i] // 1000)
                    g = QUADRATICS[i].stochastic_gradient(x_i, rng, batch)
                x_i = x_i - gamma * (g + mu * (x_i - x))
            local.append(x_i)
        k += k_0
        if local:
            x = sum(local[1:], start=local[0]) / len(local)
        models.append(x)
    return models


def gap(watch: Watch, expected: Sequence[Array]) -> float:
    assert len(watch.models) == len(expected)
    return max(
        float(np.abs(m - x).max()) for m, x in zip(watch.models, expected, strict=True)
    )


# ------------------------------------------------------------------------ the iterates


@pytest.mark.parametrize("schedule", ["log", "constant", "inverse-sqrt"])
@pytest.mark.parametrize("k_0", [1, 5])
@pytest.mark.parametrize("fraction", [1.0, 0.3])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_equals_loop(
    schedule: str, k_0: int, fraction: float, participation: float
) -> None:
    _, model, watch = played(
        FedAvgGD,
        local_steps=k_0,
        step_size=0.15,
        step_schedule=schedule,
        batch_fraction=fraction,
        participation=participation,
    )
    expected = loop(watch.used, k_0=k_0, a=0.15, schedule=schedule, fraction=fraction)
    assert gap(watch, expected) < 1e-12
    assert np.array_equal(model[0], watch.models[-1])
    assert np.abs(expected[-1] - START).max() > 0.1
    sizes = {len(S) for S in watch.used}
    assert sizes == {N} if participation == 1.0 else min(sizes) < max(sizes)


@pytest.mark.parametrize("schedule", ["log", "inverse-sqrt"])
def test_fedprox_equals_loop(schedule: str) -> None:
    _, _, watch = played(
        FedProx,
        proximal_weight=0.7,
        local_steps=4,
        step_size=0.15,
        step_schedule=schedule,
        batch_fraction=0.3,
        participation=0.5,
    )
    expected = loop(watch.used, k_0=4, a=0.15, schedule=schedule, fraction=0.3, mu=0.7)
    assert gap(watch, expected) < 1e-12


def test_one_local_step_is_gradient_descent_on_the_mean() -> None:
    step = 1.0 / LIPSCHITZ
    _, model, watch = played(
        FedAvgGD, 1500, local_steps=1, step_size=step, step_schedule="constant"
    )
    H = np.mean(HESSIANS, axis=0)
    c = np.mean([a.T @ b / len(b) for a, b in zip(A, B, strict=True)], axis=0)
    # one step from x_0: x_0 − γ ∇F(x_0)
    assert np.abs(watch.models[0] - (START - step * (H @ START - c))).max() < 1e-14
    # and in the end ∇F = 0
    assert np.abs(model[0] - np.linalg.solve(H, c)).max() < 1e-10


def test_many_local_steps_of_constant_size_end_somewhere_else() -> None:
    """As its documentation says."""
    _, model, _ = played(
        FedAvgGD, 50, local_steps=100, step_size=0.1, step_schedule="constant"
    )
    H = np.mean(HESSIANS, axis=0)
    c = np.mean([a.T @ b / len(b) for a, b in zip(A, B, strict=True)], axis=0)
    assert np.abs(model[0] - np.linalg.solve(H, c)).max() > 1e-2


# ----------------------------------------------------------------------- the step sizes


def test_step_sizes_by_hand() -> None:
    # log₂ 2 = 1, log₂ 3 = 1.5849625, log₂ 4 = 2
    log = [step_size_at("log", 0.01, k) for k in (1, 2, 3)]
    assert log == pytest.approx([0.01, 0.006309297535714575, 0.005], rel=1e-15)
    root = [step_size_at("inverse-sqrt", 0.6, k) for k in (1, 4, 9)]
    assert root == pytest.approx([0.6, 0.3, 0.2], rel=1e-15)
    assert [step_size_at("constant", 0.3, k) for k in (1, 2, 3)] == [0.3] * 3


# -------------------------------------------------------------------------- the batches


class Recorder:
    """A zero gradient that notes how large a batch was asked for."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples
        self.batches: list[int] = []

    def gradient(self, x: Array) -> Array:
        self.batches.append(0)
        return np.zeros_like(x)

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int
    ) -> Array:
        self.batches.append(batch_size)
        return np.zeros_like(x)


@pytest.mark.parametrize(
    ("fraction", "batches"),
    # ⌈0.07·100⌉ is 7, though 0.07·100 is 7.000000000000001 in floating point
    [(0.07, [7, 1, 8]), (0.05, [5, 1, 6]), (1e-9, [1, 1, 1]), (1.0, [0, 0, 0])],
)
def test_batch_sizes(fraction: float, batches: list[int]) -> None:
    objectives = [Recorder(100), Recorder(3), Recorder(101)]
    played(FedAvgGD, 2, objectives=objectives, batch_fraction=fraction, local_steps=3)
    assert [set(o.batches) for o in objectives] == [{b} for b in batches]
    assert [len(o.batches) for o in objectives] == [6, 6, 6]


def test_local_sgd_defaults() -> None:
    """5 % of the examples, and half of FedAvgGD's step."""
    _, _, watch = played(LocalSGD)
    expected = loop(watch.used, k_0=5, a=0.005, fraction=0.05)
    assert gap(watch, expected) < 1e-12


# ----------------------------------------------------------------------------- FedProx


@pytest.mark.parametrize("mu", [0.0, 0.3, 5.0])
def test_fedprox_pulls_towards_the_servers_model(mu: float) -> None:
    """Many steps reach x_i = (H_i + μI)⁻¹ (c_i + μx), argmin f_i + μ/2‖· − x‖²."""
    _, _, watch = played(
        FedProx,
        2,
        proximal_weight=mu,
        local_steps=4000,
        step_size=1.0 / (LIPSCHITZ + mu),
        step_schedule="constant",
    )
    x = START
    for model in watch.models:
        local = [
            np.linalg.solve(H + mu * np.eye(P), a.T @ b / len(b) + mu * x)
            for H, a, b in zip(HESSIANS, A, B, strict=True)
        ]
        x = np.mean(local, axis=0)
        assert np.abs(model - x).max() < 1e-10


# -------------------------------------------------------------------- models and losses


def test_clients_losses_are_weighed_by_their_examples() -> None:
    strategy, _, watch = played(FedAvgGD, participation=0.7, client_evaluate_every=4)
    values = [loss.value(watch.models[-1]) for loss in QUADRATICS]
    mean = float(np.average(values, weights=SIZES))
    loss = strategy.history[-1].client_evaluation["loss"]
    assert loss == pytest.approx(mean, rel=1e-12)


# ------------------------------------------------------------- what travels, and faults


def test_the_instruction_is_small() -> None:
    steps = {"local-steps": 5, "step-size": 0.01, "step-schedule": "log"}
    assert FedAvgGD().instruction(3, "0") == steps
    assert FedProx(proximal_weight=0).instruction(3, "0") == steps
    assert FedProx().instruction(3, "0") == {**steps, "proximal-weight": 0.01}
    assert LocalSGD(seed=7).instruction(3, "0") == {
        **steps,
        "step-size": 0.005,
        "batch-fraction": 0.05,
        "seed": 7,
    }
    # what the methods of a fixed step send
    assert ProjectedFedAvg(L1Ball(1.0), seed=7).instruction(3, "0") == {
        "local-steps": 5,
        "local-step-size": 0.1,
        "batch-size": 0,
        "seed": 7,
    }


@pytest.mark.parametrize("make", [kind for kind, _ in KINDS])
@pytest.mark.filterwarnings("error")
def test_divergence_is_reported(make: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        played(
            make,
            1000,
            step_size=50.0,
            step_schedule="constant",
            local_steps=40,
            max_failed_rounds=3,
        )
    message = str(caught.value)
    assert "no usable answer in 3 rounds in a row" in message
    assert "the local steps diverged: step-size = 50.0 is too long" in message


@pytest.mark.parametrize(("bound", "said"), [(1e9, "server"), (2.0, "client")])
def test_a_client_knows_the_bound_and_says_why_itself(bound: float, said: str) -> None:
    """Unless it is somebody else's client, whose answer the server refuses."""

    class Unaware(FedAvgGDClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            if said == "client":
                return super().fit(parameters, config)
            assert "answer-bound" not in config
            return [1e10 * np.ones(P)], 0, {}

    grid = grid_of(Unaware, QUADRATICS)
    strategy = FedAvgGD(step_size=5.0, answer_bound=bound, max_failed_rounds=1)
    reason = {
        "server": "beyond answer-bound = 1e.09; local steps that diverge, or a lie",
        "client": "the local steps diverged: step-size = 5.0 is too long",
    }[said]
    with pytest.raises(RuntimeError, match=reason):
        play(strategy, grid, START, 1)


@pytest.mark.filterwarnings("error")
def test_one_diverging_client_is_left_out() -> None:
    """The others go on, and the log of the round says why it is missing."""
    steep = LeastSquares(1e4 * A[0], B[0], scale="half-mean")
    strategy, _, watch = played(
        FedAvgGD,
        objectives=[steep, *QUADRATICS[1:]],
        local_steps=40,
        step_size=0.1,
        step_schedule="constant",
    )
    assert watch.used == [[1, 2, 3, 4]] * ROUNDS
    expected = loop(watch.used, k_0=40, a=0.1, schedule="constant")
    assert gap(watch, expected) < 1e-12
    for record in strategy.history:
        ((who, why),) = record.rejected
        assert who == "0"
        assert "step-size = 0.1 is too long" in why


class Throw:
    """A gradient that ends a run at once."""

    num_examples = 1

    def gradient(self, x: Array) -> Array:
        return np.full_like(x, -1.5e308)


@pytest.mark.parametrize("step_size", [1.0, 10.0])
@pytest.mark.filterwarnings("error")
def test_overflow_is_an_error_and_no_warning(step_size: float) -> None:
    """Of γ∇f_i; and of the sum of models whose entries are finite each."""
    with pytest.raises(RuntimeError, match="the local steps diverged"):
        played(
            FedAvgGD,
            objectives=[Throw()] * 3,
            local_steps=1,
            step_size=step_size,
            max_failed_rounds=1,
        )
