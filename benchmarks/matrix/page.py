"""docs/matrix.md and docs/matrix-details.md, made of the stored results."""

from __future__ import annotations

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
    "DETAILS",
    "PAGE",
    "detail_page",
    "equal_bytes",
    "parts",
    "tables",
    "write",
]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, DETAILS = DOCS / "matrix.md", DOCS / "matrix-details.md"


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


def detail_page(results: Results) -> str:
    """The page of all numbers."""
    blocks = [
        "# The matrix in full\n\n`python -m benchmarks matrix --page` writes this page "
        "from `benchmarks/matrix/results`; [the matrix](matrix.md) explains the "
        "measurement. Costs are medians over five seeds, and bytes are those of all "
        "clients together. `value` is the tuned setting; nothing beyond an `edge` was "
        "tried."
    ]
    for name, stored in results.items():
        one, provenance = PROBLEMS[name], stored["provenance"]
        worst = max(best["relative"] for best in stored["optimum"].values())
        how = next(iter(stored["optimum"].values()))["how"]
        blocks.append(
            f"## {one.title}, {one.over if one.over != 'none' else 'no set'}\n\n"
            f"`python -m benchmarks matrix --only {name}`. Each client spends at most "
            f"{provenance['settings']['budget']} gradients. F\\* is known to "
            f"{worst:.0e} of F(x¹) − F\\* ({how}).\n\n{details(results, name)}"
        )
    return "\n\n".join(blocks) + "\n"


def write(folder: Path) -> None:
    """Write both pages and the picture."""
    results = load_all(folder, list(PROBLEMS.values()))
    for name, text in (parts(results) | equal_bytes()).items():
        update_page(PAGE, name, text)
    DETAILS.write_text(detail_page(results), encoding="utf-8")
    draw(results, DOCS, "matrix")


def tables(folder: Path) -> str:
    """The tables of some results, to be read at once."""
    results = load_all(folder, list(PROBLEMS.values()))
    return f"{places_table(results)}\n\n{first_table(results)}"
