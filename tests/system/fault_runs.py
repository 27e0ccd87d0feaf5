"""A SuperLink and SuperNodes that tests kill, and what runs there should come to."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
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
from tests.harness import history_of, model_of, wait_for

#: SuperNodes of a deployment, and nodes of a simulation.
NODES = 3

#: A small problem of each family of methods.
FAMILIES = {
    "fedfw": 'task="lasso" lasso.rows=30 lasso.columns=20 fedfw.variant="plain"',
    "fedgia": 'method="fedgia" task="linear-regression" linear-regression.features=9 '
    "linear-regression.rows-min=20 linear-regression.rows-max=30 "
    "fedgia.tolerance=0.0 fedgia.selected-fraction=1.0",
    "secure-sums": 'method="fedavg-gd" task="linear-regression" '
    'linear-regression.features=9 fedavg-gd.step-schedule="constant" '
    'aggregation="secure-sum"',
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

BUNDLE = f"""[project]
name = "faulty"
version = "1.0.0"
description = "fails"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedtrellis"
[tool.flwr.app.components]
serverapp = "faulty_app:server_app"
clientapp = "faulty_app:client_app"
[tool.flwr.app.config]
{to_toml(sim.app.default_config())}"""


class Record:
    """What a run wrote down so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def summary(self) -> Any:
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def history(self) -> list[dict[str, Any]]:
        return history_of(self.directory)

    def dropped(self, but: str = "for no reason") -> list[tuple[str, int]]:
        """The answers that were not used, but for some reason, by client and round."""
        return [
            (str(who), record["round"])
            for record in self.history
            for who, why in record["rejected"]
            if not str(who).startswith("on node") and but not in why
        ]

    def resume_file(self, results: Path, **changes: Any) -> str:
        """What ``--run-config`` takes to go on, with the new record elsewhere."""
        path = self.directory / "resume-elsewhere.toml"
        again = read_config([str(self.directory / "resume.toml")])
        path.write_text(to_toml(again | {"results-dir": str(results)} | changes))
        return str(path)


class Deployment(Flower):
    """A SuperLink and SuperNodes, which can be killed and started again one by one.

    Everything goes to one folder, the processes' logs among it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults = folder, folder / "faults"
        #: Where HyFDCA's clients keep a run's key, also those in this process.
        self.temporary = folder / "tmp"
        self.bundle = folder / "bundle"
        for path in (folder / "home", self.faults, self.temporary, self.bundle):
            path.mkdir(parents=True)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            folder / "home",
            FEDTRELLIS_FAULTS=str(self.faults),
            PYTHONPATH=os.pathsep.join(path for path in paths if path),
            TMPDIR=str(self.temporary),
        )
        shutil.copy(Path(__file__).with_name("faulty_app.py"), self.bundle)
        (self.bundle / "pyproject.toml").write_text(BUNDLE)
        self.port = free_port()
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "trial"\n'
            f'[superlink.trial]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        # a database on a busy disk answers so late that nodes register in vain
        memory = Path("/dev/shm")
        self.memory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.link = self._start_link()
        self.nodes = {k: self._start_node(k) for k in range(NODES)}

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [*arguments, "--insecure"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def _start_link(self) -> subprocess.Popen[bytes]:
        link = self._start(
            "link",
            *("flower-superlink", "--port", str(self.port)),
            *("--database", str(self.memory / "state.db")),
        )

        def listens() -> bool:
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", self.port)) == 0

        self.wait_for(listens, 300, "the SuperLink does not listen")
        return link

    def _start_node(self, k: int, *before: str) -> subprocess.Popen[bytes]:
        node = self._start(
            f"node-{k}",
            *(*before, "flower-supernode", "--port", str(free_port())),
            *("--superlink", f"127.0.0.1:{self.port}", "--node-config"),
            f"partition-id={k} num-partitions={NODES}",
        )
        (self.faults / f"{k}.pid").write_text(str(node.pid))
        return node

    def revive(self) -> None:
        """Start what a test has left dead, and forget faults that it never met."""
        if self.link.poll() is not None:
            self.link = self._start_link()
        for k, node in self.nodes.items():
            if node.poll() is not None:
                self.nodes[k] = self._start_node(k)
        for path in self.faults.glob("*-*"):
            path.unlink()

    def restart_node(self, k: int, *before: str) -> None:
        """Start a SuperNode in place of one, once that is dead; by another program."""
        self.nodes[k].wait(timeout=900)
        self.nodes[k] = self._start_node(k, *before)

    def restart_link(self) -> None:
        """Kill the SuperLink, and start another on its database."""
        self.link.kill()
        self.link.wait(timeout=60)
        self.link = self._start_link()

    def start(self, config: str, parent: Path) -> Record:
        """Start a run, by its settings or by a file of them; wait for its record."""
        before = set(parent.glob("*"))
        if not config.endswith(".toml"):
            config += f' min-nodes={NODES} results-dir="{parent}"'
        output = self("run", str(self.bundle), "trial", "--run-config", config)

        def begun() -> list[Path]:
            found = set(parent.glob("*")) - before
            return [path for path in found if (path / "summary.json").is_file()]

        def alive() -> bool:
            return all(p.poll() is None for p in (self.link, *self.nodes.values()))

        self.wait_for(lambda: bool(begun()) or not alive(), 400, f"no record: {output}")
        assert begun(), f"a process has ended\n{self.logs()}"
        (directory,) = begun()
        return Record(directory)

    def finish(self, record: Record) -> None:
        """Wait for the end of a run, which has to be a good one."""
        self.wait_for(lambda: record.summary["status"] != "running", 1200, "it goes on")
        assert record.summary["status"] == "round limit", record.summary

    def wait_for(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        """Wait until something has happened; if it does not, show the logs."""
        wait_for(condition, limit, what, self.logs)

    def logs(self) -> str:
        """What each process wrote last."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in files)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.memory)


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
    parent: Path,
    script: Mapping[Where, Sequence[set[str]]] | None = None,
    num_nodes: int = NODES,
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
    model = model_of(expected.directory)
    assert np.abs(model).sum() > 0.1
    np.testing.assert_allclose(model_of(record.directory), model, 0, tolerance)
