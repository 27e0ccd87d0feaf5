"""Steps whose size is auto, by the largest Lipschitz constant of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis import Private, SecureSum, clients, strategies
from fedtrellis.domains import L2Ball
from fedtrellis.manifolds import Euclidean
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.zeroth_order import directions
from tests.harness import Array, grid_of, play, refused

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


# from function values, τ = 1
BY_VALUES: dict[str, Any] = {
    "ZerothOrderSGD": {"batch_size": 0, "samples": 3},
    "ZerothOrderRFL": {"manifold": Euclidean((4,)), "local_steps": 1, "samples": 3},
}


class Values:
    """A loss that only knows its value."""

    def __init__(self, loss: LeastSquares) -> None:
        self.value = loss.value


class NoBound:
    """A loss that only knows its gradient."""

    def __init__(self, loss: LeastSquares) -> None:
        self.gradient, self.value = loss.gradient, loss.value
        self.stochastic_gradient = loss.stochastic_gradient
        self.num_examples = loss.num_examples


def run(
    name: str, losses: Sequence[Any] = LOSSES, rounds: int = 30, **options: Any
) -> Any:
    strategy = getattr(strategies, name)(*METHODS.get(name, ()), seed=1, **options)
    parts = [options["manifold"]] if "manifold" in options else []
    grid = grid_of(getattr(clients, f"{name}Client"), losses, *parts)
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
    # a second start asks its clients, too
    grid = grid_of(getattr(clients, f"{name}Client"), LOSSES[:1])
    play(ran.strategy, grid, np.zeros(4), 1)
    assert ran.strategy.lipschitz == pytest.approx(part * BOUNDS[0], rel=1e-9)


def test_a_loss_that_knows_no_bound_is_measured() -> None:
    for dtype, near in (("float64", 1e-6), ("float32", 0.01)):
        ran = run("FedAvgGD", [NoBound(loss) for loss in LOSSES], 2, dtype=dtype)
        assert ran.strategy.lipschitz == pytest.approx(max(BOUNDS), rel=near)


@pytest.mark.parametrize("name", BY_VALUES)
def test_values_alone_give_a_size(name: str) -> None:
    """The curvature along the directions of a step, as ∇²f has it."""
    losses, found = [Values(loss) for loss in LOSSES], []
    for i, a in enumerate(A):
        u = 2.0 * directions(generator(1, "curvature", str(i)), 3, (4,))
        found.append(float(np.linalg.eigvalsh(u @ (a.T @ a / len(a)) @ u.T)[-1]) / 3)
    ran = run(name, losses, 60, **BY_VALUES[name])
    assert ran.strategy.lipschitz == pytest.approx(max(found), rel=1e-4)
    assert max(map(mean, ran.models)) <= mean(np.zeros(4))
    assert mean(ran.model) < 0.5 * mean(np.zeros(4))
    step = 1.0 / ran.strategy.lipschitz
    step /= np.sqrt(3.0) if name == "ZerothOrderRFL" else 1.0  # η_g
    same = run(name, losses, 60, **BY_VALUES[name], step_size=step).model
    np.testing.assert_allclose(ran.model, same, rtol=1e-9)


def test_where_values_give_no_size() -> None:
    losses = [Values(loss) for loss in LOSSES]
    made = partial(run, "ZerothOrderSGD", losses, 1, **BY_VALUES["ZerothOrderSGD"])
    block = made(aggregation=SecureSum(value_range=1e9)).strategy.lipschitz
    assert made().strategy.lipschitz < block  # the sum of all three
    noise = {"privacy": "local", "privacy_clip": 1.0, "privacy_noise_multiplier": 1.0}
    refused("step_size = 'auto' does not apply", partial(made, **noise))
    refused("which has signs alone", partial(made, variant="feedsign"))


def test_sizes_are_those_of_the_largest_bound() -> None:
    r = max(BOUNDS)
    given: Any = {"FedDR": {}, "FedProx": {"proximal_weight": r}}
    dr: Any = {"proximal_step": 10.0 / r, "local_step_size": 1.0 / (1.1 * r)}
    for name, sizes in (("FedDR", dr), ("FedProx", dict[str, Any](step_size=0.5 / r))):
        auto = run(name, rounds=9, **given[name]).models
        models = run(name, rounds=9, **given[name], **sizes).models
        np.testing.assert_allclose(auto, models, rtol=1e-9)


def test_a_block_weighs_its_members_by_their_examples() -> None:
    rows = zip(A, (3, 9, 20), strict=True)
    losses = [LeastSquares(a[:d], np.ones(d)) for a, d in rows]
    how: Any = {"step_size": 1e-3 / max(BOUNDS), "client_weights": "examples"}
    plain, alike = (
        run("FedAvgGD", losses, 5, **k).models
        for k in (how, {**how, "client_weights": "equal"})
    )
    sums = run("FedAvgGD", losses, 5, aggregation=SecureSum(block_size=3), **how).models
    np.testing.assert_allclose(sums, plain, rtol=1e-6, atol=1e-9)
    assert not np.allclose(alike, plain, rtol=1e-2, atol=0.0)


def test_rules_and_sums_have_a_bound_of_their_own() -> None:
    """One liar cannot shorten the steps, and a block tells the sum alone."""
    far = [*LOSSES[:2], LeastSquares(1e6 * A[2], np.zeros(20), scale="half-mean")]
    ran = run("FedAvgGD", far, 1, aggregation="median")
    assert ran.strategy.lipschitz <= 2.0 * max(BOUNDS)
    ran = run("FedAvgGD", aggregation=SecureSum(value_range=1e9))
    assert ran.strategy.lipschitz == pytest.approx(sum(BOUNDS), rel=1e-6)
    for rule in (Private(noise_multiplier=1.0), SecureSum(clip=1.0)):
        made = partial(run, "FedAvgGD", aggregation=rule)
        refused("step_size = 'auto' does not apply", made)


def test_losses_without_a_slope() -> None:
    """Where a client alone cannot tell, the others go on."""

    def sloped(loss: Any, slope: float) -> NoBound:
        made = NoBound(loss)
        made.gradient = lambda x: np.full_like(x, slope)
        return made

    said = "changes with the model; or set step_size"
    flat = [sloped(loss, 0.0) for loss in LOSSES]
    refused(said, lambda: run("FedAvgGD", flat))
    ran = run("FedAvgGD", [*LOSSES[:2], sloped(LOSSES[2], np.nan)], 9)
    assert ran.strategy.lipschitz == pytest.approx(max(BOUNDS[:2]), rel=1e-9)
    assert ran.used == [[0, 1]] * 9


def test_a_resumed_run_keeps_the_bound(tmp_path: Path) -> None:
    losses = [NoBound(loss) for loss in LOSSES]  # measured at another x: another bound
    whole, file = run("Scaffold", losses, 6), tmp_path / "checkpoint.npz"
    run("Scaffold", losses, 3, checkpoint=file)
    assert np.array_equal(run("Scaffold", losses, 6, resume=file).model, whole.model)
