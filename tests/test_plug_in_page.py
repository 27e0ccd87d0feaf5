"""The page on plugging in: its programs run, its links lead somewhere."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from scipy.optimize import minimize

import clients
import strategies
from clients import FedFWClient, FirstOrderRFLClient
from fedtrellis.app import App, pairs
from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from strategies import FedAvgGD, FedFW, FirstOrderRFL
from tests.harness import grid_of, play, programs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "plug-in.md"


#: What a method's author writes, declares or calls.
SURFACE = {
    *("name", "about", "space", "needs", "stateful", "keep_model", "dtypes"),
    *("setup", "instruction", "check", "aggregate", "converged", "sample"),
    *("state", "load_state", "client_state", "run_round", "prepare", "finish"),
    *("take_point", "average", "mean_of", "num_clients", "start", "summary"),
    *("configure_train", "aggregate_train"),
    *("configure_evaluate", "aggregate_evaluate"),
}


@pytest.mark.parametrize("kind", [FedAvgGD, FedFW])
def test_an_authors_surface_is_small_and_on_the_page(kind: type[Any]) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert len(public) <= 45
    assert public - {field.name for field in dataclasses.fields(kind)} == SURFACE
    page = PAGE.read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`([^`\n]+)`", page))
    assert set(re.findall(r"\w+", code)) >= SURFACE
    assert len(page.split()) <= 1500


def names_of(number: int, **stands_for: str) -> dict[str, Any]:
    """What a program of the page defines."""
    text = programs(PAGE)[number]
    for name, value in stands_for.items():
        text = text.replace(f"/absolute/{name}", value)
    names: dict[str, Any] = {"__name__": __name__}
    exec(text, names)
    return names


def test_the_set_is_one_that_fedfw_can_use() -> None:
    names = names_of(0)
    axes = np.array([0.5, 1.0, 3.0])
    domain, rng = names["Ellipsoid"](axes), np.random.default_rng(0)
    objective = LeastSquares(rng.normal(size=(20, 3)), rng.normal(size=20) * 9)
    grid = grid_of(FedFWClient, [objective] * 2, domain)
    x = play(FedFW(domain), grid, np.zeros(3), 200).model
    # an independent solver
    find: Any = minimize
    inside = {"type": "ineq", "fun": lambda z: 1 - ((z / axes) ** 2).sum()}
    found = find(objective.value, np.zeros(3), constraints=inside, tol=1e-12)
    assert ((x / axes) ** 2).sum() == pytest.approx(1.0)  # the constraint is active
    assert objective.value(x) == pytest.approx(found.fun, rel=1e-6)
    # by its optimality condition, the oracle at the projection's residual is it
    point = np.array([2.0, -1.0, 4.0])
    nearest = domain.project(point)
    np.testing.assert_allclose(domain.lmo(nearest - point).dense(), nearest, atol=1e-9)


def test_the_manifold_is_one_that_a_method_can_use() -> None:
    names = names_of(1)
    manifold = names["UnitSum"](4)
    rng = np.random.default_rng(0)
    points = manifold.project(rng.normal(size=(5, 4)))
    np.testing.assert_allclose(points.sum(axis=1), 1.0)
    tangents = manifold.project_tangent(points, rng.normal(size=(5, 4)))
    np.testing.assert_allclose(tangents.sum(axis=1), 0.0, atol=1e-12)
    assert manifold.contains(points)

    rows, targets = rng.normal(size=(2, 30, 4)), rng.normal(size=(2, 30))
    objectives = [LeastSquares(*pair) for pair in zip(rows, targets, strict=True)]
    step = 0.1 / max(objective.lipschitz() for objective in objectives)
    grid = grid_of(FirstOrderRFLClient, objectives, manifold)
    strategy = FirstOrderRFL(manifold, step_size=step, tolerance=0.0)
    x = play(strategy, grid, np.full(4, 0.25), 300).model
    assert x.sum() == pytest.approx(1.0)
    gradient = np.mean([f.gradient(x) for f in objectives], axis=0)
    # at the minimum the gradient is a multiple of the normal (1, ..., 1)
    np.testing.assert_allclose(gradient, gradient.mean(), atol=1e-6)


def test_the_callback_watches_and_the_checkpoint_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = names_of(2, path=str(tmp_path))
    objective = LeastSquares(np.eye(3), np.ones(3))
    grid = grid_of(FedFWClient, [objective] * 2, names["L1Ball"](30.0))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (x,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"loss": objective.value(x)})

    strategy = names["strategy"]
    play(strategy, grid, np.zeros(3), 500, evaluate_fn=evaluate)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(strategy.history) < 500  # EarlyStop
    assert strategy.history[-1].metrics["loss"] <= 0.1
    assert (tmp_path / "checkpoint").exists()


def test_the_plug_in_has_a_task_that_run_configs_know() -> None:
    names = names_of(3)
    app = App(pairs(strategies, clients), names["plugin"].tasks)
    with pytest.raises(SettingsError, match=r"trend\.points = 1 must be at least 2"):
        app.experiment({"task": "trend", "trend.points": 1}, 3)
    config = {"task": "trend", "trend.points": 20, "method": "fedgia", "rounds": 100}
    experiment = app.experiment(config | {"fedgia.tolerance": 0.0}, 3)
    (x,) = experiment.start().arrays.to_numpy_ndarrays()
    # the solution of the normal equations, from the points themselves
    rows, heights = experiment.task._table(range(3))
    expected = np.linalg.solve(rows.T @ rows, rows.T @ heights)
    np.testing.assert_allclose(x, expected, atol=1e-9)
    fedfw = app.experiment({"task": "trend"}, 3).strategy()
    assert isinstance(fedfw, strategies.FedFW)
    assert fedfw.penalty == 0.1  # as the task suggests
