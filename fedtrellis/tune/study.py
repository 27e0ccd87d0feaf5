"""A search as an Optuna study: what is drawn, its trials, the processes that run them.

All trials are in ``study.db`` from the start, waiting. Every process takes one after
the other. So a search that was interrupted goes on as it would have gone.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import optuna
from flwr.app import Context, RecordDict
from optuna import pruners, samplers
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial, TrialState

from fedtrellis.app.directory import load_app, one_line
from fedtrellis.builtin import own_app
from fedtrellis.random import generator
from fedtrellis.runs import load_run
from fedtrellis.server.callbacks import Callback, RoundRecord, observed_by
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import AUTO, SettingsError, check_choice
from fedtrellis.signals import deferred
from fedtrellis.tune.metrics import divergence, measure
from fedtrellis.wire.local_grid import LocalGrid

__all__ = [
    "PRUNERS",
    "SAMPLERS",
    "Pruning",
    "Search",
    "check_key",
    "perform",
    "read_space",
    "run",
]

SAMPLERS = ("random", "tpe")
PRUNERS: dict[str, type[pruners.BasePruner]] = {
    "none": pruners.NopPruner,
    "median": pruners.MedianPruner,
    "halving": pruners.SuccessiveHalvingPruner,
    "hyperband": pruners.HyperbandPruner,
}
_REPEATS = 1000  # in a row: then there are no new settings
# what the usual libraries read as they are loaded
_THREADS = ("OPENBLAS", "MKL", "OMP", "VECLIB_MAXIMUM")


@dataclass(frozen=True)
class Search:
    """What a search is: its app (None: the package's own), settings, space and study.

    ``config`` is the run config that all trials share, but for ``results-dir``;
    ``space`` has what each key that is searched over may be; ``out`` is absolute.
    """

    app: Path | None
    config: dict[str, Any]
    space: dict[str, BaseDistribution]
    nodes: int
    out: Path
    trials: int
    seed: int = 0
    sampler: str = "random"
    pruner: str = "none"

    def study(self) -> optuna.Study:
        """Open its study, or make it; several processes write, each in its turn."""
        wait = {"connect_args": {"timeout": 60}}
        path = f"sqlite:///{self.out / 'study.db'}"
        return optuna.create_study(
            storage=optuna.storages.RDBStorage(path, engine_kwargs=wait),
            study_name="fedtrellis",
            pruner=PRUNERS[self.pruner](),
            load_if_exists=True,
        )

    def drawn(self) -> list[dict[str, Any]]:
        """Settings of all trials, each once; fewer where there are no more.

        The first ones are the same for every number of trials. Those of ``"tpe"`` are
        empty: they are drawn when the results before them are known.
        """
        if self.sampler == "tpe":
            return [{} for _ in range(self.trials)]
        draws = optuna.create_study(sampler=samplers.RandomSampler(self.seed))
        found: list[dict[str, Any]] = []
        repeats = 0
        while len(found) < self.trials and repeats < _REPEATS:
            settings = draws.ask(self.space).params
            repeats = repeats + 1 if settings in found else 0
            if not repeats:
                found.append(settings)
        return found


def run(search: Search, jobs: int) -> None:
    """Run the trials that are not done yet, in this process or in several."""
    study = search.study()
    with deferred():
        for trial in study.get_trials(states=[TrialState.RUNNING]):
            if "status" in trial.user_attrs:  # it had ended
                _end(study, trial.number, trial.user_attrs)
            else:  # cut off in the middle: once more, under its number
                waiting = TrialState.WAITING
                study._storage.set_trial_state_values(trial._trial_id, waiting)
        for settings in search.drawn()[len(study.trials) :]:
            study.enqueue_trial(settings)
    if jobs == 1:
        _work(search, nullcontext())
        return
    # fresh interpreters, which load their libraries for one thread each
    spawn = multiprocessing.get_context("spawn")
    lock = spawn.Lock()
    workers = [spawn.Process(target=_worker, args=(search, lock)) for _ in range(jobs)]
    try:
        with _for_new_processes():
            for worker in workers:
                worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SettingsError(
                f"--jobs {jobs}: a process ended by itself, perhaps for lack of memory"
            )
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()


@contextlib.contextmanager
def _for_new_processes() -> Iterator[None]:
    """What processes inherit: one thread of linear algebra, and no SIGINT.

    A terminal's interrupt goes to all of them; the search's own process ends the rest.
    """
    before = dict(os.environ)
    os.environ.update({f"{library}_NUM_THREADS": "1" for library in _THREADS})
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        os.environ.clear()
        os.environ.update(before)


def _worker(search: Search, lock: Any) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _work(search, lock)


def _work(search: Search, lock: Any) -> None:
    """Run one trial after the other until there are enough."""
    study = search.study()
    while True:
        with lock, deferred():
            waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
            if not waiting or waiting[0].number >= search.trials:
                return
            # a sampler for each trial, so that an interruption changes nothing
            seed = generator(search.seed, "search", waiting[0].number).integers(2**32)
            study.sampler = samplers.TPESampler(seed=int(seed))
            trial = study.ask(search.space)
        outcome = perform(search, trial)
        with deferred():
            for name, value in outcome.items():
                trial.set_user_attr(name, value)
            _end(study, trial.number, outcome)
        text = outcome["status"]
        if text == "completed":
            text = f"loss {outcome['loss']:.4g}"
        print(f"trial {trial.number}: {text}", file=sys.stderr, flush=True)


def _end(study: optuna.Study, number: int, outcome: dict[str, Any]) -> None:
    """End a trial; samplers go by its loss."""
    if outcome["status"] == "pruned":
        study.tell(number, state=TrialState.PRUNED)
    else:  # what failed, or diverged, may have no finite loss: nothing is worse
        study.tell(number, outcome.get("loss", math.inf))


# ----------------------------------------------------------------------------- a trial


class Pruning(Callback):
    """Report each round's loss to a trial, and stop the run where its pruner wants it.

    ``pruned`` is the round that the run was stopped in; 0: it was not. A trial that was
    cut off knows its first rounds already: they are passed over.
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
    which is ``runs/NUMBER`` in the search's. The outcome has ``status`` ("completed",
    "pruned", "diverged" or "failed"), ``reason``, ``record`` (the run's, relative to
    the search's directory) and the finite metrics.
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
    pruning = Pruning(trial)
    # without a pruner no round is written down
    watched = nullcontext() if search.pruner == "none" else observed_by(pruning)
    with watched:
        app.server_app(grid, Context(0, 0, {}, RecordDict(), config))
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


# ---------------------------------------------------------------------- the search file


def read_space(
    path: Path, config: Mapping[str, Any]
) -> tuple[dict[str, BaseDistribution], int | None]:
    """Read a search file: what each key may be, and the number of trials if it has it.

    It has a table for each key of the app's run config that is searched over::

        trials = 20                  # optional

        [fedgia.local-steps]
        values = [1, 2, 5, 10]

        [fedgia.sigma-scale]
        low = 0.1                    # both inclusive
        high = 10.0
        scale = "log"                # the default; or "linear"

    ``config`` has all keys with their defaults: whether a number is whole is what the
    default is. Where that is ``"auto"``, bounds are those of any numbers, and values
    are for the app to check.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--search {str(path)!r}: {error}") from None
    trials = content.pop("trials", None)
    if trials is not None and (type(trials) is not int or trials < 1):
        raise SettingsError(
            f"--search: trials = {trials!r} must be a whole number, at least 1"
        )
    space = {}
    for key, table in _tables(content):
        check_key(f"--search {path.name!r}: key", key, config)
        space[key] = _distribution(key, table, config[key])
    if not space:
        raise SettingsError(
            f"--search {str(path)!r} names no key; it needs tables with values = "
            "[...], or low = ... and high = ..."
        )
    return space, trials


def check_key(where: str, key: str, config: Mapping[str, Any]) -> None:
    """Raise SettingsError, with the closest match, for a key that the app has not."""
    if key not in config:
        close = difflib.get_close_matches(key, config, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "its run config has no such"
        raise SettingsError(f"{where} = {key!r} is not known to the app ({hint})")


def _tables(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and their tables; a table of tables only is part of a dotted key."""
    for name, value in content.items():
        key = prefix + name
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"--search: {key} = {value!r} must be a table with values = [...], or "
                "low and high; a setting of all trials goes into -c"
            )
        if value and all(isinstance(entry, Mapping) for entry in value.values()):
            yield from _tables(value, f"{key}.")
        else:
            yield key, value


def _distribution(key: str, table: Mapping[str, Any], default: Any) -> BaseDistribution:
    """What a key may be, of the type of its default."""
    allowed = ("values",) if "values" in table else ("low", "high", "scale")
    for name in table:
        check_choice(f"{key}: entry", name, allowed)
    if "values" in table:
        values = table["values"]
        if not isinstance(values, list) or not values:
            raise SettingsError(f"{key}: values = {values!r} must be a list of some")
        return CategoricalDistribution([_typed(key, v, default) for v in values])
    if isinstance(default, bool | str) and default != AUTO:
        raise SettingsError(f"{key}: its default {default!r} is no number; give values")
    if not {"low", "high"} <= table.keys():
        raise SettingsError(f"{key} needs low and high, or values = [...]")
    number = 0.0 if default == AUTO else default
    low, high = (_typed(key, table[name], number) for name in ("low", "high"))
    scale = check_choice(f"{key}: scale", table.get("scale", "log"), ("log", "linear"))
    kind = IntDistribution if isinstance(default, int) else FloatDistribution
    try:
        return kind(low, high, log=scale == "log")
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def _typed(key: str, value: Any, default: Any) -> Any:
    """Return a value as the type of the key's default."""
    kind = type(default)
    if default == AUTO:
        return value  # the app checks it
    if kind is float and type(value) is int:
        value = float(value)
    names = {float: "a number", int: "a whole number", bool: "true or false"}
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise SettingsError(
            f"{key} = {value!r} must be {names.get(kind, 'a text')}, as its default "
            f"{default!r} is"
        )
    return value
