"""``fedtrellis``: run, list, resume, tune, runs and compare, from any folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
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
from fedtrellis.server.records import sim_command
from fedtrellis.settings import SettingsError
from fedtrellis.tune.command_line import add_search_options, search


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 after one line that says what failed, or 128 and a signal's."""
    parser = argparse.ArgumentParser(
        prog="fedtrellis", description="Federated optimisation for Flower."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (act, add_options, help) in _COMMANDS.items():
        command = commands.add_parser(name, help=help, description=act.__doc__)
        command.set_defaults(act=act)
        add_options(command)
    options = parse_words(parser, arguments)
    program = f"fedtrellis {options.command}"
    return guarded(lambda: options.act(options), program, options)


def _run(options: argparse.Namespace) -> None:
    """Run a federated method in this process, as Flower would run it."""
    again = partial(sim_command, program="fedtrellis run")
    installed_app().run_in_process(options, again)


def _list(options: argparse.Namespace) -> None:
    print_list(installed_app().registry, options.name)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of a method, task or domain [all]")


def _resume(options: argparse.Namespace) -> None:
    directory = Path(options.directory).expanduser().resolve()
    if not (directory / "config.toml").is_file():
        raise SettingsError(f"{options.directory!r} is not the record of a run")
    options.run_config = [f'resume="{directory}"', *options.run_config]
    _run(options)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the run's record")
    add_run_options(parser)


_COMMANDS = {
    "run": (_run, add_run_options, "run a method on nodes in this process"),
    "list": (_list, _add_name, "what there is, and what can be set"),
    "resume": (
        *(_resume, _add_directory),
        "go on with a run that was interrupted or failed",
    ),
    "tune": (search, add_search_options, "search for an app's settings"),
    "runs": (list_runs, add_runs_options, "the runs there are"),
    "compare": (
        *(compare_runs, add_compare_options),
        "runs of any methods beside each other: a table and curves",
    ),
}
