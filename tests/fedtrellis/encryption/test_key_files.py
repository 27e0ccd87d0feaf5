"""Key files, and the key of a simulation."""

import os
import stat
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
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
from tests.harness import refused


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of simulations' keys."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"fedtrellis-{os.getuid()}"


@pytest.mark.parametrize("backend", ["stream", "tenseal-bfv"])
def test_a_pair_of_files(tmp_path: Path, backend: str) -> None:
    if backend == "tenseal-bfv":
        pytest.importorskip("tenseal")
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

    def make(match: str, second: Path = context, backend: str = "none") -> None:
        refused(match, lambda: write_key_pair(key, second, backend), EncryptionError)

    for there, other in ((key, context), (context, key)):
        there.write_bytes(b"mine")
        make("it exists, and keys are never overwritten")
        assert there.read_bytes() == b"mine"
        assert not other.exists()
        there.unlink()
    key.symlink_to(tmp_path / "nowhere")
    make("exists")
    key.unlink()
    # the second fails after the first was written
    make("cannot be", tmp_path / "no" / "folder")
    make("exists", key)
    make("'rsa' is not known; allowed: stream", backend="rsa")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_key_or_no_context_is_refused(tmp_path: Path) -> None:
    key, context, other = tmp_path / "k", tmp_path / "c", tmp_path / "text"
    write_key_pair(key, context, "none")
    other.write_text("hello")
    other.chmod(0o600)
    cases: list[tuple[Any, Any, str]] = [
        (load_key, context, "evaluation context, for the server"),
        (load_evaluation, key, "clients' secret key"),
        (load_evaluation, key.read_bytes(), "clients' secret key"),
    ]
    for reader in (load_key, load_evaluation):
        cases += [(reader, other, "neither a key nor a context")]
        cases += [(reader, tmp_path / "none", "be read: No such")]
    for load, source, match in cases:
        refused(match, partial(load, source), EncryptionError)
    # nor is one that others can read
    for mode in (0o604, 0o620):
        key.chmod(mode)
        why = rf"mode {mode:04o}.*chmod 600"
        refused(why, lambda: load_key(key), EncryptionError)


def test_a_run_has_one_key_until_it_is_removed(temporary: Path) -> None:
    first = shared_run_key("run_1-a", "none")
    assert _mode(temporary) == 0o700
    (path,) = temporary.iterdir()
    assert (path.suffix, _mode(path)) == (".key", 0o600)
    assert shared_run_key("run_1-a", "none") is first
    assert shared_run_key("run_2", "none").fingerprint != first.fingerprint
    with pytest.raises(EncryptionError, match="of backend 'none', not of 'stream'"):
        shared_run_key("run_1-a")
    remove_run_key("run_1-a")
    remove_run_key("run_1-a")
    assert not path.exists()
    assert shared_run_key("run_1-a", "none").fingerprint != first.fingerprint


def test_a_directory_that_is_not_private_is_refused(temporary: Path) -> None:
    elsewhere = temporary.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    makers: list[Any] = [
        lambda: os.mkdir(temporary, 0o755),
        lambda: temporary.symlink_to(elsewhere),
        lambda: temporary.write_text(""),
    ]
    for number, make in enumerate(makers):
        make()
        with pytest.raises(EncryptionError, match="must be a folder of this user's"):
            shared_run_key("s", "none")
        temporary.rename(temporary.parent / f"{number}")


FORK = get_context("fork")
ALL_THERE = FORK.Barrier(3)


def _mark(session: str) -> str:
    ALL_THERE.wait(60)
    return shared_run_key(session).fingerprint


def test_processes_that_start_together_share_a_key(temporary: Path) -> None:
    with ProcessPoolExecutor(3, FORK) as pool:
        assert len(set(pool.map(_mark, ["together"] * 3))) == 1
    assert len(list(temporary.iterdir())) == 1
