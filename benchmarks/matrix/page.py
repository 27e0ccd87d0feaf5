"""docs/matrix.md, its data files and its picture, made of the stored results."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import load_results
from reproduce.drawing import MOST_LINES, new_figure, save, style_of
from reproduce.pages import update_page

from . import compressed
from .measure import load_all
from .methods import METHODS
from .problems import PROBLEMS
from .tables import (
    Cost,
    Results,
    details,
    first_table,
    markdown,
    places_table,
    profile,
)

__all__ = ["MEASURED", "PAGE", "files", "parts", "tables", "write"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, MEASURED = DOCS / "matrix.md", DOCS / "measured"
_WIDEST = 100.0
_TITLES: dict[Cost, str] = {
    "rounds": "rounds",
    "gradients": "gradients",
    "bytes": "bytes, up and down",
}


def parts(results: Results) -> dict[str, str]:
    """What stands between the marks of the page, by their names."""
    entries = [e for stored in results.values() for e in stored["methods"].values()]
    hours = sum(entry["processor-seconds"] for entry in entries) / 3600.0
    return {
        "first": markdown(first_table(results)),
        "hours": f"All {len(results)} problems together took {hours:.1f} processor "
        "hours, without the optima and the runs at equal bytes.",
    }


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def files(results: Results) -> dict[Path, str]:
    """The data files of the page; of compressed updates once these are all there."""
    numbers = [row for name in results for row in details(results, name)]
    found: dict[Path, list[list[Any]]] = {
        DOCS / "matrix.csv": [list(numbers[0]), *(list(r.values()) for r in numbers)],
        MEASURED / "matrix-places.csv": places_table(results),
    }
    stored = load_results(compressed.FILE) if compressed.FILE.is_file() else {}
    if compressed.complete(stored):
        found[MEASURED / "matrix-equal-bytes.csv"] = compressed.table(stored)
        found[MEASURED / "matrix-balls.csv"] = compressed.balls_table(stored)
    return {path: _csv(rows) for path, rows in found.items()}


def write(folder: Path) -> None:
    """Write the page, the numbers and the picture."""
    results = load_all(folder, list(PROBLEMS.values()))
    for name, text in parts(results).items():
        update_page(PAGE, name, text)
    for path, text in files(results).items():
        path.write_text(text, encoding="utf-8")
    draw(results)


def tables(folder: Path) -> str:
    """The tables of some results, to be read at once."""
    results = load_all(folder, list(PROBLEMS.values()))
    return "\n\n".join(markdown(t(results)) for t in (places_table, first_table))


def _groups(results: Results) -> dict[str, tuple[Results, list[str]]]:
    """Problems over a set and without one, each with the methods for all of them."""
    found: dict[str, tuple[Results, list[str]]] = {}
    for title, none in (("over a set", False), ("without a set", True)):
        part = {
            name: stored
            for name, stored in results.items()
            if (PROBLEMS[name].kind == "none") == none
        }
        shared = [
            name for name in METHODS if all(name in s["methods"] for s in part.values())
        ]
        if part and shared:
            found[title] = part, shared
    return found


def _area(ratios: list[float]) -> float:
    """The area under a profile on its logarithmic axis."""
    return float(sum(np.log(_WIDEST / r) for r in ratios if r <= _WIDEST))


def draw(results: Results) -> str:
    """Draw profiles, a row of panels a group: the best six methods that ever arrive."""
    made = _groups(results)
    figure, axes = new_figure(3, len(made))
    for row, (title, (part, names)) in zip(axes, made.items(), strict=True):
        ranked = profile(part, names, "gradients")
        best = sorted(names, key=lambda one: -_area(ranked[one]))[:MOST_LINES]
        shown = [one for one in names if one in best and _area(ranked[one]) > 0.0]
        for panel, (what, label) in zip(row, _TITLES.items(), strict=True):
            # against all of them, whoever is drawn
            ratios = profile(part, names, what)
            for index, one in enumerate(shown):
                reached = [r for r in ratios[one] if r <= _WIDEST]
                count = len(reached)
                steps = np.array([0.0, *np.arange(1.0, count + 1.0), count])
                panel.step(
                    [1.0, *reached, _WIDEST],
                    steps / max(len(ratios[one]), 1),
                    where="post",
                    label=METHODS[one].title,
                    **style_of(index),
                )
            panel.set_xscale("log")
            panel.set_ylim(0.0, 1.02)
            panel.set_title(f"{title}: {label}")
            panel.set_xlabel("times the best method's")
        row[0].set_ylabel("share of problems and seeds")
        row[0].legend(fontsize=8, loc="lower right")
    return save(figure, DOCS, "matrix")
