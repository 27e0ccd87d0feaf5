"""``python -m reproduce PAPER [ITEM ...]``: compute, show, and fill in the page."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# products are small, and several runs share the cores; NumPy reads it as it is loaded
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

from reproduce import again, fedfw, fedgia, hyfdca, index, zeroth_order
from reproduce.claims import Paper
from reproduce.common import (
    LEDGER,
    Item,
    Options,
    SkippedError,
    load_results,
    machine,
    save_results,
)
from reproduce.pages import pages_of, publish, update_page

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


def index_files() -> dict[Path, str]:
    """The page with every claim and its verdict, and its data files, as stored."""
    papers: dict[str, tuple[tuple[Paper, ...], Path]] = {
        name: (paper.claims.PAPERS, folder_of(name)) for name, paper in PAPERS.items()
    }
    files = {INDEX.parent / name: text for name, text in index.files(papers).items()}
    return {INDEX: index.page(papers), **files}


def summaries(paper: str) -> dict[str, str]:
    """What is said of all of a paper's results, by the marks that it belongs to."""
    results = index.stored(folder_of(paper))
    papers = PAPERS[paper].claims.PAPERS
    return {
        "claims": "\n\n".join(index.short_table(one, results) for one in papers),
        "cases": "\n\n".join(index.case_table(one, results) for one in papers),
    }


def write_index() -> None:
    """Write the page of all claims again, and each paper's summary of its own."""
    for path, text in index_files().items():
        path.write_text(text, encoding="utf-8")
    for paper in PAPERS:
        folder, texts = folder_of(paper), summaries(paper)
        update_page(pages_of(folder)[0], "claims", texts["claims"])
        publish(folder, "cases", texts["cases"])


def processor_seconds() -> float:
    """What this process and the workers that have ended have computed, in seconds."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def measure(definition: Item, settings: Options) -> dict[str, Any]:
    """Compute an item; its results with time, machine and provenance."""
    LEDGER.clear()
    began, busy = time.monotonic(), processor_seconds()
    results = definition.compute(settings)
    results["minutes"] = (time.monotonic() - began) / 60.0
    # what other programs take on the machine does not lengthen this
    results["processor-minutes"] = (processor_seconds() - busy) / 60.0
    results["jobs"] = max(settings.jobs, 1)
    results["machine"] = machine()
    compute = getattr(definition.compute, "func", definition.compute)
    results["provenance"] = LEDGER.describe(compute.__module__)
    return results


def run_again(jobs: int) -> int:
    """Two items with other seeds; 1 where what is stored does not predict them."""
    settings = Options(
        Path(tempfile.gettempdir()), None, again.SEEDS, jobs, False, again.FIRST
    )
    items = []
    for (paper, item), name in again.AGAIN.items():
        stored = load_results(folder_of(paper) / "results" / f"{item}.json")
        fresh = measure(PAPERS[paper].ITEMS[item], settings)
        (claim,) = (
            claim
            for one in PAPERS[paper].claims.PAPERS
            for claim in one.claims
            if claim.name == name
        )
        facts = ("minutes", "processor-minutes", "jobs", "machine", "provenance")
        items.append(
            {
                "paper": paper,
                "item": item,
                "claim": name,
                "rows": again.compare(claim, stored, fresh),
                **{key: fresh[key] for key in facts},
            }
        )
    save_results(again.STORED, {"items": items})
    write_index()
    for one in items:
        inside = sum(row["inside"] for row in one["rows"])
        print(f"{one['paper']} {one['item']}: {inside} of {len(one['rows'])} inside")
    print(f"Results: {again.STORED}")
    return int(not all(row["inside"] for one in items for row in one["rows"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 if an item failed; a skipped one does not fail."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduce",
        description="Reproduce the tables and figures of a paper.",
    )
    parser.add_argument("paper", nargs="?", choices=sorted(PAPERS))
    parser.add_argument("items", nargs="*", help="by default all of the paper's")
    parser.add_argument("--list", action="store_true", help="papers and items")
    parser.add_argument("--quick", action="store_true", help="small sizes, minutes")
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--out", type=Path, help="where results and pictures go")
    parser.add_argument("--seeds", type=int, help="repetitions [the paper's 20]")
    parser.add_argument(
        "--jobs", type=int, help="processes [as many as cores; none with --quick]"
    )
    parser.add_argument(
        "--render", action="store_true", help="only show saved results again"
    )
    parser.add_argument(
        "--index", action="store_true", help="write reproduce/README.md again"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="two items with other seeds; whether what is stored predicts them",
    )
    options = parser.parse_args(arguments)
    cores = os.cpu_count() or 1
    if options.again:
        if options.quick or options.paper:
            print("--again compares whole items: without --quick, and without a paper")
            return 1
        return run_again(options.jobs or cores)
    if options.index:
        write_index()
        return 0
    if options.list or options.paper is None:
        for name, paper in sorted(PAPERS.items()):
            print(f"{name}: {paper.TITLE}")
            for item, definition in paper.ITEMS.items():
                print(f"  {item:12} {definition.summary}")
        return 0
    paper = PAPERS[options.paper]
    for item in options.items:
        if item not in paper.ITEMS:
            print(f"no item {item!r}; allowed: {', '.join(paper.ITEMS)}")
            return 1
    for key, value in (("seeds", options.seeds), ("jobs", options.jobs)):
        if value is not None and value < 1:
            print(f"--{key} {value} must be at least 1")
            return 1
    folder = folder_of(options.paper)
    # a quick run, or one into a folder of its own, leaves the page as it is
    complete = not options.quick and options.out is None
    out = options.out or (
        Path(tempfile.mkdtemp(prefix="reproduce-")) if options.quick else folder
    )
    data = options.data or os.environ.get("FEDTRELLIS_DATA")
    settings = Options(
        out.resolve(),
        Path(data).expanduser().resolve() if data else None,
        options.seeds or (2 if options.quick else 20),
        options.jobs or (0 if options.quick else cores),
        options.quick,
    )
    status = 0
    for item in options.items or paper.ITEMS:
        definition = paper.ITEMS[item]
        print(f"{options.paper} {item}: {definition.summary}", flush=True)
        saved = out / "results" / f"{item}.json"
        try:
            if options.render:
                if not saved.is_file():
                    raise SkippedError(f"there is no {saved}")
                results = load_results(saved)
            else:
                results = measure(definition, settings)
                save_results(saved, results)
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
    if complete:
        write_index()
    print(f"Results: {out}")
    return status


if __name__ == "__main__":
    sys.exit(main())
