"""Measurements, tables and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Aim", "Cell", "Comparison", "Row", "Spread", "machine", "ratios"]


@dataclass(frozen=True)
class Spread:
    """One quantity, measured several times.

    Parameters
    ----------
    values : tuple of float
        In the order they were measured in.
    unit : str
        What they are printed as: ``"ms"`` takes seconds, ``"x"`` is a ratio,
        ``"s"`` seconds, ``"/s"`` a rate, ``"B"`` bytes.
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
        if self.unit == "x":
            return f"{value:.2f}" if value < 100 else f"{value:.0f}"
        if self.unit == "s":
            return f"{value:.1f} s"
        return f"{value:,.0f} {self.unit}" if self.unit == "B" else f"{value:,.0f}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data, times in seconds."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "unit": {"ms": "s"}.get(self.unit, self.unit),
            "values": list(self.values),
        }


def ratios(above: Spread, below: Spread) -> Spread:
    """Ratios of measurements that were taken side by side, pair by pair."""
    pairs = zip(above.values, below.values, strict=True)
    return Spread(tuple(a / b for a, b in pairs), "x")


Cell = str | int | Spread
Row = dict[str, Cell]


@dataclass(frozen=True)
class Aim:
    """What a comparison is meant to show, and whether it did this time."""

    text: str
    measured: str
    met: bool


@dataclass
class Comparison:
    """The result of one benchmark.

    Attributes
    ----------
    name, title : str
        What ``--only`` calls it, and its headline.
    about : str
        What was measured, and how.
    rows : list of dict
        Columns by name; a column that a row has not is empty.
    aims : list of Aim
        Each on a measurement of ``rows``.
    """

    name: str
    title: str
    about: str
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)

    def cells(self) -> list[list[str]]:
        """The table's texts, the names of its columns first."""
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        return [columns] + [
            [str(row[c]) if c in row else "" for c in columns] for row in self.rows
        ]

    def markdown(self) -> str:
        """Table and aims as a page of the documentation has them."""
        aims = [
            [aim.text, aim.measured, "met" if aim.met else "missed"]
            for aim in self.aims
        ]
        tables = [self.cells(), *([["aim", "measured", ""], *aims],) * bool(aims)]
        return "\n\n".join(
            "\n".join(
                f"| {' | '.join(row)} |"
                for row in (table[0], ["---"] * len(table[0]), *table[1:])
            )
            for table in tables
        )

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

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        rows = [
            {k: c.to_dict() if isinstance(c, Spread) else c for k, c in row.items()}
            for row in self.rows
        ]
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "rows": rows,
            "aims": [asdict(aim) for aim in self.aims],
        }


def machine() -> dict[str, Any]:
    """Facts that the numbers depend on; nothing that names the machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "load before": None if load is None else round(load, 2),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "flwr")},
        "blas threads": 1,
    }


def write_json(
    path: Path, facts: dict[str, Any], quick: bool, results: Sequence[Comparison]
) -> None:
    """Write what the tables show, and every single measurement."""
    data = {
        "machine": facts,
        "quick": quick,
        "comparisons": [result.to_dict() for result in results],
    }
    text = json.dumps(data, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
