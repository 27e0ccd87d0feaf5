"""Identities, rosters, and what two nodes share without the server."""

import hashlib
import stat
import struct
from itertools import combinations
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from fedtrellis.encryption import EncryptionError
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
