"""Secure sums on four SuperNodes, with TLS, registered keys and a roster."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_process import ROOT

import sim
from deploy.cases import METHODS, NODES, Files
from deploy.deployment import Deployment, TrialError
from fedtrellis import LocalGrid
from fedtrellis.app.command_line import read_config
from tests.harness import Array, history_of, model_of

pytestmark = [
    *(pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)),
    pytest.mark.xdist_group("deployed-sums"),
]

PLAIN = f"{METHODS['fedavg-gd'][1]} min-nodes={len(NODES)}"
SUMS = f'{PLAIN} aggregation="secure-sum"'


class Sealed(Deployment):
    """Its nodes show nothing in the clear, and their runs can be watched."""

    def node_config(self, node: str, files: Files) -> dict[str, str | int]:
        config = super().node_config(node, files)
        # nothing in the clear; and runs here begin at models of other methods
        config |= {"exposed": "refuse", "releases": "accept"}
        return config | {"partition-id": NODES.index(node)}

    def start_run(self, name: str, config: str) -> subprocess.Popen[bytes]:
        records = self.folder / "records" / name
        how = ("--run-config", f'{config} results-dir="{records}"')
        command = ("flwr", "run", ".", "trial", "--stream", *how)
        log = (self.folder / "logs" / f"run-{name}.log").open("wb")
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=log, stderr=log
        )

    def record(self, name: str) -> Path | None:
        return next((self.folder / "records" / name).glob("*"), None)

    def history(self, name: str) -> list[dict[str, Any]]:
        record = self.record(name)
        return [one for one in history_of(record) if one["round"]] if record else []

    def ended(self, name: str, run: subprocess.Popen[bytes]) -> tuple[Any, Array]:
        """The summary, and the model."""
        run.wait(timeout=900)
        record = self.record(name)
        assert record is not None, self.log(f"run-{name}")[-3000:]
        return json.loads((record / "summary.json").read_text()), model_of(record)

    def kill(self, node: str) -> None:
        process = self.nodes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    deployment = Sealed(tmp_path_factory.mktemp("sealed") / "it")
    deployment.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    try:
        deployment.make_files()
        deployment.make_encryption_keys()
        deployment.start_superlink()
        deployment.register()
        deployment.start_nodes("rows")
        yield deployment
    finally:
        deployment.stop()


def in_this_process(deployment: Deployment, config: str) -> Any:
    """The plain run's model, on the same files, of nodes that have no keys."""
    folder = deployment.folder / "records" / "local" / str(time.monotonic_ns())
    here = sim.app.default_config() | read_config([f'{config} results-dir="{folder}"'])
    nodes = [Deployment.node_config(deployment, n, "rows") for n in NODES]
    grid = LocalGrid(sim.client_app, len(NODES), run_config=here, node_configs=nodes)
    sim.app.run(grid, here)
    (record,) = folder.glob("*")
    return model_of(record)


def test_a_node_is_killed_and_comes_back_and_another_loses_its_file(
    sealed: Sealed,
) -> None:
    """Their block's rounds are lost; the model is the plain run's of the others."""
    steps = 'method="fedavg-gd" fedavg-gd.step-schedule="constant"'
    config = f"{steps} {SUMS} rounds=10 timeout=20.0 max-failed-rounds=9"
    run = sealed.start_run("killed", config)
    sealed.wait_for(lambda: len(sealed.history("killed")) >= 2, "two rounds")
    sealed.kill("node-2")
    sealed.wait_for(
        lambda: any(not one["used"] for one in sealed.history("killed")), "a lost round"
    )
    sealed.start_node("node-2", "rows")
    back = len(sealed.history("killed"))
    sealed.wait_for(
        lambda: any(one["used"] for one in sealed.history("killed")[back:]), "a round"
    )
    for path in (sealed.folder / "secrets").rglob("*.block"):
        if path.parent.name.startswith("node-3"):
            path.unlink()
    summary, model = sealed.ended("killed", run)
    assert summary["status"] == "round limit"
    used = [one["used"] for one in sealed.history("killed")]
    assert set(used) == {0, len(NODES)}
    rounds = used.count(len(NODES))
    plain = in_this_process(sealed, f"{steps} {PLAIN} rounds={rounds}")
    assert np.abs(plain).max() > 1e-3
    np.testing.assert_allclose(model, plain, rtol=0, atol=1e-9)


def test_without_its_identity_a_node_refuses_before_round_1(sealed: Sealed) -> None:
    identity = sealed.folder / "secrets" / "node-4.key"
    content = identity.read_bytes()
    identity.unlink()
    try:
        run = sealed.start_run("no-key", f'method="fedavg-gd" {SUMS} rounds=2')
        run.wait(timeout=600)
    finally:
        identity.write_bytes(content)
        identity.chmod(0o600)
    assert not sealed.history("no-key")
    log = sealed.log("run-no-key")
    assert "node-4" in log
    assert "node-4.key' is not there" in log
    with pytest.raises(TrialError):
        sealed.check_runs(5)  # Flower calls it failed, too
