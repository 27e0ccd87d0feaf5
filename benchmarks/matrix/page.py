"""docs/matrix.md, its data files and its picture, made of the stored results."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from reproduce.common import load_results
from reproduce.drawing import new_figure, save
from reproduce.pages import update_page

from . import compressed
from .measure import load_all
from .methods import METHODS
from .problems import PROBLEMS
from .tables import Cost, Results, details, factors, first_table, markdown

__all__ = ["MEASURED", "PAGE", "files", "parts", "tables", "write"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, MEASURED = DOCS / "matrix.md", DOCS / "measured"
_WIDEST = 100.0
_TITLES: dict[Cost, str] = {"gradients": "gradients", "bytes": "bytes, up and down"}


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
        DOCS / "matrix.csv": [list(numbers[0]), *(list(r.values()) for r in numbers)]
    }
    stored = load_results(compressed.FILE) if compressed.FILE.is_file() else {}
    if compressed.complete(stored):
        found[MEASURED / "matrix-equal-bytes.csv"] = compressed.table(stored)
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
    return markdown(first_table(results))


def draw(results: Results) -> str:
    """Draw every method on every problem: its cost beside the least of all."""
    names = [n for n in METHODS if any(n in s["methods"] for s in results.values())]
    problems = [f"{PROBLEMS[name].title}, {PROBLEMS[name].over}" for name in results]
    figure, (panels,) = new_figure(len(_TITLES))
    figure.set_size_inches(9.0 * len(_TITLES), 0.36 * len(names) + 3.6)
    for panel, (what, label) in zip(panels, _TITLES.items(), strict=True):
        table = [list(factors(results, name, what).values()) for name in names]
        shades = np.array([[np.nan if v is None else v for v in row] for row in table])
        norm = LogNorm(1.0, _WIDEST)
        panel.imshow(np.clip(shades, 1.0, _WIDEST), "viridis_r", norm, aspect="auto")
        for place, value in np.ndenumerate(shades):
            if not np.isnan(value):
                method, problem = names[place[0]], list(results)[place[1]]
                given = METHODS[method].given(PROBLEMS[problem])
                text = f"{value:.2g}" if value < _WIDEST else f"{value:.0f}"
                text = ("never" if np.isinf(value) else text) + "*" * bool(given)
                dark = "white" if value > np.sqrt(_WIDEST) else "black"
                where = {"ha": "center", "va": "center", "color": dark, "fontsize": 7}
                panel.text(place[1], place[0], text, **where)
        solved = np.isfinite(shades).sum(axis=1), (~np.isnan(shades)).sum(axis=1)
        rows = [
            f"{METHODS[name].title}, {a} of {b}"
            for name, a, b in zip(names, *solved, strict=True)
        ]
        panel.set_yticks(range(len(rows)), rows, fontsize=8)
        slanted = {"rotation": 40, "ha": "right", "fontsize": 8}
        panel.set_xticks(range(len(problems)), problems, **slanted)
        panel.set_title(f"{label} to 10⁻³, times the least of all; methods, solved")
        panel.grid(visible=False)
    return save(figure, DOCS, "matrix")
