"""A small run of every item of the Frank-Wolfe papers, and what they are made of."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from reproduce.__main__ import main
from reproduce.common import (
    Run,
    app_config,
    load_results,
    perform,
)
from reproduce.fedfw import (
    leakage,
    movielens,
    penalty,
    qaplib,
)
from reproduce.fedfw.traffic import bytes_a_round


@pytest.mark.parametrize(
    "variant",
    [{"variant": "plain"}, {"variant": "augmented", "penalty": 1e-2}],
    ids=["plain", "augmented"],
)
def test_the_loop_without_messages_is_the_strategy(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracles at 1e-12 pick the same atoms, so that x̄ differs by rounding alone."""
    # atoms are folded into the dense iterates several times, and some still wait
    monkeypatch.setattr(movielens, "KEPT", 4)
    config = {
        "task": "matrix-completion",
        "schedule": "convex",
        "penalty": 1e-3,
        "radius": 700.0,
        "rounds": 15,
    } | variant
    run = perform(Run((), config, 5, every=0, curve=True, point=True))
    bare = movielens.run(config, 5, tolerance=1e-12, most=5000)
    np.testing.assert_allclose(bare["x-bar"], run["point"], atol=1e-6)
    assert bare["curve"]["round"] == run["curve"]["round"]
    np.testing.assert_allclose(bare["curve"]["rmse"], run["curve"]["rmse"], rtol=1e-6)
    assert bare["nuclear-norm"] <= 700.0 * (1 + 1e-9)


def test_movielens_on_ratings_made_up(tmp_path: Path) -> None:
    """The item's own data may not be passed on, so that it is not there in general."""
    rng = np.random.default_rng(0)
    cells = rng.choice(120 * 110, 2000, replace=False)
    stars = np.clip(np.round(3.5 + rng.standard_normal(120)[cells // 110]), 1, 5)
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text(
        "".join(
            f"{cell // 110 + 1}\t{cell % 110 + 1}\t{star:.0f}\t88\n"
            for cell, star in zip(cells, stars, strict=True)
        )
    )
    arguments = ["--quick", "--data", str(tmp_path)]
    out = tmp_path / "out"
    assert main(["fedfw", "workshop-movielens", *arguments, "--out", str(out)]) == 0
    results = load_results(out / "results" / "workshop-movielens.json")
    # an oracle that is nearly converged, and iterates that stay in the ball
    for run in results["runs"].values():
        assert run["oracle-found"] > 0.95
        assert run["nuclear-norm"] <= run["radius"] * (1 + 1e-5)
        assert run["curve"]["rmse"][0] > 0.0
    first = results["runs"]["FedFW"]["curve"]
    # x̄ = 0 predicts the mean of the training ratings for all
    assert first["rmse-train"][0] ** 2 == pytest.approx(first["loss"][0])
    assert results["optimum"]["bound"] <= results["optimum"]["loss"]
    assert results["moved"]["FedFW"]["up"] < results["dense"]["up"] / 5


def test_qaplib_on_instances_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small enough for the cost of every permutation to be known."""
    monkeypatch.setattr(qaplib, "INSTANCES", ("five",))
    monkeypatch.setattr(qaplib, "NODES", 4)
    arguments = ["--quick", "--data", str(tmp_path)]
    command = ["fedfw", "qaplib", *arguments, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "skipped: needs qaplib/five.dat" in capsys.readouterr().out
    A, B = np.random.default_rng(0).integers(1, 50, (2, 5, 5))
    costs = {
        float(sum(A[i, j] * B[p[i], p[j]] for i in range(5) for j in range(5)))
        for p in itertools.permutations(range(5))
    }
    folder = tmp_path / "qaplib"
    folder.mkdir()
    numbers = [5, *A.ravel(), *B.ravel()]
    (folder / "five.dat").write_text(" ".join(map(str, numbers)))
    (folder / "five.sln").write_text(f"5 {min(costs):.0f} 1 2 3 4 5")
    assert main(command) == 0
    results = load_results(tmp_path / "out" / "results" / "qaplib.json")
    five = results["instances"]["five"]
    assert five["optimum"] == min(costs)
    assert set(five["methods"]) == {qaplib.FAQ, *qaplib.VARIANTS}
    for method in five["methods"].values():
        assert {method["barycentre"], *method["starts"]} <= costs
        assert len(method["starts"]) == 2
    for label, variant in qaplib.VARIANTS.items():
        method = five["methods"][label]
        assert method["barycentre"] == min(method["tried"].values())
        assert len(method["tried"]) == max(len(variant.values), 1)
        assert method["rounds"] * variant.gradients == results["gradients"] == 20
    # results name instances, and not where somebody keeps them
    assert str(tmp_path) not in (tmp_path / "out/results/qaplib.json").read_text()
    excess = 100.0 * (five["methods"]["FedFW"]["barycentre"] / min(costs) - 1.0)
    assert f"| {excess:.1f}; " in qaplib.render(results, tmp_path)


# --------------------------------------------------------------- ours: own steps, λ_0


@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_the_loop_without_messages_is_the_package(variant: str) -> None:
    """And the rule that the item measures is what the strategy finds."""
    config = app_config({"task": "lasso", "variant": variant, "rounds": 25})
    experiment = sim.app.experiment(config, penalty.NODES)
    strategy: Any = experiment.strategy()
    result = experiment.start(strategy)
    (model,) = result.arrays.to_numpy_ndarrays()
    problem = penalty.MADE_ON["LASSO, ℓ1"](0)
    augmented = variant == "augmented"
    found = penalty.rule(problem, augmented)
    assert strategy.half.penalty == pytest.approx(found, rel=1e-12)
    bare = penalty.converge(problem, strategy.half.penalty, augmented, 25)
    assert np.abs(model - bare).max() < 1e-10
    loss = experiment.evaluate([model])["loss"]
    # A x* = b, so that F* = 0
    assert problem.error(model) == pytest.approx(loss)


def test_bytes_are_those_of_the_history() -> None:
    config = {"task": "lasso", "variant": "plain"}
    moved = bytes_a_round(config, 4)
    assert moved["parameters"] == 400
    # the fourth round alone: the clients' introduction counts too
    three, four = (
        perform(Run((), config | {"rounds": rounds}, 4)) for rounds in (3, 4)
    )
    for what, name in ((1, "up"), (0, "down")):
        before, after = (
            run["bytes-up"] if what else run["bytes"] - run["bytes-up"]
            for run in (three, four)
        )
        assert (after - before) / 4 == pytest.approx(moved[name], abs=1.0)
    assert moved["up"] < 1200


def test_psnr_and_a_leak() -> None:
    pytest.importorskip("torch")
    truth = np.full((3, 32, 32), 0.5)
    assert leakage.psnr(truth + 0.1, truth) == pytest.approx(20.0)
    image = np.random.default_rng(0).random((3, 32, 32))
    found = leakage.attack(image, 3, "gradient", 40, 0)
    assert found["image"].shape == image.shape
    assert found["iteration"][-1] == 40
    again = leakage.attack(image, 3, "l1", 40, 0)
    assert np.isfinite(again["psnr"]).all()
