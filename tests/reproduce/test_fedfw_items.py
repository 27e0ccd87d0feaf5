"""A small run of every item of the Frank-Wolfe papers, and what they are made of."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app import Experiment
from fedtrellis.app.command_line import flatten
from fedtrellis.domains import Simplex
from reproduce import fedfw
from reproduce.__main__ import folder_of, main
from reproduce.common import (
    Run,
    app_config,
    evaluated_rounds,
    load_results,
    perform,
)
from reproduce.fedfw import (
    accuracy,
    beyond,
    leakage,
    movielens,
    own_steps,
    penalty,
    qaplib,
    tables,
)
from reproduce.fedfw.assignment import random_start
from reproduce.fedfw.traffic import bytes_a_round
from reproduce.pages import page_with, pages_of, shown
from reproduce.rates import slope

HERE = folder_of("fedfw")
#: Items without a picture.
WORDS_ONLY = {"leakage", "early-gap", "appendix-a"}


@pytest.fixture(
    scope="module",
    params=["without-data", pytest.param("with-data", marks=pytest.mark.slow)],
)
def quick(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results by item of all that the data allows, and where their pictures are."""
    out = tmp_path_factory.mktemp("fedfw")
    pages = pages_of(HERE)
    before = [page.read_bytes() for page in pages]
    arguments = ["--quick", "--seeds", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without-data":
            patch.delenv("FEDTRELLIS_DATA", raising=False)
        assert main(["fedfw", *arguments]) == 0
    # only a full run changes the page
    assert [page.read_bytes() for page in pages] == before
    results: dict[str, Any] = {
        path.stem: load_results(path) for path in (out / "results").glob("*.json")
    }
    given = request.param == "with-data" and "FEDTRELLIS_DATA" in os.environ
    return results | {"out": out, "data": given}


@pytest.mark.timeout(900)
def test_every_item_has_its_picture_and_its_table(quick: dict[str, Any]) -> None:
    out: Path = quick["out"]
    for item, definition in fedfw.ITEMS.items():
        if item not in quick:
            continue
        text = definition.render(quick[item], out)
        if item not in WORDS_ONLY:
            picture = out / f"{item}.png"
            assert picture.read_bytes().startswith(b"\x89PNG")
            assert picture.stat().st_size > 5_000
            assert text.startswith(f"![{item}]({item}.png)\n\n")
        assert "Measured in" in text
        assert "nan" not in text
    # what needs no data is there in any case
    for item in ("table-1-synthetic", "table-3-synthetic", "figure-2", "figure-3"):
        assert item in quick
    for item in ("workshop-lasso", "workshop-digits", "workshop-chr12a"):
        assert item in quick
    if quick["data"]:
        for item in ("table-1-mnist", "table-2-mnist", "figure-1", "figure-4-convex"):
            assert item in quick


def test_missing_data_is_named_and_no_failure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    items = ["table-1-mnist", "workshop-movielens", "figure-4-convex"]
    assert main(["fedfw", *items, "--quick", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "skipped: needs mnist; name its folder with --data" in out
    assert "skipped: needs ml-100k/u.data" in out


def test_tables_have_all_methods_and_the_papers_numbers(quick: dict[str, Any]) -> None:
    for name in ("table-1-synthetic", "table-3-synthetic"):
        table, rows = tables.TABLES[name], quick[name]["rows"]
        assert len(rows) == len(table.balls) * len(table.methods)
        text = accuracy.render(quick[name], quick["out"], name)
        for row in rows:
            paper = tables.PAPER[name][row["partition"], row["ball"]][row["method"]]
            assert f"| {paper:.2f} | {accuracy.spread(row['accuracy'])} |" in text
            # the same number of candidates for all, the best of them chosen
            assert len(row["tried"]) == 2
            best = max(row["tried"], key=lambda one: one["score"])
            assert {**row["chosen"], "score": best["score"]} == best
    for name, table in tables.TABLES.items():
        theirs = tables.published(name)
        # the paper has no numbers for twenty steps
        assert bool(theirs) == (table.steps == 1)
        for partition in table.partitions():
            for ball in table.balls:
                assert not theirs or set(theirs[partition, ball]) == set(table.methods)


def test_the_page_has_a_place_for_every_item_and_what_was_measured() -> None:
    for item, definition in fedfw.ITEMS.items():
        page = page_with(HERE, item).read_text(encoding="utf-8")
        match = re.search(rf"<!-- {item} -->\n(.*?)<!-- end {item} -->", page, re.S)
        assert match, item
        saved = HERE / "results" / f"{item}.json"
        unmeasured = match.group(1).startswith("Not measured in full yet: ")
        assert unmeasured != saved.is_file()
        if saved.is_file():
            text = definition.render(load_results(saved), HERE)
            short, files = shown(item, text)
            assert match.group(1).strip() == short
            for name, content in files.items():
                assert (HERE / "tables" / name).read_text("utf-8") == content


def test_committed_configs_are_known_settings() -> None:
    for path in HERE.glob("*.toml"):
        config = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
        assert set(config) <= set(sim.app.default_config()), path.name


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


def test_every_variant_has_as_many_values_to_try() -> None:
    counts = {len(variant.values) for variant in qaplib.VARIANTS.values()}
    # what finds itself has none
    assert len(counts - {0}) == 1
    mean, half = qaplib.interval([1.0, 2.0, 3.0])
    # Student's quantile with two degrees of freedom, from a table
    assert mean == 2.0
    assert half == pytest.approx(4.303 / np.sqrt(3.0), rel=1e-3)


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


def test_the_clients_penalty_is_nearly_the_best_of_a_grid() -> None:
    """The contract: ten problems, four of which the rule was not made on."""
    results = load_results(HERE / "results" / "penalty.json")
    assert len(penalty.MADE_ON) == 6
    assert len(penalty.OTHERS) == 4
    for name in (*penalty.MADE_ON, *penalty.OTHERS):
        found = results["rows"][name]["FedFW"]
        assert not found["edge"], name
        assert found["ratio"] <= 3.0, name
        errors = np.mean(found["errors"], axis=1)
        rule = errors[found["exponents"].index(0)]
        assert found["ratio"] == pytest.approx(rule / errors.min())


def test_own_steps_forget_the_start_where_answers_get_lost() -> None:
    """A tenth of the answers: 0.4 of the error at most, as after all rounds."""
    results = load_results(HERE / "results" / "lost-answers.json")
    by_rounds, own, *_ = own_steps.METHODS
    problem, lossy = next(iter(own_steps.PROBLEMS)), list(own_steps.PATTERNS)[1]
    for pattern in list(own_steps.PATTERNS)[1:]:
        last = {
            row["method"]: float(np.mean(row["last"]))
            for row in results["rows"]
            if (row["problem"], row["pattern"]) == (problem, pattern)
        }
        assert last[own] <= 0.4 * last[by_rounds]
    config = own_steps.LASSO | {"rounds": 600, "max-failed-rounds": 1000}
    best = own_steps.optimum(config, own_steps.NODES)
    grid, errors = own_steps.PATTERNS[lossy], {}
    for name in (by_rounds, own):
        settings = own_steps.METHODS[name]
        run = Run(
            (), config | settings, own_steps.NODES, curve=True, every=600, grid=grid
        )
        errors[name] = own_steps.relative(perform(run)["curve"]["loss"], best)[-1]
    assert errors[own] <= 0.4 * errors[by_rounds]


def test_noise_that_shrinks_leaves_no_floor() -> None:
    results = load_results(HERE / "results" / "oracle-noise.json")
    last = {
        (row["sigma"], row["decay"]): float(np.mean(row["last"]))
        for row in results["rows"]
    }
    for sigma in own_steps.SIGMAS[1:]:
        assert last[sigma, True] < 2.5 * last[0.0, True]
    assert last[10.0, False] > 5.0 * last[10.0, True]


def test_averaged_atoms_are_the_exact_step_when_all_answer() -> None:
    config = {
        "task": "lasso",
        "variant": "plain",
        "schedule": "convex",
        "step-count": "round",
        "penalty": 5.0,
        "rounds": 30,
    }
    for variant in ("plain", "augmented"):
        both = [
            perform(
                Run((), config | {"variant": variant}, 5, curve=True, strategy=strategy)
            )
            for strategy in (Experiment.strategy, beyond.averaging)
        ]
        assert both[0]["curve"]["loss"] == both[1]["curve"]["loss"]
    # and not when half of them do: x̄ is the participants' mean atom from round 1 on
    half = config | {"participation": 0.5, "rounds": 1}
    exact, averaged = (
        perform(Run((), half, 6, point=True, strategy=strategy))
        for strategy in (Experiment.strategy, beyond.averaging)
    )
    assert np.linalg.norm(exact["point"]) < 0.99 * np.linalg.norm(averaged["point"])


def test_starts_are_doubly_stochastic() -> None:
    start = random_start(12, 3)
    np.testing.assert_allclose(start.sum(axis=0), 1.0, atol=1e-9)
    np.testing.assert_allclose(start.sum(axis=1), 1.0, atol=1e-9)
    assert start.min() >= 0.5 / 12
    assert Simplex(1.0).contains(start[0], 1e-6)
    assert np.abs(start - random_start(12, 4)).max() > 0.01


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


def test_a_cosine_finds_an_image_and_each_by_itself() -> None:
    pytest.importorskip("torch")
    ramp = np.linspace(0.0, 1.0, 32)
    smooth = np.stack(
        [np.outer(ramp, ramp), np.outer(1 - ramp, ramp), 0.5 + 0 * ramp[:, None] * ramp]
    )
    other = smooth[:, ::-1].copy()
    both = leakage.invert([smooth, other], [3, 4], "gradient", 150, 0)
    # the second image does not change what is found for the first
    (first,) = leakage.invert([smooth], [3], "gradient", 150, 0)
    assert both[0] == pytest.approx(first, abs=0.5)
    grey = leakage.psnr(np.full(smooth.shape, 0.5), smooth)
    assert first > grey
    # of the ℓ2 oracle's answer it sees as much, of one entry less
    (same,) = leakage.invert([smooth], [3], "l2", 150, 0)
    assert same == pytest.approx(first, abs=0.5)
    (less,) = leakage.invert([smooth], [3], "l1", 150, 0)
    assert less < first


def test_slopes_and_rounds() -> None:
    rounds = [0, *(10**k for k in range(6))]
    assert slope(rounds, [9.0, *(t**-0.5 for t in rounds[1:])]) == (pytest.approx(-0.5))
    wanted = evaluated_rounds(1000)
    assert {0, 1, 10, 100, 1000} <= wanted
    assert len(wanted) < 40
