"""``flwr run`` with Ray, and its agreement with ``python sim.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flower_process import ROOT, Flower

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]


def record_in(parent: Path) -> Path:
    (record,) = parent.iterdir()
    return record


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "sim.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "config",
    [
        "rounds=30 participation=0.6 seed=3",
        'method="fedgia" task="linear-regression" rounds=30 tolerance=0.0 seed=3 '
        'log-format="json"',
        'method="zeroth-order-rfl" task="kernel-pca" rounds=30 participation=0.6 '
        "local-step-size=0.01 seed=3",
        'method="hyfdca" task="hybrid-svm" rounds=30 seed=3 '
        'gap-tolerance=0.0 hybrid-svm.partition="vertical"',
    ],
    ids=["fedfw", "fedgia", "zeroth-order-rfl", "hyfdca"],
)
def test_flwr_run_and_sim_end_in_the_same_model(
    flower: Flower, tmp_path: Path, config: str
) -> None:
    ray, local = tmp_path / "ray", tmp_path / "local"
    output = flower(
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=5",
        "--run-config",
        f'{config} results-dir="{ray}"',
    )
    assert flower.status() == "finished:completed", output[-3000:]
    if "log-format" in config:
        objects = [x for x in output.splitlines() if x.startswith("{")]
        lines = [json.loads(x) for x in objects]
        start, *rounds, end = (x for x in lines if x["event"] != "log")
        assert (start["event"], start["clients"]) == ("start", 5)
        assert start["settings"]["log-format"] == "json"
        assert [line["round"] for line in rounds] == list(range(31))
        assert (end["event"], end["record"]) == ("end", str(record_in(ray)))
    else:
        assert "Record: " in output
    done = sim("--nodes", "5", "-c", config, "--out", str(local))
    assert done.returncode == 0, done.stderr
    ray_model = np.load(record_in(ray) / "model.npz")["0"]
    local_model = np.load(record_in(local) / "model.npz")["0"]
    assert np.abs(ray_model).sum() > 1.0
    np.testing.assert_allclose(ray_model, local_model, rtol=0, atol=1e-12)
    summary = json.loads((record_in(ray) / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds"] == 30
    assert summary["bytes_up"] > 0
    # the same messages, so the same bytes, but for the digits of node ids and times
    other = json.loads((record_in(local) / "summary.json").read_text())
    assert summary["bytes_up"] == pytest.approx(other["bytes_up"], rel=0.03)


def test_a_bad_setting_fails_the_run_before_the_first_round(
    flower: Flower, tmp_path: Path
) -> None:
    output = flower(
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=2",
        "--run-config",
        f'task="diggits" results-dir="{tmp_path}"',
    )
    assert "task = 'diggits' is not known (did you mean 'digits'?)" in output
    assert "[ROUND" not in output
    assert flower.status() == "finished:failed"
    assert not list(tmp_path.iterdir())
