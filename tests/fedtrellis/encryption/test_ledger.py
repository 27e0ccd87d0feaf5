"""A node's ledger: what it says after crashes, damage and two at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.ledger import Ledger

DURABLE = pytest.mark.parametrize("durable", [True, False])


def _open(folder: Path, session: str = "run", client: str = "a") -> Ledger:
    return Ledger.open(folder, session, client, durable=False)


@DURABLE
def test_it_remembers(tmp_path: Path, durable: bool) -> None:
    folder = tmp_path / "new" / "folder"
    ledger = Ledger.open(folder, "../run", "client/ä", durable)
    assert (ledger.agreement, ledger.answers, ledger.stored) == (None, 0, None)
    assert not list(folder.iterdir())  # nothing was agreed to yet
    ledger.agreement, ledger.epoch, ledger.refusals = "ab12", 2, 3
    ledger.resumes, ledger.version, ledger.stored = 1, 17, (b"\0T", b"\xff" * 100)
    ledger.save()
    again = Ledger.open(folder, "../run", "client/ä", durable)
    assert again == ledger
    assert (folder.stat().st_mode & 0o777) == 0o700
    (file,) = folder.iterdir()
    assert (file.stat().st_mode & 0o777) == 0o600


def test_runs_and_clients_have_ledgers_of_their_own(tmp_path: Path) -> None:
    keys = [("run", "a"), ("run", "b"), ("other", "a"), ("runa", ""), ("", "runa")]
    for number, key in enumerate(keys):
        ledger = _open(tmp_path / "l", *key)
        assert ledger.answers == 0
        ledger.answers = number + 1
        ledger.save()
    assert [_open(tmp_path / "l", *key).answers for key in keys] == [1, 2, 3, 4, 5]
    nonces = {_open(tmp_path / "l", *key).nonce for key in keys}
    assert len(nonces) == 5


def test_a_retry_gets_the_answer_and_another_question_another_nonce(
    tmp_path: Path,
) -> None:
    ledger = _open(tmp_path / "l")
    assert ledger.replay(b"T1") is None
    first = ledger.nonce
    ledger.record(b"T1", b"answer one")
    assert ledger.nonce != first
    # the process ends, and the server asks again
    again = _open(tmp_path / "l")
    assert again.replay(b"T1") == b"answer one"
    assert again.replay(b"T2") is None
    assert again.nonce == ledger.nonce
    again.record(b"T2", b"")
    last = _open(tmp_path / "l")
    assert last.replay(b"T1") is None
    assert last.replay(b"T2") == b""
    assert len({first, again.nonce, ledger.nonce}) == 3


@pytest.mark.parametrize(
    ("durable", "call"),
    [
        *((True, call) for call in ("flock", "write", "fsync", "replace")),
        *((False, call) for call in ("flock", "write", "replace")),
    ],
)
def test_a_crash_leaves_the_ledger_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, call: str
) -> None:
    """The process dies in ``save``, before the new file has its name."""
    folder = tmp_path / "l"
    ledger = Ledger.open(folder, "run", "a", durable)
    ledger.record(b"T1", b"one")
    kept = ledger.nonce

    class Dead(BaseException):
        pass

    def die(*_: object) -> None:
        raise Dead

    with monkeypatch.context() as patch:
        if call == "flock":
            patch.setattr("fedtrellis.encryption.ledger.fcntl.flock", die)
        elif call == "write":
            patch.setattr(os, "fdopen", die)
        else:
            patch.setattr(os, call, die)
        with pytest.raises(Dead):
            ledger.record(b"T2", secrets.token_bytes(1000))
    again = Ledger.open(folder, "run", "a", durable)
    assert (again.nonce, again.stored) == (kept, (b"T1", b"one"))
    again.record(b"T2", b"two")  # what was left behind is in nobody's way
    assert Ledger.open(folder, "run", "a", durable).replay(b"T2") == b"two"
    assert len(list(folder.iterdir())) == 1


def test_a_full_disk_is_one_error_and_the_answer_stays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _open(tmp_path / "l")
    ledger.record(b"T1", b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(EncryptionError, match="cannot be written: No space left"):
            ledger.record(b"T2", b"two")
    assert _open(tmp_path / "l").replay(b"T2") is None


def test_durable_waits_for_the_file_and_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    def replaced(source: Path, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    Ledger.open(tmp_path / "l", "run", "a", durable=True).save()
    assert done == ["file", "replace", "folder"]
    done.clear()
    Ledger.open(tmp_path / "l", "run", "a", durable=False).save()
    assert done == ["replace"]


def test_two_processes_of_one_client_cannot_use_one_nonce(tmp_path: Path) -> None:
    _open(tmp_path / "l").save()
    one, two = _open(tmp_path / "l"), _open(tmp_path / "l")
    assert one.nonce == two.nonce
    one.record(b"T1", b"one")
    with pytest.raises(EncryptionError, match="changed by another process"):
        two.record(b"T2", b"two")
    assert _open(tmp_path / "l").stored == (b"T1", b"one")
    # the first of a run, which neither found on the disk
    three, four = _open(tmp_path / "l", "new"), _open(tmp_path / "l", "new")
    three.save()
    with pytest.raises(EncryptionError, match="changed by another process"):
        four.save()
    # removed under a client that is running
    three.path.unlink()
    with pytest.raises(EncryptionError, match="changed by another process"):
        three.save()


def test_a_damaged_ledger_is_one_clear_error(tmp_path: Path) -> None:
    ledger = _open(tmp_path / "l")
    ledger.record(b"T", b"answer")
    data = ledger.path.read_bytes()
    spoilt = [data[:length] for length in range(0, len(data), 7)]
    for position in range(0, len(data), 3):
        copy = bytearray(data)
        copy[position] ^= 4
        spoilt.append(bytes(copy))
    for content in spoilt:
        ledger.path.write_bytes(content)
        with pytest.raises(EncryptionError, match="is damaged: .* start a new run"):
            _open(tmp_path / "l")
    ledger.path.write_bytes(data)
    assert _open(tmp_path / "l") == ledger
    # another client's, under this one's name
    other = _open(tmp_path / "l", client="b")
    other.path.write_bytes(data)
    with pytest.raises(EncryptionError, match="is damaged"):
        _open(tmp_path / "l", client="b")
    ledger.path.unlink()
    ledger.path.mkdir()
    with pytest.raises(EncryptionError, match="cannot be read: Is a directory"):
        _open(tmp_path / "l")


def test_a_folder_that_is_not_private_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "l"
    _open(folder)
    folder.chmod(0o750)
    with pytest.raises(EncryptionError, match=r"open to others \(mode 0750\)"):
        _open(folder)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(EncryptionError, match="not a directory of this user's"):
        _open(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(EncryptionError, match="cannot be made"):
        _open(tmp_path / "file" / "l")
