"""Files of data, as nodes and as published data sets have them."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["idx", "real", "write_cifar", "write_csv", "write_libsvm"]


def idx(values: Any) -> bytes:
    array = np.asarray(values, dtype=np.uint8)
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def real(name: str) -> Path:
    """Return a file or folder of published data; skip a test where it is not."""
    path = Path(os.environ.get("FEDTRELLIS_DATA", "")) / name
    if not path.exists():
        pytest.skip(f"FEDTRELLIS_DATA names no folder with {name}")
    return path


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_libsvm(path: Path, labels: Sequence[Any], rows: Any) -> None:
    lines = [
        " ".join([str(label), *(f"{i}:{float(v)!r}" for i, v in enumerate(row, 1))])
        for label, row in zip(labels, rows, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_cifar(folder: Path, train: int = 300, test: int = 100) -> None:
    """A folder in CIFAR-10's format: training images, in five batches, and others.

    Class c is noise about a pattern of its own, the same in every folder.
    """
    patterns = np.random.default_rng(0).integers(40, 216, (10, 3, 4, 4))
    patterns = patterns.repeat(8, axis=2).repeat(8, axis=3)
    rng = np.random.default_rng(1)
    for i in range(6):
        count = test if i == 5 else train // 5
        labels = np.arange(count) % 10
        pixels = patterns[labels] + rng.normal(0.0, 20.0, (count, 3, 32, 32))
        records = np.empty((count, 3073), dtype=np.uint8)
        records[:, 0] = labels
        records[:, 1:] = np.clip(pixels, 0, 255).reshape(count, -1)
        name = "test_batch.bin" if i == 5 else f"data_batch_{i + 1}.bin"
        (folder / name).write_bytes(records.tobytes())
