"""``fedtrellis``: run, list, resume, tune, runs and compare, from any folder."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from fedtrellis.app.command_line import add_run_options, guarded, parse_words
from fedtrellis.app.listing import print_list
from fedtrellis.builtin import installed_app
from fedtrellis.runs import (
    add_compare_options,
    add_runs_options,
    compare_runs,
    list_runs,
)
from fedtrellis.server.interruption import fedtrellis_command
from fedtrellis.settings import SettingsError
from fedtrellis.signals import signals_interrupt
from fedtrellis.tune.command_line import add_options, search

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 after one line that says what failed, or 128 and a signal's."""
    parser = argparse.ArgumentParser(
        prog="fedtrellis", description="Federated optimisation for Flower."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str, act: Callable[[argparse.Namespace], None], help: str, about: str = ""
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=about or None)
        made.set_defaults(act=act)
        return made

    run = command(
        "run",
        _run,
        "run a method on nodes in this process",
        "Run a federated method in this process, as Flower would run it.",
    )
    add_run_options(run)
    listing = command(
        "list",
        lambda options: print_list(installed_app().registry, options.name),
        "what there is, and what can be set",
    )
    listing.add_argument("name", nargs="?", help="of a method, task or domain [all]")
    resume = command(
        "resume", _resume, "go on with a run that was interrupted or failed"
    )
    resume.add_argument("directory", metavar="DIR", help="the run's record")
    add_run_options(resume)
    tune = command(
        "tune",
        _tune,
        "search for an app's settings",
        "Run trials of a Flower app as an Optuna study, and recommend one of them by "
        "grey relational analysis over seven metrics.",
    )
    add_options(tune)
    add_runs_options(command("runs", list_runs, "the runs there are"))
    about = "runs of any methods beside each other: a table and curves"
    add_compare_options(command("compare", compare_runs, about))
    options = parse_words(parser, arguments)
    program = f"fedtrellis {options.command}"
    return guarded(lambda: options.act(options), program, options)


def _tune(options: argparse.Namespace) -> None:
    with signals_interrupt():
        search(options)


def _run(options: argparse.Namespace) -> None:
    installed_app().run_in_process(options, fedtrellis_command)


def _resume(options: argparse.Namespace) -> None:
    directory = Path(options.directory).expanduser().resolve()
    if not (directory / "config.toml").is_file():
        raise SettingsError(f"{options.directory!r} is not the record of a run")
    options.run_config = [f'resume="{directory}"', *options.run_config]
    _run(options)
