"""A node's keys, and its memory of a run: what a client that hides something needs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedtrellis.encryption.cipher import Cipher, backend_class, load_key
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.identity import Identity, Roster, load_identity, load_roster
from fedtrellis.encryption.node_file import (
    create_file,
    locked,
    private_folder,
    remove_expired,
)
from fedtrellis.settings import SettingsError

T = TypeVar("T")

# (process, session): a forked child reads the file again
_run_keys: dict[tuple[int, str], Cipher] = {}


class NodeSecrets:
    """The keys of one client's node, and where it keeps its ledgers.

    Two ways: one key that all clients have, ``key-file``, or an identity of its own and
    a roster of everybody's public keys, ``identity-file`` and ``roster-file``. Without
    any of them the clients of a simulation make a key for the run. What is not given
    is in the node config: ``key-file`` or ``identity-file``, ``roster-file``, and
    ``ledger``, the folder of what the node remembers. A SettingsError: an identity
    without a roster or the other way round, or both kinds of keys.
    """

    def __init__(
        self,
        client: str,
        node_config: Mapping[str, Any],
        *,
        key: Cipher | str | Path | None = None,
        identity: Identity | str | Path | None = None,
        roster: Roster | str | Path | None = None,
        ledger: str | Path | None = None,
    ) -> None:
        self.client, self._config = client, node_config
        self._key = key or node_config.get("key-file")
        self._identity = identity or node_config.get("identity-file")
        self._roster = roster or node_config.get("roster-file")
        self._folder = ledger or node_config.get("ledger")
        if bool(self._identity) != bool(self._roster) or (self._identity and self._key):
            needs = "a key-file, or both identity-file and roster-file"
            raise SettingsError(f"client {client}: its node config must have {needs}")

    @property
    def kind(self) -> str:
        """``roster``, ``key`` or, where the clients make a key for the run, ``run``."""
        return "roster" if self._identity else "key" if self._key else "run"

    @property
    def lasting_name(self) -> str:
        """The client's name; empty if Flower drew it, another one at each start."""
        named = {"client-id", "partition-id"} & self._config.keys()
        return self.client if named else ""

    def check_simulated(self) -> None:
        """Raise SettingsError for data of the node's own without a key of its own.

        Only the clients of a simulation make a key for their run, and its server could
        read it. Their grid numbers them; a node that is deployed names its data.
        """
        deployed = "data" in self._config and "num-partitions" not in self._config
        if self.kind == "run" and deployed:
            raise SettingsError(
                f"client {self.client} has data of its own and no key: make one with "
                "fedtrellis-keys, and name it in the node config (identity-file and "
                "roster-file, or key-file)"
            )

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the node config; SettingsError if it is none."""
        value = self._config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            given = f"client {self.client}: {name} = {value!r} in the node config"
            raise SettingsError(f"{given} must be an integer of at least 0")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a word of the node config, by default the first that is allowed."""
        value: str = self._config.get(name, allowed[0])
        if value not in allowed:
            given = f"{name} = {value!r} in the node config"
            words = ", ".join(map(repr, allowed))
            raise SettingsError(f"client {self.client}: {given}; allowed: {words}")
        return value

    def folder(self, session: str) -> Path:
        """Return where this node keeps what it remembers of a run."""
        found = Path(self._folder) if self._folder else self.lasting_folder()
        return found or run_ledgers(session)

    def lasting_folder(self) -> Path | None:
        """Return where a node with keys keeps what it remembers of all runs."""
        named = self._identity or self._key
        if named and self._folder:
            return Path(self._folder)
        if isinstance(named, str | Path):
            return Path(named).expanduser().with_suffix(".ledger")
        return None

    @cached_property
    def identity(self) -> Identity:
        """The node's, which its roster has."""
        identity = _loaded(self._identity, load_identity)
        if identity.name != self.client:
            who = f"client {self.client}"
            raise SettingsError(f"{who} has the identity of {identity.name!r}")
        with for_good():
            self.roster.check(identity)
        return identity

    @cached_property
    def roster(self) -> Roster:
        """Everybody's public keys, as the node pins them."""
        return _loaded(self._roster, load_roster)

    def common_key(
        self, session: str, backend: str, expected: str | None, *, own: bool = False
    ) -> Cipher:
        """Return the key that all clients have.

        ``session`` is the run, ``backend`` the cipher that a simulation's clients make
        a key of, ``expected`` the key's fingerprint (None where it is not settled yet).
        With ``own`` the run takes keys of the nodes' own only. A SettingsError: there
        is none, or it is another than expected.
        """
        if self._key:
            cipher = _loaded(self._key, load_key)
        elif own:
            raise SettingsError(
                f"client {self.client} has no key: start the node with "
                "--node-config 'key-file=\"PATH\"', a key made by fedtrellis-keys"
            )
        else:
            with for_good():
                cipher = shared_run_key(session, backend, make=expected is None)
        if expected not in (None, cipher.fingerprint):
            why = f"this client's key has fingerprint {cipher.fingerprint}"
            raise SettingsError(f"{why}, that of the run has {expected}")
        return cipher

    def shared_with(self, other: str, key: str, session: str, backend: str) -> bytes:
        """Return what this node shares with another whatever the run.

        ``key`` is the other's public key, or the fingerprint of the common one. A
        SettingsError: this node knows another key, or does not know the client.
        """
        if self.kind != "roster":
            first, second = sorted((self.client, other))
            return self.common_key(session, backend, key).derive("pair", first, second)
        public = self.roster.members.get(other, b"")
        if public.hex() != key:
            why = "another key than this node's roster says"
            raise SettingsError(f"client {other} has {why}")
        with for_good():
            return self.identity.pair_secret(public)


@contextlib.contextmanager
def for_good() -> Iterator[None]:
    """Say of what is wrong with a node's files that asking again is no use."""
    try:
        yield
    except EncryptionError as error:
        raise SettingsError(str(error)) from error


def _loaded(given: Any, load: Callable[[str], T]) -> T:
    """What was given itself, or what its file has, which a process reads once."""
    with for_good():
        found: T = _cached(load, str(given)) if isinstance(given, str | Path) else given
    return found


@cache
def _cached(load: Callable[[str], T], path: str) -> T:
    return load(path)


def _run_key_path(session: str) -> Path:
    # a digest: the session is the server's word, and no part of a path
    mark = hashlib.sha256(session.encode()).hexdigest()[:32]
    folder = private_folder(Path(tempfile.gettempdir()) / f"fedtrellis-{os.getuid()}")
    return folder / f"{mark}.key"


def run_ledgers(session: str) -> Path:
    """Return where a simulation's clients keep their memory; it goes with their key."""
    return _run_key_path(session).with_suffix(".ledgers")


def shared_run_key(
    session: str, backend: str = "stream", *, make: bool = True
) -> Cipher:
    """Return the key that the clients of one run on one machine share.

    The first process to ask makes it, in a private directory of this user's among the
    temporary files; :func:`remove_run_key` removes it, and if nobody calls that, a
    later run does after a week (a run that was killed may go on until then). For
    simulations only: the server could read it too. An EncryptionError: the key is of
    another backend or, without ``make``, not there, or the directory is not private.
    """
    path = _run_key_path(session)
    cipher = _run_keys.get((os.getpid(), session))
    if cipher is None:
        with locked(path.parent):
            if not path.exists():
                if not make:
                    raise EncryptionError(
                        f"the key that this run's clients made is gone ({path}): it is "
                        "kept for a week, where the run was. A run that goes on later "
                        "or elsewhere needs a key pair (fedtrellis-keys)"
                    )
                remove_expired(path.parent, "*.key")
                made = backend_class(backend).generate()
                create_file(path, made.secret_bytes(), 0o600)
            cipher = load_key(path)
    if cipher.name != backend:
        why = f"is of backend {cipher.name!r}, not of {backend!r}"
        raise EncryptionError(f"the key of session {session!r} {why}")
    _run_keys[os.getpid(), session] = cipher
    return cipher


def remove_run_key(session: str) -> None:
    """Remove a session's key from this machine and this process, if it is there."""
    _run_keys.pop((os.getpid(), session), None)
    path = _run_key_path(session)
    with locked(path.parent):
        path.unlink(missing_ok=True)
    shutil.rmtree(run_ledgers(session), ignore_errors=True)
