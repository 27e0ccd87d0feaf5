"""Key files, and the key of a simulation."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fedtrellis.encryption import (
    EncryptionError,
    load_evaluation,
    remove_run_key,
)
from fedtrellis.encryption.cipher import load_key, write_key_pair
from fedtrellis.encryption.node_secrets import shared_run_key

from .test_cipher import needs_tenseal


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of temporary files of the test's own, also for its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.mark.parametrize(
    "backend", ["stream", pytest.param("tenseal-bfv", marks=needs_tenseal)]
)
def test_a_pair_of_files(tmp_path: Path, backend: str) -> None:
    key_path, context_path = tmp_path / "a.key", tmp_path / "a.context"
    before = os.umask(0o077 if backend == "stream" else 0)
    try:
        made = write_key_pair(key_path, str(context_path), backend)
    finally:
        os.umask(before)
    assert (_mode(key_path), _mode(context_path)) == (0o600, 0o644)
    key, server = load_key(key_path), load_evaluation(context_path)
    assert key.fingerprint == server.fingerprint == made.fingerprint
    assert load_evaluation(context_path.read_bytes()).fingerprint == key.fingerprint
    blobs = [key.encrypt([1.25], ("v",), sender, 2) for sender in "ab"]
    assert key.decrypt(server.add(blobs), ("v",), 1, ["a", "b"]).tolist() == [2.5]


def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path: Path) -> None:
    key, context = tmp_path / "a.key", tmp_path / "a.context"
    for there, other in ((key, context), (context, key)):
        there.write_bytes(b"mine")
        with pytest.raises(
            EncryptionError, match="it exists, and keys are never overwritten"
        ):
            write_key_pair(key, context, "none")
        assert there.read_bytes() == b"mine"
        assert not other.exists()
        there.unlink()
    key.symlink_to(tmp_path / "nowhere")
    with pytest.raises(EncryptionError, match="exists"):
        write_key_pair(key, context, "none")
    key.unlink()
    # the second fails after the first was written
    for second in (tmp_path / "no" / "folder", key):
        with pytest.raises(EncryptionError):
            write_key_pair(key, second, "none")
        assert not key.exists()
    with pytest.raises(EncryptionError, match="'rsa' is not known; allowed: stream"):
        write_key_pair(key, context, "rsa")
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "k"
    write_key_pair(key, tmp_path / "c", "none")
    for mode in (0o640, 0o604, 0o620, 0o777):
        key.chmod(mode)
        with pytest.raises(EncryptionError, match=rf"mode {mode:04o}.*chmod 600"):
            load_key(key)
    key.chmod(0o400)
    assert load_key(key).secret_bytes()


def test_the_two_kinds_are_not_confused(tmp_path: Path) -> None:
    key, context = tmp_path / "k", tmp_path / "c"
    write_key_pair(key, context, "none")
    with pytest.raises(EncryptionError, match="evaluation context, for the server"):
        load_key(context)
    for source in (key, str(key), key.read_bytes()):
        with pytest.raises(EncryptionError, match="clients' secret key"):
            load_evaluation(source)
    other = tmp_path / "text"
    other.write_text("hello")
    other.chmod(0o600)
    for load in (load_key, load_evaluation):
        with pytest.raises(EncryptionError, match="neither a key nor a context"):
            load(other)
        with pytest.raises(EncryptionError, match="cannot be read: No such file"):
            load(tmp_path / "none")
        with pytest.raises(EncryptionError, match="cannot be read"):
            load(tmp_path)


# -- one key for the clients of a simulation ------------------------------------------


def test_a_run_has_one_key_until_it_is_removed(temporary: Path) -> None:
    first = shared_run_key("run_1-a", "none")
    folder = temporary / f"fedtrellis-{os.getuid()}"
    assert _mode(folder) == 0o700
    (path,) = folder.iterdir()
    assert (path.suffix, _mode(path)) == (".key", 0o600)
    assert shared_run_key("run_1-a", "none") is first
    assert shared_run_key("run_2", "none").fingerprint != first.fingerprint
    with pytest.raises(EncryptionError, match="of backend 'none', not of 'stream'"):
        shared_run_key("run_1-a")
    remove_run_key("run_1-a")
    remove_run_key("run_1-a")
    assert not path.exists()
    assert shared_run_key("run_1-a", "none").fingerprint != first.fingerprint
    remove_run_key("run_1-a")
    remove_run_key("run_2")
    assert list(folder.iterdir()) == []


def test_a_directory_that_is_not_private_is_refused(temporary: Path) -> None:
    folder, elsewhere = temporary / f"fedtrellis-{os.getuid()}", temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    makers: list[Any] = [
        lambda: os.mkdir(folder, 0o755),
        lambda: folder.symlink_to(elsewhere),
        lambda: folder.write_text(""),
    ]
    for make in makers:
        make()
        with pytest.raises(EncryptionError, match="must be a folder of this user's"):
            shared_run_key("s", "none")
        folder.rename(temporary / f"{id(make)}")


_CLIENT = """
import sys
from fedtrellis.encryption.node_secrets import shared_run_key
sys.stdin.readline()  # until all have started
print(shared_run_key("together", sys.argv[1]).fingerprint, flush=True)
sys.stdin.readline()  # nobody ends before all have the key
"""


def test_processes_that_start_together_share_a_key(temporary: Path) -> None:
    piped: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _CLIENT, "stream"]
    children: list[Any] = [subprocess.Popen(command, **piped) for _ in range(4)]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    found = {child.stdout.readline().strip() for child in children}
    for child in children:
        child.communicate("\n", timeout=60)
        assert child.returncode == 0
    assert [len(mark) for mark in found] == [16]
    # also a process of its own for every message finds the same key until the end
    folder = temporary / f"fedtrellis-{os.getuid()}"
    assert len(list(folder.iterdir())) == 1
    remove_run_key("together")
    assert list(folder.iterdir()) == []
