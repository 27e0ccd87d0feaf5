"""examples/own-method: a method from another package, wherever ours are known."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sim
from fedtrellis.domains import L1Ball
from tests.harness import entrant, model_of

ROOT = Path(__file__).resolve().parents[2]
CONFIG = 'method="feddyn" task="linear-regression" checkpoint-every=3'
CONFIG += " feddyn.alpha=2.0 feddyn.step-size=0.05 feddyn.local-steps=3"


@pytest.mark.slow
def test_the_command_lists_runs_resumes_and_tunes_it(tmp_path: Path) -> None:
    target, runs = tmp_path / "site", tmp_path / "runs"
    # what an installation leaves behind would make the next run of tests find it
    source = shutil.copytree(ROOT / "examples" / "own-method", tmp_path / "source")
    paths = os.pathsep.join([str(target), str(ROOT)])

    def call(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        ).stdout

    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    call(*install, "--target", str(target), str(source))
    listed = call("fedtrellis", "list")
    assert "majority-sign" in listed
    assert "feddyn" in listed
    words = ["--nodes", "4", "--out", str(runs), "-c"]
    call("fedtrellis", "run", *words, f"{CONFIG} rounds=3")
    (first,) = runs.iterdir()
    call("fedtrellis", "resume", str(runs), *words, "rounds=6")  # the last one in it
    (second,) = set(runs.iterdir()) - {first}
    known = {"task": "linear-regression", "method": "fedgia"}
    task = sim.app.experiment(known, 4).task
    gradients = [task.client_objective(i).gradient for i in range(4)]
    for record, rounds in ((first, 3), (second, 6)):
        start, ball = np.zeros(100), L1Ball(1e9)
        expected = entrant("feddyn", gradients, start, [3] * rounds, 0.05, 2.0, ball)
        np.testing.assert_allclose(model_of(record), expected, rtol=0, atol=1e-12)
    space = tmp_path / "search.toml"
    space.write_text('["majority-sign.step-size"]\nvalues = [0.01, 0.1]\n')
    tune = ["tune", "--search", str(space), "--trials", "2", "--nodes", "4"]
    config = 'method="majority-sign" task="linear-regression" rounds=6'
    call("fedtrellis", *tune, "--out", str(tmp_path / "tuned"), "-c", config)
    assert "majority-sign.step-size" in (tmp_path / "tuned" / "best.toml").read_text()
