"""``flwr run`` on Ray, with processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "ROOT",
    "RayRun",
    "cpu_seconds",
    "environment",
    "free_port",
    "processes_of",
    "run_on_ray",
    "stop_processes",
]

ROOT = Path(__file__).resolve().parents[1]
# How a round's line of JSON begins.
_ROUND = '{"event": "round"'
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class RayRun:
    """What a run printed of its rounds, as JSON lines, and what it cost.

    Attributes
    ----------
    history : list of dict
        The events ``round``, round 0 first, each with its ``time``.
    cpu_seconds : float
        CPU time a round, of all processes, from the end of round 1 on.
    wall_seconds : float
        Of the whole command.
    """

    history: list[dict[str, Any]]
    cpu_seconds: float
    wall_seconds: float

    def round_seconds(self) -> list[float]:
        """Seconds from one round's end to the next one's, after round 1."""
        ends = [when(line) for line in self.history[1:]]
        return [after - before for before, after in pairwise(ends)]


def when(line: Mapping[str, Any]) -> float:
    """When a line was printed, in seconds since the epoch."""
    return datetime.fromisoformat(line["time"]).timestamp()


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
        # apps run in this environment, as it is
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
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


def cpu_seconds(home: Path) -> float:
    """CPU time so far of all processes that have this FLWR_HOME."""
    ticks = 0
    for pid in processes_of(home):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        # after the name, which may have spaces: state is field 3, utime field 14
        fields = stat.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class _Meter(threading.Thread):
    """Notes down the CPU time of all processes of a FLWR_HOME, twice a second."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home = home
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.5):
            self.cpu.append(cpu_seconds(self.home))
            self.times.append(time.time())

    def between(self, start: float, end: float) -> float:
        """CPU seconds between two times."""
        first, last = np.interp([start, end], self.times, self.cpu)
        return float(last - first)


def run_on_ray(
    nodes: int,
    config: Mapping[str, Any],
    timeout: float = 900,
    app: Path = ROOT,
    one_thread: bool = True,
) -> RayRun:
    """Run an app once, on a SuperLink and a Ray of its own.

    Parameters
    ----------
    nodes : int
        Simulated nodes.
    config : mapping
        Overrides of the run config.
    timeout : float
        Seconds for the whole command.
    app : Path
        The folder of one that prints its rounds as this one does with
        ``log-format="json"``.
    one_thread : bool
        Whether BLAS has one thread in every process; else what a user gets.

    Raises
    ------
    RuntimeError
        A round is missing, or an answer was lost.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, records = Path(folder) / "home", Path(folder) / "records"
        home.mkdir()
        pairs = dict(config)
        if app == ROOT:
            pairs |= {"results-dir": str(records), "log-format": "json"}
        command = ["flwr", "run", str(app), "--stream"]
        # one core a client: as many Ray actors as the machine has cores
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        command += ["--federation-config", federation, "--run-config"]
        command += [" ".join(f"{key}={json.dumps(pairs[key])}" for key in pairs)]
        variables = environment(home)
        if not one_thread:
            variables = {k: v for k, v in variables.items() if k not in _THREADS}
        meter = _Meter(home)
        meter.start()
        began = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                cwd=app,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
                check=False,
            )
            wall = time.perf_counter() - began
        finally:
            meter.ended.set()
            stop_processes(home)
        lines = [x for x in done.stdout.splitlines() if x.startswith(_ROUND)]
        history = [json.loads(line) for line in lines]
        if [line["round"] for line in history] != list(range(pairs["rounds"] + 1)):
            raise RuntimeError(f"the run on Ray failed:\n{done.stdout[-3000:]}")
        lost = [line["rejected"] for line in history if line.get("rejected")]
        if lost:
            raise RuntimeError(f"answers were lost: {lost[0][0]}")
        cpu = meter.between(when(history[1]), when(history[-1]))
        return RayRun(history, cpu / max(len(history) - 2, 1), wall)
