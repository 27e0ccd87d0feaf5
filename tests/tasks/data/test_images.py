"""Readers of images: idx files and CIFAR-10's binary version."""

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.data.datasets import read_cifar, read_idx, read_idx_pair
from tests.tasks.data.node_files import idx, one_line


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


IMAGES = idx(some(5, 3, 4))


BAD_IDX = [
    (b"", "magic number"),
    (idx(some(5)), "magic number"),  # labels where images are expected
    (b"\0\0\x0d\3" + IMAGES[4:], "magic number"),  # floats
    (IMAGES[:9], "magic number .* and 3 dimensions"),
    (IMAGES[:-1], "ask for 60 bytes of data, the file has 59"),
    (IMAGES + b"\0", "the file has 61"),
    (b"\0\0\x08\3" + struct.pack(">3I", 0, 28, 28), "dimensions"),
    (b"\0\0\x08\3" + struct.pack(">3I", *[2**32 - 1] * 3), "dimensions"),
]


@pytest.mark.parametrize("compressed", [False, True])
def test_idx(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("x-idx3-ubyte.gz" if compressed else "x-idx3-ubyte")
    pack: Callable[[bytes], bytes] = gzip.compress if compressed else bytes
    path.write_bytes(pack(IMAGES))
    np.testing.assert_array_equal(read_idx(path, 3), some(5, 3, 4))
    for data, message in BAD_IDX:
        path.write_bytes(pack(data))
        one_line(message, read_idx, path, 3)
    if compressed:  # no gzip, and one that ends early
        for data in (IMAGES, gzip.compress(idx(some(500, 3, 4)))[:-900]):
            path.write_bytes(data)
            one_line("cannot be decompressed", read_idx, path, 3)


def test_emnist_is_put_upright(tmp_path: Path) -> None:
    upright, labels = some(5, 4, 4), np.arange(5)
    pair = tmp_path / "images", tmp_path / "labels"
    pair[0].write_bytes(idx(upright.transpose(0, 2, 1)))
    pair[1].write_bytes(idx(labels))
    images = read_idx_pair(*pair, transposed=True)
    np.testing.assert_array_equal(images[0], upright[:, None])
    np.testing.assert_array_equal(images[1], labels)
    as_stored = read_idx_pair(*pair)[0][:, 0]
    np.testing.assert_array_equal(as_stored, upright.transpose(0, 2, 1))
    pair[1].write_bytes(idx(some(6)))
    one_line("/labels: .*6 labels for the 5 images", read_idx_pair, *pair)


PIXELS, LABELS = some(6, 3072), np.array([0, 9, 3, 3, 1, 7])


def check_batch(path: Path) -> None:
    images = read_cifar(path)
    np.testing.assert_array_equal(images[0], PIXELS.reshape(6, 3, 32, 32))
    np.testing.assert_array_equal(images[1], LABELS)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".bin": bytes,
    ".bin.xz": lzma.compress,
    ".bin.gz": gzip.compress,
}


def test_cifar(tmp_path: Path) -> None:
    data = np.hstack([LABELS[:, None].astype(np.uint8), PIXELS]).tobytes()
    for end, pack in PACKED.items():
        path = tmp_path / f"data_batch_1{end}"
        path.write_bytes(pack(data))
        check_batch(path)


SHORT = lzma.compress(some(3073).tobytes())[:-99]


BAD_CIFAR: list[tuple[str, bytes, str]] = [
    ("b.bin", b"\0" * 3072, "records of 3073"),
    ("b.bin", b"\0" * (3073 * 10_000 + 1), "records of 3073"),
    ("b.bin", b"\x0a" + b"\0" * 3072, "with labels from 0 to 9"),
    ("b.bin", b"", "records of 3073"),
    ("b.bin.xz", b"\0" * 3073, "cannot be decompressed"),
    ("b.bin.xz", SHORT, "cannot be decompressed"),
]


def test_malformed_cifar(tmp_path: Path) -> None:
    for name, content, message in BAD_CIFAR:
        (tmp_path / name).write_bytes(content)
        one_line(message, read_cifar, tmp_path / name)
