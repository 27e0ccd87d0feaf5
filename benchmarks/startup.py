"""What ``python sim.py`` takes before its first round, and after its last."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .ray import ROOT, environment
from .report import Aim, Comparison, Spread

__all__ = ["FULL", "QUICK", "compare"]

QUICK, FULL = 2, 7
#: Seconds of CPU that a run of a task without heavy libraries may take.
_AIM = 1.5


@dataclass(frozen=True)
class Case:
    """A command, and what it is here to show."""

    name: str
    arguments: tuple[str, ...]
    aimed: bool = False


_RUN = "rounds=2 task="
_NODE = "from fedtrellis import client_app; from fedtrellis.clients import FedFWClient"
CASES = (
    Case("import flwr", ("-c", "import flwr")),
    Case("import fedtrellis", ("-c", "import fedtrellis")),
    Case("what a node's app imports", ("-c", _NODE)),
    Case("what a server's app imports", ("-c", "import fedtrellis.strategies")),
    Case("python, importing NumPy and Flower", ("-c", "import numpy, flwr.serverapp")),
    Case(
        "python sim.py, lasso, picture=false",
        ("sim.py", "-c", f'{_RUN}"lasso" picture=false'),
        aimed=True,
    ),
    Case("the same with the picture (Matplotlib)", ("sim.py", "-c", f'{_RUN}"lasso"')),
    Case(
        "python sim.py, digits, picture=false (scikit-learn)",
        ("sim.py", "-c", f'{_RUN}"digits" picture=false'),
    ),
    Case("the same with the picture", ("sim.py", "-c", f'{_RUN}"digits"')),
)


def _run(case: Case, home: Path, env: Mapping[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of one process, from its start to its end."""
    settings = case.arguments[-1] + f' results-dir="{home}"'
    arguments = case.arguments
    if arguments[0] == "sim.py":
        arguments = (*arguments[:-1], settings)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, check=True, capture_output=True
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def compare(repetitions: int) -> Comparison:
    """CPU and wall seconds of a run of two rounds, a row a command."""
    result = Comparison(
        "start-up",
        "python sim.py, two rounds: seconds from its start to its end",
        "Two rounds on 10 nodes take hundredths of a second: the rest is imports, "
        "data, record and picture. Commands in turns, the first turn left out; median "
        f"(min – max) of {repetitions}.",
    )
    times: dict[str, list[tuple[float, float]]] = {case.name: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        # with compiled modules, as after the first run, but not in the checkout
        env = environment(Path(folder)) | {"PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(repetitions + 1):
            for case in CASES:
                times[case.name].append(_run(case, Path(folder), env))
    for case in CASES:
        cpu, wall = (Spread(v, "s") for v in zip(*times[case.name][1:], strict=True))
        result.rows.append({"command": case.name, "CPU": cpu, "wall": wall})
        if case.aimed:
            result.aims.append(
                Aim(
                    f"{case.name}: within {_AIM} s of CPU",
                    str(cpu),
                    cpu.median <= _AIM,
                )
            )
    return result
