"""``flwr run`` on Ray, with processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "RayRun",
    "environment",
    "free_port",
    "processes_of",
    "run_on_ray",
    "stop_processes",
]

ROOT = Path(__file__).resolve().parents[1]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class RayRun:
    """What a run left in its record, and how long the command took."""

    history: list[dict[str, Any]]
    wall_seconds: float


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Return an environment with a FLWR_HOME, ports and one BLAS thread of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Ray's workers give way to everybody else by default
        "RAY_worker_niceness": "0",
        # Flower looks for its own commands, such as flower-superlink, on the path
        "PATH": path,
        # as many BLAS threads as this process uses
        **dict.fromkeys(_THREADS, "1"),
    }


def processes_of(home: Path) -> list[int]:
    """Process ids of all processes that have this FLWR_HOME."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def stop_processes(home: Path) -> None:
    """End what ``flwr run`` left running: a SuperLink, and Ray."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_of(home):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        for _ in range(50):
            if not processes_of(home):
                return
            time.sleep(0.1)


def run_on_ray(nodes: int, config: Mapping[str, Any], timeout: float = 900) -> RayRun:
    """Run the app once, on a SuperLink and a Ray of its own.

    Parameters
    ----------
    nodes : int
        Simulated nodes.
    config : mapping
        Overrides of the run config.
    timeout : float
        Seconds for the whole command.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, records = Path(folder) / "home", Path(folder) / "records"
        home.mkdir()
        pairs = {**config, "results-dir": str(records)}
        command = ["flwr", "run", ".", "--stream"]
        # one core a client: as many Ray actors as the machine has cores
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        command += ["--federation-config", federation, "--run-config"]
        command += [" ".join(f"{key}={json.dumps(pairs[key])}" for key in pairs)]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(home),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
                check=False,
            )
            wall = time.perf_counter() - began
        finally:
            stop_processes(home)
        found = list(records.glob("*/history.jsonl"))
        summaries = [json.loads(p.read_text()) for p in records.glob("*/summary.json")]
        if len(found) != 1 or summaries[0]["status"] != "completed":
            raise RuntimeError(f"the run on Ray failed:\n{done.stdout[-3000:]}")
        lines = found[0].read_text(encoding="utf-8").splitlines()
        return RayRun([json.loads(line) for line in lines], wall)
