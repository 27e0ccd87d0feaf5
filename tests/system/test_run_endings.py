"""Every way in which a run of Flower ends: what its record says, and how it goes on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_runs import NODES, Deployment, Record, check_same, simulated
from flower_process import Flower

from fedtrellis.runs import load_run
from tests.harness import saved_round, wait_for

# a shell's background ignores it, and so would all that is started here
signal.signal(signal.SIGINT, signal.default_int_handler)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIG = 'task="lasso" lasso.rows=30 lasso.columns=20 fedfw.variant="plain"'
LONG = f"{CONFIG} rounds=1000000 checkpoint-every=2"
#: Starts a program that finds no room in a folder.
FULL = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=4k none "$0"; exec "$@"')
#: Seconds until a status is true, and no process is left.
LIMIT = 120.0


def end(flower: Flower, cause: str | int, name: str, *where: str) -> None:
    """Stop the newest run, or give a signal to one process."""
    if isinstance(cause, int):
        os.kill(flower.processes(name)[0], cause)
        return
    run = str(flower.newest(*where)["run-id"])
    assert "successfully stopped" in flower("stop", run, *where)


def check_ended(record: Record, expected: str, left: Callable[[], list[int]]) -> None:
    def ended() -> bool:
        return load_run(record.directory).status == expected and not left()

    wait_for(ended, LIMIT, "it goes on", lambda: f"{record.summary}, left: {left()}")


def check_goes_on(record: Record, folder: Path, go: Callable[[str, Path], Any]) -> None:
    """Two rounds more, by a file that resumes, end like a run without a break."""
    rounds = saved_round(record.directory) + 2
    again = folder / "again"
    go(record.resume_file(again, rounds=rounds), again)
    (rest,) = again.iterdir()
    check_same(Record(rest), simulated(f"{CONFIG} rounds={rounds}", folder / "whole"))


def begun(parent: Path) -> Record:
    wait_for(lambda: any(parent.glob("*/checkpoint.npz")), 300, "no checkpoint")
    (directory,) = parent.iterdir()
    return Record(directory)


def stream(flower: Flower, config: str, parent: Path, *more: str) -> Any:
    app = [str(flower.bundle), "trial"] if isinstance(flower, Deployment) else ["."]
    words = ["--run-config", f'{config} results-dir="{parent}"', *more]
    return subprocess.Popen(
        [flower.program, "run", *app, "--stream", *words],
        cwd=flower.cwd,
        env=flower.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("cause", "name", "expected", "of_flower"),
    [
        ("flwr stop", "", "interrupted", "finished:stopped"),
        (signal.SIGINT, "flwr-simulation", "interrupted", "finished:failed"),
        (signal.SIGTERM, "flwr-simulation", "dead", "finished:failed"),
        (signal.SIGKILL, "flwr-simulation", "dead", "finished:failed"),
        (signal.SIGKILL, "ray::ClientApp", "failed", "finished:failed"),
    ],
)
def test_a_run_on_ray(
    flower: Flower,
    tmp_path: Path,
    cause: str | int,
    name: str,
    expected: str,
    of_flower: str,
) -> None:
    first = tmp_path / "first"
    size = f"{NODES} client-resources-num-cpus=1"
    process = stream(
        flower, LONG, first, "--federation-config", f"num-supernodes={size}"
    )
    record = begun(first)
    end(flower, cause, name)
    # Ray's own agents see late that a killed driver is no more
    rays = "ray::ClientApp" if cause == signal.SIGKILL else "ray::"
    ours = ("flwr-simulation", rays, "raylet", "gcs_server")
    check_ended(record, expected, lambda: flower.processes(*ours))
    # the end of the stream is all that flwr reports; a SuperLink waits for two signs of
    # life before it gives a process up
    assert process.wait(3 * LIMIT) == 0
    assert flower.status() == of_flower
    assert f"num-supernodes={NODES}" in record.summary["resume"]
    check_goes_on(record, tmp_path, lambda resume, _: flower.run(resume, size))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment") / "it")
    yield made
    made.stop()


@pytest.mark.parametrize(
    "cause", ["flwr stop", signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
def test_deployed_run(deployment: Deployment, tmp_path: Path, cause: str | int) -> None:
    expected = "dead" if cause == signal.SIGKILL else "interrupted"
    record = deployment.start(LONG, tmp_path / "first")
    begun(tmp_path / "first")
    end(deployment, cause, "flwr-serverapp", "trial")

    def left() -> list[int]:
        # Flower leaves a ClientApp whose message was on its way as the run ended
        logs = [file.read_text() for file in deployment.folder.glob("node-*.log")]
        ignored = sum(text.count("Ignoring message") for text in logs)
        clients = deployment.processes("flwr-clientapp")
        return deployment.processes("flwr-serverapp") + clients[ignored:]

    check_ended(record, expected, left)
    of_flower = "stopped" if cause == "flwr stop" else "failed"
    assert deployment.status() == f"finished:{of_flower}"
    check_goes_on(record, tmp_path, lambda *a: deployment.finish(deployment.start(*a)))


@pytest.mark.parametrize("full", [False, True])
def test_a_node_stopped_or_without_room_counts_again(
    deployment: Deployment, tmp_path: Path, full: bool
) -> None:
    """Once it is started anew: after a minute, or with room on its disk for the app."""

    def restart(*before: str) -> None:
        deployment.nodes[0].terminate()
        deployment.restart_node(0, *before)

    if full:
        restart(*FULL, str(deployment.home / "apps"))
        deployment.start(LONG, tmp_path / "full")
        deployment.wait_for(lambda: "No space" in deployment.logs(), LIMIT, "room")
        # two nodes are fewer than min-nodes
        assert deployment.status() == "finished:failed"
        restart()
    record = deployment.start(LONG, tmp_path / "again")
    begun(tmp_path / "again")
    if not full:
        deployment.nodes[0].send_signal(signal.SIGSTOP)
        time.sleep(60)
        deployment.nodes[0].send_signal(signal.SIGCONT)
        restart()
        deployment.wait_for(lambda: "Unavailable" in str(record.history), LIMIT, "why")
    deployment.wait_for(lambda: record.history[-1]["used"] == NODES, LIMIT, "left out")
    end(deployment, "flwr stop", "", "trial")


@pytest.mark.parametrize("engine", ["flower", "deployment"])
def test_ctrl_c_ends_the_log_and_not_the_run(
    request: pytest.FixtureRequest, engine: str, tmp_path: Path
) -> None:
    process = stream(request.getfixturevalue(engine), LONG, tmp_path)
    record = begun(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 0
    rounds = len(record.history)
    wait_for(lambda: len(record.history) > rounds, LIMIT, "no round more")
    assert load_run(record.directory).status == "running"
