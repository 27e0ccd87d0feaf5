"""Files are written whole or not at all, and errors name them."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedtrellis.server.records import append_lines, replacing


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"before\n")
    return path


def test_lines_are_added_whole_or_not_at_all(path: Path) -> None:
    with room_for(20):
        append_lines(path, ["a", "ü"], sync=True)
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            append_lines(path, ["123", "4567890"])
        assert path.read_text() == "before\na\nü\n"
        append_lines(path, ["1234567"])  # to the last byte
    assert path.read_text() == "before\na\nü\n1234567\n"


def test_a_file_is_replaced_by_a_whole_one_or_stays(path: Path) -> None:
    def grow() -> None:
        with replacing(path) as file:
            file.write(bytes(10))
            file.write(bytes(10**6))

    with room_for(20):
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            grow()
        assert path.read_bytes() == b"before\n"
        assert [*path.parent.iterdir()] == [path]  # and frees its room
        with replacing(path) as file:
            file.write(b"after")
    assert path.read_bytes() == b"after"
