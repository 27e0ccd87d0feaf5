"""``python -m reproduce PAPER [ITEM ...]``: compute, show, and fill in the page."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

# products are small, and several runs share the cores; NumPy reads it as it is loaded
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

from fedtrellis.app.command_line import Output
from reproduce import again, fedfw, fedgia, hyfdca, index, zeroth_order
from reproduce.claims import Paper
from reproduce.common import (
    LEDGER,
    Item,
    Options,
    SkippedError,
    load_results,
    save_results,
)
from reproduce.pages import publish, update_page
from reproduce.provenance import origin

PAPERS = {
    "fedfw": fedfw,
    "fedgia": fedgia,
    "hyfdca": hyfdca,
    "zeroth-order": zeroth_order,
}
INDEX = Path(__file__).parent / "README.md"


def folder_of(paper: str) -> Path:
    """Where a paper's page is, and its results."""
    return Path(__file__).parent / paper.replace("-", "_")


def all_claims() -> dict[str, tuple[tuple[Paper, ...], Path]]:
    """Papers with their claims, and their folders, by name."""
    return {
        name: (paper.claims.PAPERS, folder_of(name)) for name, paper in PAPERS.items()
    }


def index_files() -> dict[Path, str]:
    """The page with every claim and its verdict, and its data files, as stored."""
    papers = all_claims()
    files = {INDEX.parent / name: text for name, text in index.files(papers).items()}
    return {INDEX: index.page(papers), **files}


def all_cases(paper: str) -> str:
    """Every case of a paper's claims, for its page of details."""
    results, papers = index.stored(folder_of(paper)), PAPERS[paper].claims.PAPERS
    return "\n\n".join(index.case_table(one, results) for one in papers)


def write_index() -> None:
    """Write the page of all claims again, and each paper's cases."""
    for path, text in index_files().items():
        path.write_text(text, encoding="utf-8")
    index.picture(all_claims(), INDEX.parent)
    for paper in PAPERS:
        publish(folder_of(paper), "cases", all_cases(paper))
    folder = folder_of("fedfw")
    update_page(
        folder / "details.md", "levels", fedfw.claims.levels(index.stored(folder))
    )


def processor_seconds() -> float:
    """What this process and the workers that have ended have computed, in seconds."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def measure(definition: Item, settings: Options, command: str) -> dict[str, Any]:
    """Compute an item; its results with time, machine and provenance."""
    LEDGER.clear()
    began, busy = time.monotonic(), processor_seconds()
    results = definition.compute(settings)
    results["minutes"] = (time.monotonic() - began) / 60.0
    # what other programs take on the machine does not lengthen this
    results["processor-minutes"] = (processor_seconds() - busy) / 60.0
    results["jobs"] = max(settings.jobs, 1)
    results["machine"] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in ("numpy", "scipy", "flwr")},
    }
    compute = getattr(definition.compute, "func", definition.compute)
    described = LEDGER.describe(compute.__module__)
    results["provenance"] = {**described, **origin(command), "data": LEDGER.digests()}
    return results


def run(paper: str, items: Sequence[str], options: argparse.Namespace) -> int:
    """Compute a paper's items and show them; 1 if one failed, or a repetition did."""
    folder, definitions = folder_of(paper), PAPERS[paper].ITEMS
    # a quick run, or one with other seeds, leaves the page as it is
    complete = not (options.quick or options.out or options.first_seed)
    out = options.out or folder
    if options.out is None and not complete:
        out = Path(tempfile.mkdtemp(prefix="reproduce-"))
    data = options.data or os.environ.get("FEDTRELLIS_DATA")
    settings = Options(
        out.resolve(),
        Path(data).expanduser().resolve() if data else None,
        options.seeds or (2 if options.quick else 20),
        options.jobs or (0 if options.quick else os.cpu_count() or 1),
        options.quick,
        options.first_seed,
        complete,
    )
    status = 0
    for item in items:
        definition = definitions[item]
        print(f"{paper} {item}: {definition.summary}", flush=True)
        saved = out / "results" / f"{item}.json"
        try:
            if not options.render:
                command = f"python -m reproduce {paper} {item}"
                command += f" --first-seed {settings.first}" * (settings.first > 0)
                save_results(saved, measure(definition, settings, command))
            elif not saved.is_file():
                raise SkippedError(f"there is no {saved}")
            results = load_results(saved)
            text = definition.show(results, out)
        except SkippedError as error:
            print(f"  skipped: {error}")
            continue
        except Exception as error:  # the next item may well work
            print(f"  failed: {type(error).__name__}: {error}", file=sys.stderr)
            if os.environ.get("REPRODUCE_DEBUG"):
                raise
            status = 1
            continue
        print(text, flush=True)
        if complete:
            publish(folder, item, text)
        if options.first_seed and not options.quick:
            papers = PAPERS[paper].claims.PAPERS
            status |= again.note(paper, item, papers, folder, results)
    print(f"Results: {out}")
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 if an item failed; a skipped one does not fail."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduce",
        description="Reproduce the tables and figures of a paper.",
    )
    parser.add_argument("paper", nargs="?", choices=sorted(PAPERS))
    parser.add_argument("items", nargs="*", help="by default all of the paper's")
    parser.add_argument("--all", action="store_true", help="all items of all papers")
    parser.add_argument("--list", action="store_true", help="papers and items")
    parser.add_argument("--quick", action="store_true", help="small sizes, minutes")
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--out", type=Path, help="where results and pictures go")
    parser.add_argument("--seeds", type=int, help="repetitions [the paper's 20]")
    parser.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="of other seeds; says whether what is stored predicts what they give",
    )
    parser.add_argument(
        "--jobs", type=int, help="processes [as many as cores; none with --quick]"
    )
    parser.add_argument(
        "--render", action="store_true", help="only show saved results again"
    )
    parser.add_argument(
        "--index", action="store_true", help="only write reproduce/README.md again"
    )
    options = parser.parse_args(arguments)
    if options.index:
        write_index()
        return 0
    if options.list or not (options.paper or options.all):
        with redirect_stdout(Output(sys.stdout)):
            for name, paper in sorted(PAPERS.items()):
                print(f"{name}: {paper.TITLE}")
                for item, definition in paper.ITEMS.items():
                    print(f"  {item:12} {definition.summary}")
        return 0
    wanted = {name: list(PAPERS[name].ITEMS) for name in PAPERS}
    if options.paper:
        allowed = wanted[options.paper]
        for item in options.items:
            if item not in allowed:
                print(f"no item {item!r}; allowed: {', '.join(allowed)}")
                return 1
        wanted = {options.paper: options.items or allowed}
    for key, value in (("seeds", options.seeds), ("jobs", options.jobs)):
        if value is not None and value < 1:
            print(f"--{key} {value} must be at least 1")
            return 1
    status = 0
    for name, items in wanted.items():
        status |= run(name, items, options)
    if not (options.quick or options.out):
        write_index()
    return status


if __name__ == "__main__":
    sys.exit(main())
