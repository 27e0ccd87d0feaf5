"""Runs that start from a model in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app.experiment import read_model
from fedtrellis.settings import SettingsError
from tests.harness import run_app

CONFIG = {
    "method": "fedgia",
    "task": "linear-regression",
    "linear-regression.features": 6,
    "rounds": 30,
    "picture": False,
}


def test_a_run_starts_where_another_ended(tmp_path: Path) -> None:
    first = run_app(CONFIG, 4, tmp_path / "first")
    for given in (first, first / "model.npz"):
        config = CONFIG | {"initial-model": str(given), "rounds": 2}
        again = run_app(config, 4, tmp_path / "again")
        # it stops as soon as the gradients are known
        with np.load(first / "model.npz") as old, np.load(again / "model.npz") as new:
            np.testing.assert_array_equal(old["0"], new["0"])
        lines = (again / "history.jsonl").read_text().splitlines()
        assert len(lines) == 2  # rounds 0 and 1


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    shapes = [(6,)]
    with pytest.raises(SettingsError, match="No such file"):
        read_model(str(file), shapes)
    file.write_bytes(b"no archive")
    with pytest.raises(SettingsError, match=r"is no \.npz of arrays"):
        read_model(str(file), shapes)
    np.save(tmp_path / "one.npy", np.zeros(6))
    with pytest.raises(SettingsError, match=r"is no \.npz of arrays"):
        read_model(str(tmp_path / "one.npy"), shapes)
    np.savez(file, np.zeros(5))
    with pytest.raises(SettingsError, match=r"\[\(5,\)\]; this run's model has"):
        read_model(str(file), shapes)
    np.savez(file, np.full(6, np.nan))
    with pytest.raises(SettingsError, match="is not finite"):
        read_model(str(file), shapes)
    bad: list[dict[str, Any]] = [
        CONFIG | {"initial-model": "model.npz"},
        {"method": "hyfem", "task": "hybrid-svm", "initial-model": str(file)},
    ]
    for config, why in zip(bad, ("must be an absolute", "that is split"), strict=True):
        with pytest.raises(SettingsError, match=why):
            run_app(sim.app.default_config() | config, 3, tmp_path)
