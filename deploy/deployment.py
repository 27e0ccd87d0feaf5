"""A SuperLink and SuperNodes as processes on this machine, for trials and tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedtrellis.encryption.certificates import reach
from fedtrellis.encryption.identity import write_identity, write_roster

from .cases import NODES, Files, write_data

__all__ = ["Deployment", "TrialError", "free_port", "processes_with"]

HERE = Path(__file__).resolve().parent
PATIENCE = 300.0  # seconds: on a busy machine, processes take their time to start


class TrialError(Exception):
    """Something did not happen that should have."""


_held: list[socket.socket] = []


def free_port() -> int:
    """Return a port for one server of this machine: nobody else gets it by chance."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    # a server that sets it too can listen there, although the port stays taken
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(held)
    return int(held.getsockname()[1])


class Deployment:
    """A SuperLink and its SuperNodes on this machine, in a folder of their own.

    Parameters
    ----------
    folder : Path
        Empty; gets certificates, keys, data, logs, records and the SuperLink's state.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.node_ids: set[str] = set()
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.intruders: dict[str, subprocess.Popen[bytes]] = {}
        programs = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "TMPDIR": str(folder / "tmp"),
            "OPENBLAS_NUM_THREADS": "1",  # all nodes share this machine's cores
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    # -- files

    def make_files(self) -> None:
        """Make certificates, keys, data, and Flower's config for ``flwr``."""
        for name in ("flower", "tmp", "logs"):
            (self.folder / name).mkdir(parents=True)
        self._script("certificates.sh", self.folder / "certificates", "127.0.0.1")
        self._script("node-keys.sh", self.folder / "keys", *NODES, "stranger")
        write_data(self.folder / "data")
        (self.folder / "flower" / "config.toml").write_text(
            '[superlink]\ndefault = "trial"\n\n[superlink.trial]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.authority}"\n'
        )

    def make_encryption_keys(self) -> None:
        """Make an identity for each node, and the roster of all."""
        secrets = self.folder / "secrets"
        secrets.mkdir(mode=0o700)
        made = {node: write_identity(secrets / f"{node}.key", node) for node in NODES}
        publics = {node: identity.public for node, identity in made.items()}
        write_roster(secrets / "roster.toml", publics)

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.folder / "certificates" / "ca.crt"

    def node_config(self, node: str, files: Files) -> dict[str, str | int]:
        """Return what one node knows, and nobody else."""
        secrets = self.folder / "secrets"
        config: dict[str, str | int] = {
            "client-id": node,
            "data": str(self.folder / "data" / files.split()[-1] / f"{node}.csv"),
            "identity-file": str(secrets / f"{node}.key"),
            "roster-file": str(secrets / "roster.toml"),
        }
        if files == "hidden blocks":
            # of four nodes two have each feature: their owners know and allow it
            config["least"] = 2
            # and that sums of another file may have been released before
            config["releases"] = "once"
        else:
            config["exposed"] = "accept"  # most methods' answers
        return config

    # -- starting

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it answers over TLS."""
        certificates, state = self.folder / "certificates", self.folder / "superlink"
        command = (HERE / "superlink.sh", certificates, state, "--port", self.port)
        self.superlink = self._start("superlink", *command)
        self.wait_for(self._answers, "the SuperLink to answer")

    def register(self) -> None:
        """Register the nodes' public keys; without that nobody gets in."""
        for node in NODES:
            key = self.folder / "keys" / f"{node}.pub"
            # a name binds what the node calls itself in a run to its key
            command = ("supernode", "register", key, "trial", "--name", node)
            text = self.flwr(*command, "--format", "json")
            self.node_ids.add(str(_json(text)["node-id"]))

    def start_nodes(self, files: Files) -> None:
        """Start the SuperNodes, each with its own key and file; wait for them."""
        for node in NODES:
            self.start_node(node, files)
        self.wait_for(lambda: self.online() == self.node_ids, "the nodes to be online")

    def start_node(self, node: str, files: Files) -> None:
        """Start one SuperNode."""
        config = self.node_config(node, files)
        self.nodes[node] = self._start(
            node,
            HERE / "supernode.sh",
            f"127.0.0.1:{self.port}",
            self.authority,
            self.folder / "keys" / node,
            " ".join(f"{key}={json.dumps(value)}" for key, value in config.items()),
            "--port",
            free_port(),
        )

    def start_intruders(self) -> None:
        """Start four nodes that must not get in."""
        address, other = f"127.0.0.1:{self.port}", self.folder / "other"
        self._script("certificates.sh", other, "127.0.0.1")
        more = (self.folder / "keys" / "stranger", config := 'client-id="intruder"')
        node = ("flower-supernode", "--superlink", address, "--node-config", config)
        script = (HERE / "supernode.sh", address)
        for name, command in (
            ("unregistered-key", (*script, self.authority, *more)),
            ("other-authority", (*script, other / "ca.crt", *more)),
            ("no-key", (*node, "--root-certificates", self.authority)),
            ("plain-http", (*node, "--insecure")),
        ):
            self.intruders[name] = self._start(name, *command, "--port", free_port())

    # -- what goes on

    def flwr(self, *arguments: object, log: Path | None = None) -> str:
        """Run the ``flwr`` command and return what it printed."""
        done = subprocess.run(
            ["flwr", *map(str, arguments)],
            cwd=HERE.parent,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        if log is not None:
            log.write_text(done.stdout)
        if done.returncode:
            raise TrialError(f"flwr {arguments[0]} failed: {done.stdout[-2000:]}")
        return done.stdout

    def listed(self) -> dict[str, str]:
        """Return the status of every node that the SuperLink knows, by its id."""
        nodes = _json(self.flwr("supernode", "list", "trial", "--format", "json"))
        return {str(node["node-id"]): str(node["status"]) for node in nodes["nodes"]}

    def online(self) -> set[str]:
        """Return the ids of the nodes that are there."""
        return {node for node, status in self.listed().items() if status == "online"}

    def wait_for(self, happened: Callable[[], object], what: str) -> None:
        """Wait until something has happened, as long as all processes are alive."""
        end = time.monotonic() + PATIENCE
        while not happened():
            for name, process in {"superlink": self.superlink, **self.nodes}.items():
                if process is not None and process.poll() is not None:
                    raise TrialError(f"{name} has ended:\n{self.log(name)[-2000:]}")
            if time.monotonic() > end:
                raise TrialError(f"waited {PATIENCE:.0f} s for {what}")
            time.sleep(0.3)

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def check_runs(self, count: int) -> None:
        """Raise a TrialError unless Flower calls all runs completed."""
        runs = _json(self.flwr("list", "trial", "--format", "json"))["runs"]
        statuses = [str(run["status"]) for run in runs]
        if statuses != ["finished:completed"] * count:
            raise TrialError(f"{count} runs, but Flower lists {statuses}")

    def check_intruders(self) -> None:
        """Raise a TrialError unless all four have been kept out."""
        for name in ("unregistered-key", "other-authority", "no-key"):
            process = self.intruders[name]
            self.wait_for(lambda p=process: p.poll() is not None, f"{name} to end")  # type: ignore[misc]
            if not process.returncode:
                raise TrialError(f"{name} ended as if all were well:\n{self.log(name)}")
        self.wait_for(
            lambda: "Connection attempt failed" in self.log("plain-http"),
            "plain-http to try",
        )
        if set(self.listed()) != self.node_ids:
            raise TrialError(f"registered {self.node_ids}, listed {self.listed()}")

    # -- stopping

    def stop_nodes(self) -> None:
        """Stop the SuperNodes, which sign off, so that they may come back at once."""
        _end(list(self.nodes.values()))
        self.nodes.clear()

    def stop_superlink(self) -> None:
        """Stop the SuperLink; its database stays."""
        if self.superlink is not None:
            _end([self.superlink])
        self.superlink = None

    def stop(self) -> None:
        """Stop everything that was started here."""
        _end([*self.nodes.values(), *self.intruders.values()])
        self.stop_superlink()
        # What Flower's processes started ends by itself, soon. Where one can see who
        # belongs here, wait for that no longer.
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        for pid in processes_with(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- helpers

    def _start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the trial, which ends them
            )

    def _script(self, name: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(HERE / name), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise TrialError(f"{name}: {done.stdout}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(reach(f"127.0.0.1:{self.port}", str(self.authority)))
        return False


def _json(text: str) -> Any:
    return json.loads(text[text.index("{") :])


def processes_with(mark: bytes) -> list[int]:
    """Return the ids of processes with this in their environment (on Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _end(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 60.0) -> None:
    """Ask processes to end, and end those that do not."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
