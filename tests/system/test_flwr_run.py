"""``flwr run`` with Ray, and its agreement with ``python sim.py``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flower_process import Flower

import sim

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]

ROUNDS = 8
SCALARS = (
    'method="zeroth-order-sgd" task="logistic-regression" '
    "zeroth-order-sgd.step-size=0.1"
)


def record_in(parent: Path) -> Path:
    (record,) = parent.iterdir()
    return record


@pytest.mark.parametrize(
    "config",
    [
        'fedfw.variant="corrective" fedfw.certificate=true participation=0.6 seed=3',
        'fedfw.variant="plain" participation=0.6 seed=3',
        'method="fedgia" task="linear-regression" fedgia.tolerance=0.0 seed=3 '
        'log-format="json"',
        'method="zeroth-order-rfl" task="kernel-pca" participation=0.6 '
        "zeroth-order-rfl.step-size=0.01 seed=3",
        f"{SCALARS} participation=0.6 seed=3",
        f'{SCALARS} participation=0.6 seed=3 zeroth-order-sgd.variant="fedkseed" '
        "zeroth-order-sgd.pool=100",
        'method="hyfdca" task="hybrid-svm" seed=3 '
        'hyfdca.tolerance=0.0 hybrid-svm.partition="vertical" '
        'hyfdca.secure-sum=false hyfdca.exposed="accept"',
    ],
    ids=[
        "fedfw-corrective",
        "fedfw-plain",
        "fedgia",
        "zeroth-order-rfl",
        "zeroth-order-sgd",
        "fedkseed",
        "hyfdca",
    ],
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
        f'{config} rounds={ROUNDS} results-dir="{ray}"',
    )
    assert flower.status() == "finished:completed", output[-3000:]
    if "log-format" in config:
        objects = [x for x in output.splitlines() if x.startswith("{")]
        lines = [json.loads(x) for x in objects]
        start, *rounds, end = (x for x in lines if x["event"] != "log")
        assert (start["event"], start["clients"]) == ("start", 5)
        assert start["settings"]["log-format"] == "json"
        assert [line["round"] for line in rounds] == list(range(ROUNDS + 1))
        assert (end["event"], end["record"]) == ("end", str(record_in(ray)))
    else:
        assert "Record: " in output
    arguments = ["--nodes", "5", "-c", f"{config} rounds={ROUNDS}"]
    assert sim.app.command_line([*arguments, "--out", str(local)]) == 0
    ray_model = np.load(record_in(ray) / "model.npz")["0"]
    local_model = np.load(record_in(local) / "model.npz")["0"]
    assert np.abs(ray_model).sum() > 1.0
    np.testing.assert_allclose(ray_model, local_model, rtol=0, atol=1e-12)
    summary = json.loads((record_in(ray) / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds"] == ROUNDS
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
