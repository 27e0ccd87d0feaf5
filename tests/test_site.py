"""The site: its tutorials run, and every public name has an entry with an example.

The site itself is built, and its links are checked, by ``.ci/run --all``.
"""

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import sim
from fedtrellis.objectives.reference import certified_minimum
from scripts.site_hooks import PUBLIC, public_names
from tests.harness import run_program

ROOT = Path(sim.__file__).parent
TUTORIALS = ROOT / "docs/tutorials"


def public() -> dict[str, Any]:
    """Every public class and function, once, by the first package that exports it."""
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for package in PUBLIC:
        if package.endswith("torch_objective"):
            pytest.importorskip("torch")
        for name in public_names(package):
            thing = getattr(import_module(package), name)
            callable_ = inspect.isclass(thing) or inspect.isroutine(thing)
            if callable_ and id(thing) not in seen:
                seen.add(id(thing))
                found[f"{package}.{name}"] = thing
    return found


NAMES = public()
EXAMPLES = {
    name: tests
    for name, thing in NAMES.items()
    if (tests := doctest.DocTestFinder(recurse=False).find(thing, name, globs={}))
    and tests[0].examples
}


def test_every_public_name_is_described_and_has_an_example() -> None:
    assert len(NAMES) > 100
    assert [name for name, thing in NAMES.items() if not inspect.getdoc(thing)] == []
    assert set(NAMES) - set(EXAMPLES) == set()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    report: list[str] = []
    for test in EXAMPLES[name]:
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_sparse_regression_finds_the_optimum_in_the_ball() -> None:
    names = run_program(TUTORIALS / "sparse-regression.md")
    x, f = names["x"], names["everything"]
    assert np.abs(x).sum() <= 1 + 1e-9
    assert np.count_nonzero(np.abs(x) > 1e-6) < 10
    best = certified_minimum(f, names["domain"], np.ones(10), 1e-9)
    assert f.value(x) == pytest.approx(best.value, rel=1e-6)


@pytest.mark.slow
def test_what_nobody_rated_is_found_and_the_black_box_is_maximised() -> None:
    assert run_program(TUTORIALS / "matrix-completion.md")["error"] < 0.001
    names = run_program(TUTORIALS / "black-box.md")
    x, mean = names["x"], names["mean"]
    assert np.linalg.norm(x) == pytest.approx(1)
    assert x @ mean @ x / 2 > 0.999 * names["best"]


@pytest.mark.slow
def test_the_layer_is_low_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = run_program(TUTORIALS / "one-layer.md")
    free, wide, narrow = names["ranks"]
    assert free > 2 * wide > 2 * narrow
    assert min(names["accuracies"]) > 0.85
    assert (tmp_path / "one-layer.png").stat().st_size > 10_000


def test_split_columns_give_the_central_optimum() -> None:
    names = run_program(TUTORIALS / "split-columns.md")
    X, y, w = names["X"], names["y"], names["w"]
    C = 1 / (1e-2 * len(y))
    central = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)
    assert w == pytest.approx(central.fit(X, y).coef_[0], abs=1e-3)
