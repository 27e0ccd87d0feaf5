"""``fedtrellis tune``: an Optuna study of a Flower app's settings."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from fedtrellis.app.application import load_app, one_line
from fedtrellis.app.command_line import add_run_config, read_config, read_seeds
from fedtrellis.server.records import default_results_dir
from fedtrellis.settings import SettingsError, check_choice, need
from fedtrellis.signals import signals_interrupt

_TRIALS = 20


def add_search_options(tune: argparse.ArgumentParser) -> None:
    """What ``fedtrellis tune`` takes."""
    add = tune.add_argument
    text = "an app's directory [this one, if it has an app; else fedtrellis's own]"
    add("app", nargs="?", metavar="APP_DIR", help=text)
    text = "keys, values and bounds"
    add("--search", required=True, metavar="FILE.toml", help=text)
    add("--trials", type=int, help=f"how many [what the file says, or {_TRIALS}]")
    add("--nodes", type=int, default=10, help="simulated nodes [10]")
    add_run_config(tune, "settings of all trials")
    text = "runs of each trial, whose metrics are averaged [one, of the setting seed]"
    add("--seeds", metavar="0..4", help=text)
    add("--sampler", default="random", help="who draws: random or tpe [random]")
    text = "which trials end early: none, median, halving or hyperband [none]"
    add("--pruner", default="none", help=text)
    add("--seed", type=int, default=0, help="of the search [0]")
    add("--jobs", type=int, default=1, help="trials at once [1]")
    text = "where everything goes; an unfinished search there goes on "
    text += "[a new one under ~/.fedtrellis/tune]"
    add("--out", metavar="DIR", help=text)


@signals_interrupt()
def search(options: argparse.Namespace) -> None:
    """Run trials of an app as a study of Optuna's, and recommend one of them.

    The recommendation is by grey relational analysis over seven metrics.
    """
    for library in ("optuna", "pandas", "matplotlib"):
        need(library, "fedtrellis tune", "tune")
    import optuna

    from fedtrellis.tune import study as tuning

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name, least in (("nodes", 1), ("trials", 1), ("jobs", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value} must be at least {least}")
    directory = None if options.app is None else Path(options.app)
    project = Path("pyproject.toml")
    if directory is None and project.is_file() and "tool.flwr" in project.read_text():
        directory = Path.cwd()  # else it is the package's own
    if directory is not None:
        directory = directory.expanduser().resolve()
    app = load_app(directory)
    space, trials = tuning.read_space(Path(options.search).expanduser(), app.config)
    fixed = read_config(options.run_config)
    for key in fixed:
        check_choice("-c: key", key, app.config, tuning.NO_KEY)
        if key in space:
            raise SettingsError(f"-c {key} = {fixed[key]!r}: the search is over it")
    seeds = [] if options.seeds is None else read_seeds(options.seeds)
    if seeds and "seed" not in app.config:
        raise SettingsError(
            f"--seeds {options.seeds}: the app's run config has no seed"
        )
    # each trial has its own, and begins anew
    for key in ("results-dir", "resume", *(["seed"] if seeds else [])):
        if key in space or key in fixed:
            raise SettingsError(f"{key} cannot be set here: each trial has its own")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    new = default_results_dir().parent / "tune" / f"{stamp}-{app.name}"
    out = Path(options.out or new).expanduser().resolve()
    what = tuning.Search(
        app=directory,
        config={**app.config, **fixed},
        space=space,
        nodes=options.nodes,
        seeds=seeds,
        out=out,
        trials=options.trials or trials or _TRIALS,
        seed=options.seed,
        sampler=check_choice("--sampler", options.sampler, tuning.SAMPLERS),
        pruner=check_choice("--pruner", options.pruner, tuning.PRUNERS),
    )
    try:
        # two searches that begin in one second have one name
        out.mkdir(parents=True, exist_ok=bool(options.out))
        study = what.study()
    except Exception as error:  # SQLAlchemy's own, among others
        text = f"--out {out} cannot be used: {one_line(error)}"
        raise SettingsError(text) from None
    same = ("nodes", "seed", "sampler", "pruner", "seeds")
    about = {"app": app.name, **{name: getattr(what, name) for name in same}}
    about["config"] = fixed
    about["search"] = {key: repr(one) for key, one in space.items()}
    for key, value in study.user_attrs.get("search", about).items():
        if about[key] != value:
            other = f"another search, with {key} = {value!r} instead of {about[key]!r}"
            raise SettingsError(f"--out {out} has {other}; choose another directory")
    study.set_user_attr("search", about)
    try:
        tuning.run(what, options.jobs)
    except KeyboardInterrupt:
        done = sum(trial.state.is_finished() for trial in study.trials)
        text = f"interrupted; {done} trials are kept, and the same command with"
        print(f"{text} --out {out} goes on", file=sys.stderr)
        raise
    tuning.report(study.trials, out, app.name, fixed)
