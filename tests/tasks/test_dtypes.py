"""Runs of the app in float32 end where those in float64 do, on the convex tasks."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app.experiment import Experiment
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays

CLIENTS, ROUNDS = 4, 20
# a step of each method that is as long as the steepest f_i allows
STEPS = {
    "fedavg-gd": "step-size",
    "local-sgd": "step-size",
    "fedprox": "step-size",
    "projected-fedavg": "local-step-size",
    "feddr": "local-step-size",
    "fedgia": "",
}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "lasso": {},
    "linear-regression": {"linear-regression.features": 20},
    "logistic-regression": {},
}


@lru_cache
def longest_step(task: str) -> float:
    """1/L, L the largest Lipschitz constant of the ∇f_i."""
    made = experiment(task, "fedgia", "float64").task
    return 1.0 / max(
        float(made.client_objective(i).lipschitz()) for i in range(CLIENTS)
    )


def experiment(task: str, method: str, dtype: str, **more: Any) -> Experiment:
    config = sim.app.default_config() | TASKS.get(task, {})
    config |= {"task": task, "method": method, "rounds": ROUNDS, "dtype": dtype} | more
    return sim.app.experiment(config, CLIENTS)


@pytest.mark.parametrize("method", STEPS)
@pytest.mark.parametrize("task", TASKS)
def test_float32_ends_where_float64_does(task: str, method: str) -> None:
    more: dict[str, Any] = {}
    if STEPS[method]:
        more[f"{method}.{STEPS[method]}"] = 0.5 * longest_step(task)
    else:
        more |= {"fedgia.sigma-scale": 1.0, "fedgia.tolerance": 0.0}
    models, losses = [], []
    for dtype in ("float64", "float32"):
        made = experiment(task, method, dtype, **more)
        part = made.task.client_parts(0)["objective"]
        assert part.dtype == dtype
        (model,) = record_arrays(made.start(evaluate_fn=lambda *_: None).arrays)
        assert model.dtype == dtype
        models.append(model.astype(float))
        losses.append(made.evaluate([models[-1]])["loss"])
    double, single = models
    away = np.linalg.norm(single - double) / np.linalg.norm(double)
    assert 0.0 < away <= 1e-5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("method", ["hyfdca", "hyfem", "hybrid-fedavg"])
def test_methods_on_split_data_refuse_float32(method: str) -> None:
    made = experiment("hybrid-svm", method, "float32")
    with pytest.raises(SettingsError, match=f"'float32' does not fit {method}; "):
        made.strategy()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_network_travels_in_its_dtype(dtype: str, size: int) -> None:
    pytest.importorskip("torch")
    made = experiment(
        "classification",
        "fedavg-gd",
        dtype,
        **{
            "classification.dataset": "synthetic",
            "classification.model": "dnn",
            "rounds": 2,
        },
    )
    strategy, grid = made.strategy(), made.grid(encode=True)
    result = made.start(strategy, grid, evaluate_fn=lambda *_: None)
    parameters = sum(array.size for array in record_arrays(result.arrays))
    sent = strategy.history[-1].bytes_up / CLIENTS
    assert size * parameters <= sent <= 1.1 * size * parameters + 2_000
