"""examples/own-method: a method from another package, wherever ours are known."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim

ROOT = Path(__file__).resolve().parents[2]
CONFIG = 'method="majority-sign" task="linear-regression" rounds='


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target)]
    package = ROOT / "examples" / "own-method"
    subprocess.run([*command, str(package)], check=True, timeout=300)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def call(
    environment: dict[str, str], *words: str, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def model(record: Path) -> Any:
    with np.load(record / "model.npz") as arrays:
        return arrays["0"]


def loop(step_size: float) -> Any:
    task = sim.app.experiment({"task": "linear-regression", "method": "fedgia"}, 4).task
    x = np.zeros(100)
    for t in range(1, 7):
        votes = sum(np.sign(task.client_objective(i).gradient(x)) for i in range(4))
        x -= step_size / np.sqrt(t) * np.sign(votes)
    return x


def feddyn(rounds: int, alpha: float, step: float, k: int) -> Any:
    """FedDyn's rounds without messages, with h as its authors have it."""
    config = {"task": "linear-regression", "method": "fedgia"}
    task = sim.app.experiment(config, 4).task
    gradients = [task.client_objective(i).gradient for i in range(4)]
    x, h, g = np.zeros(100), np.zeros(100), np.zeros((4, 100))
    for _ in range(rounds):
        ends = np.tile(x, (4, 1))
        for i, gradient in enumerate(gradients):
            for _ in range(k):
                ends[i] -= step * (gradient(ends[i]) - g[i] + alpha * (ends[i] - x))
        g -= alpha * (ends - x)
        h -= alpha * (ends - x).mean(axis=0)
        x = ends.mean(axis=0) - h / alpha
    return x


def test_a_method_with_state_is_the_papers_also_when_it_goes_on(
    installed: dict[str, str], tmp_path: Path
) -> None:
    words = ["sim.py", "--nodes", "4", "--out", str(tmp_path), "-c"]
    config = 'method="feddyn" task="linear-regression" checkpoint-every=3'
    config += " feddyn.alpha=2.0 feddyn.step-size=0.05 feddyn.local-steps=3"
    done = call(installed, *words, f"{config} rounds=3")
    assert done.returncode == 0, done.stderr
    (first,) = tmp_path.iterdir()
    done = call(installed, *words, f'resume="{first}" rounds=6')
    assert done.returncode == 0, done.stderr
    (second,) = set(tmp_path.iterdir()) - {first}
    for record, rounds in ((first, 3), (second, 6)):
        expected = feddyn(rounds, alpha=2.0, step=0.05, k=3)
        np.testing.assert_allclose(model(record), expected, rtol=0, atol=1e-12)


def test_the_command_runs_resumes_and_tunes_it(
    installed: dict[str, str], tmp_path: Path
) -> None:
    fedtrellis, runs = ["-m", "fedtrellis"], tmp_path / "runs"
    assert "majority-sign" in call(installed, *fedtrellis, "list", cwd=tmp_path).stdout
    words = ["--nodes", "4", "--out", str(runs)]
    short = f"{CONFIG}3 checkpoint-every=3"
    done = call(installed, *fedtrellis, "run", *words, "-c", short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (first,) = runs.iterdir()
    done = call(
        installed,
        *fedtrellis,
        "resume",
        str(first),
        *words,
        "-c",
        "rounds=6",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (second,) = set(runs.iterdir()) - {first}
    np.testing.assert_allclose(model(second), loop(0.1), rtol=0, atol=1e-12)
    summary = json.loads((second / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("round limit", 6)
    space = tmp_path / "search.toml"
    space.write_text('["majority-sign.step-size"]\nvalues = [0.01, 0.1]\n')
    words = ["tune", "--search", str(space), "--trials", "2", "--nodes", "4"]
    out = ["--out", str(tmp_path / "tuned"), "-c", CONFIG + "6"]
    done = call(installed, *fedtrellis, *words, *out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "majority-sign.step-size" in (tmp_path / "tuned" / "best.toml").read_text()
