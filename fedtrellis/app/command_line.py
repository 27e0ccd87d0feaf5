"""``python sim.py``, and what ``fedtrellis run`` and ``list`` share with it."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrellis.app.directory import read_config
from fedtrellis.app.listing import print_list, write_config_block
from fedtrellis.app.run import read_record, run_and_report
from fedtrellis.server.interruption import DEFAULT_NODES, sim_command
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import LOG_FORMATS, print_json, settle_colours
from fedtrellis.settings import keys, parse_values
from fedtrellis.signals import Interrupted
from fedtrellis.wire.local_grid import LocalGrid

if TYPE_CHECKING:
    from fedtrellis.app.application import App

__all__ = ["add_run_options", "guarded", "main", "parse_words", "run_in_process"]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What a run on a grid in this process takes."""
    parser.add_argument(
        "--nodes", type=int, default=DEFAULT_NODES, help="simulated nodes [10]"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that the nodes are spread over, where clients take long [1]",
    )
    parser.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="'key=value ...'|FILE.toml",
        help="settings; may be given several times",
    )
    parser.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="'key=value ...'",
        help="entries of every node's config, as flower-supernode takes them; "
        "{partition} in a text becomes the node's number from 0",
    )
    parser.add_argument("--out", metavar="DIR", help="where the run's record goes")
    parser.add_argument(
        "--format",
        choices=LOG_FORMATS,
        help="text, or JSON objects, one a line: the setting log-format",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def main(app: App, arguments: Sequence[str] | None = None) -> int:
    """``python sim.py``."""
    parser = argparse.ArgumentParser(
        prog="python sim.py",
        description="Run a federated method in this process, as Flower would run it.",
    )
    add_run_options(parser)
    parser.add_argument(
        "--list",
        nargs="?",
        const="",
        metavar="NAME",
        help="what can be set, all or of one method or task, and stop",
    )
    parser.add_argument(
        "--write-config",
        action="store_true",
        help="write every key with its default into ./pyproject.toml, and stop",
    )
    options = parse_words(parser, arguments)

    def act() -> None:
        if options.list is not None:
            print_list(app.registry, options.list or None)
        elif options.write_config:
            write_config_block(app.registry, Path("pyproject.toml"))
        else:
            run_in_process(app, options, sim_command)

    return guarded(act, "sim.py", options)


def parse_words(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """``parse_args``, which says of a setting that stands alone where it belongs."""
    options, rest = parser.parse_known_args(arguments)
    if rest:
        hint = "; settings follow -c: -c 'KEY=VALUE ...'" if "=" in rest[0] else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return options


def guarded(act: Callable[[], None], program: str, options: argparse.Namespace) -> int:
    """Exit status 0, or 1 after one line that says what failed.

    128 and the signal's number (130, 143, 129) if SIGINT, SIGTERM or SIGHUP ended it.
    """
    settle_colours()
    try:
        act()
        sys.stdout.flush()
    except Interrupted as interrupted:
        return interrupted.exit_status
    except BrokenPipeError:
        # whoever read our lines has enough of them (| head); nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if getattr(options, "debug", False):
            traceback.print_exc()
        if getattr(options, "as_json", getattr(options, "format", None) == "json"):
            print_json("error", file=sys.stderr, error=f"{error}")
        else:
            print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    return 0


def run_in_process(
    app: App,
    options: argparse.Namespace,
    resume_command: Callable[[Path, int, Sequence[str]], str],
) -> None:
    """Run what the command line says on a grid in this process."""
    registry = app.registry
    config = registry.default_config()
    overrides = read_config(options.run_config)
    if overrides.get("resume"):
        # a record knows its own settings; what is given here comes on top
        config |= read_record(registry, Path(str(overrides["resume"])).expanduser())
    registry.check_known({"method": config["method"]} | overrides, "-c")
    config |= overrides
    if options.format is not None:
        config["log-format"] = options.format
    options.as_json = config["log-format"] == "json"
    if options.out is not None:
        config["results-dir"] = str(Path(options.out).expanduser().resolve())
    if config["resume"]:
        config["resume"] = str(Path(str(config["resume"])).expanduser().resolve())
    # checked here, so that a bad value is reported before anything is built
    seed = parse_values(keys(LoopStrategy), LoopStrategy, config)["seed"]
    grid = LocalGrid(
        app.client_app,
        options.nodes,
        seed=seed,
        run_config=config,
        node_configs=_node_configs(options.node_config, options.nodes),
        batched=True,
        workers=options.workers,
    )
    with closing(grid):
        run_and_report(
            registry,
            app.experiment,
            grid,
            config,
            lambda path: resume_command(path, options.nodes, options.node_config),
        )


def _node_configs(arguments: Sequence[str], nodes: int) -> list[dict[str, Any]] | None:
    """The entries of ``--node-config``, with each node's number in the texts."""
    if not arguments or nodes < 1:
        return None
    entries = read_config(arguments, "--node-config")
    return [
        {
            key: value.replace("{partition}", str(number))
            if isinstance(value, str)
            else value
            for key, value in entries.items()
        }
        for number in range(nodes)
    ]
