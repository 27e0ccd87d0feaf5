"""Steps whose size is auto, by the largest Lipschitz constant of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis import Private, SecureSum, SettingsError, clients, strategies
from fedtrellis.domains import L2Ball
from fedtrellis.objectives import LeastSquares
from tests.harness import Array, grid_of, play

# three clients' rows; columns in units that differ by 10⁴, as tables have them
RNG = np.random.default_rng(5)
A = [RNG.standard_normal((20, 4)) * [1.0, 10.0, 1e4, 0.1] + 3.0 for _ in range(3)]
LOSSES = [
    LeastSquares(a, a @ np.ones(4) + i, scale="half-mean") for i, a in enumerate(A)
]
# of ‖A x − b‖²/(2 d)
BOUNDS = [float(np.linalg.eigvalsh(a.T @ a / len(a))[-1]) for a in A]
METHODS = {
    **dict.fromkeys(("FedAvgGD", "LocalSGD", "FedProx", "FedOpt", "Scaffold"), ()),
    **{"CompressedSGD": (), "ProjectedFedAvg": (L2Ball(9.0),), "FedDR": (L2Ball(9.0),)},
}


class NoBound:
    """A loss that only knows its gradient."""

    def __init__(self, loss: LeastSquares) -> None:
        self.gradient, self.value = loss.gradient, loss.value
        self.stochastic_gradient = loss.stochastic_gradient
        self.num_examples = loss.num_examples


def run(
    name: str, losses: Sequence[Any] = LOSSES, rounds: int = 30, **options: Any
) -> Any:
    strategy = getattr(strategies, name)(*METHODS[name], seed=1, **options)
    grid = grid_of(getattr(clients, f"{name}Client"), losses)
    return play(strategy, grid, np.zeros(4), rounds)


def mean(x: Array) -> float:
    return float(np.mean([loss.value(x) for loss in LOSSES]))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_ends_above_its_start(name: str) -> None:
    ran = run(name)
    assert max(map(mean, ran.models)) <= mean(np.zeros(4))
    # one of 20 rows in a mini-batch
    part = 20.0 if getattr(ran.strategy, "batch_fraction", 1.0) < 1.0 else 1.0
    assert ran.strategy.lipschitz == pytest.approx(part * max(BOUNDS), rel=1e-9)


def test_a_loss_that_knows_no_bound_is_measured() -> None:
    for dtype, near in (("float64", 1e-6), ("float32", 0.01)):
        ran = run("FedAvgGD", [NoBound(loss) for loss in LOSSES], 2, dtype=dtype)
        assert ran.strategy.lipschitz == pytest.approx(max(BOUNDS), rel=near)


def test_the_size_is_that_of_the_largest_bound() -> None:
    r = max(BOUNDS)
    same: dict[str, dict[str, Any]] = {
        "FedAvgGD": {"step_size": 1.0 / r},
        "FedDR": {"proximal_step": 10.0 / r, "local_step_size": 1.0 / (1.1 * r)},
    }
    for name, sizes in same.items():
        models = run(name, rounds=9).models, run(name, rounds=9, **sizes).models
        np.testing.assert_allclose(*models, rtol=1e-9)


def test_one_liar_cannot_shorten_the_steps_where_a_rule_is_set() -> None:
    far = [*LOSSES[:2], LeastSquares(1e6 * A[2], np.zeros(20), scale="half-mean")]
    ran = run("FedAvgGD", far, 1, aggregation="median")
    assert ran.strategy.lipschitz <= 2.0 * max(BOUNDS)


def test_secure_sums_take_the_sum_of_a_block() -> None:
    ran = run("FedAvgGD", aggregation=SecureSum(value_range=1e9))
    assert ran.strategy.lipschitz == pytest.approx(sum(BOUNDS), rel=1e-6)
    assert mean(ran.model) < mean(np.zeros(4))


@pytest.mark.parametrize("rule", [Private(noise_multiplier=1.0), SecureSum(clip=1.0)])
def test_a_clip_refuses_them(rule: Any) -> None:
    with pytest.raises(SettingsError, match="step_size = 'auto' does not apply"):
        run("FedAvgGD", aggregation=rule)


class Sloped(NoBound):
    """Its gradient is the same everywhere."""

    def __init__(self, loss: LeastSquares, slope: float) -> None:
        super().__init__(loss)
        self.gradient = lambda x: np.full_like(x, slope)


def test_losses_without_a_slope_say_what_to_set() -> None:
    said = "changes with the model; or set step_size"
    with pytest.raises(SettingsError, match=said):
        run("FedAvgGD", [Sloped(loss, 0.0) for loss in LOSSES])


def test_a_client_that_cannot_tell_stops_nobody_else(caplog: Any) -> None:
    ran = run("FedAvgGD", [*LOSSES[:2], Sloped(LOSSES[2], np.nan)], 9)
    assert "client 2: Lipschitz constant nan" in caplog.text
    assert ran.strategy.lipschitz == pytest.approx(max(BOUNDS[:2]), rel=1e-9)
    assert all([*map(int, used)] == [0, 1] for used in ran.used)


def test_a_resumed_run_keeps_the_bound(tmp_path: Path) -> None:
    losses = [NoBound(loss) for loss in LOSSES]  # measured at another x: another bound
    whole = run("Scaffold", losses, 6)
    file = tmp_path / "checkpoint.npz"
    run("Scaffold", losses, 3, checkpoint=str(file))
    rest = run("Scaffold", losses, 6, resume=str(file))
    assert np.array_equal(rest.model, whole.model)
