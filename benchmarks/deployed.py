"""Seconds a round on a SuperLink with SuperNodes: FedFW and Flower's own FedAvg."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import sim
from fedtrellis.objectives import LeastSquares

from .ray import ROOT, environment, free_port, stop_processes
from .report import Aim, Comparison, Spread, ratios

__all__ = ["FULL", "QUICK", "Case", "compare", "round_seconds"]


@dataclass(frozen=True)
class Case:
    """SuperNodes, and how long they are measured: ``runs`` runs of ``rounds``."""

    nodes: int
    runs: int
    rounds: int


QUICK = [Case(4, 1, 5)]
FULL = [Case(4, 3, 8)]

# How a round's line of JSON begins.
_ROUND = '{"event": "round"'

# A project as Flower's quickstarts have it, on the rows of LASSO that each node has
# in a file: one gradient step a round, and no evaluation on the nodes, which would be
# a second wave.
_PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "fedavg"
version = "1.0.0"
description = "Flower's FedAvg on LASSO"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "benchmarks"

[tool.flwr.app.components]
serverapp = "fedavg_app:server"
clientapp = "fedavg_app:client"

[tool.flwr.app.config]
rounds = 5
nodes = 4
data = ""
step = 1e-5
"""
_APP = '''
"""Flower's FedAvg on the rows of LASSO that each node has in a file."""
import json
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


@lru_cache(maxsize=1)
def rows(path):
    with np.load(path) as data:
        return {name: data[name] for name in data.files}


@client.train()
def train(message, context):
    config, data = context.run_config, rows(context.run_config["data"])
    index = context.node_config["partition-id"]
    A, b = data[f"A{index}"], data[f"b{index}"]
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    x = x - config["step"] * 2 * context.node_config["num-partitions"] * A.T @ (
        A @ x - b
    )
    metrics = MetricRecord({"num-examples": len(b)})
    content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
    return Message(content, reply_to=message)


@server.main()
def main(grid, context):
    config, data = context.run_config, rows(context.run_config["data"])
    A = np.concatenate([data[f"A{i}"] for i in range(config["nodes"])])
    b = np.concatenate([data[f"b{i}"] for i in range(config["nodes"])])

    def evaluate(server_round, arrays):
        (x,) = arrays.to_numpy_ndarrays()
        loss = float(np.sum((A @ x - b) ** 2))
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"event": "round", "time": now, "round": server_round}
        line |= {"metrics": {"loss": loss}}
        print(json.dumps(line) + "\\n", end="", flush=True)
        return MetricRecord({"loss": loss})

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=config["nodes"],
        min_available_nodes=config["nodes"],
    )
    strategy.start(
        grid,
        ArrayRecord([np.zeros(A.shape[1])]),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate,
    )
'''


def write_fedavg(folder: Path, objectives: Sequence[LeastSquares]) -> Path:
    """Write the app of FedAvg and its nodes' rows; return the file of the rows."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (folder / "fedavg_app.py").write_text(_APP, encoding="utf-8")
    rows: dict[str, Any] = {}
    for index, objective in enumerate(objectives):
        rows[f"A{index}"] = objective._design.matrix
        rows[f"b{index}"] = objective._labels
    path = folder.with_suffix(".npz")
    np.savez(path, **rows)
    return path


def round_seconds(output: str, rounds: int) -> list[float]:
    """Seconds from one round's end to the next one's, by a run's JSON lines.

    Round 1 is left out: what comes before it differs from app to app.

    Raises
    ------
    RuntimeError
        If a round is missing, or a node's answer was lost.
    """
    ends: dict[int, datetime] = {}
    for text in output.splitlines():
        if _ROUND not in text:
            continue
        line = json.loads(text[text.index("{") :])
        if line.get("rejected"):
            raise RuntimeError(f"answers were lost: {line['rejected']}")
        ends[line["round"]] = datetime.fromisoformat(line["time"])
    if sorted(ends) != list(range(rounds + 1)):
        raise RuntimeError(f"a run of {rounds} rounds failed:\n{output[-3000:]}")
    return [
        (ends[number] - ends[number - 1]).total_seconds()
        for number in range(2, rounds + 1)
    ]


@contextmanager
def deployment(nodes: int, folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Start a SuperLink and its SuperNodes; ``flwr run APP trial`` reaches them.

    Yields
    ------
    (dict, int)
        The environment to run ``flwr`` in, and the SuperLink's process id.
    """
    home, port = folder / "home", free_port()
    home.mkdir()
    variables = {
        **environment(home),
        # both apps run in this environment, as it is
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "trial"\n'
        f'[superlink.trial]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    commands = [["flower-superlink", "--insecure", "--port", str(port)]]
    commands[0] += ["--control-api-address", f"127.0.0.1:{free_port()}"]
    commands += [
        [
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
            *("--port", str(free_port()), "--node-config"),
            f"partition-id={index} num-partitions={nodes}",
        ]
        for index in range(nodes)
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (home / f"process-{number}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=home,
                        env=variables,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            if not number:
                _wait_for(port)
        yield variables, processes[0].pid
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
        stop_processes(home)  # those that they have started


def _wait_for(port: int, timeout: float = 120.0) -> None:
    """Wait until somebody listens on a port."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens on port {port} after {timeout:g} s")


def _cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken, user's and system's."""
    # what follows the name, which may hold anything, in its parentheses
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(
    app: Path, config: dict[str, Any], variables: dict[str, str], superlink: int
) -> tuple[str, float]:
    """What a run prints, and the SuperLink's CPU seconds from round 1 on, a round."""
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = ["flwr", "run", str(app), "trial", "--stream", "--run-config", pairs]
    lines: list[str] = []
    cpu: list[float] = []
    with subprocess.Popen(
        command,
        cwd=app,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if _ROUND in line:
                cpu.append(_cpu_seconds(superlink))
    rounds = max(len(cpu) - 2, 1)
    return "".join(lines), (cpu[-1] - cpu[1]) / rounds if len(cpu) > 2 else 0.0


def _measure(case: Case, result: Comparison) -> None:
    task = sim.app.experiment(
        sim.app.default_config() | {"task": "lasso"}, case.nodes
    ).task
    objectives = [task.client_objective(index) for index in range(case.nodes)]
    least_squares = [item for item in objectives if isinstance(item, LeastSquares)]
    assert len(least_squares) == case.nodes
    # the same step for everybody, small enough for the steepest objective
    step = 1.0 / max(objective.lipschitz() for objective in least_squares)
    seconds: dict[str, list[list[float]]] = {"FedFW": [], "FedAvg": []}
    server_cpu: dict[str, list[float]] = {side: [] for side in seconds}
    loads: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data = write_fedavg(folder / "fedavg", least_squares)
        sides: dict[str, tuple[Path, dict[str, Any]]] = {
            "FedFW": (
                ROOT,
                {
                    "task": "lasso",
                    "fedfw.variant": "plain",
                    "rounds": case.rounds,
                    "min-nodes": case.nodes,
                    "log-format": "json",
                    "results-dir": str(folder / "records"),
                },
            ),
            "FedAvg": (
                folder / "fedavg",
                {
                    "rounds": case.rounds,
                    "nodes": case.nodes,
                    "data": str(data),
                    "step": step,
                },
            ),
        }
        with deployment(case.nodes, folder) as (variables, superlink):
            for run in range(case.runs):
                # who goes first changes from run to run
                for side in list(sides)[:: 1 if run % 2 else -1]:
                    output, cpu = _run(*sides[side], variables, superlink)
                    server_cpu[side].append(cpu)
                    seconds[side].append(round_seconds(output, case.rounds))
                    loads.append(os.getloadavg()[0])
    spreads = {
        side: Spread(tuple(median(run) for run in runs), "s")
        for side, runs in seconds.items()
    }
    ratio = ratios(spreads["FedFW"], spreads["FedAvg"])
    result.rows.append(
        {
            "SuperNodes": case.nodes,
            "runs": f"{case.runs} of {case.rounds}",
            **spreads,
            **{
                f"{side}, fastest round": Spread((min(map(min, runs)),), "s")
                for side, runs in seconds.items()
            },
            "FedFW / FedAvg": ratio,
            **{
                f"{side}, SuperLink's CPU": Spread((min(cpu),), "ms")
                for side, cpu in server_cpu.items()
            },
            "load": f"{min(loads):.1f} to {max(loads):.1f}",
        }
    )
    result.aims.append(
        Aim(
            f"deployed, {case.nodes} SuperNodes: no slower than FedAvg",
            f"{ratio.median:.2f} times FedAvg's round",
            ratio.median <= 1.0,
        )
    )


def compare(cases: Sequence[Case]) -> Comparison:
    """FedFW and FedAvg on SuperNodes, a row a case."""
    result = Comparison(
        "deployed",
        "FedFW against Flower's FedAvg, deployed: seconds per round",
        "One SuperLink and the SuperNodes on this machine, without TLS; LASSO "
        "(p = 400), each node's rows the same for both. FedAvg takes one gradient "
        "step a round and has no evaluation on the nodes, which would be a second "
        "wave; both evaluate on the server. From one round's end to the next one's, "
        "round 1 left out; the medians of runs in turns (min – max). The SuperLink's "
        "CPU time is that of a round, the nodes' polling included.",
    )
    for case in cases:
        _measure(case, result)
    return result
