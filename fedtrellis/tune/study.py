"""A search as an Optuna study: what is drawn, and the processes that run it.

All trials are in ``study.db`` from the start, waiting. Every process takes one after
the other. So a search that was interrupted goes on as it would have gone.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna import pruners, samplers
from optuna.distributions import BaseDistribution
from optuna.trial import Trial, TrialState

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from fedtrellis.signals import deferred
from fedtrellis.tune.trial import perform

__all__ = ["PRUNERS", "SAMPLERS", "Search", "run"]

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
    """What a search is.

    Attributes
    ----------
    app : pathlib.Path or None
        The app's directory; None: the package's own app.
    config : dict
        The run config that all trials share, but for ``results-dir``.
    space : dict of str to optuna.distributions.BaseDistribution
        What each key that is searched over may be.
    nodes : int
    out : pathlib.Path
        The search's directory, absolute.
    trials, seed : int
        How many trials, and what they are drawn from.
    sampler, pruner : str
        Of ``SAMPLERS`` and ``PRUNERS``.
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

    def storage(self) -> optuna.storages.RDBStorage:
        """Open ``study.db``; several processes write to it, and each waits its turn."""
        wait = {"connect_args": {"timeout": 60}}
        path = f"sqlite:///{self.out / 'study.db'}"
        return optuna.storages.RDBStorage(path, engine_kwargs=wait)

    def study(self) -> optuna.Study:
        """Open its study, or make it."""
        return optuna.create_study(
            storage=self.storage(),
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
    """Run the trials that are not done yet, in this process or in several.

    Raises
    ------
    SettingsError
        If a process ended by itself.
    """
    study, storage = search.study(), search.storage()
    with deferred():
        for trial in study.get_trials(states=[TrialState.RUNNING]):
            if "status" in trial.user_attrs:  # it had ended
                _tell(study, trial.number, trial.user_attrs)
            else:  # cut off in the middle: once more, under its number
                storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
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


def _next(search: Search, study: optuna.Study) -> Trial | None:
    """Take the first trial that waits; None if there is none."""
    waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
    if not waiting or waiting[0].number >= search.trials:
        return None
    # a sampler for each trial, so that an interruption changes nothing
    seed = generator(search.seed, "search", waiting[0].number).integers(2**32)
    study.sampler = samplers.TPESampler(seed=int(seed))
    return study.ask(search.space)


def _work(search: Search, lock: AbstractContextManager[Any]) -> None:
    """Run one trial after the other until there are enough."""
    study = search.study()
    while True:
        with lock, deferred():
            trial = _next(search, study)
        if trial is None:
            return
        outcome = perform(search, trial)
        with deferred():
            for name, value in outcome.items():
                trial.set_user_attr(name, value)
            _tell(study, trial.number, outcome)
        text = outcome["status"]
        if text == "completed":
            text = f"loss {outcome['loss']:.4g}"
        print(f"trial {trial.number}: {text}", file=sys.stderr, flush=True)


def _tell(study: optuna.Study, number: int, outcome: dict[str, Any]) -> None:
    """End a trial; samplers go by its loss."""
    if outcome["status"] == "pruned":
        study.tell(number, state=TrialState.PRUNED)
    else:  # what failed, or diverged, may have no finite loss: nothing is worse
        study.tell(number, outcome.get("loss", math.inf))


@contextlib.contextmanager
def _for_new_processes() -> Iterator[None]:
    """What processes inherit that are started inside.

    One thread of linear algebra each; and a terminal's interrupt, which goes to all,
    passes them by, also while they load their libraries. The search's own process is
    interrupted, and ends them.
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


def _worker(search: Search, lock: AbstractContextManager[Any]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _work(search, lock)
