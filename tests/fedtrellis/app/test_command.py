"""``fedtrellis``: run, list and resume, from any folder, as ``python sim.py`` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sim

ROOT = Path(sim.__file__).parent
CONFIG = 'task="lasso" checkpoint-every=2 fedfw.variant="augmented"'


def fedtrellis(
    folder: Path, *words: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedtrellis", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done


def test_workers_leave_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = []
    for count in ("1", "2"):
        out = tmp_path / count
        words = ["--nodes", "4", "--workers", count, "--out", str(out)]
        assert sim.app.command_line([*words, "-c", CONFIG, "-c", "rounds=2"]) == 0
        (path,) = out.glob("*/model.npz")
        with np.load(path) as model:
            models.append([model[name] for name in model.files])
    np.testing.assert_array_equal(models[0], models[1])
    capsys.readouterr()
    assert sim.app.command_line(["--workers", "0", "-c", CONFIG]) == 1
    assert "workers = 0 must be at least 1" in capsys.readouterr().err


def test_run_and_resume_from_an_empty_folder(tmp_path: Path) -> None:
    words = ["--nodes", "3", "-c", CONFIG]
    whole = ["run", *words, "--out", "whole", "-c", "rounds=6"]
    assert "Record: " in fedtrellis(tmp_path, *whole).stdout
    fedtrellis(tmp_path, "run", *words, "--out", "first", "-c", "rounds=2")
    (first,) = (tmp_path / "first").iterdir()
    relative = str(first.relative_to(tmp_path))
    rest = ["resume", relative, "--nodes", "3", "--out", "rest", "-c", "rounds=6"]
    fedtrellis(tmp_path, *rest)
    ((one,), (two,)) = ((tmp_path / name).iterdir() for name in ("whole", "rest"))
    with np.load(one / "model.npz") as ours, np.load(two / "model.npz") as theirs:
        np.testing.assert_array_equal(ours["0"], theirs["0"])
    assert json.loads((two / "summary.json").read_text())["rounds"] == 6
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "first", "rest"}
    # and the checkout's app makes the same
    out = ["--out", str(tmp_path / "sim"), "-c", "rounds=6"]
    assert sim.app.command_line([*words, *out]) == 0
    (three,) = (tmp_path / "sim").iterdir()
    with np.load(one / "model.npz") as ours, np.load(three / "model.npz") as theirs:
        np.testing.assert_array_equal(ours["0"], theirs["0"])


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for words, told in (
        (["run", "-c", 'method="fedgia" fedfw.penalty=3.0'], "of method 'fedfw', and"),
        (["run", "-c", "rounds=0"], "rounds = 0 must be at least 1"),
        (["resume", "nowhere"], "nowhere' is not the record of a run"),
    ):
        done = fedtrellis(tmp_path, *words, status=1)
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"fedtrellis {words[0]}: error: ")
        assert told in line
        assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
