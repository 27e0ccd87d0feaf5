"""What ``python sim.py`` and ``fedtrellis`` share: options, overrides, errors."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, TextIO

from fedtrellis.server.records import DEFAULT_NODES
from fedtrellis.settings import SettingsError, refused
from fedtrellis.signals import Interrupted


class Parser(argparse.ArgumentParser):
    """One whose errors are a line, without the usage: that is for ``--help``."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: error: {message}; --help lists what there is\n")


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A run config's tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as flwr has it


def read_config(arguments: Sequence[str], option: str = "-c") -> dict[str, Any]:
    """Overrides from ``-c``, or another option: TOML files, or ``key=value`` pairs."""
    overrides: dict[str, Any] = {}
    for argument in arguments:
        try:
            if argument.endswith(".toml"):
                text = Path(argument).expanduser().read_text(encoding="utf-8")
                overrides |= flatten(tomllib.loads(text))
                continue
            rest = _PAIR.sub("", argument).strip()
            pairs = _PAIR.findall(argument)
            if rest or not pairs:
                raise ValueError(f"{rest!r} is no key=value")
        except (OSError, ValueError) as error:
            raise SettingsError(f"{option} {argument!r}: {error}") from None
        for key, value in pairs:
            try:
                overrides |= flatten(tomllib.loads(f"{key} = {value}"))
            except tomllib.TOMLDecodeError:
                # a shell takes the quotes of -c method="fedgia"
                bare = value.strip("'\"")
                why = "a text stands in double quotes, all of it in single ones"
                text = f"{option} {argument!r}: {why}: '{key}=\"{bare}\"'"
                raise SettingsError(text) from None
    return overrides


def read_seeds(text: str) -> list[int]:
    """Seeds from ``--seeds``: ``0..4``, with both ends, or ``0,1,5``."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        if not (first.isdecimal() and (last.isdecimal() if dots else not last)):
            raise SettingsError(f"--seeds {text!r} must be like 0..4 or 0,1,5")
        found += range(int(first), int(last or first) + 1)
    if not found or len(set(found)) < len(found):
        raise SettingsError(
            f"--seeds {text!r} must have each seed once, and at least one"
        )
    return found


def shown_seeds(seeds: Sequence[int]) -> str:
    """What :func:`read_seeds` reads."""
    known = sorted(seeds)
    if len(known) > 1 and known == [*range(known[0], known[-1] + 1)]:
        return f"{known[0]}..{known[-1]}"
    return ",".join(map(str, known))


def add_run_config(parser: argparse.ArgumentParser, what: str) -> None:
    """The option ``-c``, for :func:`read_config`."""
    parser.add_argument(
        *("-c", "--run-config"),
        action="append",
        default=[],
        metavar="'key=value ...'|FILE.toml",
        help=f"{what}; may be given several times",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What a run on a grid in this process takes."""
    add = parser.add_argument
    text = f"simulated nodes [{DEFAULT_NODES}, or those of the run that goes on]"
    add("--nodes", type=int, help=text)
    text = "processes that the nodes are spread over, where clients take long [1]"
    add("--workers", type=int, default=1, metavar="N", help=text)
    add_run_config(parser, "settings")
    text = "a run with each of these, 0..4 or 0,1,5 [the setting seed]"
    add("--seeds", metavar="0..4", help=text)
    text = "entries of every node's config, as flower-supernode takes them; "
    text += "{partition} in a text becomes the node's number from 0"
    several: Any = {"action": "append", "default": [], "metavar": "'key=value ...'"}
    add("--node-config", help=text, **several)
    add("--out", metavar="DIR", help="where the run's record goes")
    text = "text, or JSON objects, one a line: the setting log-format"
    add("--format", choices=("text", "json"), help=text)
    add("--debug", action="store_true", help="show tracebacks")


class Output:
    """A stream whose reader may stop before its end (``| head``): work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write at once, or nowhere if nobody reads any more."""
        try:
            print(text, end="", file=self._stream, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def perform(
    act: Callable[[argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
) -> int:
    """Act on what the arguments say: exit status 0, or 1 after a line of what failed.

    128 and the signal's number (130, 143, 129) if SIGINT, SIGTERM or SIGHUP ended it.
    """
    options, rest = parser.parse_known_args(arguments)
    if rest:
        hint = "; settings follow -c: -c 'KEY=VALUE ...'" if "=" in rest[0] else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    try:
        for name in ("out", "csv"):
            if getattr(options, name, None) == "":
                raise refused(f"--{name}", "", "must be the name of a file or folder")
        with redirect_stdout(Output(sys.stdout)):
            act(options)
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        told = vars(options)
        if told.get("debug"):
            traceback.print_exc()
        program = " ".join([parser.prog, *filter(None, [told.get("command")])])
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    return 0
