"""Processes killed, slow and spoilt: the model is that of a run without those replies.

Every method's family goes through every fault, on a SuperLink with three SuperNodes.
What should come out is computed in this process by a ``LocalGrid`` which loses the
replies that the deployed run says it did not use, however late, and the states that
died with a process.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_runs import FAMILIES, NODES, Deployment, Where, check_same, simulated

from tests.harness import saved_round

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]

every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment") / "it")
    yield deployment
    deployment.stop()


@pytest.fixture
def deployment(started: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """What the test before left dead is started, and HyFDCA's keys are in one place.

    What is begun in this process and goes on deployed needs the key that the clients
    make for a run.
    """
    started.revive()
    monkeypatch.setattr("tempfile.tempdir", str(started.temporary))
    return started


def wiped(server_round: int) -> dict[Where, list[set[str]]]:
    """All clients' states are gone before a round."""
    return {(str(k), server_round, ""): [{"wipe"}] for k in range(NODES)}


@every_family
def test_a_supernode_killed_between_computing_and_answering(
    deployment: Deployment, family: str, tmp_path: Path
) -> None:
    """It comes back under a new node id, without any state."""
    wave = "train.propose" if family == "hyfdca" else "train"
    fault = deployment.faults / f"0-2-{wave}"
    fault.touch()
    config = f"{FAMILIES[family]} rounds=4 timeout=120.0"
    record = deployment.start(config, tmp_path / "deployed")
    deployment.restart_node(0)
    deployment.finish(record)
    assert not fault.exists()
    # HyFDCA asks a node that is back twice: what it restores comes from others
    gone = [t for who, t in record.dropped(but="restored") if who == "0"]
    assert gone[0] == 2
    script: dict[Where, list[set[str]]]
    if family in ("hyfdca", "secure-sums"):
        # they ask three times for each answer, so that nothing else is lost
        script = {("0", t, wave): [{"reply_loss"}] * 3 for t in gone}
    else:
        script = {(who, t, "train"): [{"reply_loss"}] for who, t in record.dropped()}
    back = next(t for t in range(3, 1000) if t not in gone)
    first, *rest = script.get(("0", back, ""), [set()])
    script["0", back, ""] = [first | {"wipe"}, *rest]
    check_same(record, simulated(config, tmp_path / "local", script))


@every_family
def test_superlink_killed(deployment: Deployment, family: str, tmp_path: Path) -> None:
    """Its run has failed; a new one goes on, with clients whose states are gone."""
    config = f"{FAMILIES[family]} rounds=4 timeout=120.0 checkpoint-every=1"
    record = deployment.start(config, tmp_path / "deployed")
    deployment.wait_for(lambda: len(record.history) > 2, 400, "no second round")
    deployment.restart_link()
    assert deployment.status() == "finished:failed"
    # nobody could say otherwise, but a ServerApp that sees its SuperLink go
    assert record.summary["status"] in ("running", "failed", "interrupted")
    t = saved_round(record.directory)
    assert 1 <= t < 4
    expected = simulated(config, tmp_path / "local", wiped(t + 1))
    # in this process, where no node has the states either
    again = tmp_path / "here"
    check_same(simulated(record.resume_file(again), again), expected)
    again = tmp_path / "again"
    rest = deployment.start(record.resume_file(again), again)
    deployment.finish(rest)
    assert [line["round"] for line in rest.history] == list(range(5))
    assert not rest.dropped()
    check_same(rest, expected)
    if family not in ("fedgia", "hyfdca"):
        # the strategy gives its clients back all that they had
        check_same(rest, simulated(config, tmp_path / "calm"))


@every_family
def test_goes_on_deployed(deployment: Deployment, family: str, tmp_path: Path) -> None:
    """What ``python sim.py`` began; the nodes have nothing of its clients' states."""
    config = f"{FAMILIES[family]} timeout=120.0 checkpoint-every=1"
    first = simulated(f"{config} rounds=3", tmp_path / "first")
    again = tmp_path / "deployed"
    resume = first.resume_file(again, **{"rounds": 5, "min-nodes": NODES})
    rest = deployment.start(resume, again)
    deployment.finish(rest)
    assert not rest.dropped()
    here = tmp_path / "local"
    # FedGiA has looked at the gradient alone in round 3, the last that was planned
    longer = family != "fedgia"
    config = f"{config} rounds=5" if longer else first.resume_file(here, rounds=5)
    check_same(rest, simulated(config, here, wiped(4)))
