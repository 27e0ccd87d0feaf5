"""The command, the experiment object and the app: one run, one set of defaults."""

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

import sim
from clients import FedAvgGDClient
from fedtrellis.app import App
from fedtrellis.app.command_line import read_config
from fedtrellis.app.experiment import read_model
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from strategies import FedAvgGD
from tests.harness import history_of, model_of, refused, run_app

CASES = {
    "domain": (
        'method="fedfw" task="lasso" rounds=7 seed=3 participation=0.6 '
        'fedfw.variant="augmented" lasso.rows=50 layers="whole"'
    ),
    "no domain": 'method="fedgia" task="linear-regression" rounds=5 seed=2',
    "manifold": (
        'method="first-order-rfl" task="kernel-pca" rounds=4 kernel-pca.dataset="iris"'
    ),
    "split": 'method="hyfem" task="hybrid-svm" rounds=3 hyfem.local-steps=4',
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_run_of_the_command(case: str, tmp_path: Path) -> None:
    words = ["--nodes", "4", "--out", str(tmp_path), "-c", CASES[case]]
    assert sim.app.command_line(words) == 0
    (record,) = tmp_path.iterdir()
    history, model = history_of(record), model_of(record)

    experiment = sim.app.experiment(read_config([CASES[case]]), 4)
    strategy = experiment.strategy()
    result = experiment.start(strategy, experiment.grid(batched=True))
    (ours,) = record_arrays(result.arrays)
    np.testing.assert_array_equal(ours, model)
    for made, line in zip(strategy.history, history, strict=True):
        told = {"bytes_up": made.bytes_up, "bytes_down": made.bytes_down}
        assert line.items() >= (told | {"evaluation": made.evaluation}).items()
    for arrays in (result.arrays, [ours]):
        assert experiment.evaluate(arrays) == strategy.history[-1].evaluation
    # all by itself, clients one by one
    (again,) = record_arrays(experiment.start().arrays)
    np.testing.assert_allclose(again, model, rtol=0.0, atol=1e-12)


REGISTRY = sim.app.registry
#: What a config of defaults is refused for, which is no fault of it.
_UNFIT = ("does not fit method", "has no minimum without a constraint")


@pytest.mark.parametrize("method", REGISTRY.methods)
def test_a_strategy_of_the_app_is_the_one_python_makes(method: str) -> None:
    cls, checked = REGISTRY.methods[method].strategy, 0
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for task in REGISTRY.tasks:
        config = sim.app.default_config() | {"method": method, "task": task}
        try:
            experiment = sim.app.experiment(config, 3)
        except SettingsError as error:
            if not any(words in str(error) for words in _UNFIT):
                raise
            continue
        checked += 1
        of_app = experiment.strategy()
        given = [name for name in fields if fields[name].metadata["given"]]
        suggested = experiment.suggestions()
        by_hand = cls(**{name: getattr(of_app, name) for name in given}, **suggested)
        assert set(suggested) <= set(experiment.task.suggested.get(method, {}))
        for name in fields:
            value = getattr(of_app, name)
            expected = getattr(by_hand, name)
            assert value is expected or value == expected, (task, name)
    assert checked


def test_an_app_is_pickled_as_its_name_or_made_once_in_each_process() -> None:
    # a run fills what the app caches, and nothing of that is sent
    config = {"task": "lasso", "lasso.rows": 40, "lasso.columns": 30, "rounds": 2}
    sim.app.experiment(config, 3).start()
    for app in (sim.app, sim.app.client_app):
        pickled = cloudpickle.dumps(app)  # type: ignore[no-untyped-call]
        assert len(pickled) <= 1_000
        assert pickle.loads(pickled) is app
    # one that has no name, as in a notebook
    app = App([(FedAvgGD, FedAvgGDClient)], list(sim.app.registry.tasks.values()))
    again = pickle.loads(cloudpickle.dumps(app.client_app))  # type: ignore[no-untyped-call]
    assert again is not app.client_app
    bound = again.client_fn.__self__
    assert pickle.loads(cloudpickle.dumps(app)) is bound  # type: ignore[no-untyped-call]
    assert list(bound.registry.methods) == list(app.registry.methods)


WARM_CONFIG = {
    "method": "fedgia",
    "task": "linear-regression",
    "linear-regression.features": 6,
    "rounds": 30,
    "picture": False,
}


def test_a_run_starts_where_another_ended(tmp_path: Path) -> None:
    first = run_app(WARM_CONFIG, 4, tmp_path / "first")
    for number, given in enumerate((first, first / "model.npz")):
        config = WARM_CONFIG | {"initial-model": str(given), "rounds": 2}
        again = run_app(config, 4, tmp_path / str(number))
        # it stops as soon as the gradients are known
        np.testing.assert_array_equal(model_of(again), model_of(first))
        assert len(history_of(again)) == 2  # rounds 0 and 1


def test_what_is_no_model_to_start_from(tmp_path: Path) -> None:
    """Beside what tests/wrong_inputs.toml has."""
    file = tmp_path / "model.npz"
    for array, why in (
        (np.zeros(5), r"\[\(5,\)\]; this run's model has"),
        (np.full(6, np.nan), "is not finite"),
    ):
        np.savez(file, array)
        refused(why, lambda: read_model(str(file), [(6,)]))
    config = config_of("hyfem") | {"initial-model": str(file)}
    refused("that is split", lambda: run_app(config, 3, tmp_path))


#: A task that every method of a kind fits, and that loads nothing.
TASK = {"domain": "lasso", "whole": "lasso", "manifold": "lasso", "split": "hybrid-svm"}


def config_of(method: str) -> dict[str, Any]:
    """A run that is right, with every key, as ``flwr run`` passes them."""
    task = TASK[REGISTRY.methods[method].strategy.space]
    return sim.app.default_config() | {"method": method, "task": task}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("method", method) for method in REGISTRY.methods),
        *(("task", task) for task in REGISTRY.tasks),
    ],
)
def test_every_key_of_another_method_or_task_is_refused(kind: str, name: str) -> None:
    if kind == "method":
        config = config_of(name)
        sim.app.experiment(config, 3)
    else:  # what a task needs, such as a file, is asked for only after that
        method = "hyfem" if REGISTRY.tasks[name].split_data else "fedfw"
        config = sim.app.default_config() | {"method": method, "task": name}
    for group in REGISTRY.groups:
        for key in group.fields if group.kind == kind and group.owner != name else ():
            why = re.escape(
                f"{key} = 'other' is a setting of {kind} {group.owner!r}, and this "
                f"run's {kind} is {name!r}"
            )
            changed = config | {key: "other"}
            why += rf"( \(did you mean '{name}\.[^']+'\?\))?"
            refused(f"^{why}$", lambda changed=changed: sim.app.experiment(changed, 3))  # type: ignore[misc]
