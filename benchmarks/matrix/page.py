"""docs/matrix.md and docs/matrix.csv, made of the stored results."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from reproduce.common import load_results, update_page

from . import compressed
from .measure import load_all
from .picture import draw
from .problems import PROBLEMS
from .tables import (
    Results,
    details,
    first_table,
    minutes,
    places_table,
    reaching,
)

__all__ = [
    "NUMBERS",
    "PAGE",
    "all_numbers",
    "equal_bytes",
    "parts",
    "tables",
    "write",
]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, NUMBERS = DOCS / "matrix.md", DOCS / "matrix.csv"


def parts(results: Results) -> dict[str, str]:
    """What stands between the marks of the page, by their names."""
    return {
        "places": places_table(results),
        "first": first_table(results),
        "hours": _hours(results),
        "text": reaching(results, "news20-l1", 1e-1),
        "lacking": _lacking(results),
    }


def _hours(results: Results) -> str:
    hours = sum(minutes(stored) for stored in results.values()) / 60.0
    return (
        f"All {len(results)} problems together took {hours:.1f} processor hours, "
        "without the optima and the runs at equal bytes."
    )


def _lacking(results: Results) -> str:
    """The problems that nobody has stored results of."""
    names = ", ".join(f"`{name}`" for name in PROBLEMS if name not in results)
    return f"Defined but not measured yet: {names}." if names else ""


def equal_bytes() -> dict[str, str]:
    """The same of the comparison with compressed updates, once it is all there."""
    results = load_results(compressed.FILE) if compressed.FILE.is_file() else {}
    if not compressed.complete(results):
        return {}
    return {
        "equal-bytes": compressed.table(results),
        "balls": compressed.balls_table(results),
    }


def all_numbers(results: Results) -> str:
    """Every number, as CSV."""
    rows = [row for name in results for row in details(results, name)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(folder: Path) -> None:
    """Write the page, the numbers and the picture."""
    results = load_all(folder, list(PROBLEMS.values()))
    for name, text in (parts(results) | equal_bytes()).items():
        update_page(PAGE, name, text)
    NUMBERS.write_text(all_numbers(results), encoding="utf-8")
    draw(results, DOCS, "matrix")


def tables(folder: Path) -> str:
    """The tables of some results, to be read at once."""
    results = load_all(folder, list(PROBLEMS.values()))
    return f"{places_table(results)}\n\n{first_table(results)}"
