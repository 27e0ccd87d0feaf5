"""``fedtrellis``: run, list, resume, tune, runs, compare and more, from any folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedtrellis.app.application import installed_app
from fedtrellis.app.check import add_check_options, check
from fedtrellis.app.command_line import Parser, add_run_options, perform
from fedtrellis.app.new_method import new_method
from fedtrellis.app.registry import print_list
from fedtrellis.runs import add_commands, load_run, print_runs
from fedtrellis.tune.command_line import add_search_options, search


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 after one line that says what failed, or 128 and a signal's."""
    parser = Parser(prog="fedtrellis", description="Federated optimisation for Flower.")
    parser.add_argument("--version", action="version", version=version("fedtrellis"))
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, act: Any, help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=act.__doc__)
        command.set_defaults(act=act)
        return command

    add_run_options(add("run", _run, "run a method on nodes in this process"))
    listing = add("list", _list, "what there is, and what can be set")
    listing.add_argument("name", nargs="?", help="of a method, task or domain [all]")
    resume = add("resume", _resume, "go on with a run that was interrupted or failed")
    resume.add_argument("directory", metavar="DIR", help="the run's record")
    add_run_options(resume)
    what = "what would stop a deployed run: certificates, keys, data, versions"
    add_check_options(add("check", check, what))
    add_search_options(add("tune", search, "search for an app's settings"))
    add_commands(add)
    what = "a package with a method of one's own, and its tests"
    made = add("new-method", new_method, what)
    made.add_argument("name", metavar="NAME", help="of the method, such as my-method")
    return perform(lambda options: options.act(options), parser, arguments)


def _run(options: argparse.Namespace) -> None:
    """Run a federated method in this process, as Flower would run it."""
    records = installed_app().run_in_process(options, "fedtrellis run")
    if options.seeds is not None and options.format == "text":
        print_runs([load_run(record) for record in records])


def _list(options: argparse.Namespace) -> None:
    print_list(installed_app().registry, options.name)


def _resume(options: argparse.Namespace) -> None:
    directory = Path(options.directory).expanduser().resolve()
    if not (directory / "config.toml").is_file():  # a folder of records: the last
        records = sorted(file.parent for file in directory.glob("*/checkpoint.npz"))
        directory = records[-1] if records else directory
    options.run_config = [f'resume="{directory}"', *options.run_config]
    _run(options)
