"""Flower's processes for tests: a home, ports and a SuperLink of their own."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, processes_of, stop_processes
from deploy.deployment import free_port

__all__ = ["ROOT", "Flower", "free_port", "processes_of"]


class Flower:
    """The ``flwr`` command with a home of its own.

    By default programs and folder are those of this process and of the checkout.
    """

    def __init__(
        self,
        home: Path,
        programs: Path | None = None,
        cwd: Path = ROOT,
        **environment: str,
    ) -> None:
        self.home = home
        self.cwd = cwd
        programs = programs or Path(sys.executable).parent
        self.program = str(programs / "flwr")
        self.environment = {
            **os.environ,
            # At its end a run removes the environment made for it, and is marked as
            # failed if that takes longer than 5 s, as on a busy disk. What is made
            # there is tested with the examples.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            **environment,
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            # Flower looks for its own commands, such as flower-superlink, on the path
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def __call__(self, *arguments: str, timeout: float = 400) -> str:
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        ).stdout

    def run(self, config: str, nodes: int | str, limit: float = 400) -> str:
        """A simulation, to its end; what it prints."""
        federation = ("--federation-config", f"num-supernodes={nodes}")
        how = ("--run-config", config) if config else ()
        return self("run", ".", "--stream", *federation, *how, timeout=limit)

    def newest(self, *where: str) -> Any:
        """The newest run, as it is listed."""
        text = self("list", *where, "--format", "json")
        # a busy SuperLink may not have answered in time
        runs = json.loads(text[text.index("{") :]).get("runs") or [{"status": "no run"}]
        return max(runs, key=lambda run: run.get("pending-at", ""))

    def status(self) -> str:
        """Status of the newest run, once it has finished."""
        for _ in range(120):
            if (status := str(self.newest()["status"])).startswith("finished"):
                break
            time.sleep(1)
        return status

    def processes(self, *names: str) -> list[int]:
        """Its processes whose command has one of these names in it."""
        pids = []
        for pid in processes_of(self.home):
            with suppress(OSError):  # it has ended meanwhile
                command = Path(f"/proc/{pid}/cmdline").read_text()
                pids += [pid] if any(name in command for name in names) else []
        return pids

    def stop(self) -> None:
        stop_processes(self.home)
