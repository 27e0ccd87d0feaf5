"""``python -m benchmarks [--quick] [--only NAMES]``, and where the results go.

``python -m benchmarks matrix`` is :mod:`benchmarks.matrix.command`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console
from threadpoolctl import threadpool_limits

from .report import machine, quiet, write_json

#: What ``--only`` takes, and its module: ``compare`` makes the tables of ``FULL``, or
#: of ``QUICK``.
BENCHMARKS = {
    "traffic": "traffic",
    "secure-sums": "secure_sums",
    "membership": "membership",
    "fedgia-safe": "fedgia_safe",
    "torch": "torch_speed",
    "cohorts": "cohorts",
    "late": "late",
    "engines": "engines.comparison",
    "held-out": "held_out",
    "sets": "sets",
    "networks": "networks",
    "scale": "scale",
}
#: Those that are measured only if they are named: minutes each, of Ray or tuning.
BY_NAME = tuple(list(BENCHMARKS)[list(BENCHMARKS).index("cohorts") :])


def names(text: str) -> list[str]:
    """Names, with commas between them."""
    found = text.split(",")
    for name in found:
        if name not in BENCHMARKS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(BENCHMARKS)}"
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write files if asked; 0 also where an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two instead of many"
    )
    parser.add_argument(
        "--only",
        action="extend",
        type=names,
        metavar="NAMES",
        help=f"of {', '.join(BENCHMARKS)}, with commas; "
        f"{', '.join(BY_NAME)} only run if they are named",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON goes there")
    parser.add_argument(
        "--csv", type=Path, metavar="FOLDER", help="each table goes there as NAME.csv"
    )
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["matrix"]:  # of runs that take an hour, with options of its own
        return int(import_module(".matrix.command", __package__).main(given[1:]))
    options = parser.parse_args(given)
    out = options.out and options.out.absolute().parent
    for folder in (out, options.csv, options.pictures):
        if folder is not None and not folder.is_dir():
            parser.error(f"there is no folder {folder}")
    quiet()
    command = " ".join(["python -m benchmarks", *given])
    console, facts = Console(highlight=False), machine(command)
    if not console.is_terminal:  # a file has room
        console.width = 180
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    results = []
    with threadpool_limits(1):
        for name in options.only or [n for n in BENCHMARKS if n not in BY_NAME]:
            module = import_module(f".{BENCHMARKS[name]}", __package__)
            size = module.QUICK if options.quick else module.FULL
            for result in module.compare(size):
                result.show(console)
                results.append(result)
                if options.out is not None:  # after each: the next may take minutes
                    write_json(options.out, facts, options.quick, results)
                if options.csv is not None:
                    path = options.csv / f"{result.name}.csv"
                    path.write_text(result.csv(), encoding="utf-8")
                    # what a table comes from, and every single measurement
                    one = path.with_suffix(".json")
                    write_json(one, facts, options.quick, [result])
                if options.pictures is not None and result.draw is not None:
                    result.draw(options.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
