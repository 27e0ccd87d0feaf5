"""A small run of every item of the zeroth-order Riemannian paper."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app.command_line import flatten
from fedtrellis.wire.arrays import Layout
from fedtrellis.zeroth_order import evaluator
from reproduce import zeroth_order
from reproduce.__main__ import folder_of, main
from reproduce.common import (
    Options,
    Run,
    app_config,
    load_results,
    perform,
    read_config,
)
from reproduce.sweep import Point, until
from reproduce.zeroth_order import attack, claims, low_rank
from reproduce.zeroth_order.estimators import DATA, STEP, variants
from tasks import make_task

HERE = folder_of("zeroth-order")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of all items by name, and where their pictures are."""
    out = tmp_path_factory.mktemp("zeroth-order")
    page = HERE / "README.md"
    before = page.read_bytes()
    arguments = ["--quick", "--seeds", "1", "--out", str(out)]
    assert main(["zeroth-order", *arguments]) == 0
    # only a full run changes the page
    assert page.read_bytes() == before
    results = {
        item: load_results(out / "results" / f"{item}.json")
        for item in zeroth_order.ITEMS
    }
    return results | {"out": out}


def test_every_item_has_its_picture_and_its_table(quick: dict[str, Any]) -> None:
    out: Path = quick["out"]
    for item in zeroth_order.ITEMS:
        picture = out / f"{item}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 10_000
        text = zeroth_order.ITEMS[item].render(quick[item], out)
        assert text.startswith(f"![{item}]({item}.png)\n\n")
        assert "Measured in" in text
        assert "diverged" not in text
        assert "nan" not in text


def test_the_estimators_take_the_same_way(quick: dict[str, Any]) -> None:
    for curves in quick["figure-2"]["data"].values():
        assert len(curves) == 3
        (gap,) = {round(curve["gap"][0], 12) for curve in curves.values()}
        for curve in curves.values():
            assert curve["iteration"][-1] == 100
            # alike in the mean, and so nearly alike over a hundred steps
            assert curve["gap"][-1] == pytest.approx(
                curves["(7), projection"]["gap"][-1], rel=0.3
            )
            assert 0.0 < curve["gap"][-1] < 0.2 * gap
            assert np.all(np.diff(curve["seconds"]) >= 0.0)


def test_the_attack_beats_chance(quick: dict[str, Any]) -> None:
    results = quick["figure-3"]
    images, change = (np.array(results[key]) for key in ("images", "perturbation"))
    assert images.shape == (6, 8, 8)
    assert np.linalg.norm(change) == pytest.approx(results["radius"], rel=1e-8)
    assert results["misclassified"] > 0.4 > 5.0 * results["chance"]
    # 10 clients, 10 rounds, 5 steps of 20 directions and the point itself
    assert results["evaluations"] == 10 * 10 * 5 * 21
    counts = results["counts"]
    share = 1.0 - counts[results["label"]] / sum(counts)
    assert share == pytest.approx(results["misclassified"])


def test_sweeps_keep_curves_and_totals(quick: dict[str, Any]) -> None:
    for item, metric in (("figure-4", "misclassified"), ("figure-7", "accuracy")):
        rounds = {"figure-4": 10, "figure-7": 4}[item]
        for row in quick[item]["rows"]:
            curves = row["curves"]
            assert curves["round"][-1] == rounds
            assert curves[metric]["mean"][-1] == pytest.approx(np.mean(row[metric]))
            assert curves["loss"]["mean"][-1] < curves["loss"]["mean"][0]
    by_rank = {row["label"]: row for row in quick["figure-9"]["rows"]}
    sizes = quick["figure-9"]["sizes"]
    # U, s and V of a 64 × 32 matrix, and 32 + 32 · 10 + 10 for the rest
    assert sizes["values, R = 16"] == 64 * 16 + 16 + 32 * 16 + 362
    assert sizes["values, R = 8"] == 64 * 8 + 8 + 32 * 8 + 362
    assert sizes["values, full rank"] == 64 * 32 + 362
    assert "evaluations" not in by_rank["gradients, R = 8"]
    # scalars in the place of models
    low, high = by_rank["values, R = 8"], by_rank["gradients, R = 8"]
    assert low["bytes-up"][0] < 0.5 * high["bytes-up"][0]


def test_gradients_and_values_agree_at_first(quick: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in quick["federated-pca"]["rows"]}
    exact, values = rows["gradients, η = 0.02"], rows["values, η = 0.02"]
    assert values["gap"][0] == exact["gap"][0]
    assert values["gap"][-1] == pytest.approx(exact["gap"][-1], rel=0.5)
    assert exact["gap"][-1] < 0.2 * exact["gap"][0]


def test_the_variants_are_the_formulas() -> None:
    """One step each, written again for the same random numbers."""
    config = sim.app.default_config() | {
        "kernel-pca.dataset": "iris",
        "kernel-pca.components": 2,
    }
    task = make_task("kernel-pca", config, 1, 0)
    manifold = task.manifold()
    assert manifold is not None
    values = evaluator(task.objective(), Layout(tuple(task.shapes())))
    x = task.initial_point()[0]
    m, mu = DATA["Iris"]["m"], 1e-4

    def polar(y: Any) -> Any:
        left, _, right = np.linalg.svd(y, full_matrices=False)
        return left @ right

    def gradient(directions: Any) -> Any:
        total = np.zeros(x.shape)
        for u in directions:
            total += (task.value([polar(x + mu * u)]) - task.value([x])) / mu * u
        return total / len(directions)

    steps = variants(values, manifold, m)
    w = np.random.default_rng(3).standard_normal((m, *x.shape))
    spheric = w / np.linalg.norm(w.reshape(m, -1), axis=1)[:, None, None]
    product = np.swapaxes(x[None], 1, 2) @ w
    tangent = w - x @ (product + np.swapaxes(product, 1, 2)) / 2.0
    expected = {
        "(7), projection": polar(x - STEP * x.size * gradient(spheric)),
        "(6), polar": polar(x - STEP * gradient(tangent)),
    }
    for name, point in expected.items():
        moved = steps[name](x, np.random.default_rng(3))
        np.testing.assert_allclose(moved, point, atol=1e-8)
    # retractions agree to second order: μ² in G, the step's square here
    moved = steps["(6), exponential"](x, np.random.default_rng(3))
    step = np.linalg.norm(moved - x)
    assert np.linalg.norm(moved - expected["(6), polar"]) < step**2


def test_a_run_can_stop_on_any_metric_and_keep_its_point() -> None:
    config = read_config(HERE / "attack.toml") | attack.DIGITS | {"rounds": 40}
    run = Run(
        (), config, nodes=4, stop=3.0, metric="loss", curve=True, every=2, point=True
    )
    result = perform(run)
    curve = result["curve"]
    assert result["passed"]
    assert curve["loss"][-1] <= 3.0 < min(curve["loss"][:-1])
    assert curve["round"] == list(range(0, curve["round"][-1] + 1, 2))
    assert curve["bytes"][-1] == result["bytes"] > result["bytes-up"] > 0
    assert np.linalg.norm(result["point"]) == pytest.approx(1.0)
    task = make_task("attack", app_config(config), 4, 0)
    assert task.value([np.array(result["point"])]) == pytest.approx(result["loss"])


def test_the_first_round_that_meets_a_goal() -> None:
    curve: dict[str, list[float]] = {
        "round": [0, 5, 10],
        "share": [0.1, 0.9, 0.8],
        "bytes": [0, 700, 1400],
    }
    assert until(curve, "share", 0.85) == 5
    assert until(curve, "share", 0.85, "bytes") == 700
    assert until(curve, "share", 0.95) == -1


def test_a_goal_that_was_not_met_is_no_number() -> None:
    rows = [
        {"label": "5", "reached": [9, 8, 9]},
        {"label": "20", "reached": [4, -1, 4]},
    ]
    with pytest.raises(KeyError, match="20 has not met its goal"):
        claims._speedup({"figure-5": {"rows": rows}})
    rows[1]["reached"] = [3, 4, 3]
    faster, proportional = claims._speedup({"figure-5": {"rows": rows}})
    np.testing.assert_allclose(np.exp(faster.values), [3.0, 2.0, 3.0])
    np.testing.assert_allclose(np.exp(proportional.values), [1.0, 2.0 / 3.0, 1.0])


def test_a_setting_by_two_names_is_refused() -> None:
    config = read_config(HERE / "low-rank.toml")
    assert app_config(config)["zeroth-order-rfl.step-size"] == 0.01
    with pytest.raises(ValueError, match="'local-step-size' and 'step-size' are one"):
        app_config(config | {"local-step-size": 0.3})


def test_steps_are_chosen_on_training_images_held_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Run] = []

    def noted(runs: Any, jobs: int) -> dict[Any, Any]:
        asked.extend(runs)
        # the best is 0.05, and what is larger than 0.3 diverges
        steps = {run.key: run.config["step-size"] for run in runs}
        return {
            key: {"failed": "too long"}
            if step > 0.3
            else {"accuracy": -abs(np.log10(step / 0.05))}
            for key, step in steps.items()
        }

    monkeypatch.setattr(low_rank, "execute", noted)
    (tmp_path / "mnist").mkdir()
    options = Options(tmp_path, tmp_path, 3, 1, False)
    points = [Point("a", {}, 10), Point("b", {"samples": 5}, 20)]
    found = low_rank._searches(options, points)
    for one in found.values():
        assert one.inside
        assert len(one.tried) == low_rank.BUDGET
        assert 10.0 ** one.best[0] == pytest.approx(0.05, rel=0.2)
    for run in asked:
        assert run.config["low-rank-network.validation-fraction"] == 0.2
        # a seed that no measured run has
        assert run.config["seed"] == low_rank.CHOICE >= low_rank.SEEDS
    assert {run.nodes for run in asked} == {10, 20}


def test_the_stored_steps_are_the_best_tried_and_inside() -> None:
    for item in ("figure-7", "figure-8", "figure-9"):
        results = load_results(HERE / "results" / f"{item}.json")
        budgets = set()
        for one in results["steps"].values():
            scores = {t["step-size"]: t["score"] for t in one["tried"]}
            chosen = one["chosen"]["step-size"]
            assert scores[chosen] == max(filter(None, scores.values()))
            assert one["inside"]
            assert min(scores) < chosen < max(scores)
            budgets.add(len(scores))
        assert len(budgets) == 1
        for row in results["rows"]:
            assert len(row["accuracy"]) == results["seeds"] == low_rank.SEEDS


@pytest.mark.slow
def test_the_attacked_network_is_as_good_as_the_page_says() -> None:
    pytest.importorskip("torch")
    from tasks.data.datasets import load_images
    from tasks.networks import ConvolutionalClassifier, load_weights

    folder = Path(os.environ.get("FEDTRELLIS_DATA", "")) / "cifar10"
    if not list(folder.glob("test_batch*")):
        pytest.skip("FEDTRELLIS_DATA names no folder with cifar10/test_batch")
    assert attack.WEIGHTS.stat().st_size < 300_000
    network = ConvolutionalClassifier(load_weights(attack.WEIGHTS))
    examples = load_images("cifar10", folder, "--data", partial=True)
    scores = network.logits(examples.test_features / np.float32(255))
    accuracy = np.mean(scores.argmax(axis=1) == examples.test_labels)
    # other processors round otherwise, which moves single images
    assert accuracy == pytest.approx(0.717, abs=0.002)
    assert "71.7 %" in (HERE / "details.md").read_text(encoding="utf-8")


def test_committed_configs_are_known_settings() -> None:
    for path in HERE.glob("*.toml"):
        config = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
        assert set(config) <= set(sim.app.default_config())
