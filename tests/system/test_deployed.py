"""SuperLink and SuperNodes as processes of their own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flower_process import ROOT, Flower, free_port

import sim
from fedtrellis.encryption import write_key_pair

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]

NODES = 2


@pytest.fixture
def deployment(flower: Flower) -> Iterator[Flower]:
    """A SuperLink and its SuperNodes; ``flwr run . trial`` reaches them."""
    port = free_port()
    temporary = flower.home / "tmp"
    temporary.mkdir(exist_ok=True)
    (flower.home / "config.toml").write_text(
        '[superlink]\ndefault = "trial"\n'
        f'[superlink.trial]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    commands = [
        f"flower-superlink --insecure --port {port} "
        f"--control-api-address 127.0.0.1:{free_port()}"
    ]
    commands += [
        f"flower-supernode --insecure --superlink 127.0.0.1:{port} --port {free_port()}"
        for _ in range(NODES)
    ]
    processes = []
    for number, command in enumerate(commands):
        arguments = command.split()
        if number:
            arguments += [
                "--node-config",
                f"partition-id={number - 1} num-partitions={NODES} "
                f'key-file="{flower.home / "clients.key"}" '
                f'factor-file="{flower.home / f"factor-{number}.npz"}"',
            ]
        with (flower.home / f"process-{number}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    arguments,
                    cwd=flower.home,
                    env={**flower.environment, "TMPDIR": str(temporary)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        if not number:
            time.sleep(5)
    yield flower
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(timeout=30)


def run_both(
    deployment: Flower, config: str, parent: Path, only_deployed: str = ""
) -> str:
    """Run deployed and in this process; the models have to agree."""
    where = f'min-nodes={NODES} results-dir="{parent / "deployed"}"'
    output = deployment(
        "run",
        str(ROOT),
        "trial",
        "--stream",
        "--run-config",
        f"{config} {only_deployed} {where}",
    )
    (deployed,) = (parent / "deployed").iterdir()
    arguments = ["--nodes", str(NODES), "-c", config, "--out", str(parent / "local")]
    assert sim.app.command_line(arguments) == 0
    (local,) = (parent / "local").iterdir()
    model = np.load(deployed / "model.npz")["0"]
    assert np.abs(model).sum() > 1.0, output[-3000:]
    expected = np.load(local / "model.npz")["0"]
    np.testing.assert_allclose(model, expected, rtol=0, atol=1e-12)
    return output


def test_hyfdca_between_processes_with_a_key_pair(
    deployment: Flower, tmp_path: Path
) -> None:
    pytest.importorskip("tenseal")
    context = deployment.home / "server.context"
    write_key_pair(deployment.home / "clients.key", context)
    config = (
        'method="hyfdca" task="hybrid-svm" hybrid-svm.partition="vertical" rounds=3'
    )
    output = run_both(deployment, config, tmp_path, f'context-file="{context}"')
    assert "NOTHING IS ENCRYPTED" not in output
    # each message is a process of its own: the key is read anew, and never made
    assert not list(deployment.home.glob("tmp/fedtrellis-*"))


def test_deployed_runs_end_in_the_models_of_the_simulation(
    deployment: Flower, tmp_path: Path
) -> None:
    run_both(deployment, 'rounds=3 variant="augmented" seed=1', tmp_path / "fedfw")
    # FedGiA's clients keep their factors between the processes in which they run
    run_both(
        deployment,
        'method="fedgia" task="logistic-regression" hessian="gram" rounds=3 '
        "selected-fraction=1.0",
        tmp_path / "fedgia",
    )
    for number in range(1, NODES + 1):
        factor = deployment.home / f"factor-{number}.npz"
        assert factor.stat().st_mode & 0o777 == 0o600
