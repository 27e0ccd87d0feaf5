"""Measurements in turns, tables, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproduce.provenance import origin, versions

__all__ = [
    "Aim",
    "Cell",
    "Comparison",
    "Row",
    "Spread",
    "at_most",
    "in_turns",
    "machine",
    "quiet",
    "ratios",
    "write_json",
]


def quiet() -> None:
    """Silence Flower below warnings; its FedAvg logs a dozen lines a round."""
    import_module("flwr.common.logger")  # which sets the level of its own accord
    logging.getLogger("flwr").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Spread:
    """One quantity, measured several times.

    Parameters
    ----------
    values : tuple of float
        In the order they were measured in.
    unit : str
        What they are printed as: ``"ms"`` takes seconds, ``"x"`` is a ratio, otherwise
        whole numbers.
    """

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The median."""
        return float(median(self.values))

    def __str__(self) -> str:
        if len(self.values) == 1:
            return self._format(self.median)
        low, high = self._format(min(self.values)), self._format(max(self.values))
        return f"{self._format(self.median)} ({low} – {high})"

    def _format(self, value: float) -> str:
        if self.unit == "ms":
            return f"{1000 * value:.3g} ms"
        return f"{value:.2f}" if self.unit == "x" and value < 100 else f"{value:,.0f}"


def ratios(above: Spread, below: Spread) -> Spread:
    """Ratios of measurements that were taken side by side, pair by pair."""
    pairs = zip(above.values, below.values, strict=True)
    return Spread(tuple(a / b for a, b in pairs), "x")


def in_turns(
    sides: Mapping[str, Callable[[], float]], repetitions: int, warm_up: int = 0
) -> dict[str, Spread]:
    """Seconds of each side, all sides by turns; the first turns are left out."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_up + repetitions):
        for name, measure in sides.items():
            seconds = measure()
            if turn >= warm_up:
                values[name].append(seconds)
    return {name: Spread(tuple(found), "ms") for name, found in values.items()}


Cell = str | int | Spread
Row = dict[str, Cell]


@dataclass(frozen=True)
class Aim:
    """What a comparison is meant to show, and whether it did this time."""

    text: str
    measured: str
    met: bool


def at_most(what: str, ratio: Spread, most: float, of: str = "") -> Aim:
    """The aim that the median of some ratios is at most so much."""
    text = f"{what}: at most {most:g} times {of}".rstrip()
    return Aim(text, str(ratio), ratio.median <= most)


@dataclass
class Comparison:
    """The result of one benchmark.

    Attributes
    ----------
    name, title : str
        What its files are called, and its headline.
    about : str
        What was measured, and how.
    rows : list of dict
        Columns by name; a column that a row has not is empty.
    aims : list of Aim
        Each on a measurement of ``rows``.
    draw : callable, optional
        Writes a picture into a folder.
    """

    name: str
    title: str
    about: str
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    draw: Callable[[Path], object] | None = None

    def cells(self) -> list[list[str]]:
        """The table's texts, the names of its columns first."""
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        rows = [[str(row.get(column, "")) for column in columns] for row in self.rows]
        return [columns, *rows]

    def csv(self) -> str:
        """The table."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.cells())
        return text.getvalue()

    def show(self, console: Console) -> None:
        """Print the table and the aims."""
        table = Table(title=self.title, title_justify="left", title_style="bold")
        columns, *rows = self.cells()
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
        console.print(escape(self.about), style="dim")
        for aim in self.aims:
            state = "[green]met[/]" if aim.met else "[yellow]NOT met[/]"
            console.print(f"Aim: {escape(aim.text)}: {escape(aim.measured)}: {state}")


def machine(command: str) -> dict[str, Any]:
    """Facts that the numbers depend on; nothing that names the machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "load before": None if load is None else round(load, 2),
        "python": platform.python_version(),
        **versions(),
        "blas threads": 1,
        **origin(command),
    }


def _plain(thing: Any) -> Any:
    if isinstance(thing, np.generic):
        return thing.item()
    return {key: value for key, value in vars(thing).items() if key != "draw"}


def write_json(
    path: Path, facts: dict[str, Any], quick: bool, results: Sequence[Comparison]
) -> None:
    """Write what the tables show, and every single measurement, times in seconds."""
    data = {"machine": facts, "quick": quick, "comparisons": results}
    text = json.dumps(data, indent=2, ensure_ascii=False, default=_plain)
    path.write_text(text + "\n", encoding="utf-8")
