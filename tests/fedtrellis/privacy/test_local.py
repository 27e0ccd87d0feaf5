"""Noise by the clients: scalars, and what their oracles are asked."""

import re
from functools import partial
from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from clients import FedFWClient, ZerothOrderSGDClient
from fedtrellis.domains import Domain, L1Ball, L2Ball, Simplex
from fedtrellis.objectives import LeastSquares
from fedtrellis.privacy import Accountant, LocalNoise, SecretNoise, noise_multiplier_for
from strategies import FedFW, ProjectedFedAvg, ZerothOrderSGD
from tests.harness import Array, grid_of, play, refused

pytest.importorskip("dp_accounting")
LOCAL: dict[str, Any] = {"privacy": "local", "privacy_noise_multiplier": 3.0}


def losses(count: int = 6) -> list[LeastSquares]:
    rng = np.random.default_rng(0)
    return [
        LeastSquares(rng.normal(size=(12, 4)), rng.normal(size=12))
        for _ in range(count)
    ]


def fedfw(domain: Domain, **more: Any) -> FedFW:
    return FedFW(domain, **{"variant": "plain", "penalty": 0.1, **more})


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


def test_vertices_are_drawn_with_noise_of_the_clip() -> None:
    # P(v) ∝ exp(⟨−g, v⟩/(2 C r z)), g clipped by its largest entry
    private = LocalNoise(0.5, 0.4, SecretNoise(0))
    known, gradient = np.array([0.2, 0.0]), np.array([0.0, 10.0])
    drawn = [private.answer(Simplex(2.0), known, gradient)[1] for _ in range(4000)]
    share = np.mean([atom.dense()[0] > 0 for atom in drawn if atom is not None])
    a, b = np.exp(-0.2 * 2.0 / 0.8), np.exp(-0.5 * 2.0 / 0.8)
    assert share == pytest.approx(a / (a + b), abs=0.03)


def test_the_exponential_mechanism_costs_no_more_than_zcdp_says() -> None:
    z, releases, delta = 4.0, 20, 1e-5
    epsilon = Accountant(z, delta, mechanism="exponential").epsilon(releases)
    rho = releases / (2 * z**2)
    # Bun and Steinke, TCC 2016, proposition 1.3
    assert 0.5 < epsilon < rho + 2 * sqrt(rho * log(1 / delta))
    # and more than Gaussian noise with the same zCDP, whose ε is exact
    assert epsilon > Accountant(z, delta).epsilon(releases)
    z = noise_multiplier_for(1.0, delta, releases, mechanism="exponential")
    costs = Accountant(z, delta, mechanism="exponential").epsilon(releases)
    assert 0.99 < costs <= 1.0


@pytest.mark.parametrize("domain", [L1Ball(2.0), Simplex(2.0), L2Ball(2.0)])
@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_without_noise_and_a_wide_clip_it_is_fedfw(
    domain: Domain, variant: str
) -> None:
    start = domain.project(np.ones(4))

    def model(**more: Any) -> Array:
        strategy = fedfw(domain, variant=variant, local_steps=2, **more)
        grid = grid_of(FedFWClient, losses(), domain)
        return play(strategy, grid, start, rounds=6).model

    quiet = {"privacy": "local", "privacy_noise_multiplier": 0.0}
    assert np.allclose(model(privacy_clip=1e6, **quiet), model(), atol=1e-12)


def test_fedfws_epsilon_counts_every_atom() -> None:
    strategy = fedfw(L1Ball(2.0), local_steps=3, **LOCAL)
    grid = grid_of(FedFWClient, losses(), L1Ball(2.0))
    run = play(strategy, grid, np.zeros(4), rounds=2)
    costs = [Accountant(3.0, 1e-5, mechanism="exponential").epsilon(k) for k in (3, 6)]
    assert [one.train["epsilon"] for one in run.strategy.history] == costs
    assert L1Ball(2.0).contains(run.model, 1e-9)


@pytest.mark.parametrize("variant", ["decomfl", "feedsign", "fedkseed"])
def test_scalars_without_noise_are_those_of_the_method(variant: Any) -> None:
    def model(**more: Any) -> Array:
        strategy = ZerothOrderSGD(batch_size=0, samples=3, variant=variant, **more)
        grid = grid_of(ZerothOrderSGDClient, losses())
        return play(strategy, grid, np.zeros(4), rounds=4).model

    quiet = {"privacy": "local", "privacy_noise_multiplier": 0.0}
    assert np.array_equal(model(privacy_clip=1e6, **quiet), model())
    assert not np.array_equal(model(**LOCAL), model(**LOCAL))


def test_the_client_that_was_asked_most_counts() -> None:
    strategy = ZerothOrderSGD(batch_size=0, participation=0.5, **LOCAL)
    grid = grid_of(ZerothOrderSGDClient, losses(), reply_loss=0.3)
    run = play(strategy, grid, np.zeros(4), rounds=8)
    asked = [name for k in range(1, 9) for name in run.strategy.sample(k)]
    most = max(asked.count(name) for name in set(asked))
    assert most < 8
    shown = run.strategy.history[-1].train.get("epsilon")
    if shown is None:  # nobody answered in the last round
        assert run.strategy.local_noise is not None
        shown = run.strategy.local_noise.metrics()["epsilon"]
    assert shown == Accountant(3.0, 1e-5).epsilon(most)


def zeroth(domain: Domain, **more: Any) -> ZerothOrderSGD:
    return ZerothOrderSGD(**more)


def projected(domain: Domain, **more: Any) -> ProjectedFedAvg:
    return ProjectedFedAvg(domain, **more)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (fedfw, {"variant": "corrective"}, "variant = 'corrective' does not apply beside"),
    (fedfw, {"variant": "stochastic"}, "variant = 'stochastic' does not apply beside"),
    (fedfw, {"penalty": None}, "penalty = 'auto' does not apply beside privacy"),
    (fedfw, {"aggregation": "median"}, "with variant = 'plain'; allowed: mean"),
    (zeroth, {"aggregation": "median"}, "beside privacy = 'local'; allowed: mean"),
    (zeroth, {"privacy_epsilon": 1.0}, "privacy-noise-multiplier = 3 and privacy-eps"),
    (zeroth, {"privacy_noise_multiplier": None}, "privacy-epsilon = 'auto': one of"),
    (zeroth, {"privacy": "none"}, "privacy_noise_multiplier = 3.0 applies where"),
    (projected, {}, "does not apply to projected-fedavg; allowed: none"),
    (fedfw, {"client_evaluate_every": 1}, "client-evaluate-every = 1 does not apply"),
]


@pytest.mark.parametrize(("make", "more", "message"), REFUSED)
def test_what_would_send_more_is_refused(
    make: Any, more: dict[str, Any], message: str
) -> None:
    make_it = partial(make, L1Ball(1.0), **{**LOCAL, **more})
    refused(re.escape(message), make_it)
