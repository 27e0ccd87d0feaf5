"""Identities, rosters, keys, the key of a simulation, and the command for them."""

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fedtrellis.encryption import EncryptionError, load_evaluation, remove_run_key
from fedtrellis.encryption.cipher import load_key, write_key_pair
from fedtrellis.encryption.command_line import main
from fedtrellis.encryption.identity import (
    Identity,
    Roster,
    load_identity,
    load_roster,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_file import KeyFile
from fedtrellis.encryption.node_secrets import shared_run_key
from tests.harness import refused

NAMES = ("0", "clinic-a", "Klinik Süd", 'say "hi" \\')


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _members(*names: str) -> dict[str, bytes]:
    return {name: Identity.generate(name).public for name in names}


def _refused(match: str, make: Callable[..., Any], *given: Any) -> None:
    refused(match, partial(make, *given), EncryptionError)


def test_a_pair_has_one_secret_and_every_pair_another() -> None:
    nodes = [Identity.generate(name) for name in NAMES]
    secrets = {one.pair_secret(other.public) for one, other in combinations(nodes, 2)}
    assert secrets == {b.pair_secret(a.public) for a, b in combinations(nodes, 2)}
    assert [len(secret) for secret in secrets] == [32] * 6
    # nor is it what the library computes: that is no uniform key
    public = X25519PublicKey.from_public_bytes(nodes[1].public)
    assert nodes[0]._private.exchange(public) not in secrets


def test_what_is_no_public_key_or_no_name_is_refused(tmp_path: Path) -> None:
    low = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
    for public in (
        # of low order: everybody would know the secret
        *(bytes(32), bytes.fromhex(low)),
        (2**255 - 19 + 9).to_bytes(32, "little"),  # another way to write 9
        bytes(range(31)),
    ):
        _refused("not an X25519 key", Identity.generate("a").pair_secret, public)
        _refused("'b' is not an X25519", Roster, {**_members("a"), "b": public})
    for name in ("", " a", "a ", "a=b", "#a", "a\n", "a\x7f", "x" * 101):
        _refused("client id", write_identity, tmp_path / "k", name)
        _refused("client id", Roster, {**_members("a"), name: bytes(32)})
    assert not list(tmp_path.iterdir())


def test_an_identity_is_kept_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    _refused("is not there.*cannot be restored", load_identity, path)
    made = write_identity(path, "Klinik Süd")
    read = load_identity(str(path))
    assert (read.name, read.public) == ("Klinik Süd", made.public)
    other = Identity.generate("b").public
    assert read.pair_secret(other) == made.pair_secret(other)
    _refused("never overwritten", write_identity, path, "b")
    data = path.read_bytes()
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 1
        for wrong in (bytes(spoilt), data[:position]):
            with pytest.raises(EncryptionError):
                Identity.from_bytes(wrong)
    path.write_bytes(data[:-1])
    _refused("node.key.*checksum is wrong", load_identity, path)


def test_a_roster_means_the_same_in_any_order(tmp_path: Path) -> None:
    members = _members(*NAMES)
    written = write_roster(tmp_path / "a", members)
    turned = write_roster(tmp_path / "b", dict(reversed(members.items())))
    assert load_roster(tmp_path / "a").members == members
    assert written.digest == turned.digest == load_roster(tmp_path / "b").digest
    # SHA-256 of the sorted members, each part with its type and length in front
    text = b"s" + struct.pack("<I", 17) + b"fedtrellis roster"
    for name in sorted(members):
        for kind, part in ((b"s", name.encode()), (b"b", members[name])):
            text += kind + struct.pack("<I", len(part)) + part
    assert written.digest == hashlib.sha256(text).hexdigest()


def test_what_is_no_roster_is_refused_in_one_line(tmp_path: Path) -> None:
    members, path = _members("a", "b"), tmp_path / "roster"
    twice = {**members, "c": members["a"]}
    _refused("'a' and 'c' have the same public key", Roster, twice)
    _refused("at least two nodes, this one has 1", Roster, _members("a"))
    write_roster(path, members)
    path.chmod(0o664)
    _refused(r"mode 0664.*chmod 644", load_roster, path)
    path.chmod(0o644)
    head, again = "roster = 1\n", f'"a" = "{members["b"].hex()}"\n'
    for text in (
        path.read_text() + again,  # a key twice
        *("hello", "", "\xff", "roster = 2\n[nodes]\n", head, f"{head}nodes = 3\n"),
        *(f'{head}[nodes]\na = "beef"\n', f"{head}[nodes.a]\nb = 1\n"),
    ):
        path.write_text(text, encoding="latin-1")
        _refused("roster", load_roster, path)


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
    blobs = [key.encrypt([1.25], ("v",), sender, 2) for sender in "ab"]
    assert key.decrypt(server.add(blobs), ("v",), 1, ["a", "b"]).tolist() == [2.5]


def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path: Path) -> None:
    key, context = tmp_path / "a.key", tmp_path / "a.context"

    for there, other in ((key, context), (context, key)):
        there.write_bytes(b"mine")
        _refused("keys are never overwritten", write_key_pair, key, context, "none")
        assert there.read_bytes() == b"mine"
        assert not other.exists()
        there.unlink()
    # the second fails after the first was written
    _refused("cannot be", write_key_pair, key, tmp_path / "no" / "folder")
    _refused("exists", write_key_pair, key, key)
    _refused("'rsa' is not known; allowed: stream", write_key_pair, key, context, "rsa")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_key_or_no_context_is_refused(tmp_path: Path) -> None:
    key, context, other = tmp_path / "k", tmp_path / "c", tmp_path / "text"
    write_key_pair(key, context, "none")
    other.write_text("hello")
    other.chmod(0o600)
    _refused("evaluation context, for the server", load_key, context)
    _refused("clients' secret key", load_evaluation, key)
    for load in (load_key, load_evaluation):
        _refused("neither a key nor a context", load, other)
        _refused("be read: No such", load, tmp_path / "none")
    # nor is one that others can read
    for mode in (0o604, 0o620):
        key.chmod(mode)
        _refused(rf"mode {mode:04o}.*chmod 600", load_key, key)


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


Captured = pytest.CaptureFixture[str]


def _run(capsys: Captured, *arguments: str | Path, fails: bool = False) -> str:
    """What it prints; if it fails, in one line."""
    assert main([str(argument) for argument in arguments]) == fails
    captured = capsys.readouterr()
    if fails:
        assert captured.out == ""
        assert captured.err.startswith("fedtrellis-keys: ")
        assert captured.err.count("\n") == 1
        return captured.err
    assert captured.err == ""
    return captured.out


def _made(folder: Path, name: str, capsys: Captured) -> str:
    assert main(["identity", "--name", name, "--key", str(folder / f"{name}.key")]) == 0
    return capsys.readouterr().out


def test_three_nodes_from_nothing_to_a_seal(tmp_path: Path, capsys: Captured) -> None:
    lines = [_made(tmp_path, name, capsys) for name in "abc"]
    for name, line in zip("abc", lines, strict=True):
        assert re.fullmatch(rf"{name}=[0-9a-f]{{64}}\n", line)
    # one pasted, one from a file, one from an earlier roster
    (tmp_path / "lines").write_text(f"# from the telephone\n\n{lines[1]}{lines[1]}")
    early, roster = tmp_path / "early.toml", tmp_path / "roster.toml"
    _run(capsys, "roster", "--out", early, *lines[1:])
    members = (lines[0], tmp_path / "lines", early)
    written = _run(capsys, "roster", "--out", roster, *members)
    publics = load_roster(roster).members
    short = " ".join(re.findall("....", load_roster(roster).digest)[:8])
    assert short in written
    for name in "abc":
        key = tmp_path / f"{name}.key"
        assert load_identity(key).public == publics[name]
        assert short in _run(capsys, "check", "--key", key, "--roster", roster)


def test_show_knows_every_kind_and_no_secret(tmp_path: Path, capsys: Captured) -> None:
    a, b = (_made(tmp_path, name, capsys).strip() for name in "ab")
    own, roster = tmp_path / "a.key", tmp_path / "roster"
    digest = _run(capsys, "roster", "--out", roster, a, b).splitlines()[-1]
    key, context = tmp_path / "clients.key", tmp_path / "server.context"
    made = _run(capsys, "new", "--key", key, "--context", context)
    mark = load_key(key).fingerprint
    assert mark in made
    for path in (own, key):
        path.chmod(0o644)
    open_, both = "others can read it (mode 0644)", (mark, "AES-256", "±8388.61")
    for path, said in (
        (roster, (a, b, digest.removeprefix("digest "))),
        (own, (a, open_)),
        (key, ("clients' key (secret)", open_, *both)),
        (context, ("evaluation context", *both)),
    ):
        shown = _run(capsys, "show", path)
        assert all(part in shown for part in said)
        for secret in (own, key):
            own_bytes: Any = KeyFile.from_bytes(secret.read_bytes()).secret
            assert own_bytes.hex() not in shown


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    a, b = (_made(tmp_path, name, capsys).strip() for name in "ab")
    out, text = tmp_path / "roster", tmp_path / "text"
    text.write_bytes(b"\xff")
    twice = ("roster", "--out", out, a, b, "a=" + b.partition("=")[2])
    assert "'a' is there twice" in _run(capsys, *twice, fails=True)
    assert "neither a key" in _run(capsys, "show", text, fails=True)
    assert not out.exists()
