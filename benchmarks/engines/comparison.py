"""All engines in turns, each in a process of its own, and what they take a round."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from ..processes import ROOT, environment, stop_processes
from ..report import Comparison, Row, Spread, at_most, ratios
from .bare import numpy_loop
from .job import Job

__all__ = ["ENGINES", "FULL", "QUICK", "Engine", "Size", "compare", "digits"]

#: Where ``scripts/make-engines.sh`` puts the environments of engines that need one.
_HOMES = Path(os.environ.get("FEDTRELLIS_ENGINES", "~/.cache/fedtrellis-engines"))

_LOOP, _TORCH = "NumPy, a bare loop", "PyTorch, a bare loop"


@dataclass(frozen=True)
class Engine:
    """One row of the table.

    Parameters
    ----------
    name : str
    function : str
        ``MODULE:FUNCTION`` of this package: given a job, it returns what runs it.
    bits : {64, 32}
        Of the arithmetic.
    environment : str
        The environment that has it; empty: this one.
    ray : bool
        Whether it starts Ray, which takes longer than the job.
    """

    name: str
    function: str
    bits: int = 64
    environment: str = ""
    ray: bool = False


ENGINES = (
    Engine(_LOOP, "bare:numpy_loop"),
    Engine("fedtrellis, batched", "flower:batched"),
    Engine("fedtrellis, one by one", "flower:one_by_one"),
    Engine("fedtrellis, encoded to bytes", "flower:encoded"),
    Engine("fedtrellis, batched, encoded to bytes", "flower:batched_encoded"),
    Engine("Flower's FedAvg on LocalGrid", "flower:fedavg"),
    Engine(_TORCH, "bare:torch_loop", 32),
    Engine("fedtrellis, PyTorch", "flower:torch_one_by_one", 32),
    Engine("fedtrellis, PyTorch, batched", "flower:torch_batched", 32),
    Engine("JAX, a compiled vmap", "others:jax_vmap", 32, "fedjax"),
    Engine("FedJAX", "others:fedjax", 32, "fedjax"),
    Engine("pfl-research (PyTorch)", "others:pfl", 32, "pfl"),
    Engine("fedtrellis on Ray", "flower:ray", ray=True),
    Engine("Flower's FedAvg on Ray", "flower:fedavg_ray", ray=True),
)
#: How far a final model may be from the bare loop's, relative to its largest entry.
_TOLERANCE = {64: 1e-9, 32: 1e-4}


@dataclass(frozen=True)
class Size:
    """Clients, clients a round, rounds; repetitions of each engine, and on Ray."""

    clients: int
    cohort: int
    rounds: int
    repetitions: int
    ray_repetitions: int


QUICK, FULL = Size(100, 10, 100, 3, 0), Size(100, 10, 100, 9, 2)


def digits(size: Size) -> Job:
    """Deal scikit-learn's digits to the clients, as many to each; seeded."""
    data = load_digits()
    rng = np.random.default_rng(0)
    each = len(data.target) // size.clients
    rows = rng.permutation(len(data.target))[: size.clients * each]
    features = (data.data[rows] / 16.0).reshape(size.clients, each, -1)
    labels = data.target[rows].astype(np.int64).reshape(size.clients, each)
    cohorts = [
        rng.choice(size.clients, size.cohort, replace=False) for _ in range(size.rounds)
    ]
    return Job(features, labels, np.array(cohorts))


class Worker:
    """An engine's process.

    Raises
    ------
    RuntimeError
        If it ends without an answer; with the last of what it printed.
    """

    def __init__(self, engine: Engine, python: Path, job: Path, folder: Path) -> None:
        self.engine = engine
        self.home = folder
        self.home.mkdir()
        self._log = (folder / "log").open("w+", encoding="utf-8")
        flags = "--xla_cpu_multi_thread_eigen=false"
        # a path to a socket of Ray's may not be long
        env = environment(folder) | {"XLA_FLAGS": flags}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.engines.worker", engine.function, str(job)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        if not engine.ray and hasattr(os, "sched_setaffinity"):
            # on two cores XLA's threads wait for each other, which counts as CPU
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(self._process.pid, cores[-1:])
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            printed = self._log.read()[-3000:]
            raise RuntimeError(f"{self.engine.name} failed:\n{printed}")
        return line

    def run(self) -> tuple[np.ndarray, Mapping[str, float]]:
        """Do the job once; the final model, and seconds of CPU and wall."""
        assert self._process.stdin is not None
        path = self.home / "model.npy"
        print(path, file=self._process.stdin, flush=True)
        seconds: dict[str, float] = json.loads(self._answer())
        return np.load(path), seconds

    def stop(self) -> None:
        """End it, and what it started."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
        stop_processes(self.home)


def _python(engine: Engine) -> Path:
    if not engine.environment:
        return Path(sys.executable)
    return _HOMES.expanduser() / engine.environment / "bin" / "python"


@contextmanager
def _workers(engines: Sequence[Engine], job: Job) -> Iterator[list[Worker]]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        path = Path(folder) / "job.npz"
        job.save(path)
        workers = []
        for number, engine in enumerate(engines):
            home = Path(folder) / str(number)
            workers.append(Worker(engine, _python(engine), path, home))
            stack.callback(workers[-1].stop)
        yield workers


def _measure(
    engines: Sequence[Engine], job: Job, size: Size
) -> dict[str, dict[str, Any]]:
    """Seconds of each turn by engine, and the largest difference from the loop."""
    expected = numpy_loop(job)().model
    found: dict[str, dict[str, Any]] = {
        engine.name: {"cpu": [], "wall": [], "difference": 0.0} for engine in engines
    }
    with _workers(engines, job) as workers:
        # the first turn is for what is compiled, and for the models
        for turn in range(size.repetitions + 1):
            for worker in workers:
                engine, row = worker.engine, found[worker.engine.name]
                if engine.ray and turn > size.ray_repetitions:
                    continue
                model, seconds = worker.run()
                error = np.abs(model - expected).max() / np.abs(expected).max()
                if not error <= _TOLERANCE[engine.bits]:
                    raise AssertionError(
                        f"{engine.name} ends {error:.1e} from the bare loop's model"
                    )
                row["difference"] = max(row["difference"], float(error))
                if turn:
                    for key in ("cpu", "wall"):
                        row[key].append(seconds[key] / job.rounds)
    return found


def _judge(result: Comparison, rounds: Mapping[str, Spread]) -> None:
    """Aims on the medians of CPU time, of those engines that were measured."""
    goals = [
        ("fedtrellis, batched", _LOOP, 1.0),
        ("fedtrellis, encoded to bytes", _LOOP, 5.0),
        ("fedtrellis, batched, encoded to bytes", _LOOP, 5.0),
        ("fedtrellis, PyTorch", _TORCH, 1.5),
    ]
    goals += [
        (engine.name, other, 1.0)
        for engine in ENGINES
        if engine.name.startswith("fedtrellis") and not engine.ray
        for other in ("FedJAX", "pfl-research (PyTorch)")
    ]
    result.aims += [
        at_most(name, ratios(rounds[name], rounds[other]), goal, other)
        for name, other, goal in goals
        if name in rounds and other in rounds
    ]


def compare(size: Size) -> Iterator[Comparison]:
    """CPU and wall time of a round, a row an engine.

    Raises
    ------
    AssertionError
        If an engine ends with another model than the bare loop.
    """
    job = digits(size)
    result = Comparison(
        "engines",
        f"FedAvg on digits, {size.clients} clients, {size.cohort} a round: "
        "a round on each engine",
        f"{size.rounds} rounds of 5 local full-batch steps of 0.5 on "
        f"{job.labels.shape[1]} examples a client, multinomial logistic regression "
        "65 × 10, the same cohorts and the same final model (difference: the largest, "
        "relative; float32 within 1e-4, float64 within 1e-9). Each engine in a process "
        "of its own on one core, in turns, the first left out; on Ray all cores, and "
        "CPU of all processes. Median (min – max) of the turns' means.",
    )
    here, why = [], {}
    for engine in ENGINES:
        if engine.ray and not size.ray_repetitions:
            why[engine.name] = "left out with --quick"
        elif not _python(engine).is_file():
            script = f"scripts/make-engines.sh {engine.environment}"
            why[engine.name] = f"left out: not installed ({script})"
        else:
            here.append(engine)
    found = _measure(here, job, size)
    cpu = {name: Spread(tuple(row["cpu"]), "ms") for name, row in found.items()}
    for engine in here:
        row: Row = {
            "engine": engine.name,
            "float": engine.bits,
            "CPU": cpu[engine.name],
            "wall": Spread(tuple(found[engine.name]["wall"]), "ms"),
        }
        turns = len(cpu[engine.name].values)
        for base in (_LOOP, _TORCH):
            if base in cpu and (engine.bits == 32 or base == _LOOP):
                below = Spread(cpu[base].values[:turns], "ms")
                row[f"CPU / {base}"] = ratios(cpu[engine.name], below)
        row["difference"] = f"{found[engine.name]['difference']:.0e}"
        result.rows.append(row)
    result.rows += [{"engine": name, "CPU": reason} for name, reason in why.items()]
    _judge(result, cpu)
    yield result
