"""A search as an Optuna study: its file, its trials, their processes, and its report.

All trials are in ``study.db`` from the start, waiting. Every process takes one after
the other. So a search that was interrupted goes on as it would have gone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import optuna
import pandas as pd
from flwr.app import Context, RecordDict
from matplotlib.figure import Figure
from optuna import pruners, samplers
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from fedtrellis.app.application import load_app, one_line
from fedtrellis.app.command_line import flatten
from fedtrellis.random import generator
from fedtrellis.runs import Run, interval, load_run
from fedtrellis.server.callbacks import Call, RoundRecord, observed_by
from fedtrellis.server.records import to_toml
from fedtrellis.settings import AUTO, SettingsError, check_choice, convert
from fedtrellis.signals import deferred
from fedtrellis.tune.grey_relational import ranked
from fedtrellis.tune.metrics import LATENCIES, METRICS, divergence, measure
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.workers import end_with_parent

NO_KEY = "the app's run config has all that may be set"
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
_SHOWN = f"seconds-{LATENCIES[1]:g}"  # of the three latencies that of the table
_ROWS = 25  # of the table; trials.csv has all


@dataclass(frozen=True)
class Search:
    """What a search is: its app (None: the package's own), settings, space and study.

    ``config`` is the run config that all trials share, but for ``results-dir``;
    ``space`` has what each key that is searched over may be; ``out`` is absolute. A
    trial has a run for each of ``seeds``, or one.
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
    seeds: Sequence[int] = ()

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
            # cut off in the middle: once more, under its number
            study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        for settings in search.drawn()[len(study.trials) :]:
            study.enqueue_trial(settings)
    if jobs == 1:
        _work(search, nullcontext())
        return
    # fresh interpreters, which load their libraries for one thread each
    for library in _THREADS:
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    spawn = multiprocessing.get_context("spawn")
    given = search, spawn.Lock()
    workers = [spawn.Process(target=_work, args=given) for _ in range(jobs)]
    # a terminal's interrupt goes to all of them; this process ends the others
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGINT, handler)
    try:
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.terminate()
    if any(worker.exitcode for worker in workers):
        why = "a process ended by itself, perhaps for lack of memory"
        raise SettingsError(f"--jobs {jobs}: {why}")


def _work(search: Search, taking: Any) -> None:
    """Run the trials that wait, one after the other; ``taking`` is one process's."""
    if multiprocessing.parent_process():
        end_with_parent()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = search.study()
    while True:
        with taking, deferred():
            waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
            if not waiting or waiting[0].number >= search.trials:
                return
            # a sampler for each trial, so that an interruption changes nothing
            rng = generator(search.seed, "search", waiting[0].number)
            study.sampler = samplers.TPESampler(seed=int(rng.integers(2**32)))
            trial = study.ask(search.space)
        outcome = perform(search, trial)
        status = outcome["status"]
        with deferred():
            for name, value in outcome.items():
                trial.set_user_attr(name, value)
            if status == "pruned":
                study.tell(trial, state=TrialState.PRUNED)
            else:  # samplers go by the loss; what failed may have none: nothing worse
                study.tell(trial, outcome.get("loss", math.inf))
        shown = f"loss {outcome['loss']:.4g}" if status == "completed" else status
        print(f"trial {trial.number}: {shown}", file=sys.stderr, flush=True)


def perform(search: Search, trial: Trial) -> dict[str, Any]:
    """Run a trial on a LocalGrid, with each seed, and measure it: means over them.

    It ends with the first run that is not completed. What the app shows and raises goes
    into ``runs/NUMBER/log.txt``. The outcome has ``status`` ("completed", "pruned",
    "diverged" or "failed"), ``reason``, ``record`` (relative to the search's directory)
    and the finite metrics; of several seeds also ``loss-interval``, half of the mean's.
    """
    directory = search.out / "runs" / f"{trial.number:03d}"
    # left by a search that was interrupted in this trial
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    found: list[dict[str, Any]] = []
    with (directory / "log.txt").open("w", encoding="utf-8") as log:
        try:
            for seed in search.seeds or (None,):
                found.append(_outcome_of(search, trial, seed, directory, log))
                if found[-1]["status"] != "completed":
                    break
        except (Exception, SystemExit) as error:
            traceback.print_exc(file=log)
            found.append({"reason": one_line(error), "status": "failed"})
    outcome = {"record": _record_in(directory, search.out), **found[-1]}
    if outcome["status"] == "completed" and len(found) > 1:
        for name in METRICS.keys() & outcome.keys():
            outcome[name] = float(np.mean([each[name] for each in found]))
        outcome["loss-interval"] = interval([each["loss"] for each in found])[1]
    return outcome


def _record_in(directory: Path, base: Path) -> str:
    """The last record, by its path from ``base``: the app names it; empty: none."""
    found = sorted(directory.rglob("history.jsonl"))
    return str(found[-1].parent.relative_to(base)) if found else ""


def _outcome_of(
    search: Search, trial: Trial, seed: int | None, directory: Path, log: TextIO
) -> dict[str, Any]:
    """Run the app once, its pruner given each loss, and measure that.

    With several seeds the pruner sees the first one's losses.
    """
    app = load_app(search.app)
    config = {**search.config, **trial.params}
    if seed is not None:
        directory = directory / f"seed-{seed}"
        directory.mkdir()
        config["seed"] = seed
    config["results-dir"] = str(directory)
    own = config.get("seed")
    grid = LocalGrid(
        app.client_app,
        search.nodes,
        seed=own if isinstance(own, int) else 0,
        run_config=config,
    )
    pruned = 0
    # a trial that was cut off has its first rounds already
    known = trial.study.trials[trial.number].last_step or 0

    def watch(record: RoundRecord) -> bool:
        nonlocal pruned
        if record.round > known and "loss" in record.metrics:
            trial.report(record.metrics["loss"], record.round)
            if trial.should_prune():
                pruned = record.round
        return bool(pruned)

    # without a pruner no round is written down
    watched = search.pruner != "none" and seed in (None, *search.seeds[:1])
    with _quiet(log), observed_by(Call(watch)) if watched else nullcontext():
        app.server_app(grid, Context(0, 0, {}, RecordDict(), config))
    record = _record_in(directory, search.out)
    if not record:
        raise SettingsError(
            "the run left no history.jsonl under its results-dir; its ServerApp has to "
            "write one (fedtrellis.server.records.RunRecord)"
        )
    return _measured(load_run(search.out / record), pruned)


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


def _measured(run: Run, pruned: int) -> dict[str, Any]:
    """What a run came to; ``pruned`` is the round that a pruner ended it in, or 0."""
    if run.status in ("running", "dead", "diverged", "interrupted", "failed"):
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


def read_space(
    path: Path, config: Mapping[str, Any]
) -> tuple[dict[str, BaseDistribution], int | None]:
    """Read a search file: what each key may be, and the number of trials if it has it.

    ``config`` has all keys with their defaults, which give the types. Where one is
    ``"auto"``, bounds are of any numbers, and values are for the app to check.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--search {str(path)!r}: {error}") from None
    trials = content.pop("trials", None)
    if trials is not None and (type(trials) is not int or trials < 1):
        least = "must be a whole number, at least 1"
        raise SettingsError(f"--search: trials = {trials!r} {least}")
    tables: dict[str, dict[str, Any]] = {}
    for entry, value in flatten(content).items():
        key, _, name = entry.rpartition(".")
        if not key:
            raise SettingsError(
                f"--search: {entry} = {value!r} must be a table with values = [...], "
                "or low and high; a setting of all trials goes into -c"
            )
        tables.setdefault(key, {})[name] = value
    space = {}
    for key, table in tables.items():
        check_choice(f"--search {path.name!r}: key", key, config, NO_KEY)
        if key in (*METRICS, "trial", "grade", "status", "reason", "record"):
            why = "is named like a column of trials.csv; rename it in the app"
            raise SettingsError(f"--search {path.name!r}: {key} {why}")
        space[key] = _distribution(key, table, config[key])
    if not space:
        raise SettingsError(
            f"--search {str(path)!r} names no key; it needs tables with values = "
            "[...], or low = ... and high = ..."
        )
    return space, trials


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
    whole = isinstance(default, int)
    kind = IntDistribution if whole else FloatDistribution
    try:
        return kind(low, high, log=scale == "log")
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def _typed(key: str, value: Any, default: Any) -> Any:
    """Return a value as the type of the key's default."""
    if default == AUTO:
        return value  # the app checks it
    value = convert(key, value, (type(default),))
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{key} = {value!r} must be a number and finite")
    return value


def ranked_trials(trials: Sequence[FrozenTrial]) -> tuple[pd.DataFrame, list[str]]:
    """A search's trials as a table, best first, and the metrics that all of them have.

    Completed trials come first, the Pareto front by falling grade, then the others by
    rising loss. SettingsError if none was completed.
    """
    table = pd.DataFrame(
        {"trial": t.number, **t.params, "grade": float("nan"), **t.user_attrs}
        for t in trials
        if "status" in t.user_attrs
    )
    counts = table["status"] == "completed"
    if not counts.any():
        number, status, reason = table.iloc[0][["trial", "status", "reason"]]
        raise SettingsError(
            f"none of {len(table)} trials is left; trial {number} {status}: {reason}"
        )
    kept = table[counts].sort_values("loss", kind="stable")
    metrics = [name for name in METRICS if name in kept.dropna(axis=1)]
    kept = ranked(kept, {name: METRICS[name] for name in metrics})
    return pd.concat([kept, table[~counts]]), metrics


def report(
    trials: Sequence[FrozenTrial], out: Path, name: str, fixed: Mapping[str, Any]
) -> None:
    """Print the ranking, and write ``trials.csv``, ``best.toml`` and ``pareto.png``.

    ``fixed`` has the settings that all trials share, for ``best.toml``.
    """
    table, metrics = ranked_trials(trials)
    table.to_csv(out / "trials.csv", index=False)
    kept = table[table["status"] == "completed"]
    best = trials[kept["trial"].iloc[0]]
    head = (
        f"# Trial {best.number} of fedtrellis tune, recommended by grey relational "
        f"analysis over\n# {', '.join(metrics)}.\n"
    )
    settings = to_toml({**fixed, **best.params})
    (out / "best.toml").write_text(head + settings, encoding="utf-8")
    _picture(kept, f"{name}: {len(kept)} of {len(table)} trials", out / "pareto.png")

    print(f"Recommended first; grades of the Pareto front over {len(metrics)} metrics")
    shown = [m for m in metrics if m == _SHOWN or "seconds" not in m]
    rows = kept[["trial", *best.params, "grade", *shown]].head(_ROWS)
    print(rows.to_string(index=False, na_rep="-", float_format="{:.4g}".format))
    if len(kept) > _ROWS:
        print(f"... and {len(kept) - _ROWS} more in trials.csv")
    for row in table[len(kept) :].to_dict("records"):
        print(f"left out: trial {row['trial']} {row['status']}: {row['reason']}")
    print(f"Best: {out / 'best.toml'}\nPicture: {out / 'pareto.png'}", flush=True)


def _picture(kept: pd.DataFrame, title: str, path: Path) -> None:
    """Seconds a round against the final loss, by grade; small and grey: dominated."""
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.scatter(kept[_SHOWN], kept["loss"], s=15, c="0.6")
    # a grade that is NaN is not drawn
    points = axes.scatter(kept[_SHOWN], kept["loss"], s=70, c=kept["grade"])
    best = kept.iloc[0]
    axes.annotate(f"  trial {best['trial']}", (best[_SHOWN], best["loss"]))
    axes.set_xlabel(f"seconds a round, with {LATENCIES[1]:g} s latency a round trip")
    axes.set_ylabel("mean of the last 5 losses")
    if kept["loss"].min() > 0.0:
        axes.set_yscale("log")
    axes.set_title(title)
    figure.colorbar(points, label="grey relational grade")
    figure.savefig(path, dpi=120)
