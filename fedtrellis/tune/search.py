"""``fedtrellis tune``: a search for the settings of a Flower app.

It runs trials on a grid in this process, measures each by the metrics of
:mod:`fedtrellis.tune.ranking`, and recommends one by grey relational analysis.
``docs/tuning.md`` shows it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from fedtrellis.app.directory import load_app, read_config
from fedtrellis.builtin import own_app
from fedtrellis.server.records import default_results_dir
from fedtrellis.settings import SettingsError
from fedtrellis.tune.ranking import Trial, rank
from fedtrellis.tune.search_space import SearchSpace, check_key
from fedtrellis.tune.trials import Job, perform_all

__all__ = ["add_options", "search"]

_TRIALS = 20
# set for each trial, so nobody else may
_OURS = {
    "results-dir": "each trial has its own, under --out",
    "resume": "a trial starts from the beginning",
}


def add_options(tune: argparse.ArgumentParser) -> None:
    """What ``fedtrellis tune`` takes."""
    tune.add_argument(
        "app",
        nargs="?",
        metavar="APP_DIR",
        help="an app's directory [this one, if it has an app; else fedtrellis's own]",
    )
    tune.add_argument(
        "--search", required=True, metavar="FILE.toml", help="keys, values and bounds"
    )
    tune.add_argument(
        "--trials", type=int, help=f"how many [what the file says, or {_TRIALS}]"
    )
    tune.add_argument("--nodes", type=int, default=10, help="simulated nodes [10]")
    tune.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="'key=value ...'|FILE.toml",
        help="settings of all trials; may be given several times",
    )
    tune.add_argument("--seed", type=int, default=0, help="of the search [0]")
    tune.add_argument("--jobs", type=int, default=1, help="trials at once [1]")
    tune.add_argument(
        "--out",
        metavar="DIR",
        help="where everything goes; an unfinished search there goes on "
        "[a new one under ~/.fedtrellis/tune]",
    )


def search(options: argparse.Namespace) -> None:
    """Search for an app's settings, as the command line says."""
    from rich.console import Console

    from fedtrellis.tune.report import plot_front, show, write_best

    for name, least in (("nodes", 1), ("trials", 1), ("jobs", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value} must be at least {least}")
    directory = _app_directory(options.app)
    app = own_app() if directory is None else load_app(directory)
    space = SearchSpace.read(Path(options.search).expanduser(), app.config)
    fixed = read_config(options.run_config)
    searched = {dimension.key for dimension in space.dimensions}
    for key in fixed:
        check_key("-c: key", key, app.config)
        if key in searched:
            raise SettingsError(f"-c {key} = {fixed[key]!r}: the search is over it")
    for key, reason in _OURS.items():
        if key in searched or key in fixed:
            raise SettingsError(f"{key} cannot be set here: {reason}")
    drawn = space.draw(options.trials or space.trials or _TRIALS, options.seed)

    out = _directory(options.out, app.name)
    about = {
        "app": app.name,
        "nodes": options.nodes,
        "seed": options.seed,
        "config": fixed,
        "search": [asdict(dimension) for dimension in space.dimensions],
    }
    done = _open(out, json.loads(json.dumps(about)))
    jobs = [
        Job(
            directory,
            number,
            settings,
            {**app.config, **fixed, **settings},
            options.nodes,
            out,
        )
        for number, settings in enumerate(drawn, start=1)
        if number not in done
    ]
    say = Console(file=sys.stderr)
    if done:
        say.print(f"{len(done)} trials are already in {out}", soft_wrap=True)
    try:
        _run(say, jobs, options.jobs, out, done)
    except KeyboardInterrupt:
        say.print(
            f"interrupted; {len(done)} trials are kept, and the same command with "
            f"--out {out} goes on",
            soft_wrap=True,
        )
        raise
    trials = list(done.values())
    ranking = rank(trials)
    write_best(out / "best.toml", ranking, fixed)
    gone = len(trials) - len(ranking.trials)
    title = f"{app.name}: {len(trials)} trials, {gone} of them left out"
    plot_front(out / "pareto.png", ranking, title)
    console = Console(width=None if sys.stdout.isatty() else 160)
    show(console, ranking, trials)
    # unbroken lines, to be copied
    print(f"Best: {out / 'best.toml'}\nPicture: {out / 'pareto.png'}", flush=True)


def _app_directory(given: str | None) -> Path | None:
    """The directory of the app to search; None: the package's own."""
    if given is not None:
        return Path(given).expanduser().resolve()
    here = Path.cwd()
    project = here / "pyproject.toml"
    return here if project.is_file() and "tool.flwr" in project.read_text() else None


def _directory(out: str | None, name: str) -> Path:
    if out is not None:
        return Path(out).expanduser().resolve()
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return default_results_dir().parent / "tune" / f"{stamp}-{name}"


def _open(out: Path, about: Mapping[str, Any]) -> dict[int, Trial]:
    """Make the search's directory, or read what an earlier search left there."""
    path = out / "search.json"
    log = out / "trials.jsonl"
    if not path.exists():
        if log.exists():
            raise SettingsError(f"--out {out} has trials, but no search.json")
        try:
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"--out {out} cannot be written: {error}") from None
        return {}
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    if not isinstance(before, dict):
        raise SettingsError(f"{path} cannot be read: it says nothing of a search")
    for key, value in about.items():
        if before.get(key) != value:
            raise SettingsError(
                f"--out {out} has another search, with {key} = {before.get(key)!r} "
                f"instead of {value!r}; choose another directory"
            )
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    done: dict[int, Trial] = {}
    kept = ""
    for line in text.splitlines():
        try:
            trial = _from_line(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue  # cut off in the middle; that trial is run again
        done[trial.number] = trial
        kept += line + "\n"
    if kept != text:
        whole = log.with_name("trials.jsonl.tmp")
        whole.write_text(kept, encoding="utf-8")
        whole.replace(log)
    return done


def _to_line(trial: Trial) -> dict[str, Any]:
    line = asdict(trial)
    return {"trial": line.pop("number"), **line}


def _from_line(line: dict[str, Any]) -> Trial:
    return Trial(number=line.pop("trial"), **line)


def _run(
    say: Any, jobs: Sequence[Job], processes: int, out: Path, done: dict[int, Trial]
) -> None:
    """Run trials; each is written down before the next is waited for."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total, lowest = len(jobs) + len(done), float("inf")
    bar = Progress(
        TextColumn("trial"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=say,
        # the trials send these elsewhere, each to its log
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not say.is_terminal,
    )
    with bar, (out / "trials.jsonl").open("a", encoding="utf-8") as file:
        task = bar.add_task("", total=total, completed=len(done))
        for trial in perform_all(jobs, processes):
            file.write(json.dumps(_to_line(trial)) + "\n")
            file.flush()
            done[trial.number] = trial
            if trial.counts:
                lowest = min(lowest, trial.metrics["loss"])
            bar.update(task, advance=1, description=f"lowest loss {lowest:.4g}")
            if not say.is_terminal:
                result = (
                    f"loss {trial.metrics['loss']:.4g}"
                    if trial.counts
                    else trial.status
                )
                print(f"trial {trial.number}/{total}: {result}", file=say.file)
