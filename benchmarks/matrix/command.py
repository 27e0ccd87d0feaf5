"""``python -m benchmarks matrix``."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from threadpoolctl import threadpool_limits

from . import compressed, page
from .measure import FULL, QUICK_SIZES, RESULTS, measure
from .problems import PROBLEMS, QUICK, MissingError

__all__ = ["EQUAL_BYTES", "main"]

#: What ``--only`` calls the comparison with compressed updates.
EQUAL_BYTES = "equal-bytes"
say = partial(print, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not measured yet, and write the page; 1 where something lacks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks matrix",
        description="All methods on all problems they are for, tuned alike. Goes on "
        "where it ended; the page docs/matrix.md is made of the results.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{', '.join(QUICK)}, small; no page")
    add(
        "--only",
        action="append",
        choices=[*PROBLEMS, EQUAL_BYTES],
        metavar="PROBLEM",
        help=f"one of {', '.join([*PROBLEMS, EQUAL_BYTES])}; may be given several "
        "times",
    )
    add("--hours", type=float, default=2.0, help="after which no method begins (2)")
    add("--anew", action="store_true", help="measure again what is measured")
    add("--page", action="store_true", help="measure nothing, write the page")
    options = parser.parse_args(arguments)
    if options.quick and EQUAL_BYTES in (options.only or ()):
        parser.error(f"{EQUAL_BYTES} has no quick size")
    if options.page:
        page.write(RESULTS)
        return 0
    names = options.only or (QUICK if options.quick else [*PROBLEMS, EQUAL_BYTES])
    until = time.monotonic() + 3600.0 * options.hours
    sizes, whole, skipped = QUICK_SIZES if options.quick else FULL, True, []
    with tempfile.TemporaryDirectory() as temporary, threadpool_limits(1):
        folder = Path(temporary) if options.quick else RESULTS
        for name in names:
            try:
                if name == EQUAL_BYTES:
                    whole &= compressed.compare(say, until, options.anew)
                else:
                    one = PROBLEMS[name]
                    whole &= measure(one, sizes, folder, say, until, options.anew)
            except MissingError as missing:
                skipped.append(f"skipped: {missing}")
        if options.quick:
            print(page.tables(folder))
        else:
            page.write(RESULTS)
    for line in skipped:
        say(line)
    return 0 if whole else 1
