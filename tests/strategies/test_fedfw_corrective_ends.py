"""How far corrective FedFW goes, how it knows, and what its clients say of x̄."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

import sim
from clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import LeastSquares, Logistic
from fedtrellis.objectives.reference import certified_minimum
from strategies import FedFW
from tests.harness import Recorder, app_of, grid_of, play
from tests.strategies.corrective_runs import PROBLEMS, problem, run

cp: Any = importlib.import_module("cvxpy")

Array = NDArray[np.float64]
N, P, RADIUS = 4, 12, 1.5


def made(kind: str, seed: int) -> tuple[list[Any], float]:
    """Clients' losses and F*, by CVXPY."""
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


# ---------------------------------------------------------------------- the certificate


@pytest.mark.parametrize("kind", ["least squares", "logistic"])
@pytest.mark.parametrize("seed", range(4))
def test_the_lower_bound_is_one(kind: str, seed: int) -> None:
    """F* by CVXPY: never below the bound, in no round, and the bound comes near."""
    losses, lowest = made(kind, seed)
    strategy = FedFW(
        L1Ball(RADIUS),
        certificate=True,
        correction="pairwise" if seed % 2 else "projected",
        participation=(1.0, 0.6)[seed // 2],
        seed=seed,
    )
    grid = grid_of(FedFWClient, losses, L1Ball(RADIUS), reply_loss=0.1 * (seed // 2))
    ran = play(strategy, grid, np.zeros(P), 60)
    bounds = [m["lower-bound"] for m in ran.watch.metrics if "lower-bound" in m]
    assert len(bounds) > 50
    rounding = 1e-7 * (1.0 + abs(lowest))  # the solver's
    assert max(bounds) <= lowest + rounding
    value = float(np.mean([loss.value(ran.model) for loss in losses]))
    assert lowest - rounding <= value
    assert bounds[-1] >= lowest - 1e-3 * abs(lowest)
    assert value <= lowest + 1e-3 * abs(lowest)


def test_no_bound_before_everybody_has_answered() -> None:
    losses, _ = made("least squares", 0)

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
    losses, lowest = made("least squares", 1)
    rounds = {}
    for tolerance in (1e-2, 1e-3, 1e-5):
        strategy = FedFW(
            L1Ball(RADIUS), tolerance=tolerance, certificate=certificate, seed=1
        )
        ran = play(
            strategy, grid_of(FedFWClient, losses, L1Ball(RADIUS)), np.zeros(P), 300
        )
        rounds[tolerance] = len(strategy.history)
        value = float(np.mean([loss.value(ran.model) for loss in losses]))
        if certificate:
            assert value - lowest <= 2.0 * tolerance * lowest + 1e-7
        last = ran.watch.metrics[-1]
        size = max(
            float(np.linalg.norm(strategy._client_iterate(n))) for n in strategy.clients
        )
        assert max(last["primal-residual"], last["dual-residual"]) <= tolerance * size
    assert 2 < rounds[1e-2] < rounds[1e-3] < rounds[1e-5] < 300
    strategy = FedFW(L1Ball(RADIUS), seed=1)
    play(strategy, grid_of(FedFWClient, losses, L1Ball(RADIUS)), np.zeros(P), 20)
    assert len(strategy.history) == 20  # 0 is never


@pytest.mark.parametrize("correction", ["projected", "pairwise"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_start_outside_the_set_is_projected(name: str, correction: str) -> None:
    """Every client answers from the first round on, as from the nearest point."""
    outside = dataclasses.replace(problem(name), start=problem(name).start + 5.0)
    inside = dataclasses.replace(outside, start=outside.domain.project(outside.start))
    runs = [run(m, 4, correction=correction) for m in (outside, inside)]
    assert runs[0].used == [list(range(len(outside.objectives)))] * 4
    assert outside.domain.contains(runs[0].model)
    if outside.penalty is None:  # z is the start, which round 1 makes nothing of
        assert runs[0].model.tobytes() == runs[1].model.tobytes()


# --------------------------------------------------------------------------- evaluation


def described(message: Any) -> tuple[str, int, str]:
    """Kind, bytes of arrays, and how the model travels."""
    records = message.content.array_records.values()
    size = sum(len(array.data) for record in records for array in record.values())
    config = message.content.config_records.get("config", {})
    return message.metadata.message_type, size, str(config.get("model-encoding", ""))


def test_clients_evaluate_the_mean_and_keep_what_they_were_sent() -> None:
    """F by the clients is F(x̄), and the rounds are those of a run without that."""
    example = problem("least squares, l1")
    found: dict[int, tuple[Any, Any]] = {}
    for every in (0, 1):
        strategy = FedFW(
            example.domain, local_steps=4, seed=0, client_evaluate_every=every
        )
        models: list[Array] = []

        def note(server_round: int, arrays: ArrayRecord, to: Any = models) -> Any:
            to.append(arrays.to_numpy_ndarrays()[0])
            return MetricRecord({"server": 0.0})

        app = app_of(FedFWClient, example.objectives, example.domain)
        grid = Recorder(app, len(example.objectives))
        play(strategy, grid, example.start, 6, evaluate_fn=note)
        sent = [described(message) for message in grid.sent]
        found[every] = strategy, [s for s in sent if s[0] != "query.hello"]
        if every:
            losses = [
                r.client_evaluation["loss"]
                for r in strategy.history
                if r.round and r.client_evaluation
            ]
            values = [
                np.mean([f.value(x) for f in example.objectives]) for x in models[1:]
            ]
            assert len(losses) == 6
            np.testing.assert_allclose(losses, values, rtol=1e-12)
            # x̄ is not z, so that the two cannot be taken for each other
            off = strategy.half.model - strategy.broadcast.model
            assert np.abs(off).max() > 1e-6
    (plain, few), (evaluating, more) = found[0], found[1]
    assert [s for s in more if s[0] == "train"] == few
    assert sum(s[0] == "evaluate" for s in more) == 6 * len(example.objectives)
    assert plain.half.model.tobytes() == evaluating.half.model.tobytes()


# ------------------------------------------------------------------------------ how far


def history(task: str, rounds: int, **settings: Any) -> tuple[Any, Any]:
    """The app's own defaults, and what the task has beside its name: the rounds."""
    given = {f"{task}.{name}": value for name, value in settings.items()}
    config = {**sim.app.default_config(), "method": "fedfw", "task": task, **given}
    experiment = sim.app.experiment(config, 10)
    strategy = experiment.strategy(evaluate_every=rounds)
    strategy.start(
        experiment.grid(),
        experiment.initial_arrays(),
        num_rounds=rounds,
        evaluate_fn=experiment.evaluate_fn,
    )
    return experiment, strategy.history


def test_digits_are_near_their_optimum_after_50_rounds() -> None:
    experiment, records = history("digits", 50)
    lowest = certified_minimum(
        experiment.task, experiment.domain, experiment.start_point(), 1e-4
    )
    value = records[-1].evaluation["loss"]
    assert lowest.value - lowest.gap <= value <= lowest.value - lowest.gap + 1e-3


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
