"""The site: its tutorials run, and every public name has an entry with an example.

The site itself is built, and its links are checked, by ``.ci/run --all``.
"""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from scripts.site_hooks import (
    PUBLIC,
    public_names,
)

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


def test_every_public_name_is_described() -> None:
    assert len(NAMES) > 100
    assert [name for name, thing in NAMES.items() if not inspect.getdoc(thing)] == []


def test_every_public_name_has_an_example() -> None:
    assert set(NAMES) - set(EXAMPLES) == set()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    report: list[str] = []
    for test in EXAMPLES[name]:
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def run_program(page: str) -> dict[str, Any]:
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(block, names)
    return names


def test_sparse_regression_finds_the_optimum_in_the_ball() -> None:
    names = run_program("sparse-regression.md")
    x, f = names["x"], names["everything"]
    assert np.abs(x).sum() <= 1 + 1e-9
    assert np.count_nonzero(np.abs(x) > 1e-6) < 10
    # an independent solver: projected gradient steps from far away
    z, step = np.ones(10), 1 / f.lipschitz()
    for _ in range(5000):
        z = names["domain"].project(z - step * f.gradient(z))
    assert f.value(x) == pytest.approx(f.value(z), rel=1e-6)


def test_matrix_completion_finds_what_nobody_rated() -> None:
    names = run_program("matrix-completion.md")
    assert names["error"] < 0.001


def test_the_black_box_is_maximised() -> None:
    names = run_program("black-box.md")
    x, mean = names["x"], names["mean"]
    assert np.linalg.norm(x) == pytest.approx(1)
    assert x @ mean @ x / 2 > 0.999 * names["best"]


def test_split_columns_give_the_central_optimum() -> None:
    from sklearn.linear_model import LogisticRegression

    names = run_program("split-columns.md")
    X, y, w = names["X"], names["y"], names["w"]
    C = 1 / (1e-2 * len(y))
    central = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)
    assert w == pytest.approx(central.fit(X, y).coef_[0], abs=1e-3)
