"""SuperLink and SuperNodes as processes of their own, with nothing that goes wrong."""

from pathlib import Path

import numpy as np
import pytest
from fault_runs import FAMILIES, NODES, Deployment
from flower_process import ROOT

import sim
from fedtrellis.encryption.cipher import write_key_pair
from tests.harness import model_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]


def run_both(deployment: Deployment, config: str, parent: Path) -> str:
    """Run deployed and in this process; the models have to agree."""
    where = f'min-nodes={NODES} results-dir="{parent / "deployed"}"'
    output = deployment.flower(
        *("run", str(ROOT), "trial", "--stream"),
        *("--run-config", f"{config} {where}"),
    )
    (deployed,) = (parent / "deployed").iterdir()
    arguments = ["--nodes", str(NODES), "-c", config, "--out", str(parent / "local")]
    assert sim.app.command_line(arguments) == 0
    (local,) = (parent / "local").iterdir()
    model = model_of(deployed)
    assert np.abs(model).sum() > 0.3, output[-3000:]
    np.testing.assert_allclose(model, model_of(local), rtol=0, atol=1e-12)
    return output


def test_fedgias_clients_keep_their_factors_between_processes(
    deployment: Deployment, tmp_path: Path
) -> None:
    for k in range(NODES):
        deployment.factor_file(k).unlink(missing_ok=True)
    config = f'{FAMILIES["fedgia"]} fedgia.hessian="gram" rounds=2'
    run_both(deployment, config, tmp_path)
    for k in range(NODES):
        assert deployment.factor_file(k).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow  # its waves make it the dearest; flwr run has it every day
def test_hyfdca_between_processes_with_a_key(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.give_keys(True)
    if not deployment.key.exists():
        write_key_pair(deployment.key, tmp_path / "context")
    before = set(deployment.temporary.glob("fedtrellis-*"))
    config = (
        'method="hyfdca" task="hybrid-svm" hybrid-svm.partition="vertical" '
        'hyfdca.exposed="accept" '
    )
    apart = "rounds=2 hyfdca.secure-sum=false"
    output = run_both(deployment, config + apart, tmp_path / "apart")
    assert "NOTHING IS ENCRYPTED" not in output
    # under masks, what is mixed at random follows from keys of the run
    record = deployment.run(config + "rounds=4", tmp_path / "masked")
    assert not record.dropped()
    rounds = [line["train"] for line in record.history[1:]]
    assert [line["moved-groups"] for line in rounds] == [1.0] * 4
    bounds = [line["dual-bound"] for line in rounds]
    assert bounds == sorted(bounds)
    assert all(line["primal"] >= line["dual"] for line in rounds)
    # each message is a process of its own: the key is read anew, and never made
    assert set(deployment.temporary.glob("fedtrellis-*")) == before
