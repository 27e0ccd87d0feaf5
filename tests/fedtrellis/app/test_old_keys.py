"""Run configs of version 0.1: flat keys, and numbers that meant auto."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import sim
from fedtrellis.app.run import read_record
from fedtrellis.settings import AUTO, SettingsError

REGISTRY = sim.app.registry
_SCHEDULED = ("fedavg-gd", "fedprox", "local-sgd")
_RIEMANNIAN = ("first-order-rfl", "zeroth-order-rfl")
_HYBRID = ("hyfem", "hybrid-fedavg")
_PROJECTED = ("feddr", "projected-fedavg")
_FRANK_WOLFE = ("fedfw", "naive-frank-wolfe")


def of(key: str, *methods: str) -> dict[str, str]:
    return {method: f"{method}.{key}" for method in methods}


#: Every key that methods had: a value, and by method the key of today.
METHODS: dict[str, tuple[Any, dict[str, str]]] = {
    "variant": ("augmented", of("variant", "fedfw")),
    "schedule": ("constant", of("schedule", *_FRANK_WOLFE)),
    "penalty": (3.0, of("penalty", "fedfw")),
    "dual-penalty": (2.0, of("dual-penalty", "fedfw")),
    "step-size": (0.25, of("step-size", *_FRANK_WOLFE)),
    "averaging": (0.3, of("averaging", "fedfw")),
    "batch-size": (7, of("batch-size", "fedfw")),
    "lmo-noise": (0.1, of("lmo-noise", "fedfw")),
    "local-steps": (
        7,
        of("local-steps", "fedgia", *_SCHEDULED, *_RIEMANNIAN, *_HYBRID, *_PROJECTED),
    ),
    "local-step-size": (
        0.3,
        of("step-size", *_SCHEDULED, *_RIEMANNIAN, *_HYBRID)
        | of("local-step-size", *_PROJECTED),
    ),
    "local-batch-size": (4, of("batch-size", *_PROJECTED, *_RIEMANNIAN)),
    "step-schedule": ("constant", of("step-schedule", *_SCHEDULED)),
    "batch-fraction": (0.5, of("batch-fraction", "local-sgd")),
    "proximal-weight": (0.5, of("proximal-weight", "fedprox")),
    "relaxation": (1.5, of("relaxation", "feddr")),
    "proximal-step": (5.0, of("proximal-step", "feddr")),
    "server-step-size": (2.0, of("server-step-size", *_RIEMANNIAN)),
    "correction": (False, of("correction", *_RIEMANNIAN)),
    "step-tolerance": (0.5, of("tolerance", *_RIEMANNIAN)),
    "samples": (9, of("samples", "zeroth-order-rfl")),
    "smoothing": (1e-3, of("smoothing", "zeroth-order-rfl")),
    "upload": ("dense", of("upload", "zeroth-order-rfl")),
    "shared-samples": (False, of("shared-samples", "zeroth-order-rfl")),
    "sigma": (0.5, of("sigma", "fedgia")),
    "sigma-scale": (0.5, of("sigma-scale", "fedgia")),
    "selected-fraction": (0.75, of("selected-fraction", "fedgia")),
    "hessian": ("gram", of("hessian", "fedgia")),
    "curvature": (3.0, of("curvature", "fedgia")),
    "tolerance": (1e-3, of("tolerance", "fedgia")),
    "dual-step": ("practical", of("step", "hyfdca")),
    "local-fraction": (0.5, of("local-fraction", "hyfdca")),
    "memory": (5, of("memory", "hyfdca")),
    "slots": ("chosen", of("slots", "hyfdca")),
    "local-passes": (1, of("local-passes", "hyfdca")),
    "parts": (2, of("parts", "hyfdca")),
    "secure-sum": (True, of("secure-sum", "hyfdca")),
    "cyclic-groups": (2, of("cyclic-groups", "hyfdca")),
    "gap-tolerance": (1e-3, of("tolerance", "hyfdca")),
    "encryption": ("none", of("encryption", "hyfdca")),
    "context-file": ("/keys/context", of("context", "hyfdca")),
    "backup-every": (3, of("backup-every", "hyfdca")),
    "retries": (1, of("retries", "hyfdca")),
    "matching": (2.0, of("matching", "hyfem")),
    "step-offset": (2.0, of("step-offset", *_HYBRID)),
}
DOMAINS: dict[str, tuple[Any, str, str]] = {
    "sparsity": (3, "k-support-ball.k", "k-support-ball"),
    "group-size": (4, "group-l1-ball.groups", "group-l1-ball"),
    "lower": (-2.0, "box.lower", "box"),
    "upper": (2.0, "box.upper", "box"),
}
#: What meant that a setting finds itself.
AUTOMATIC = {
    "penalty": -1.0,
    "dual-penalty": -1,
    "schedule": "",
    "server-step-size": 0.0,
    "sigma": 0,
    "sigma-scale": 0.0,
    "curvature": 0.0,
    "context-file": "",
}


def base(method: str) -> dict[str, Any]:
    split = REGISTRY.methods[method].strategy.space == "split"
    return {"method": method, "task": "hybrid-svm" if split else "lasso"}


def config_and_warnings(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> tuple[dict[str, Any], list[str]]:
    caplog.clear()
    sim.app._configs.clear()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        made = sim.app.experiment(config, 3).config
    return made, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("old", METHODS)
def test_a_flat_key_is_its_methods_and_nobody_elses(
    old: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, owners = METHODS[old]
    for method in REGISTRY.methods:
        config = base(method) | {old: value}
        if method not in owners:
            with pytest.raises(SettingsError) as caught:
                sim.app.experiment(config, 3)
            names = ", ".join(repr(m) for m in REGISTRY.methods if m in owners)
            assert str(caught.value) == (
                f"{old} = {value!r} is a setting of method {names}, and this run's "
                f"method is {method!r}"
            )
            continue
        new = owners[method]
        made, warnings = config_and_warnings(config, caplog)
        assert made == sim.app.default_config() | base(method) | {new: value}
        assert warnings == [
            f"keys of version 0.1, which go with the next: {old} is now {new}"
        ]


#: Settings of methods that version 0.1 did not have.
NEW = (
    "fedavg-gd.batch-fraction",
    "fedprox.batch-fraction",
    "fedfw.step-count",
    "fedfw.local-steps",
    "fedfw.lmo-noise-decay",
    "fedfw.correction",
    "fedfw.tolerance",
    "fedfw.certificate",
    "fedgia.l1",
    "fedgia.l2",
    "fedgia.lower",
    "fedgia.upper",
    "hyfdca.exposed",
    "hyfdca.least",
    "hyfdca.memory-limit",
    "hyfdca.noise",
    "hyfdca.standardize",
)


def test_the_table_is_all_that_there_was() -> None:
    from fedtrellis.app.old_keys import old_owners

    for group in REGISTRY.groups:
        for key in group.fields if group.kind == "method" else ():
            flat = key.partition(".")[2]
            if group.owner not in METHODS.get(flat, ((), {}))[1]:
                owners = [g.owner for g in old_owners(REGISTRY, flat)]
                assert group.owner not in owners, key
    assert {key for _, owners in METHODS.values() for key in owners.values()} == {
        key
        for group in REGISTRY.groups
        if group.kind == "method"
        for key in group.fields
        # new in this version
        if key not in NEW and group.parts[0][0].flat_keys
    }


@pytest.mark.parametrize("old", DOMAINS)
def test_a_flat_key_of_a_set_is_its(old: str, caplog: pytest.LogCaptureFixture) -> None:
    value, new, domain = DOMAINS[old]
    config = base("fedfw") | {old: value}
    own = {"domain": domain, "radius": 0.0 if domain == "box" else 5.0}
    made, warnings = config_and_warnings(config | own, caplog)
    assert made[new] == value
    assert warnings == [
        f"keys of version 0.1, which go with the next: {old} is now {new}"
    ]
    with pytest.raises(SettingsError, match=f"is a setting of domain '{domain}', and"):
        sim.app.experiment(config | {"domain": "l2-ball", "radius": 5.0}, 3)


@pytest.mark.parametrize("old", AUTOMATIC)
def test_what_meant_the_tasks_own_is_auto(
    old: str, caplog: pytest.LogCaptureFixture
) -> None:
    for method, new in METHODS[old][1].items():
        made, warnings = config_and_warnings(
            base(method) | {old: AUTOMATIC[old]}, caplog
        )
        assert made[new] == AUTO
        assert len(warnings) == 1


def test_several_flat_keys_are_one_warning_and_new_keys_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = base("fedfw") | {"penalty": 0.0, "step-size": 0.5, "variant": "augmented"}
    made, warnings = config_and_warnings(config | {"rounds": 3}, caplog)
    # no consensus penalty is a value like others
    assert (made["fedfw.penalty"], made["fedfw.step-size"]) == (0.0, 0.5)
    (line,) = warnings
    assert line.endswith(
        "penalty is now fedfw.penalty, step-size is now fedfw.step-size, "
        "variant is now fedfw.variant"
    )
    assert "\n" not in line
    _, warnings = config_and_warnings(base("fedfw") | {"fedfw.penalty": 3.0}, caplog)
    assert warnings == []


@pytest.mark.parametrize("method", REGISTRY.methods)
def test_of_an_old_record_the_runs_own_keys_are_read(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record had all keys of all methods, whatever the run's."""
    values = {old: value for old, (value, _) in METHODS.items()}
    values |= {old: value for old, (value, _, _) in DOMAINS.items()}
    values |= base(method) | {"participation": 0.5, "rounds": 3, "min-nodes": 2}
    tables = {"lasso": "rows = 50", "hybrid-svm": "bias = 0.5", "attack": "clip = true"}
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
    text += "".join(f"[{name}]\n{line}\n" for name, line in tables.items())
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = read_record(REGISTRY, tmp_path)
    assert caplog.records == []
    task: dict[str, dict[str, Any]] = {
        "lasso": {"lasso.rows": 50},
        "hybrid-svm": {"hybrid-svm.bias": 0.5},
    }
    expected = {
        owners[method]: value for value, owners in METHODS.values() if method in owners
    }
    expected |= base(method) | task[values["task"]]
    expected |= {"participation": 0.5, "rounds": 3, "min-nodes": 2}
    assert found == expected


def test_an_old_records_sets_are_read_where_they_are_the_runs(tmp_path: Path) -> None:
    values = base("fedfw") | {"domain": "box", "lower": -2.0, "upper": 2.0}
    values |= {"sparsity": 10, "group-size": 10, "penalty": -1.0, "sigma": 0.0}
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    found = read_record(REGISTRY, tmp_path)
    assert found == base("fedfw") | {
        "domain": "box",
        "box.lower": -2.0,
        "box.upper": 2.0,
        "fedfw.penalty": AUTO,
    }


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
