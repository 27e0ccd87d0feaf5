"""A folder in CIFAR-10's binary format, with classes that are easy to tell apart."""

from pathlib import Path

import numpy as np


def write_cifar(
    folder: Path, train: int = 300, test: int = 100, batches: int = 5
) -> None:
    """Write training batches, of ``train`` images together, and a test batch.

    Class c is noise about a pattern of its own, the same in every folder.
    """
    patterns = np.random.default_rng(0).integers(40, 216, (10, 3, 4, 4))
    patterns = patterns.repeat(8, axis=2).repeat(8, axis=3)
    rng = np.random.default_rng(1)
    for i in range(batches + 1):
        count = test if i == batches else train // batches
        labels = np.arange(count) % 10
        pixels = patterns[labels] + rng.normal(0.0, 20.0, (count, 3, 32, 32))
        records = np.empty((count, 3073), dtype=np.uint8)
        records[:, 0] = labels
        records[:, 1:] = np.clip(pixels, 0, 255).reshape(count, -1)
        name = "test_batch.bin" if i == batches else f"data_batch_{i + 1}.bin"
        (folder / name).write_bytes(records.tobytes())
