"""``fedtrellis tune``: an Optuna study of a Flower app's settings.

It runs trials on a grid in this process, or in several, measures each by the metrics of
:mod:`fedtrellis.tune.metrics`, and recommends one by grey relational analysis.
``docs/tuning.md`` shows it.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrellis.app.directory import load_app, one_line, read_config
from fedtrellis.builtin import own_app
from fedtrellis.extras import need
from fedtrellis.server.records import default_results_dir
from fedtrellis.settings import SettingsError, check_choice

if TYPE_CHECKING:
    from fedtrellis.tune.study import Search

__all__ = ["add_options", "search"]

_TRIALS = 20


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
    tune.add_argument(
        "--sampler", default="random", help="who draws: random or tpe [random]"
    )
    tune.add_argument(
        "--pruner",
        default="none",
        help="which trials end early: none, median, halving or hyperband [none]",
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
    """Search for an app's settings, as the command line says.

    Raises
    ------
    SettingsError
        In one line: what is wrong with an option, a file or the directory; or that no
        trial was completed.
    """
    for library in ("optuna", "pandas", "matplotlib"):
        need(library, "fedtrellis tune", "tune")
    import optuna

    from fedtrellis.tune.report import report
    from fedtrellis.tune.study import run

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, fixed, what = _read(options)
    try:
        what.out.mkdir(parents=True, exist_ok=True)
        study = what.study()
    except Exception as error:  # SQLAlchemy's own, among others
        text = f"--out {what.out} cannot be used: {one_line(error)}"
        raise SettingsError(text) from None
    about = {
        "app": name,
        "nodes": what.nodes,
        "seed": what.seed,
        "sampler": what.sampler,
        "pruner": what.pruner,
        "config": fixed,
        "search": {key: f"{each!r}" for key, each in what.space.items()},
    }
    for key, value in study.user_attrs.get("search", about).items():
        if about[key] != value:
            raise SettingsError(
                f"--out {what.out} has another search, with {key} = {value!r} instead "
                f"of {about[key]!r}; choose another directory"
            )
    study.set_user_attr("search", about)

    def done() -> int:
        return sum("status" in trial.user_attrs for trial in study.trials)

    if done():
        print(f"{done()} trials are already in {what.out}", file=sys.stderr)
    try:
        run(what, options.jobs)
    except KeyboardInterrupt:
        text = f"interrupted; {done()} trials are kept, and the same command with"
        print(f"{text} --out {what.out} goes on", file=sys.stderr)
        raise
    report(study.trials, what.out, name, fixed)


def _read(options: argparse.Namespace) -> tuple[str, dict[str, Any], Search]:
    """The app's name, the settings of ``-c``, and the search."""
    from fedtrellis.tune.space import check_key, read_space
    from fedtrellis.tune.study import PRUNERS, SAMPLERS, Search

    for name, least in (("nodes", 1), ("trials", 1), ("jobs", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value} must be at least {least}")
    directory = _app_directory(options.app)
    app = own_app() if directory is None else load_app(directory)
    space, trials = read_space(Path(options.search).expanduser(), app.config)
    fixed = read_config(options.run_config)
    for key in fixed:
        check_key("-c: key", key, app.config)
        if key in space:
            raise SettingsError(f"-c {key} = {fixed[key]!r}: the search is over it")
    for key in ("results-dir", "resume"):  # each trial has its own, and begins anew
        if key in space or key in fixed:
            raise SettingsError(f"{key} cannot be set here: each trial has its own")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    new = default_results_dir().parent / "tune" / f"{stamp}-{app.name}"
    search = Search(
        app=directory,
        config={**app.config, **fixed},
        space=space,
        nodes=options.nodes,
        out=Path(options.out or new).expanduser().resolve(),
        trials=options.trials or trials or _TRIALS,
        seed=options.seed,
        sampler=check_choice("--sampler", options.sampler, SAMPLERS),
        pruner=check_choice("--pruner", options.pruner, PRUNERS),
    )
    return app.name, fixed, search


def _app_directory(given: str | None) -> Path | None:
    """The directory of the app to search; None: the package's own."""
    if given is not None:
        return Path(given).expanduser().resolve()
    here = Path.cwd()
    project = here / "pyproject.toml"
    return here if project.is_file() and "tool.flwr" in project.read_text() else None
