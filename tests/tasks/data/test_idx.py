"""The reader of the idx format."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tasks.data.datasets import read_idx, read_idx_pair
from tests.tasks.data.node_files import idx, one_line


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("compressed", [False, True])
def test_idx(tmp_path: Path, compressed: bool) -> None:
    images, data = some(5, 3, 4), idx(some(5, 3, 4))
    path = tmp_path / ("x-idx3-ubyte.gz" if compressed else "x-idx3-ubyte")
    path.write_bytes(gzip.compress(data) if compressed else data)
    np.testing.assert_array_equal(read_idx(path, 3), images)


def test_emnist_is_put_upright(tmp_path: Path) -> None:
    upright, labels = some(5, 4, 4), np.arange(5)
    (tmp_path / "images").write_bytes(idx(upright.transpose(0, 2, 1)))
    (tmp_path / "labels").write_bytes(idx(labels))
    pair = tmp_path / "images", tmp_path / "labels"
    images = read_idx_pair(*pair, transposed=True)
    assert images[0].shape == (5, 1, 4, 4)
    np.testing.assert_array_equal(images[0][:, 0], upright)
    np.testing.assert_array_equal(images[1], labels)
    as_stored = read_idx_pair(*pair)[0][:, 0]
    np.testing.assert_array_equal(as_stored, upright.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number"),
        (idx(some(5)), "magic number"),  # labels where images are expected
        (b"\0\0\x0d\3" + idx(some(5, 3, 4))[4:], "magic number"),  # floats
        (idx(some(5, 3, 4))[:9], "magic number .* and 3 dimensions"),
        (idx(some(5, 3, 4))[:-1], "ask for 60 bytes of data, the file has 59"),
        (idx(some(5, 3, 4)) + b"\0", "the file has 61"),
        (b"\0\0\x08\3" + struct.pack(">3I", 0, 28, 28), "dimensions"),
        (b"\0\0\x08\3" + struct.pack(">3I", *[2**32 - 1] * 3), "dimensions"),
    ],
    ids=["empty", "labels", "floats", "header", "short", "long", "none", "huge"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_malformed_idx(
    tmp_path: Path, data: bytes, message: str, compressed: bool
) -> None:
    path = tmp_path / ("bad.gz" if compressed else "bad")
    path.write_bytes(gzip.compress(data) if compressed else data)
    one_line(message, read_idx, path, 3)


def test_idx_that_is_not_gzip_or_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "bad.gz"
    for data in (idx(some(5, 3, 4)), gzip.compress(idx(some(500, 3, 4)))[:-900]):
        path.write_bytes(data)
        one_line("cannot be decompressed", read_idx, path, 3)


def test_labels_for_other_images(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(some(5, 3, 4)))
    labels.write_bytes(idx(some(6)))
    one_line("/labels: .*6 labels for the 5 images", read_idx_pair, images, labels)
