"""Hundreds of nodes on Ray: all take part, and no run hangs."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from flower_process import ROOT, Flower

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

NODES = 300


@pytest.fixture(scope="module")
def simulation() -> Iterator[Flower]:
    # pytest's own folders are too deep for Ray's sockets
    folder = Path(tempfile.mkdtemp())
    # Ray lets its actors run after everything else on the machine; BLAS has the
    # threads that a user's has
    flower = Flower(
        folder, RAY_worker_niceness="0", TMPDIR=str(folder), PYTHONPATH=str(ROOT)
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        flower.environment.pop(name, None)
    yield flower
    flower.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_all_nodes_of_a_simulation_take_part_from_round_1(simulation: Flower) -> None:
    app = Path(__file__).with_name("ray_nodes_app.py")
    done = subprocess.run(
        [sys.executable, str(app), str(NODES)],
        cwd=app.parent,
        env=simulation.environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert f"took part: {NODES} {NODES} {NODES}" in done.stdout, done.stderr[-3000:]
    assert f"The run goes with {NODES} nodes: the whole federation" in (
        done.stdout + done.stderr
    )
