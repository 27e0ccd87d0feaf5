"""Files of nodes' own data, cut from the tasks' built-in data."""

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import Task
from tasks.base import DataFileError

__all__ = ["idx", "one_line", "real", "refused", "write_csv", "write_libsvm"]


def idx(values: Any) -> bytes:
    array = np.asarray(values, dtype=np.uint8)
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def one_line(match: str, read: Callable[..., Any], path: Path, *more: Any) -> None:
    """Check that a reader refuses a file in one line that names it, or another."""
    with pytest.raises(DataFileError, match=match) as caught:
        read(path, *more)
    assert any(str(p) in str(caught.value) for p in (path, *more))
    assert "\n" not in str(caught.value)


def real(name: str) -> Path:
    """Return a file or folder of published data; skip a test where it is not."""
    path = Path(os.environ.get("FEDTRELLIS_DATA", "")) / name
    if not path.exists():
        pytest.skip(f"FEDTRELLIS_DATA names no folder with {name}")
    return path


def refused(kind: Any, match: str, task: Task) -> str:
    with pytest.raises(kind, match=match) as caught:
        task.check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            writer.writerow(
                [repr(float(v)) if isinstance(v, float) else v for v in row]
            )


def write_libsvm(path: Path, labels: Sequence[Any], rows: Any) -> None:
    lines = [
        " ".join([str(label), *(f"{i}:{float(v)!r}" for i, v in enumerate(row, 1))])
        for label, row in zip(labels, rows, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
