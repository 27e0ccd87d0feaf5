"""A Ray actor killed in a simulation, and runs that go on from engine to engine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_runs import (
    FAMILIES,
    NODES,
    Record,
    Where,
    check_same,
    make_bundle,
    simulated,
)
from flower_process import Flower

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


class Simulation:
    """``flwr run`` on Ray with one actor, of an app with faults."""

    def __init__(self, folder: Path) -> None:
        self.faults = folder / "faults"
        self.temporary = folder / "tmp"
        home = folder / "home"
        for path in (self.faults, self.temporary, home):
            path.mkdir()
        self.bundle = make_bundle(folder / "bundle")
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self.flower = Flower(
            home,
            FEDTRELLIS_FAULTS=str(self.faults),
            PYTHONPATH=os.pathsep.join(path for path in paths if path),
            # Ray lets its actors run after everything else on the machine
            RAY_worker_niceness="0",
            # a path to a socket of Ray's may not be long
            TMPDIR=str(self.temporary),
        )

    def run(self, config: str, parent: Path) -> Record:
        """Run to whatever end."""
        if not config.endswith(".toml"):
            config += f' results-dir="{parent}"'
        federation = (
            f"num-supernodes={NODES} client-resources-num-cpus={os.cpu_count()}"
        )
        output = self.flower(
            *("run", str(self.bundle), "--stream"),
            *("--federation-config", federation, "--run-config", config),
            timeout=1200,
        )
        records = sorted(parent.glob("*"))
        assert len(records) == 1, output[-3000:]
        return Record(records[0])


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    # pytest's own folders are too deep for Ray's sockets
    folder = Path(tempfile.mkdtemp())
    started = Simulation(folder)
    yield started
    started.flower.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def one_place_for_keys(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun in this process and goes on there needs the clients' key."""
    monkeypatch.setattr("tempfile.tempdir", str(simulation.temporary))


def wiped_at(t: int) -> dict[Where, list[set[str]]]:
    """All clients' states are gone before a round."""
    return {(who, t, ""): [{"wipe"}] for who in ("0", "1")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_ray_actor_killed_and_the_run_resumed(
    simulation: Simulation, family: str, tmp_path: Path
) -> None:
    """It never comes back: the run ends with an error, and another one goes on."""
    wave = "train.propose" if family == "hyfdca" else "train"
    (simulation.faults / f"0-3-{wave}-kill").touch()
    config = (
        f"{FAMILIES[family]} rounds=6 timeout=60.0 checkpoint-every=1 "
        "max-failed-rounds=2"
    )
    record = simulation.run(config, tmp_path / "ray")
    assert simulation.flower.status() == "finished:failed"
    assert record.summary["status"] == "failed"
    assert "no usable answer in 2 rounds in a row" in record.summary["error"]
    t = record.checkpoint_round
    assert 3 <= t < 5
    script: dict[Where, list[set[str]]] = {
        (who, round_, wave): [{"reply_loss"}] * (3 if family == "hyfdca" else 1)
        for (who, round_) in record.dropped()
        if round_ <= t
    }
    expected = simulated(config, NODES, tmp_path / "local", script | wiped_at(t + 1))
    again = tmp_path / "again"
    rest = simulation.run(str(record.resume_file(again)), again)
    assert rest.summary["status"] == "round limit"
    check_same(rest, expected)
