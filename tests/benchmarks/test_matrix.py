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
from benchmarks.matrix import measure, page, tables
from benchmarks.matrix.methods import METHODS, STEPS, Method, facts, methods_of
from benchmarks.matrix.problems import (
    CERTIFIED,
    NODES,
    PROBLEMS,
    Problem,
    experiment,
    optimum,
)
from benchmarks.matrix.runs import Trace, play
from benchmarks.matrix.tuning import MORE, TUNING_SEED, VALUES
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


def test_quick_runs_and_shows_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--quick", "--only", "lasso-l1"]) == 0
    shown = capsys.readouterr().out
    for method in methods_of(PROBLEMS["lasso-l1"]):
        assert f"| {method.title} |" in shown
