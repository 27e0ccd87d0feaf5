"""Processes killed, slow and spoilt: the model is that of a run without those replies.

Every method's family goes through every fault, on a SuperLink and two SuperNodes. What
should come out is computed in this process by a ``LocalGrid`` which loses the replies
that the deployed run says it did not use, and the states that died with a process.
Nothing depends on how long anything took: an answer that a busy machine gave too late
is one more that was lost, on both sides.

Most of them: ``python -m pytest -k faults -m slow tests/system``.
"""

from pathlib import Path

import pytest
from fault_runs import (
    FAMILIES,
    NODES,
    Deployment,
    Record,
    Where,
    check_same,
    simulated,
    wait_for,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True)
def ready(
    request: pytest.FixtureRequest,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start what the test before left dead; keep HyFDCA's keys in one place.

    What is begun in this process and goes on deployed needs the key that the clients
    make for a run.
    """
    deployment.revive()
    deployment.give_keys("hyfdca" not in request.node.name)
    monkeypatch.setattr("tempfile.tempdir", str(deployment.temporary))


def lost(record: Record, family: str) -> dict[Where, list[set[str]]]:
    """What a grid has to lose for its run to have used the same answers.

    HyFDCA asks again within an iteration, so that nothing is lost with an answer; where
    a state is, the script is written by hand.
    """
    if family == "hyfdca":
        return {}
    dropped = record.dropped()
    return {(who, t, "train"): [{"reply_loss"}] for who, t in dropped}


def add(script: dict[Where, list[set[str]]], where: Where, strike: str) -> None:
    """Another strike on the first of these messages."""
    first, *rest = script.get(where, [set()])
    script[where] = [first | {strike}, *rest]


# ------------------------------------------------------------------- SuperNodes killed


@pytest.mark.slow
@every_family
def test_a_supernode_killed_between_computing_and_answering(
    deployment: Deployment, family: str, tmp_path: Path
) -> None:
    """It comes back under a new node id, without any state."""
    wave = "train.propose" if family == "hyfdca" else "train"
    fault = deployment.faults / f"0-2-{wave}"
    fault.touch()
    config = f"{FAMILIES[family]} rounds=6 timeout=120.0"
    record = deployment.start(config, tmp_path / "deployed")
    deployment.restart_node(0)
    deployment.finish(record)
    assert not fault.exists()
    gone = [t for (who, t), _ in record.dropped().items() if who == "0"]
    assert gone[0] == 2
    script = lost(record, family)
    if family == "hyfdca":  # asked three times for each answer
        script = {("0", t, wave): [{"reply_loss"}] * 3 for t in gone}
    add(script, ("0", back(gone), ""), "wipe")
    check_same(record, simulated(config, NODES, tmp_path / "local", script))


def back(gone: list[int]) -> int:
    """The first round after an absence that began with the first of these."""
    return next(t for t in range(gone[0] + 1, 1000) if t not in gone)


# ------------------------------------------------------- SuperLink and ServerApp killed


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["superlink", "server-app"])
@every_family
def test_a_server_killed_and_the_run_resumed(
    deployment: Deployment, family: str, victim: str, tmp_path: Path
) -> None:
    """The run has failed; a new one goes on, with clients whose states are gone."""
    config = f"{FAMILIES[family]} rounds=6 timeout=120.0 checkpoint-every=1"
    record = deployment.start(config, tmp_path / "deployed")
    wait_for(lambda: record.rounds >= 3, 400, "no third round")
    if victim == "superlink":
        deployment.restart_link()
    else:
        deployment.kill_server_app()
    assert deployment.flower.status() == "finished:failed"
    # nobody could say otherwise, but a ServerApp that sees its SuperLink go
    said = ("running", "failed") if victim == "superlink" else ("running",)
    assert record.summary["status"] in said
    t = record.checkpoint_round
    assert 2 <= t < 6
    wiped: dict[Where, list[set[str]]] = {
        (who, t + 1, ""): [{"wipe"}] for who in ("0", "1")
    }
    expected = simulated(config, NODES, tmp_path / "local", wiped)
    # in this process, where no node has the states either
    again = tmp_path / "here"
    here = simulated(str(record.resume_file(again)), NODES, again)
    check_same(here, expected)
    again = tmp_path / "again"
    rest = deployment.run(str(record.resume_file(again)), again)
    assert [line["round"] for line in rest.history] == list(range(7))
    assert not rest.dropped()
    check_same(rest, expected)
    if family not in ("fedgia", "hyfdca"):
        # the strategy gives its clients back all that they had
        check_same(rest, simulated(config, NODES, tmp_path / "calm"))


# -------------------------------------------------------------- from engine to engine


@pytest.mark.slow
@every_family
def test_a_run_of_this_process_goes_on_deployed(
    deployment: Deployment, family: str, tmp_path: Path
) -> None:
    """What ``python sim.py`` began; the nodes have nothing of its clients' states."""
    config = f"{FAMILIES[family]} timeout=120.0 checkpoint-every=1"
    first = simulated(f"{config} rounds=3", NODES, tmp_path / "first")
    again = tmp_path / "deployed"
    resume = first.resume_file(again, **{"rounds": 5, "min-nodes": NODES})
    rest = deployment.run(str(resume), again)
    assert not rest.dropped()
    wiped: dict[Where, list[set[str]]] = {
        (who, 4, ""): [{"wipe"}] for who in ("0", "1")
    }
    expected = simulated(f"{config} rounds=5", NODES, tmp_path / "local", wiped)
    check_same(rest, expected)
