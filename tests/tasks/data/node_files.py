"""Files of nodes' own data, cut from the tasks' built-in data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["idx", "write_csv", "write_libsvm"]


def idx(values: Any) -> bytes:
    """Return an idx file of unsigned bytes."""
    array = np.asarray(values, dtype=np.uint8)
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


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
