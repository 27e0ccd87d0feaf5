"""``fedtrellis runs`` and ``fedtrellis compare``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedtrellis.runs.compare import AXES, check_tasks, compare, table
from fedtrellis.runs.load import Run, find_runs, load_run
from fedtrellis.settings import check_choice

__all__ = ["add_compare_options", "add_runs_options", "compare_runs", "list_runs"]


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis runs`` takes."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        help="folder of records [~/.fedtrellis/runs]",
    )


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """What ``fedtrellis compare`` takes."""
    parser.add_argument("directories", metavar="DIR", nargs="+", help="a run's record")
    parser.add_argument(
        "--x", choices=list(AXES), default="rounds", help="drawn over [rounds]"
    )
    parser.add_argument(
        "--metric", help="loss, gap, accuracy, ... [loss and what else the runs have]"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=".png, .svg or .pdf: a picture; .html: a page with curves to point at",
    )
    parser.add_argument(
        "--different-tasks",
        action="store_true",
        help="take runs of different tasks [refused]",
    )


def list_runs(options: argparse.Namespace) -> None:
    """Print a line a run, the oldest first."""
    runs = find_runs(options.directory)
    rows = [["status", "rounds", "loss", "record"]]
    rows += [
        [
            run.status,
            str(run.summary.get("rounds", 0)),
            _loss(run),
            str(run.directory),
        ]
        for run in runs
    ]
    print(_columns(rows) if runs else "no runs yet")


def _loss(run: Run) -> str:
    loss = run.summary.get("metrics", {}).get("loss")
    return "–" if loss is None else f"{loss:.6g}"


def compare_runs(options: argparse.Namespace) -> None:
    """Print the table, and draw the curves if a file is named."""
    runs = [load_run(directory) for directory in options.directories]
    if not options.different_tasks:
        check_tasks(runs)
    if options.metric is not None:
        check_choice(
            "--metric", options.metric, {k for run in runs for k in run.columns()}
        )
    print(_columns(table(runs, options.metric)))
    if options.out is not None:
        compare(runs, options.out, options.x, options.metric, options.different_tasks)
        print(f"Curves: {options.out}")


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text, each column as wide as its widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
