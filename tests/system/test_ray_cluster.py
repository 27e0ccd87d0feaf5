"""A simulation on two Ray nodes, started on one machine as docs/running.md says."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from fault_runs import Record, check_same, simulated
from flower_process import Flower, free_port, processes_of

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

NODES, ROUNDS = 6, 5
CONFIG = f'task="lasso" rounds={ROUNDS} checkpoint-every=100'


def start_ray(flower: Flower, *arguments: str) -> None:
    """``ray start``, a node with one CPU that outlives the command."""
    # ends with the Flower: both have its FLWR_HOME
    command = ["start", "--num-cpus", "1", "--object-store-memory", "100000000"]
    command += ["--node-ip-address", "127.0.0.1", "--disable-usage-stats", *arguments]
    subprocess.run(
        [str(Path(sys.executable).parent / "ray"), *command],
        env=flower.environment,
        timeout=300,
        check=True,
    )


@pytest.fixture
def cluster() -> Iterator[Flower]:
    # pytest's own folders are too deep for Ray's sockets
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (home := Path(folder) / "home").mkdir()
        port = str(free_port())
        flower = Flower(
            home,
            RAY_ADDRESS=f"127.0.0.1:{port}",
            # Ray lets its actors run after everything else on the machine
            RAY_worker_niceness="0",
            TMPDIR=folder,
        )
        try:
            head = ("--head", "--port", port, "--temp-dir", f"{folder}/ray")
            ours = ("--ray-client-server-port", str(free_port()))
            start_ray(flower, *head, *ours, "--include-dashboard=false")
            start_ray(flower, "--address", f"127.0.0.1:{port}")
            yield flower
        finally:
            flower.stop()
            left = processes_of(home)
            assert not left, left


def raylets(flower: Flower) -> set[str]:
    """The Ray nodes that have a process with Flower's clients."""
    found = set()
    for pid in flower.processes("ray::ClientApp"):
        with suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            found.add(fields.split()[1])  # its parent
    return found


def test_a_run_uses_both_nodes(cluster: Flower, tmp_path: Path) -> None:
    settings = f'{CONFIG} results-dir="{tmp_path / "ray"}"'
    # without init-args-num-cpus, which Ray refuses for a cluster that runs
    size, used = f"{NODES} client-resources-num-cpus=1", set()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(cluster.run, settings, size, 600)
        while not run.done():
            used |= raylets(cluster)
            time.sleep(0.2)
    output = run.result()
    (directory,) = (tmp_path / "ray").glob("*")
    record = Record(directory)
    assert record.summary["status"] == "round limit", output[-3000:]
    assert record.summary["used"] == NODES * ROUNDS
    assert len(used) == 2
    check_same(record, simulated(CONFIG, tmp_path / "here", num_nodes=NODES), 0.0)
