"""``fedtrellis-keys``, every command end to end."""

import re
from pathlib import Path

import pytest

from fedtrellis.encryption import Cipher
from fedtrellis.encryption.cipher import load_key
from fedtrellis.encryption.command_line import main
from fedtrellis.encryption.identity import Identity, load_identity, load_roster
from fedtrellis.encryption.symmetric import open_sealed, seal

from .test_cipher import needs_tenseal

Captured = pytest.CaptureFixture[str]


def _made(folder: Path, name: str, capsys: Captured) -> str:
    """The public line of a new node."""
    assert main(["identity", "--name", name, "--key", str(folder / f"{name}.key")]) == 0
    return capsys.readouterr().out


def _refused(capsys: Captured, *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedtrellis-keys: ")
    assert captured.err.count("\n") == 1
    return captured.err


def _done(capsys: Captured, *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_three_nodes_from_nothing_to_a_sealed_message(
    tmp_path: Path, capsys: Captured
) -> None:
    lines = [_made(tmp_path, name, capsys) for name in "abc"]
    for name, line in zip("abc", lines, strict=True):
        assert re.fullmatch(rf"{name}=[0-9a-f]{{64}}\n", line)
    # one pasted, one from a file, one from an earlier roster
    (tmp_path / "lines").write_text(f"# from the telephone\n\n{lines[1]}{lines[1]}")
    early, roster = tmp_path / "early.toml", tmp_path / "roster.toml"
    _done(capsys, "roster", "--out", early, *lines[1:])
    members = (lines[0], tmp_path / "lines", early)
    written = _done(capsys, "roster", "--out", roster, *members)
    assert list(load_roster(roster).members) == ["a", "b", "c"]
    short = " ".join(re.findall("....", load_roster(roster).digest)[:8])
    assert short in written
    for name in "abc":
        key = tmp_path / f"{name}.key"
        assert short in _done(capsys, "check", "--key", key, "--roster", roster)
    a, b = load_identity(tmp_path / "a.key"), load_identity(tmp_path / "b.key")
    publics, purpose = load_roster(roster).members, ("hello", "a", "b")
    sealed = seal(a.pair_secret(publics["b"]), b"hello", purpose)
    assert open_sealed(b.pair_secret(publics["a"]), sealed, purpose) == b"hello"


def _private(path: Path) -> Path:
    path.write_text("hello")
    path.chmod(0o600)
    return path


def test_show_knows_every_kind_and_no_secret(tmp_path: Path, capsys: Captured) -> None:
    a, b = (_made(tmp_path, name, capsys).strip() for name in "ab")
    key, roster = tmp_path / "a.key", tmp_path / "roster"
    assert main(["roster", "--out", str(roster), a, b]) == 0
    digest = capsys.readouterr().out.splitlines()[-1]
    shown = _done(capsys, "show", roster)
    assert a in shown
    assert b in shown
    assert digest.removeprefix("digest ") in shown
    key.chmod(0o644)
    shown = _done(capsys, "show", key)
    assert a in shown
    assert "others can read it (mode 0644)" in shown
    own = Identity.from_bytes(key.read_bytes())._private.private_bytes_raw()
    assert own.hex() not in shown
    common, context = tmp_path / "k", tmp_path / "c"
    new = ("new", "--key", common, "--context", context, "--backend", "none")
    _done(capsys, *new, "--bits", "20")
    common.chmod(0o644)
    shown = _done(capsys, "show", common)
    for part in ("others can read it (mode 0644)", "NO ENCRYPTION", "2^-20"):
        assert part in shown
    assert Cipher.from_bytes(common.read_bytes()).coding.bits == 20
    roster.write_text(roster.read_text().replace(a[-8:], "x"))
    assert "NAME=PUBLIC" in _refused(capsys, "show", roster)
    assert "neither a key" in _refused(capsys, "show", _private(tmp_path / "text"))


@pytest.mark.parametrize(
    ("backend", "parts"),
    [
        ("stream", ("AES-256", "2^64", "±8388.61")),
        pytest.param("tenseal-bfv", ("degree 4096", "±131.072"), marks=needs_tenseal),
    ],
)
def test_the_command_makes_and_shows_keys(
    tmp_path: Path,
    backend: str,
    parts: tuple[str, ...],
    capsys: Captured,
) -> None:
    key, context = tmp_path / "clients.key", tmp_path / "server.context"
    files = ("--key", key, "--context", context)
    made = _done(capsys, "new", *files, "--backend", backend)
    cipher = load_key(key)
    assert cipher.fingerprint in made
    for path, kind in ((key, "clients' key (secret)"), (context, "evaluation context")):
        shown = _done(capsys, "show", path)
        for part in (kind, cipher.fingerprint, "2^-40", backend, *parts):
            assert part in shown
        assert len(shown) < 1000
