"""A trial of a search: a run of any Flower app on a grid in this process."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from flwr.app import Context, RecordDict
from optuna.trial import Trial

from fedtrellis.app.directory import load_app, one_line
from fedtrellis.builtin import own_app
from fedtrellis.runs.load import load_run
from fedtrellis.server.callbacks import Callback, RoundRecord, observed_by
from fedtrellis.settings import SettingsError
from fedtrellis.tune.metrics import divergence, measure
from fedtrellis.wire.local_grid import LocalGrid

if TYPE_CHECKING:
    from fedtrellis.server.loop import LoopStrategy
    from fedtrellis.tune.study import Search

__all__ = ["Pruning", "perform"]


class Pruning(Callback):
    """Report each round's loss to a trial, and stop the run where its pruner says so.

    Parameters
    ----------
    trial : optuna.Trial
        One that was cut off knows its first rounds already: they are passed over.

    Attributes
    ----------
    pruned : int
        The round that the run was stopped in; 0: it was not.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial, self.pruned = trial, 0
        self._known = trial.study.trials[trial.number].last_step or 0

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool | None:
        """Report; a round without the metric ``loss`` goes on."""
        if record.round > self._known and "loss" in record.metrics:
            self.trial.report(record.metrics["loss"], record.round)
            if self.trial.should_prune():
                self.pruned = record.round
        return bool(self.pruned)


def perform(search: Search, trial: Trial) -> dict[str, Any]:
    """Run a trial on a LocalGrid, and measure it.

    What the app prints, logs and raises goes into ``log.txt`` of the trial's directory,
    which is ``runs/NUMBER`` in the search's.

    Returns
    -------
    dict
        ``status``: "completed", "pruned", "diverged" or "failed"; ``reason``: why it
        was not completed; ``record``: the run's, relative to the search's directory,
        empty if there is none; and unless it was pruned or failed, the finite ones of
        :func:`~fedtrellis.tune.metrics.measure`.
    """
    directory = search.out / "runs" / f"{trial.number:03d}"
    if directory.exists():  # left by a search that was interrupted in this trial
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    with (directory / "log.txt").open("w", encoding="utf-8") as log:
        try:
            with _quiet(log):
                pruned = _run(search, trial, directory)
            outcome = _measured(directory, pruned)
        except (Exception, SystemExit) as error:
            traceback.print_exc(file=log)
            outcome = {"reason": one_line(error), "status": "failed"}
    record = _record(directory)
    where = "" if record is None else str(record.relative_to(search.out))
    # the status is written last: what has one has all
    return {"record": where, **outcome}


@contextlib.contextmanager
def _quiet(log: TextIO) -> Iterator[None]:
    """Send to a file what an app shows, so that the search's progress stays legible."""
    logger = logging.getLogger("flwr")
    handlers, propagate = list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [logging.StreamHandler(log)], False
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


def _run(search: Search, trial: Trial, directory: Path) -> int:
    """Run it; the round in which it was pruned, or 0."""
    app = own_app() if search.app is None else load_app(search.app)
    config = {**search.config, **trial.params, "results-dir": str(directory)}
    seed = config.get("seed", 0)
    grid = LocalGrid(
        app.client_app,
        search.nodes,
        seed=seed if isinstance(seed, int) else 0,
        run_config=config,
    )
    context = Context(
        run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=config
    )
    pruning = Pruning(trial)
    # without a pruner no round is written down
    watched = (
        contextlib.nullcontext() if search.pruner == "none" else observed_by(pruning)
    )
    with watched:
        app.server_app(grid, context)
    return pruning.pruned


def _record(directory: Path) -> Path | None:
    """The record of the run; the app names it."""
    found = sorted(directory.rglob("history.jsonl"))
    return found[-1].parent if found else None


def _measured(directory: Path, pruned: int) -> dict[str, Any]:
    record = _record(directory)
    if record is None:
        raise SettingsError(
            "the run left no history.jsonl under its results-dir; its ServerApp has to "
            "write one (fedtrellis.server.records.RunRecord)"
        )
    run = load_run(record)
    if run.status != "completed":
        raise SettingsError(run.summary.get("error", f"status {run.status!r}"))
    if pruned:
        return {"reason": f"in round {pruned}", "status": "pruned"}
    reason = divergence(run.history)
    with np.errstate(all="ignore"):
        metrics = measure(run.history)
    finite = {name: x for name, x in metrics.items() if math.isfinite(x)}
    for name in metrics.keys() - finite.keys():
        reason = reason or f"{name} is {metrics[name]}"
    status = "diverged" if reason else "completed"
    return {**finite, "reason": reason, "status": status}
