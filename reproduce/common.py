"""What all reproductions share: runs, their parallel execution, results."""

from __future__ import annotations

import csv
import json
import logging
import multiprocessing
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

import sim
from fedtrellis.app import Experiment
from fedtrellis.app.command_line import flatten
from fedtrellis.app.registry import RunSettings
from fedtrellis.server.callbacks import EarlyStop
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.local_grid import LocalGrid

from .drawing import measured
from .provenance import Ledger

__all__ = [
    "Item",
    "Options",
    "Run",
    "SkippedError",
    "app_config",
    "execute",
    "load_results",
    "read_config",
    "read_csv",
    "repeat",
    "save_results",
    "workers",
]


#: The runs of the item at hand.
LEDGER = Ledger()


class SkippedError(Exception):
    """An item that needs what is not there; the message names it."""


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes
    ----------
    out : pathlib.Path
        Where results and pictures go.
    data : pathlib.Path or None
        The folder of data files.
    seeds : int
        Repetitions; items may take fewer, and say so.
    jobs : int
        Processes at once; 0: this one.
    quick : bool
        A size for continuous integration.
    first : int
        The first seed of those items that take :meth:`numbers`.
    stored : bool
        Whether stored results are replaced, so that no part may be left out.
    """

    out: Path
    data: Path | None
    seeds: int
    jobs: int
    quick: bool
    first: int = 0
    stored: bool = False

    def numbers(self, most: int) -> range:
        """Seeds from the first on: as many as wanted, at most ``most``."""
        return range(self.first, self.first + min(self.seeds, most))

    def file(self, name: str) -> Path:
        """A data file; SkippedError names it if it is missing."""
        if self.data is None:
            raise SkippedError(f"needs {name}; set FEDTRELLIS_DATA or --data")
        path = self.data / name
        if not path.exists():
            raise SkippedError(f"needs {name}, which is not in the --data folder")
        LEDGER.read(name, path)
        return path

    def without(self, part: str, error: SkippedError) -> None:
        """Leave a part out, unless its stored numbers would be lost: then raise."""
        if self.stored:
            raise error
        print(f"  without {part}: {error}")


@dataclass(frozen=True)
class Item:
    """A table or figure: how it is computed, and how it is shown.

    Attributes
    ----------
    summary : str
    compute : callable
        From options to results, plain data for JSON.
    render : callable
        From results and a folder to the Markdown that stands in the page; writes
        pictures into the folder.
    """

    summary: str
    compute: Callable[[Options], dict[str, Any]]
    render: Callable[[dict[str, Any], Path], str]

    def show(self, results: dict[str, Any], out: Path) -> str:
        """What was rendered, and how it was measured."""
        return f"{self.render(results, out)}\n\n{measured(results)}"


@dataclass(frozen=True)
class Run:
    """One run of the app's methods, on a grid in this process.

    Attributes
    ----------
    key : tuple of str, int or float
        By which the item knows it.
    config : dict
        Settings, see :func:`app_config`.
    nodes : int
    stop : float
        Value of ``metric`` at which it ends, measured on the server; 0: never.
    curve : bool
        Whether the metrics of every evaluated round are kept.
    every : int
        Rounds between evaluations; 0: twelve to a factor of ten, for logarithmic axes.
    metric : str
        What ``stop`` is about; by default ‖∇F‖².
    point : bool
        Whether the run's result, a point of one array, is kept.
    start : ndarray, optional
        Where a model of one array starts, instead of the task's own point.
    grid : callable
        Makes the nodes, as :meth:`fedtrellis.app.Experiment.grid` does.
    """

    key: tuple[Any, ...]
    config: dict[str, Any] = field(hash=False)
    nodes: int = 64
    stop: float = 0.0
    curve: bool = False
    every: int = 1
    metric: str = "squared-gradient-norm"
    point: bool = False
    start: Any = field(default=None, hash=False, compare=False)
    grid: Callable[[Experiment], LocalGrid] = Experiment.grid


def evaluated_rounds(last: int) -> set[int]:
    """Return 0, the last round, and twelve to a factor of ten between them."""
    steps = int(12 * np.log10(max(last, 1))) + 1
    return {0, last} | {round(10 ** (k / 12)) for k in range(steps)}


#: What all methods with local steps take unless an item says otherwise: equal work.
LOCAL_STEPS = {"local-steps": 5, "local-step-size": 0.1}
# short names that some methods' settings have without the first word
_LOCAL = {"local-step-size": "step-size", "local-batch-size": "batch-size"}
# Methods whose local steps are the oracle's, which no item means by these names.
_ORACLES = ("fedfw",)


def read_config(path: Path) -> dict[str, Any]:
    """A run config in TOML, flat, with short names (:func:`app_config`)."""
    config = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    prefix = f"{config['method']}."
    return {key.removeprefix(prefix): value for key, value in config.items()}


def read_csv(path: Path) -> list[dict[str, str]]:
    """A data file's rows."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def app_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A whole run config of settings with short names.

    The runs of an item differ in their methods and share settings, so methods' settings
    stand there without their owner: ``local-steps`` is ``feddr.local-steps`` where the
    method is FedDR. A setting that the method does not have is left out, and so are
    local steps where they are the oracle's: ``fedfw.local-steps`` has its whole name.

    Raises
    ------
    KeyError
        No method has such a setting.
    ValueError
        A setting is there by two names, with two values.
    """
    registry = sim.app.registry
    known, methods = registry.fields, registry.methods
    method = config.get("method", RunSettings.method)
    # those without local steps have step sizes and batches of another kind
    gradients = f"{method}.local-steps" in known and method not in _ORACLES
    local = _LOCAL if gradients else {}
    whole = sim.app.default_config() | {"rounds": 50}
    if config.get("variant", "corrective") == "corrective":
        whole["fedfw.tolerance"] = 0.0  # experiments have all their rounds
    for key, value in {**LOCAL_STEPS, **config}.items():
        own = f"{method}.{key}"
        if key in known:
            whole[key] = value
        elif own in known and (key != "local-steps" or gradients):
            whole[own] = value
        elif key in local and f"{method}.{local[key]}" in known:
            if key in config and config.get(local[key], value) != value:
                raise ValueError(f"{key!r} and {local[key]!r} are one setting")
            if local[key] not in config:
                whole[f"{method}.{local[key]}"] = value
        elif key not in _LOCAL and not any(f"{m}.{key}" in known for m in methods):
            raise KeyError(f"no such setting: {key!r}")
    return registry.without_foreign(whole)


def one_thread() -> None:
    """Prepare a worker: one BLAS thread, no log lines."""
    # before a worker's first product; several workers share the cores
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    logging.getLogger("flwr").setLevel(logging.ERROR)


def perform(run: Run) -> dict[str, Any]:
    """Perform a run.

    Returns
    -------
    dict
        ``broadcasts`` (of x, the first and the one that passes included), ``seconds``
        (of the rounds: clients, messages and server, without evaluation), ``bytes`` (up
        and down) and ``bytes-up``, ``evaluations`` (function values the clients
        computed, for methods that count them), all metrics of the last evaluation
        such as ``loss``, ``passed``; with ``curve``, lists of the metrics and of the
        ``bytes``, ``bytes-up`` and ``seconds`` so far, by the rounds evaluated, from
        0; with ``point``, the result.
    """
    experiment = sim.app.experiment(app_config(run.config), run.nodes)
    stops = [EarlyStop(run.metric, run.stop)] if run.stop else []
    wanted = set() if run.every else evaluated_rounds(experiment.config["rounds"])
    strategy = experiment.strategy(callbacks=stops, evaluate_every=run.every or 1)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if wanted and server_round not in wanted:
            return None
        return experiment.evaluate_fn(server_round, arrays)

    point = experiment.start_point()
    if run.start is not None:
        point = experiment.layout.point([run.start])
        if experiment.manifold is None and not experiment.domain.contains(point):
            point = experiment.domain.project(point)
    try:
        nodes = run.grid(experiment)
        outcome = experiment.start(strategy, nodes, point=point, evaluate_fn=evaluate)
    except (RuntimeError, FloatingPointError) as error:  # it diverged
        return {"failed": str(error)}
    history = strategy.history
    last = history[-1]
    result: dict[str, Any] = {
        "broadcasts": last.round + 1,
        "seconds": sum(record.seconds for record in history),
        "bytes": sum(record.bytes_up + record.bytes_down for record in history),
        "bytes-up": sum(record.bytes_up for record in history),
        **{name: float(value) for name, value in last.evaluation.items()},
    }
    if any("evaluations" in record.train for record in history):
        counts = (record.train.get("evaluations", 0) for record in history)
        result["evaluations"] = int(sum(counts))
    result["passed"] = bool(run.stop) and result[run.metric] <= run.stop
    if not result["passed"]:
        result["broadcasts"] = last.round
    if run.curve:
        evaluated = [k for k, record in enumerate(history) if record.evaluation]
        both = [record.bytes_up + record.bytes_down for record in history]
        so_far: dict[str, Sequence[float]] = {
            "bytes": both,
            "bytes-up": [record.bytes_up for record in history],
            "seconds": [record.seconds for record in history],
            "trips": [record.round_trips * (record.round > 0) for record in history],
        }
        names = history[evaluated[0]].evaluation
        result["curve"] = {
            "round": [history[k].round for k in evaluated],
            **{name: np.cumsum(v)[evaluated].tolist() for name, v in so_far.items()},
            **{
                name: [history[k].evaluation[name] for k in evaluated] for name in names
            },
        }
    if run.point:
        (array,) = record_arrays(outcome.arrays)
        result["point"] = array.tolist()
    return result


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes that start anew, or with 0 jobs a thread of this one.

    A fork would copy locks that PyTorch's threads hold; to start another process takes
    longer than a quick run.
    """
    if jobs:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, initializer=one_thread) as pool:
            yield pool
        return
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with ThreadPoolExecutor(1) as thread:
            yield thread
    finally:
        log.setLevel(level)


def execute(
    runs: Sequence[Run], jobs: int, perform: Callable[[Run], dict[str, Any]] = perform
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Perform runs, several at once; results by key."""
    results: dict[tuple[Any, ...], dict[str, Any]] = {}
    began, told = time.monotonic(), 0.0
    if len({run.key for run in runs}) < len(runs):
        raise ValueError("two runs have one key")
    LEDGER.note({**run.config, "nodes": run.nodes} for run in runs)
    with workers(jobs) as pool:
        waiting = {pool.submit(perform, run): run for run in runs}
        for done in as_completed(waiting):
            results[waiting[done].key] = done.result()
            passed = time.monotonic() - began
            if passed - told > 30.0 or len(results) == len(runs):
                told = passed
                print(f"  {len(results)}/{len(runs)} runs, {passed:.0f} s")
    return {run.key: results[run.key] for run in runs}


def repeat(
    options: Options,
    cases: Mapping[Any, Mapping[str, Any]],
    seeds: Sequence[int],
    nodes: int | Mapping[Any, int],
    **how: Any,
) -> dict[Any, list[dict[str, Any]]]:
    """Run every case with every seed; each case's results, in the order of the seeds.

    ``cases`` have their run configs, ``nodes`` may have a number for each of them, and
    ``how`` are other fields of the :class:`Run`.
    """
    counts = nodes if isinstance(nodes, Mapping) else dict.fromkeys(cases, nodes)
    runs = [
        Run((case, seed), {**config, "seed": seed}, counts[case], **how)
        # consecutive runs share their data, which a worker keeps
        for seed in seeds
        for case, config in cases.items()
    ]
    # the longest first, so that no process ends up alone with one
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs)
    return {case: [results[case, seed] for seed in seeds] for case in cases}


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, numbers as short as they are exact enough to show."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.10g}")
        if isinstance(value, dict):
            return {str(key): rounded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(item) for item in value]
        return value

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(results), ensure_ascii=False, indent=1)
    # a list of numbers on one line
    text = re.sub(
        r"\[\s*((?:-?[\d.e+-]+,\s*)*-?[\d.e+-]+)\s*\]",
        lambda match: "[" + re.sub(r"\s+", " ", match.group(1)) + "]",
        text,
    )
    path.write_text(text + "\n", encoding="utf-8")


def load_results(path: Path) -> dict[str, Any]:
    """Inverse of :func:`save_results`."""
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
