"""The comparison of scalars with gradients: what it sets exists, and it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sim
from benchmarks.fine_tuning import CONTENDERS, config_of, draw

pytest.importorskip("torch")


@pytest.mark.parametrize("name", CONTENDERS)
def test_contenders_take_their_settings(name: str) -> None:
    strategy: Any = sim.app.experiment(config_of(name, 0.25, 40, 1), 4).strategy()
    assert strategy.step_size == 0.25
    assert strategy.evaluate_every == 2


def test_curves_are_drawn(tmp_path: Path) -> None:
    run = {"passes": [0, 3, 6], "kB": [0.0, 1.0, 2.0], "loss": [3.0, 2.0, 1.5]}
    picture = tmp_path / "curves.png"
    draw({"one": [run, run]}, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
