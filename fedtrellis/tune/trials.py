"""Trials of a search: runs of any Flower app on a grid in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from flwr.app import Context, RecordDict

from fedtrellis.app.directory import load_app, one_line
from fedtrellis.builtin import own_app
from fedtrellis.runs.load import load_run
from fedtrellis.settings import SettingsError
from fedtrellis.tune.ranking import Trial, divergence, measure
from fedtrellis.wire.local_grid import LocalGrid

__all__ = ["Job", "perform", "perform_all"]

# what the usual libraries read as they are loaded
_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True)
class Job:
    """A trial to be run.

    Attributes
    ----------
    app : pathlib.Path or None
        The app's directory; None: the package's own app.
    number : int
    settings : dict
        What was drawn for this trial.
    config : dict
        The whole run config, but for ``results-dir``.
    nodes : int
    out : pathlib.Path
        The search's directory, absolute; the trial's own is ``runs/NUMBER`` in it.
    """

    app: Path | None
    number: int
    settings: dict[str, Any]
    config: dict[str, Any]
    nodes: int
    out: Path

    @property
    def directory(self) -> Path:
        """Where the trial's record and log go."""
        return self.out / "runs" / f"{self.number:03d}"


def perform(job: Job) -> Trial:
    """Run a trial on a LocalGrid, and measure it.

    What the app prints, logs and raises goes into ``log.txt`` of the trial's directory.
    """
    if job.directory.exists():  # left by a search that was interrupted in this trial
        shutil.rmtree(job.directory)
    job.directory.mkdir(parents=True)
    with (job.directory / "log.txt").open("w", encoding="utf-8") as log:
        try:
            with _quiet(log):
                _run(job)
            trial = _measured(job)
        except (Exception, SystemExit) as error:
            traceback.print_exc(file=log)
            trial = Trial(job.number, job.settings, "failed", one_line(error))
    return dataclasses.replace(trial, record=_record(job))


@contextlib.contextmanager
def _quiet(log: TextIO) -> Iterator[None]:
    """Send to a file what an app shows, so that the search's progress stays legible."""
    logger = logging.getLogger("flwr")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = logging.StreamHandler(log)
    logger.handlers, logger.propagate = [handler], False
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


def _run(job: Job) -> None:
    app = own_app() if job.app is None else load_app(job.app)
    config = job.config | {"results-dir": str(job.directory)}
    seed = config.get("seed", 0)
    grid = LocalGrid(
        app.client_app,
        job.nodes,
        seed=seed if isinstance(seed, int) else 0,
        run_config=config,
    )
    context = Context(
        run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=config
    )
    app.server_app(grid, context)


def _record(job: Job) -> str:
    """The run's record, relative to the search's directory; the app names it."""
    found = sorted(job.directory.rglob("history.jsonl"))
    return str(found[-1].parent.relative_to(job.out)) if found else ""


def _measured(job: Job) -> Trial:
    record = _record(job)
    if not record:
        raise SettingsError(
            "the run left no history.jsonl under its results-dir; its ServerApp has to "
            "write one (fedtrellis.server.records.RunRecord)"
        )
    directory = job.out / record
    ended = load_run(directory)
    if ended.status != "completed":
        raise SettingsError(ended.summary.get("error", f"status {ended.status!r}"))
    reason = divergence(ended.history)
    with np.errstate(all="ignore"):
        metrics = measure(ended.history)
    endless = [name for name, value in metrics.items() if not math.isfinite(value)]
    if endless and not reason:
        reason = f"{endless[0]} is {metrics[endless[0]]}"
    return Trial(
        job.number,
        job.settings,
        "diverged" if reason else "completed",
        reason,
        # JSON has no infinity
        {name: value for name, value in metrics.items() if name not in endless},
    )


def perform_all(jobs: Sequence[Job], processes: int) -> Iterator[Trial]:
    """Run trials; each comes as soon as it is done.

    Parameters
    ----------
    jobs : sequence of Job
    processes : int
        1: in this process, in order. More: in as many at once, with one thread of
        linear algebra each.

    Raises
    ------
    SettingsError
        If a process ended by itself.
    """
    if processes == 1:
        for job in jobs:
            yield perform(job)
        return
    others = set(multiprocessing.active_children())
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    pool = ProcessPoolExecutor(
        min(processes, max(len(jobs), 1)),
        # a fresh interpreter, which loads its libraries with the variables above
        multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    finished = False
    try:
        with _interrupts_ignored():
            waiting = [pool.submit(perform, job) for job in jobs]
        for done in as_completed(waiting):
            yield done.result()
        finished = True
    except BrokenProcessPool:
        raise SettingsError(
            f"--jobs {processes}: a process ended by itself, perhaps for lack of memory"
        ) from None
    finally:
        pool.shutdown(wait=finished, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that a terminal's interrupt, which goes to all, passes by.

    They inherit it, so it holds while they load their libraries too. The search's own
    process is interrupted, and ends them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so, and only there an interrupt arrives
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
