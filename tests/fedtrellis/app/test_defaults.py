"""The default of every setting is the same from the app and from Python."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import sim
from fedtrellis.app.registry import print_list
from fedtrellis.settings import SettingsError

REGISTRY = sim.app.registry
#: What a config of defaults is refused for, which is no fault of it.
_UNFIT = ("does not fit method", "has no minimum without a constraint")


def fitting(method: str) -> list[Any]:
    """An experiment of default settings with every task that goes with a method."""
    found = []
    for task in REGISTRY.tasks:
        config = sim.app.default_config() | {"method": method, "task": task}
        try:
            found.append(sim.app.experiment(config, 3))
        except SettingsError as error:
            if not any(words in str(error) for words in _UNFIT):
                raise
    assert found
    return found


@pytest.mark.parametrize("method", REGISTRY.methods)
def test_a_strategy_of_the_app_is_the_one_python_makes(method: str) -> None:
    cls = REGISTRY.methods[method].strategy
    for experiment in fitting(method):
        of_app = experiment.strategy()
        parts = {
            field.name: getattr(of_app, field.name)
            for field in dataclasses.fields(cls)
            if field.metadata["given"]
        }
        by_hand = cls(**parts)
        suggested = experiment.suggestions()
        assert set(suggested) <= set(experiment.task.suggested.get(method, {}))
        for field in dataclasses.fields(cls):
            value = getattr(of_app, field.name)
            expected = suggested.get(field.name, getattr(by_hand, field.name))
            assert value is expected or value == expected, (
                experiment.task.name,
                field.name,
            )


@pytest.mark.parametrize("name", REGISTRY.tasks)
def test_a_task_of_the_app_is_the_one_python_makes(name: str) -> None:
    cls = REGISTRY.tasks[name]
    made = cls.from_config(sim.app.default_config(), 3, 5)
    assert made == cls(num_clients=3, seed=5)


def test_only_what_is_left_to_itself_is_suggested_and_list_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = 0
    for task_name, task in REGISTRY.tasks.items():
        for method, values in task.suggested.items():
            strategy = REGISTRY.methods[method].strategy
            print_list(REGISTRY, method)
            shown = " ".join(capsys.readouterr().out.split())
            by_name = {field.name: field for field in dataclasses.fields(strategy)}
            line = shown.partition(f"task {task_name} suggests: ")[2]
            line = line.partition(" suggests: ")[0]
            for name, value in values.items():
                assert by_name[name].default is None
                assert f"{name.replace('_', '-')} = {value}" in line
                told += 1
            # and the task's own page
            print_list(REGISTRY, task_name)
            shown = " ".join(capsys.readouterr().out.split())
            assert f"task {task_name} to {method} suggests: " in shown
    assert told >= 10
    # what depends on the settings is no more than what the table names
    assert all(
        REGISTRY.tasks[name].suggestions is REGISTRY.tasks["lasso"].suggestions
        for name in REGISTRY.tasks
    )
