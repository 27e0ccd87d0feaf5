"""A SuperLink and SuperNodes that tests kill, and what runs there should come to."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from flower_process import ROOT, Flower, free_port
from flwr.app import ConfigRecord, Message

import sim
from fedtrellis import LocalGrid
from fedtrellis.app.command_line import read_config
from fedtrellis.server.records import to_toml
from fedtrellis.wire.protocol import client_identity
from tests.harness import history_of, model_of

#: SuperNodes of a deployment, and nodes of a simulation.
NODES = 2

#: A small problem of each family of methods.
FAMILIES = {
    "fedfw": 'task="lasso" lasso.rows=30 lasso.columns=20 fedfw.variant="plain"',
    "fedgia": 'method="fedgia" task="linear-regression" linear-regression.features=9 '
    "linear-regression.rows-min=20 linear-regression.rows-max=30 "
    "fedgia.tolerance=0.0 fedgia.selected-fraction=1.0",
    "first-order": 'method="first-order-rfl" task="kernel-pca" '
    'kernel-pca.dataset="iris" kernel-pca.components=2 '
    "first-order-rfl.step-size=0.01",
    "zeroth-order": 'method="zeroth-order-rfl" task="kernel-pca" '
    'kernel-pca.dataset="iris" kernel-pca.components=2 '
    "zeroth-order-rfl.step-size=0.01 zeroth-order-rfl.samples=20",
    "hyfdca": 'method="hyfdca" task="hybrid-svm" hybrid-svm.dataset="breast-cancer" '
    'hybrid-svm.partition="vertical" hyfdca.tolerance=0.0 hyfdca.backup-every=2 '
    # what is mixed at random for masked sums follows from keys of the run
    'hyfdca.secure-sum=false hyfdca.exposed="accept"',
}

#: A client, a round and a message type.
Where = tuple[str, int, str]


def make_bundle(folder: Path) -> Path:
    """The folder of a Flower app that is the checkout's, with faults."""
    folder.mkdir()
    source = Path(__file__).with_name("faulty_app.py")
    shutil.copy(source, folder / "faulty_app.py")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "faulty"\nversion = "1.0.0"\n'
        'description = "fails"\n'
        'license = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "fedtrellis"\n'
        "[tool.flwr.app.components]\n"
        'serverapp = "faulty_app:server_app"\nclientapp = "faulty_app:client_app"\n'
        f"[tool.flwr.app.config]\n{to_toml(sim.app.default_config())}"
    )
    return folder


class Record:
    """What a run wrote down so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def summary(self) -> dict[str, Any]:
        text = (self.directory / "summary.json").read_text()
        return cast(dict[str, Any], json.loads(text))

    @property
    def history(self) -> list[dict[str, Any]]:
        return history_of(self.directory)

    @property
    def rounds(self) -> int:
        history = self.history
        return int(history[-1]["round"]) if history else 0

    @property
    def model(self) -> Any:
        return model_of(self.directory)

    def dropped(self) -> dict[tuple[str, int], str]:
        """Why the answers that were not used were not, by client and round."""
        return {
            (str(who), record["round"]): str(why)
            for record in self.history
            for who, why in record["rejected"]
            if not str(who).startswith("on node")
        }

    @property
    def checkpoint_round(self) -> int:
        with np.load(self.directory / "checkpoint.npz") as file:
            return int(json.loads(file["meta"].tobytes())["round"])

    def resume_file(self, results: Path, **changes: Any) -> Path:
        """What ``--run-config`` takes to go on, with the new record elsewhere."""
        path = self.directory / "resume-elsewhere.toml"
        again = read_config([str(self.directory / "resume.toml")])
        path.write_text(to_toml(again | {"results-dir": str(results)} | changes))
        return path


class Deployment:
    """A SuperLink and SuperNodes, which can be killed and started again one by one.

    Everything goes to one folder, the processes' logs among it.
    """

    def __init__(self, flower: Flower, num_nodes: int, folder: Path) -> None:
        self.flower = flower
        self.num_nodes = num_nodes
        self.folder = folder
        self.faults = folder / "faults"
        self.faults.mkdir(parents=True)
        self.bundle = make_bundle(folder / "bundle")
        self.port = free_port()
        self.control = free_port()
        #: Where HyFDCA's clients keep a run's key, also those in this process.
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        flower.environment |= {
            "FEDTRELLIS_FAULTS": str(self.faults),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "TMPDIR": str(self.temporary),
        }
        (flower.home / "config.toml").write_text(
            '[superlink]\ndefault = "trial"\n'
            f'[superlink.trial]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        # a database on a busy disk answers so late that nodes register in vain
        memory = Path("/dev/shm")
        self.memory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.logs: list[Path] = []
        #: What the nodes know of as their key file, and whether they do.
        self.key = folder / "clients.key"
        self.keys = True
        self.link = self._start_link()
        self.nodes = {k: self._start_node(k) for k in range(num_nodes)}

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.logs)}-{name}.log"
        self.logs.append(log)
        with log.open("w") as file:
            return subprocess.Popen(
                arguments,
                cwd=self.folder,
                env=self.flower.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _start_link(self) -> subprocess.Popen[bytes]:
        link = self._start(
            "link",
            *("flower-superlink", "--insecure", "--port", str(self.port)),
            *("--control-api-address", f"127.0.0.1:{self.control}"),
            *("--database", str(self.memory / "state.db")),
        )
        wait_for(lambda: listening(self.port), 300, "the SuperLink does not listen")
        return link

    def _start_node(self, k: int) -> subprocess.Popen[bytes]:
        # with a key of its own a node goes by its own rules
        key = f'key-file="{self.key}" exposed="accept"' if self.keys else ""
        node = self._start(
            f"node-{k}",
            *("flower-supernode", "--insecure", "--port", str(free_port())),
            *("--superlink", f"127.0.0.1:{self.port}", "--node-config"),
            f"partition-id={k} num-partitions={self.num_nodes} "
            f'factor-file="{self.factor_file(k)}" {key}',
        )
        (self.faults / f"{k}.pid").write_text(str(node.pid))
        return node

    def factor_file(self, k: int) -> Path:
        """Where a node keeps FedGiA's factor."""
        return self.folder / f"factor-{k}.npz"

    def give_keys(self, keys: bool) -> None:
        """Start the nodes anew, unless they know of a key file as they should."""
        if keys == self.keys:
            return
        self.keys = keys
        for node in self.nodes.values():
            node.terminate()
        for k in self.nodes:
            self.restart_node(k)
        wait_for(lambda: self.online() == self.num_nodes, 300, "nodes come and go")

    def online(self) -> int:
        """How many nodes the SuperLink has."""
        text = self.flower("supernode", "list", "trial", "--format", "json")
        listed = json.loads(text[text.index("{") :])
        return sum(node["status"] == "online" for node in listed["nodes"])

    def revive(self) -> None:
        """Start what a test has left dead, and forget faults that it never met."""
        if self.link.poll() is not None:
            self.link = self._start_link()
        for k, node in self.nodes.items():
            if node.poll() is not None:
                self.nodes[k] = self._start_node(k)
        for path in self.faults.glob("*-*"):
            path.unlink()

    # ------------------------------------------------------------------------- faults

    def restart_node(self, k: int) -> None:
        """Start a SuperNode in place of one, once that is dead."""
        self.nodes[k].wait(timeout=900)
        self.nodes[k] = self._start_node(k)

    def restart_link(self) -> None:
        """Kill the SuperLink, and start another on its database."""
        self.link.kill()
        self.link.wait(timeout=60)
        self.link = self._start_link()

    def kill_server_app(self) -> None:
        """End the process in which the run's ServerApp is."""
        os.kill(int((self.faults / "server.pid").read_text()), signal.SIGKILL)

    # --------------------------------------------------------------------------- runs

    def start(self, config: str, parent: Path) -> Record:
        """Start a run, by its settings or by a file of them; wait for its record."""
        before = set(parent.glob("*"))
        if not config.endswith(".toml"):
            config += f' min-nodes={self.num_nodes} results-dir="{parent}"'
        output = self.flower("run", str(self.bundle), "trial", "--run-config", config)
        found: set[Path] = set()

        def begun() -> bool:
            found.update(set(parent.glob("*")) - before)
            return any((path / "summary.json").is_file() for path in found)

        wait_for(begun, 400, f"no record: {output[-2000:]}")
        (directory,) = found
        return Record(directory)

    def finish(self, record: Record, limit: float = 1200) -> None:
        """Wait for the end of a run, which has to be a good one."""
        wait_for(lambda: record.summary["status"] != "running", limit, "it goes on")
        assert record.summary["status"] == "round limit", record.summary

    def run(self, config: str, parent: Path) -> Record:
        """Run to the end."""
        record = self.start(config, parent)
        self.finish(record)
        return record

    def stop(self) -> None:
        for process in [*self.nodes.values(), self.link]:
            process.terminate()
        for process in [*self.nodes.values(), self.link]:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)
        shutil.rmtree(self.memory)


def listening(port: int) -> bool:
    """Whether somebody accepts connections on a port of this machine."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], limit: float, what: str) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"after {limit} s: {what}"
        time.sleep(0.2)


class ScriptedGrid(LocalGrid):
    """Faults strike where a script says: each entry's sets, one message after another.

    A message type of ``""`` is a client's first message of a round, whatever its type.
    """

    script: dict[Where, list[set[str]]]

    def _strikes(self, message: Message) -> set[str]:
        context = self._contexts[message.metadata.dst_node_id]
        config = cast(ConfigRecord, message.content.get("config", ConfigRecord()))
        client = client_identity(context)
        server_round = cast(int, config.get("server-round", 0))
        strikes: set[str] = set()
        for kind in ("", message.metadata.message_type):
            planned = self.script.get((client, server_round, kind))
            if planned:
                strikes |= planned.pop(0)
        return strikes


def simulated(
    config: str,
    num_nodes: int,
    parent: Path,
    script: Mapping[Where, Sequence[set[str]]] | None = None,
) -> Record:
    """The same run in this process, with the faults of a script."""
    full = sim.app.default_config() | read_config([config])
    full["results-dir"] = str(parent)
    grid = ScriptedGrid(
        sim.client_app, num_nodes, seed=int(full["seed"]), run_config=full
    )
    grid.script = {where: list(what) for where, what in (script or {}).items()}
    directory = sim.app.run(grid, full)
    assert not any(grid.script.values()), f"never struck: {grid.script}"
    return Record(directory)


def check_same(record: Record, expected: Record, tolerance: float = 1e-9) -> None:
    """The models of two runs agree, and are some."""
    model = expected.model
    assert np.abs(model).sum() > 0.1
    np.testing.assert_allclose(record.model, model, rtol=0, atol=tolerance)
