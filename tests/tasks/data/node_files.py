"""Files of nodes' own data, cut from the tasks' built-in data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["write_csv", "write_libsvm"]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows, floats with all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            writer.writerow(
                [repr(float(v)) if isinstance(v, float) else v for v in row]
            )


def write_libsvm(path: Path, labels: Sequence[Any], rows: Any) -> None:
    """Write every entry of dense rows, zeros too."""
    lines = [
        " ".join([str(label), *(f"{i}:{float(v)!r}" for i, v in enumerate(row, 1))])
        for label, row in zip(labels, rows, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
