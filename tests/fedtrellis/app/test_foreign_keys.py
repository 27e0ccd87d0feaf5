"""Settings of another method, task or domain than the run's are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import sim
from fedtrellis.app.registry import SettingGroup
from fedtrellis.settings import SettingsError, keys, parse_values

REGISTRY = sim.app.registry
#: A task that every method of a kind fits, and that loads nothing.
TASK = {"domain": "lasso", "whole": "lasso", "manifold": "lasso", "split": "hybrid-svm"}


def config_of(method: str) -> dict[str, Any]:
    """A run that is right, with every key, as ``flwr run`` passes them."""
    task = TASK[REGISTRY.methods[method].strategy.space]
    return sim.app.default_config() | {"method": method, "task": task}


def another(part: type[Any], field: dataclasses.Field[Any]) -> Any:
    """A value that its owner allows and that is not the default."""
    default, meta = field.default, field.metadata
    if meta["choices"]:
        return next(value for value in meta["choices"] if value != default)
    if isinstance(default, bool):
        return not default
    key = field.name.replace("_", "-")
    candidates: list[Any] = ["a text", 3, 4, 0.75, 0.25, -1, 100, True]
    for value in candidates:
        try:
            found = parse_values(part, {f"a.{key}": value}, "a.")[field.name]
        except SettingsError:
            continue
        if found != default:
            return value
    raise AssertionError(f"no value for {field.name}")


def foreign(kind: str) -> list[tuple[SettingGroup, str, Any]]:
    return [
        (group, key, another(part, field))
        for group in REGISTRY.groups
        if group.kind == kind
        for part in group.classes
        for key, field in keys(part, f"{group.owner}.").items()
        # the only one that can have no other value
        if key != "attack.classifier"
    ]


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        sim.app.experiment(config, 3)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("method", REGISTRY.methods)
def test_every_pair_of_method_and_foreign_key_is_refused(method: str) -> None:
    config = config_of(method)
    sim.app.experiment(config, 3)
    pairs = 0
    for group, key, value in foreign("method"):
        if group.owner != method:
            assert refusal(config | {key: value}) == (
                f"{key} = {value!r} is a setting of method {group.owner!r}, and this "
                f"run's method is {method!r}"
            )
            pairs += 1
    own = REGISTRY.groups[[g.owner for g in REGISTRY.groups].index(method)]
    every = sum(len(g.fields) for g in REGISTRY.groups if g.kind == "method")
    assert pairs == every - len(own.fields)


@pytest.mark.parametrize("task", REGISTRY.tasks)
def test_every_key_of_another_task_is_refused(task: str) -> None:
    # what a task needs, such as a file, is asked for only after that
    method = "hyfem" if REGISTRY.tasks[task].split_data else "fedfw"
    config = sim.app.default_config() | {"method": method, "task": task}
    for group, key, value in foreign("task"):
        if group.owner != task:
            assert refusal(config | {key: value}) == (
                f"{key} = {value!r} is a setting of task {group.owner!r}, and this "
                f"run's task is {task!r}"
            )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "fedfw.penalty=3.0",
            "fedfw.penalty = 3.0 is a setting of method 'fedfw', and this run's "
            "method is 'fedgia'",
        ),
        (
            "lasso.rows=3",
            "lasso.rows = 3 is a setting of task 'lasso', and this run's task is "
            "'linear-regression'",
        ),
        (
            "penalty=3.0",
            "-c key = 'penalty' is not known (did you mean 'fedfw.penalty'?); python "
            "sim.py --list NAME prints those of a method or task",
        ),
        (
            'aggregation="median" clipping.radius=2.0',
            "clipping.radius = 2.0 is a setting of aggregation 'clipping', and this "
            "run's aggregation is 'median'",
        ),
        (
            'aggregation="private" private.epsilon=8.0',
            "aggregation = 'private' does not apply to fedgia; allowed: mean, median, "
            "trimmed-mean, clipping, secure-sum",
        ),
        (
            "box.lower=-2.0",
            "box.lower = -2.0 is a setting of domain 'box', and this run's domain is "
            "'whole-space'",
        ),
    ],
)
def test_the_command_stops_with_one_line(
    more: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = f'method="fedgia" task="linear-regression" {more}'
    assert sim.app.command_line(["-c", config, "--out", str(tmp_path)]) == 1
    captured = capfd.readouterr()
    assert captured.err == f"sim.py: error: {told}\n"
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
