"""The matrix is fair by construction, and its pages say what was stored."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso as ScikitLasso

from benchmarks.__main__ import main
from benchmarks.matrix import compressed, measure, page, picture, tables
from benchmarks.matrix.methods import METHODS, STEPS, Method, facts, methods_of
from benchmarks.matrix.problems import (
    CERTIFIED,
    NODES,
    PROBLEMS,
    Problem,
    experiment,
    optimum,
)
from benchmarks.matrix.runs import Cost, Trace, play
from benchmarks.matrix.tuning import MORE, TUNING_SEED, VALUES, choose
from reproduce.common import load_results
from reproduce.provenance import KEYS
from tasks import KernelPCA, Lasso, LinearRegression

RESULTS = measure.load_all(measure.RESULTS, list(PROBLEMS.values()))


def between(text: str, name: str) -> str:
    found = re.search(f"<!-- {name} -->\n(.*)\n<!-- end {name} -->", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_pages_are_made_of_the_stored_results() -> None:
    text = page.PAGE.read_text("utf-8")
    for name, part in page.parts(RESULTS).items():
        assert between(text, name) == part
    files = page.files(RESULTS)
    assert len(files) == 4
    for path, content in files.items():
        assert path.read_text("utf-8") == content
    # a line for each method
    lines = files[page.MEASURED / "matrix-places.csv"].splitlines()[1:]
    assert len(lines) == len({m for s in RESULTS.values() for m in s["methods"]})


@pytest.mark.parametrize("name", list(RESULTS))
def test_the_tables_are_medians_of_what_was_measured(name: str) -> None:
    """By NumPy, from the files alone: least costs to 10⁻³, and whose they are."""
    stored = load_results(measure.RESULTS / f"{name}.json")
    medians = {
        method: np.median(
            [run["hits"].get("0.001", {}).get("gradients", np.inf) for run in e["runs"]]
        )
        for method, e in stored["methods"].items()
    }
    best = min(medians.values())
    one = PROBLEMS[name]
    (row,) = (
        line
        for line in tables.first_table(RESULTS).splitlines()
        if line.startswith(f"| {one.title} | {one.over} |")
    )
    cell = row.split("|")[4].strip()
    if math.isinf(best):
        assert cell == "nobody"
    else:
        title, number = cell.rsplit(": ", 1)
        assert float(number) == pytest.approx(best, abs=0.5)
        assert title in {METHODS[m].title for m, v in medians.items() if v == best}


def test_the_processor_hours_are_those_of_the_files() -> None:
    seconds = [
        sum(e["processor-seconds"] for e in load_results(path)["methods"].values())
        for path in measure.RESULTS.glob("*.json")
        if path.stem in PROBLEMS
    ]
    assert f"took {sum(seconds) / 3600:.1f} processor hours" in page.PAGE.read_text(
        "utf-8"
    )


@pytest.mark.parametrize("name", list(RESULTS))
def test_budgets_were_equal_and_optima_certified(name: str) -> None:
    stored = RESULTS[name]
    assert set(KEYS) <= set(stored["provenance"])
    seeds = stored["provenance"]["seeds"]
    assert seeds["tuning"] == TUNING_SEED
    assert TUNING_SEED not in seeds["measured"]
    assert len(seeds["measured"]) == 5
    budget = stored["provenance"]["settings"]["budget"]
    for best in stored["optimum"].values():
        assert 0.0 <= best["relative"] <= CERTIFIED
    for method, entry in stored["methods"].items():
        assert [run["seed"] for run in entry["runs"]] == seeds["measured"]
        for run in entry["runs"]:
            assert run["end"]["gradients"] <= max(budget, entry["gradients-a-round"])
            gap = run["gap"]
            assert ("0.0001" in run["hits"]) == (gap is not None and gap <= 1e-4)
            # no run is below what the certificate allows
            assert gap is None or gap >= -CERTIFIED
        if METHODS[method].tuned:
            tuned = entry["tuned"]
            assert tuned["seed"] == TUNING_SEED
            assert len(tuned["tried"]) in (VALUES, VALUES + MORE)
            values = [one["value"] for one in tuned["tried"]]
            edge = tuned["chosen"] in (values[0], values[-1])
            assert tuned["inside"] != edge
            # a best value at an end had the grid extended
            assert not edge or len(values) == VALUES + MORE


def test_what_chooses_sees_training_losses_of_its_own_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run is told F on the training data, and gives the choice a Trace of it."""
    seeds: list[tuple[str, int]] = []

    def refuse(*_: Any) -> dict[str, float]:
        raise AssertionError("a measure of test data was asked for")

    for task in (Lasso, LinearRegression, KernelPCA):
        monkeypatch.setattr(task, "metrics", refuse)

    def noted(problem: Any, method: Any, settings: Any, seed: int, budget: int) -> Any:
        seeds.append((method.name, seed))
        trace = play(problem, method, settings, seed, budget)
        assert isinstance(trace, Trace)
        return trace

    monkeypatch.setattr(measure, "play", noted)
    sizes = measure.Sizes(seeds=(0, 1), values=3, budget=10)
    said: list[str] = []
    assert measure.measure(PROBLEMS["lasso-l1"], sizes, tmp_path, said.append)
    for method in methods_of(PROBLEMS["lasso-l1"]):
        mine = [seed for name, seed in seeds if name == method.name]
        assert mine[-2:] == [0, 1]
        assert set(mine[:-2]) == ({TUNING_SEED} if method.tuned else set())
    # what is there is not measured again
    count = len(seeds)
    assert measure.measure(PROBLEMS["lasso-l1"], sizes, tmp_path, said.append)
    assert len(seeds) == count


def counted(problem: Problem, method: Method, rounds: int) -> float:
    """What all clients compute in so many rounds, in gradients, by counting calls."""
    known = facts(problem, TUNING_SEED)
    value = method.centre(known) if method.tuned else None
    made = experiment(problem, 0, method.config(value, known), rounds)
    weights = {"gradient": 1.0, "value": 0.5, "curvature": 0.5, "values": 0.5}
    weights["stochastic_gradient"] = 1.0 / STEPS
    total, depth = 0.0, 0

    def counting(name: str, plain: Any) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal total, depth
            if depth == 0:
                count = len(arguments[0]) if name == "values" else 1
                total += weights[name] * count
            depth += 1
            try:
                return plain(self, *arguments, **options)
            finally:
                depth -= 1

        return call

    kind = type(made.task.client_objective(0))
    with pytest.MonkeyPatch.context() as patch:
        for name in weights:
            if hasattr(kind, name):
                patch.setattr(kind, name, counting(name, getattr(kind, name)))
        # one by one: a cohort computes many clients' at once
        made.start(made.strategy(), made.grid(), evaluate_fn=lambda *_: None)
    return total


@pytest.mark.parametrize("name", ["lasso-l1", "least-squares", "digits-l1", "pca"])
def test_what_a_round_costs_is_what_clients_compute(name: str) -> None:
    """Without round 1, in which some methods ask for more once."""
    problem = PROBLEMS[name]
    for method in methods_of(problem):
        if not problem.quadratic and not method.search:
            continue  # nothing depends on the loss
        more = counted(problem, method, 3) - counted(problem, method, 1)
        assert more / (2 * NODES) == pytest.approx(method.cost(problem)), method.name


def test_a_grid_is_extended_once_beyond_an_end_that_is_best() -> None:
    def run(value: float) -> Trace:
        gap = abs(math.log(value / 4.0**3))
        return Trace({}, gap, Cost(1, 1.0, 1, 1, 0.0))

    found = choose(run, 1.0)
    assert found.value == 4.0**3
    assert [value for value, _ in found.tried] == pytest.approx(
        [4.0**k for k in range(-2, 5)], rel=0.01
    )
    assert found.inside
    assert not choose(lambda value: run(value / 4**9), 1.0).inside
    # a run that diverged is never chosen
    diverged = Trace({}, math.inf, Cost(1, 1.0, 1, 1, 0.0))
    assert choose(lambda v: run(v) if v <= 1.0 else diverged, 1.0).value == 1.0


def test_the_optimum_is_scikit_learns() -> None:
    """The penalised problem with the ball's multiplier has the same solution."""
    problem = PROBLEMS["lasso-l1"]
    best = optimum(problem, 3)
    made = experiment(problem, 3, {"method": "fedfw"})
    losses = [made.task.client_objective(i) for i in range(NODES)]
    p = made.layout.shapes[0][0]
    zero, units = np.zeros(p), np.eye(p)
    # F is quadratic: A from its gradients
    g = made.task.gradient(zero)
    H = np.array([made.task.gradient(unit) - g for unit in units])
    values, vectors = np.linalg.eigh(H / 2.0)
    kept = values > 1e-9 * values[-1]
    A = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
    b = -np.linalg.lstsq(A.T, g / 2.0, rcond=None)[0]
    alpha = best.multiplier / (2.0 * len(A))
    model = ScikitLasso(alpha, fit_intercept=False, tol=1e-10, max_iter=100_000)
    x = model.fit(A, b).coef_
    assert np.abs(x).sum() == pytest.approx(best.radius, rel=1e-3)
    assert float(np.mean([f.value(x) for f in losses])) == pytest.approx(
        best.value, rel=1e-3
    )
    assert facts(problem, 3).lipschitz == pytest.approx(
        max(np.linalg.eigvalsh(f.hessian_bound())[-1] for f in losses), rel=1e-6
    )


def test_support_found_is_of_as_many_entries_as_there_are() -> None:
    made = experiment(PROBLEMS["lasso-l1"], 0, {"method": "fedfw"})
    truth = made.task.solution()
    judge = compressed.CASES["support"].judge
    x = np.where(truth != 0.0, 1.0, 0.0)
    assert judge(PROBLEMS["lasso-l1"], 0, made, x) == 1.0
    x[np.flatnonzero(truth)[:5]] = 0.0
    x[np.flatnonzero(truth == 0.0)[:5]] = -2.0
    assert judge(PROBLEMS["lasso-l1"], 0, made, x) == 0.75


def test_the_table_at_equal_bytes_is_of_medians() -> None:
    results = load_results(compressed.FILE)
    lines = compressed.table(results).splitlines()[2:]
    for case in compressed.CASES.values():
        for place in (0, 1):
            last = lines.pop(0).split("|")[-2].strip().removesuffix("\\*")
            runs = results["cases"][
                next(n for n, c in compressed.CASES.items() if c is case)
            ]
            values = [run["values"][place] for run in runs["sign, majority"]["runs"]]
            shown = float(last.removesuffix(" %")) / (100 if case.percent else 1)
            assert shown == pytest.approx(np.median(values), rel=0.06, abs=0.005)
            # nobody had more rounds than its bytes allow
            for row in runs.values():
                assert [run["seed"] for run in row["runs"]] == [0, 1, 2, 3, 4]
                losses = [one["loss"] or math.inf for one in row["tried"]]
                assert len(losses) in (VALUES, VALUES + MORE)
                # a best value at an end had the grid extended
                at_end = min(losses) in (losses[0], losses[-1])
                assert not at_end or len(losses) == VALUES + MORE


def test_profiles_and_places_by_hand() -> None:
    def entry(*gradients: float) -> dict[str, Any]:
        runs = []
        for number in gradients:
            hit = {"rounds": number, "gradients": number, "up": 1, "down": 1}
            arrived = math.isfinite(number)
            runs.append(
                {
                    "hits": {"0.001": {**hit, "seconds": 1.0}} if arrived else {},
                    "gap": 1e-4 if arrived else 0.3,
                }
            )
        return {"runs": runs}

    stored = {
        "methods": {
            "fedfw": entry(10, 20, math.inf),
            "feddr": entry(40, 10, math.inf),
            "projected-fedavg": entry(math.inf, 80, math.inf),
        }
    }
    results = {"lasso-l1": stored}
    found = tables.profile(results, list(stored["methods"]), "gradients")
    # the third instance is nobody's
    assert found == {
        "fedfw": [1.0, 2.0],
        "feddr": [1.0, 4.0],
        "projected-fedavg": [8.0, math.inf],
    }
    mine = {p.what: p for p in tables.places(results, "fedfw")}["gradients"]
    assert mine.rival == "feddr"
    assert mine.ratios[:2] == (0.25, 2.0)
    assert math.isnan(mine.ratios[2])
    assert mine.typical == 2.0
    assert not mine.ahead
    lost = tables.places_table(results).splitlines()[-1]
    assert lost.endswith("| LASSO, 200 × 400, ℓ1 ball: ends at a gap of 0.3 |")


def test_the_picture_can_be_read(tmp_path: Path) -> None:
    if RESULTS:
        picture.draw(RESULTS, tmp_path, "profiles")
        assert (tmp_path / "profiles.png").stat().st_size > 10_000


def test_quick_runs_and_shows_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--quick", "--only", "lasso-l1"]) == 0
    shown = capsys.readouterr().out
    for method in methods_of(PROBLEMS["lasso-l1"]):
        assert f"| {method.title} |" in shown


def test_a_problem_without_its_file_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDTRELLIS_DATA", "")
    names = ["--only", "movielens", "--only", "news20-l1"]
    assert main(["matrix", "--quick", *names]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("skipped: movielens needs ml-100k/u.data")
    assert second.startswith("skipped: news20-l1 needs libsvm/news20_multiclass.bz2")


def test_movielens_on_ratings_made_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The file may not be passed on: this one has its format."""
    rng = np.random.default_rng(0)
    lines = [
        f"{user + 1}\t{item + 1}\t{rng.integers(1, 6)}\t88\n"
        for user in range(12)
        for item in range(user % 2, 10, 2)
    ]
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("".join(lines))
    monkeypatch.setenv("FEDTRELLIS_DATA", str(tmp_path))
    assert main(["matrix", "--quick", "--only", "movielens"]) == 0
    shown = capsys.readouterr().out
    assert "skipped" not in shown
    for method in methods_of(PROBLEMS["movielens"]):
        assert f"| {method.title} |" in shown


def test_the_minimum_does_not_depend_on_how_data_are_dealt(tmp_path: Path) -> None:
    """Text of three classes in a small file: seeds deal it, and the loss is theirs."""
    rng = np.random.default_rng(1)
    lines = [
        f"{k % 3} {k % 3 + 1}:1 {4 + rng.integers(5)}:{rng.random():.3f}\n"
        for k in range(60)
    ]
    path = tmp_path / "text"
    path.write_text("".join(lines))
    config = {
        **PROBLEMS["news20-l1"].config,
        "logistic-regression.path": str(path),
        "logistic-regression.classes": 3,
        "radius": 5.0,
    }
    one = Problem("made-up-text", "text", "ℓ1 ball", "l1", config)
    first, second = (optimum(one, seed) for seed in (0, 1))
    assert abs(first.value - second.value) <= first.gap + second.gap + 1e-15
    assert first.start == pytest.approx(math.log(3))
    assert first.radius == 5.0
    # the ball is of use, and the multiplier the same
    assert first.multiplier == pytest.approx(second.multiplier, rel=1e-3)
    assert first.multiplier > 1e-3
