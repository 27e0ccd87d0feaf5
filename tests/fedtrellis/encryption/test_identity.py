"""Identities, rosters, and the command that makes them and keys."""

import hashlib
import re
import stat
import struct
from itertools import combinations
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from fedtrellis.encryption import Cipher, EncryptionError
from fedtrellis.encryption.cipher import load_key
from fedtrellis.encryption.command_line import main
from fedtrellis.encryption.identity import (
    Identity,
    Roster,
    load_identity,
    load_roster,
    parse_roster,
    shown,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.symmetric import open_sealed, seal

from .test_cipher import needs_tenseal

NAMES = ("0", "clinic-a", "Klinik Süd", 'say "hi" \\')


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _private(identity: Identity) -> bytes:
    return identity._private.private_bytes_raw()


def _members(*names: str) -> dict[str, bytes]:
    return {name: Identity.generate(name).public for name in names}


# -- secrets of pairs -----------------------------------------------------------------


def test_a_pair_has_one_secret_and_every_pair_another() -> None:
    nodes = [Identity.generate(name) for name in NAMES]
    secrets = set()
    for one, other in combinations(nodes, 2):
        secret = one.pair_secret(other.public)
        assert secret == other.pair_secret(one.public)
        assert len(secret) == 32
        secrets.add(secret)
    assert len(secrets) == 6
    # nor is it what the library computes: that is no uniform key
    raw = X25519PrivateKey.from_private_bytes(_private(nodes[0]))
    assert raw.exchange(X25519PublicKey.from_public_bytes(nodes[1].public)) not in (
        secrets
    )


def test_what_is_no_public_key_is_refused() -> None:
    low = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
    for public in (
        # of low order: everybody would know the secret
        *(bytes(32), (1).to_bytes(32, "little"), bytes.fromhex(low)),
        (2**255 - 19 + 9).to_bytes(32, "little"),  # another way to write 9
        *(bytes(range(31)), bytes(range(33))),
    ):
        with pytest.raises(EncryptionError, match="not an X25519 key"):
            Identity.generate("a").pair_secret(public)
        with pytest.raises(EncryptionError, match="'b' is not an X25519 key"):
            Roster({**_members("a"), "b": public})


# -- files ----------------------------------------------------------------------------


def test_an_identity_is_kept_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    made = write_identity(path, "Klinik Süd")
    assert _mode(path) == 0o600
    read = load_identity(str(path))
    assert (read.name, read.public) == ("Klinik Süd", made.public)
    other = Identity.generate("b").public
    assert read.pair_secret(other) == made.pair_secret(other)
    assert _private(made).hex() not in repr(made)
    with pytest.raises(EncryptionError, match="never overwritten"):
        write_identity(path, "b")
    assert load_identity(path).public == made.public
    path.chmod(0o640)
    with pytest.raises(EncryptionError, match=r"mode 0640.*chmod 600"):
        load_identity(path)


def test_a_lost_or_damaged_identity_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    with pytest.raises(EncryptionError, match="is not there.*cannot be restored"):
        load_identity(path)
    write_identity(path, "a")
    data = path.read_bytes()
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 1
        with pytest.raises(EncryptionError):
            Identity.from_bytes(bytes(spoilt))
        with pytest.raises(EncryptionError):
            Identity.from_bytes(data[:position])
    path.write_bytes(data[:-1])
    with pytest.raises(EncryptionError, match="node.key.*checksum is wrong"):
        load_identity(path)


def test_names_that_could_be_mistaken_are_refused(tmp_path: Path) -> None:
    for name in ("", " a", "a ", "a=b", "#a", "a\n", "a\x7f", "x" * 101):
        with pytest.raises(EncryptionError, match="client id"):
            write_identity(tmp_path / "k", name)
        with pytest.raises(EncryptionError, match="client id"):
            Roster(_members("a") | {name: Identity.generate("b").public})
    assert not list(tmp_path.iterdir())


# -- rosters --------------------------------------------------------------------------


def test_a_roster_means_the_same_in_any_order(tmp_path: Path) -> None:
    members = _members(*NAMES)
    written = write_roster(tmp_path / "a", members)
    turned = write_roster(tmp_path / "b", dict(reversed(members.items())))
    assert _mode(tmp_path / "a") == 0o644
    assert parse_roster(written.to_text().encode()) == written
    assert load_roster(tmp_path / "a").members == members
    assert written.digest == turned.digest == load_roster(tmp_path / "b").digest
    # SHA-256 of the sorted members, each part with its type and length in front
    text = b"s" + struct.pack("<I", 17) + b"fedtrellis roster"
    for name in sorted(members):
        for kind, part in ((b"s", name.encode()), (b"b", members[name])):
            text += kind + struct.pack("<I", len(part)) + part
    assert written.digest == hashlib.sha256(text).hexdigest()
    assert shown(written.digest).replace(" ", "") == written.digest[:32]


def test_a_roster_has_each_node_once_and_nobody_else_changes_it(tmp_path: Path) -> None:
    members = _members("a", "b")
    with pytest.raises(EncryptionError, match="'a' and 'c' have the same public key"):
        Roster({**members, "c": members["a"]})
    with pytest.raises(EncryptionError, match="at least two nodes, this one has 1"):
        Roster(_members("a"))
    path = tmp_path / "roster"
    write_roster(path, members)
    path.chmod(0o664)
    with pytest.raises(EncryptionError, match=r"mode 0664.*chmod 644"):
        load_roster(path)
    path.chmod(0o644)
    text = path.read_text()
    path.write_text(text + f'"a" = "{members["b"].hex()}"\n')  # a key twice is no TOML
    with pytest.raises(EncryptionError, match="roster.*is not TOML"):
        load_roster(path)


def test_what_is_no_roster_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    head = "roster = 1\n"
    for text in (
        *("hello", "", "roster = 2\n[nodes]\n", head, f"{head}nodes = 3\n"),
        *(f"{head}[nodes]\na = 3\n", f'{head}[nodes]\na = "beef"\n'),
        f"{head}[nodes.a]\nb = 1\n",
    ):
        path.write_text(text)
        with pytest.raises(EncryptionError) as caught:
            load_roster(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(EncryptionError, match="is not TOML"):
        load_roster(path)


Captured = pytest.CaptureFixture[str]


def _made(folder: Path, name: str, capsys: Captured) -> str:
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


def _private_command(path: Path) -> Path:
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
    assert "neither a key" in _refused(
        capsys, "show", _private_command(tmp_path / "text")
    )


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


def test_what_is_wrong_with_a_roster_or_a_name(
    tmp_path: Path, capsys: Captured
) -> None:
    a, b = (_made(tmp_path, name, capsys).strip() for name in "ab")
    out, key, text = tmp_path / "roster", tmp_path / "new.key", tmp_path / "text"
    text.write_bytes(b"\xff")
    other = "a=" + b.partition("=")[2]
    cases: list[tuple[str | Path, ...]] = [
        *(("'a' is there twice", b, other), ("at least two nodes",)),
        *(("NAME=PUBLIC", b[:-1]), ("cannot be read", tmp_path / "none")),
        ("is not text", text),
    ]
    for says, *others in cases:
        assert str(says) in _refused(capsys, "roster", "--out", out, a, *others)
    assert "client id" in _refused(capsys, "identity", "--name", "a=b", "--key", key)
    for says, *options in (
        ("cannot be made", key),
        ("must be 1 to 52", out, "--bits", "0"),
    ):
        new = ("new", "--key", key, "--context", *options, "--backend", "none")
        assert str(says) in _refused(capsys, *new)
    assert not out.exists()
    assert not key.exists()
