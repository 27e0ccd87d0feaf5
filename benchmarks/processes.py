"""Processes that a measurement starts: their environment, their CPU time, their end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from deploy.deployment import free_port, processes_with

__all__ = ["ROOT", "cpu_seconds", "environment", "processes_of", "stop_processes"]

ROOT = Path(__file__).resolve().parents[1]


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
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def processes_of(home: Path) -> list[int]:
    """Process ids of all processes that have this FLWR_HOME."""
    return processes_with(f"FLWR_HOME={home}".encode())


def stop_processes(home: Path) -> None:
    """End what was left running: Flower's processes, and Ray."""
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
