"""Differential privacy, by the server and by the clients: ε, noise, what is refused."""

from collections.abc import Sequence
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord
from scipy.stats import gumbel_r, kstest, norm

from clients import FedAvgGDClient, FedFWClient, LocalSGDClient, ZerothOrderSGDClient
from fedtrellis import Private
from fedtrellis.domains import Domain, L1Ball, L2Ball, Simplex
from fedtrellis.objectives import LeastSquares
from fedtrellis.privacy import (
    Accountant,
    LocalNoise,
    noise_multiplier_for,
    secret_gumbel,
    secret_normal,
)
from fedtrellis.server.aggregation import Cohorts
from fedtrellis.settings import SettingsError
from strategies import (
    FedAvgGD,
    FedFW,
    LocalSGD,
    ZerothOrderSGD,
)
from tests.harness import Array, grid_of, not_daily, play, refused

pytest.importorskip("dp_accounting")
CENTRAL = Private(noise_multiplier=2.0)
LOCAL: dict[str, Any] = {"privacy": "local", "privacy_noise_multiplier": 3.0}
QUIET: dict[str, Any] = LOCAL | {"privacy_noise_multiplier": 0.0, "privacy_clip": 1e6}
FW: dict[str, Any] = {"domain": L1Ball(2.0), "variant": "plain", "penalty": 0.1}


def losses(count: int = 10) -> list[LeastSquares]:
    rng = np.random.default_rng(0)
    return [
        LeastSquares(rng.normal(size=(12, 4)), rng.normal(size=12))
        for _ in range(count)
    ]


# -- ε


def exact_delta(epsilon: float, noise_multiplier: float) -> float:
    """δ(ε) of one Gaussian mechanism: Balle and Wang, ICML 2018, theorem 8."""
    half, rest = 0.5 / noise_multiplier, epsilon * noise_multiplier
    return float(norm.cdf(half - rest) - np.exp(epsilon) * norm.cdf(-half - rest))


@pytest.mark.parametrize("noise_multiplier", [0.7, 2.0, 5.0])
@pytest.mark.parametrize("releases", [1, 16])
def test_gaussian_releases_closed_form(noise_multiplier: float, releases: int) -> None:
    epsilon = Accountant(noise_multiplier, 1e-5).epsilon(releases)
    single = noise_multiplier / np.sqrt(releases)
    assert exact_delta(epsilon, single) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("z", "participation", "delta"),
    [
        # two examples of dp-accounting's own (pld_privacy_accountant_test.py), ε = 1
        (np.sqrt(3.0), 1.0, 0.126936),
        (0.5, 0.2, 0.15594),
    ],
)
def test_the_accountants_epsilon(z: float, participation: float, delta: float) -> None:
    private = Private(noise_multiplier=z, delta=delta)
    strategy = FedAvgGD(
        step_size=0.01, aggregation=private, participation=participation
    )
    run = play(strategy, grid_of(FedAvgGDClient, losses()), np.zeros(4), rounds=3)
    shown = [record.train["epsilon"] for record in run.strategy.history]
    assert shown[-1] == pytest.approx(1.0, abs=1e-3)
    assert shown == sorted(shown)


def test_a_cohort_of_fixed_size_costs_more_than_one_of_coins() -> None:
    # one client's answer may become any other, at most 2C away
    fixed: dict[str, Any] = {"sampling": "fixed", "cohort": 20, "clients": 100}
    coins: dict[str, Any] = {"sampling": "bernoulli", "participation": 0.2}
    costs = Accountant(8.0, 1e-5, **fixed).epsilon(10)
    assert costs > 1.5 * Accountant(8.0, 1e-5, **coins).epsilon(10)
    # and as much as without sampling, where all are in it
    everybody = Accountant(8.0, 1e-5, **fixed | {"cohort": 100}).epsilon(10)
    assert everybody == pytest.approx(Accountant(4.0, 1e-5).epsilon(10), rel=0.1)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"mechanism": "exponential"},
        {"sampling": "bernoulli", "participation": 0.3},
        *not_daily({"sampling": "fixed", "cohort": 3, "clients": 10}),
    ],
)
def test_the_noise_for_an_epsilon_comes_to_it(how: dict[str, Any]) -> None:
    z = noise_multiplier_for(2.0, 1e-5, 8, **how)
    assert 1.99 < Accountant(z, 1e-5, **how).epsilon(8) <= 2.0 + 1e-9
    assert Accountant(0.99 * z, 1e-5, **how).epsilon(8) > 2.0


def test_the_exponential_mechanism_costs_no_more_than_zcdp_says() -> None:
    z, releases, delta = 4.0, 20, 1e-5
    epsilon = Accountant(z, delta, mechanism="exponential").epsilon(releases)
    rho = releases / (2 * z**2)
    # Bun and Steinke, TCC 2016, proposition 1.3
    assert 0.5 < epsilon < rho + 2 * sqrt(rho * log(1 / delta))
    # and more than Gaussian noise with the same zCDP, whose ε is exact
    assert epsilon > Accountant(z, delta).epsilon(releases)


# -- the server's noise


def noisy_mean(clip: float, z: float, clients: int) -> Any:
    private = Private(clip=clip, noise_multiplier=z)
    private.begin(Cohorts([str(i) for i in range(clients)], 1.0, None, 1.0, 9))
    return private.combine


def test_no_client_moves_the_sum_further_than_the_clip() -> None:
    mean = noisy_mean(1.5, 0.0, 4)
    rng = np.random.default_rng(0)
    centre = rng.normal(size=6)
    others = [centre + rng.normal(size=6) for _ in range(3)]
    without = mean(others, centre)
    nothing = np.full(6, np.nan), np.full(6, np.inf), np.full(6, 1e308)
    for point in [centre + 1e-3, 1e200 * np.ones(6), *nothing]:
        moved = np.linalg.norm(mean([*others, point], centre) - without)
        assert moved <= 1.5 / 4.0 * (1 + 1e-9)


def test_the_noise_is_normal_and_as_large_as_promised() -> None:
    mean = noisy_mean(0.5, 3.0, 10)
    noise = mean([], np.zeros(20_000)) * 10.0 / (3.0 * 0.5)
    assert kstest(noise, "norm").pvalue > 1e-6
    assert kstest(secret_gumbel((20_000,)), gumbel_r.cdf).pvalue > 1e-6
    # and of no seed
    first, second = secret_normal((4,)), secret_normal((4,))
    assert not np.array_equal(first, second)


def replayed(count: int, clip: float, z: float, rounds: int) -> Array:
    """DP-FedAvg as a plain loop: one full gradient step a client and round."""
    x = np.zeros(4)
    for _ in range(rounds):
        total = np.zeros(4)
        for loss in losses(count):
            change = -0.1 * loss.gradient(x)
            total += change * min(1.0, clip / float(np.linalg.norm(change)))
        x = x + (total + z * clip * secret_normal((4,))) / count
    return x


def test_the_baseline_is_dp_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn_again() -> None:
        numbers = np.random.default_rng(5).random
        monkeypatch.setattr("fedtrellis.privacy.secret_uniform", numbers)

    drawn_again()
    strategy = LocalSGD(
        step_size=0.1,
        step_schedule="constant",
        local_steps=1,
        batch_fraction=1.0,
        aggregation=Private(clip=0.05, noise_multiplier=2.0),
    )
    run = play(strategy, grid_of(LocalSGDClient, losses()), np.zeros(4), rounds=5)
    drawn_again()
    assert np.allclose(run.model, replayed(10, 0.05, 2.0, 5), atol=1e-12)


def test_a_round_of_nobody_is_a_release_too() -> None:
    # that none of 25 cohorts is empty, or all are, has a probability of 1e-7
    strategy = FedAvgGD(step_size=0.01, participation=0.3, aggregation=CENTRAL)
    run = play(strategy, grid_of(FedAvgGDClient, losses(2)), np.zeros(4), rounds=25)
    nobody = [record for record in run.strategy.history if not record.sampled]
    assert nobody
    spent = [0.0, *(record.train["epsilon"] for record in run.strategy.history)]
    assert all(spent[one.round] > spent[one.round - 1] for one in nobody)
    models = [np.zeros(4), *run.watch.models]
    assert all((models[one.round] != models[one.round - 1]).all() for one in nobody)


def test_the_runs_seed_does_not_say_whose_turn_it_is() -> None:
    def asked() -> tuple[int, ...]:
        settings: Any = {"step_size": 0.01, "participation": 0.5, "seed": 1}
        strategy = FedAvgGD(aggregation=CENTRAL, **settings)
        run = play(strategy, grid_of(FedAvgGDClient, losses(24)), np.zeros(4), rounds=3)
        return tuple(record.sampled for record in run.strategy.history)

    assert len({asked() for _ in range(4)}) > 1


# -- the clients' noise


def test_the_noise_is_as_large_as_any_two_answers_are_apart() -> None:
    private = LocalNoise(0.5, 3.0)
    noise = private.hidden(np.zeros(20_000))
    assert noise.std() == pytest.approx(2 * 0.5 * 3.0, rel=0.03)
    plain = LocalNoise(0.5, 0.0)
    rng = np.random.default_rng(0)
    answers = [plain.hidden(1e3 * rng.normal(size=5)) for _ in range(9)]
    answers.append(plain.hidden(np.full(5, np.nan)))
    apart = [np.linalg.norm(a - b) for a in answers for b in answers]
    assert max(apart) <= 2 * 0.5 + 1e-12


def test_vertices_are_drawn_as_the_exponential_mechanism_does() -> None:
    """P(v) ∝ exp(⟨−g, v⟩/(2 C r z)), g clipped by its largest entry."""
    private = LocalNoise(0.5, 0.4)
    known, gradient = np.array([0.2, 0.0, 0.0]), np.array([0.0, 10.0, -2.0])
    drawn = [private.answer(L1Ball(2.0), known, gradient)[1] for _ in range(6000)]
    points = np.array([atom.dense() for atom in drawn if atom is not None])
    vertices = [*(2.0 * np.eye(3)), *(-2.0 * np.eye(3))]
    shares = [float(np.mean((points == vertex).all(axis=1))) for vertex in vertices]
    weights = np.exp([-np.array([0.2, 0.5, -0.1]) @ v / 0.8 for v in vertices])
    assert sum(shares) == pytest.approx(1.0)
    assert shares == pytest.approx(list(weights / weights.sum()), abs=0.03)


@pytest.mark.parametrize("domain", [L1Ball(2.0), Simplex(2.0), L2Ball(2.0)])
@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_without_noise_or_clip_it_is_fedfw(domain: Domain, variant: str) -> None:
    def model(**more: Any) -> Array:
        strategy = FedFW(domain, penalty=0.1, variant=variant, local_steps=2, **more)  # type: ignore[arg-type]
        grid = grid_of(FedFWClient, losses(), domain)
        return play(strategy, grid, domain.project(np.ones(4)), rounds=6).model

    assert np.allclose(model(**QUIET), model(), atol=1e-12)


def test_fedfws_epsilon_counts_every_atom() -> None:
    strategy = FedFW(**FW, local_steps=3, **LOCAL)
    grid = grid_of(FedFWClient, losses(), L1Ball(2.0))
    run = play(strategy, grid, np.zeros(4), rounds=2)
    costs = [Accountant(3.0, 1e-5, mechanism="exponential").epsilon(k) for k in (3, 6)]
    assert [one.train["epsilon"] for one in run.strategy.history] == costs
    assert L1Ball(2.0).contains(run.model, 1e-9)


@pytest.mark.parametrize("variant", ["decomfl", "feedsign", "fedkseed"])
def test_scalars_without_noise_are_those_of_the_method(variant: Any) -> None:
    def model(**more: Any) -> Array:
        more |= {"variant": variant, "samples": 3, "step_size": 1e-3}
        strategy = ZerothOrderSGD(batch_size=0, **more)
        grid = grid_of(ZerothOrderSGDClient, losses())
        return play(strategy, grid, np.zeros(4), rounds=4).model

    assert np.array_equal(model(**QUIET), model())
    assert not np.array_equal(model(**LOCAL), model(**LOCAL))


def test_the_client_that_was_asked_most_counts() -> None:
    how: dict[str, Any] = {"batch_size": 0, "step_size": 1e-3, "participation": 0.5}
    strategy = ZerothOrderSGD(**how, **LOCAL)
    grid = grid_of(ZerothOrderSGDClient, losses(6), reply_loss=0.3)
    run = play(strategy, grid, np.zeros(4), rounds=8)
    asked = [name for k in range(1, 9) for name in run.strategy.sample(k)]
    most = max(asked.count(name) for name in set(asked))
    assert most < 8
    assert run.strategy.local_noise is not None
    shown = run.strategy.local_noise.metrics()["epsilon"]
    assert shown == Accountant(3.0, 1e-5).epsilon(most)


# -- what is refused


class Waves(FedAvgGD):
    def run_round(self, *arguments: Any) -> Any:
        return super().run_round(*arguments)


class Another(FedAvgGD):
    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        x: Array = np.mean(list(answers.values()), axis=0)
        self.broadcast.replace(x)
        return {}


REFUSED: Sequence[tuple[Any, dict[str, Any], Any, str]] = [
    (FedAvgGD, {"client_weights": "examples"}, SettingsError, "= 'examples' does not"),
    (FedAvgGD, {"resume": "file.npz"}, SettingsError, "resume does not apply beside"),
    (Waves, {}, SettingsError, "which overrides run_round"),
    (Another, {}, TypeError, "gives no single answers"),
]


@pytest.mark.parametrize(("kind", "more", "error", "message"), REFUSED)
def test_no_epsilon_where_no_guarantee_holds(
    kind: Any, more: dict[str, Any], error: Any, message: str
) -> None:
    """Beside tests/wrong_inputs.toml: what sees single answers or avoids the noise."""

    def run() -> None:
        settings: dict[str, Any] = {"aggregation": CENTRAL, "step_size": 0.01}
        strategy = kind(participation=0.5, **settings, **more)
        play(strategy, grid_of(FedAvgGDClient, losses()), np.zeros(4), rounds=1)

    refused(message, run, error)


def test_a_run_that_noise_led_astray_has_failed() -> None:
    """And says that it was the noise; with as much of it as it can bear it is fine."""

    def value(server_round: int, arrays: Any) -> Any:
        (x,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"loss": float(np.mean([f.value(x) for f in losses()]))})

    def ended(z: float) -> float:
        noise: Any = LOCAL | {"privacy_clip": 20.0, "privacy_noise_multiplier": z}
        strategy = ZerothOrderSGD(step_size=0.01, batch_size=0, **noise)
        grid = grid_of(ZerothOrderSGDClient, losses())
        run = play(strategy, grid, np.full(4, 2.0), rounds=20, evaluate_fn=value)
        metrics = [record.evaluation["loss"] for record in run.strategy.history]
        return metrics[-1] / metrics[0]

    assert ended(0.01) < 0.8
    refused("the run diverged: its loss .*noise", lambda: ended(1e4), RuntimeError)
