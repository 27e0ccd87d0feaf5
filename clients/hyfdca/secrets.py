"""What a client shares with others and the server does not have.

Two ways, one interface: one key that all clients have, or an identity key for each of
them and a roster of all public keys, from which every pair of clients derives a secret
and every set of holders gets a key of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from fedtrellis.dual.agreement import Agreement
from fedtrellis.encryption import Cipher, EncryptionError, backend_class
from fedtrellis.encryption.identity import Identity
from fedtrellis.encryption.labels import expand
from fedtrellis.encryption.node_secrets import pair_of_key, pair_of_roster
from fedtrellis.encryption.roster import Roster
from fedtrellis.encryption.sealing import open_sealed, seal

__all__ = ["CommonSecrets", "RosterSecrets", "Secrets"]


class Secrets(ABC):
    """The secrets of one client in one run.

    Parameters
    ----------
    name : str
        The client's.
    agreement : Agreement
    """

    def __init__(self, name: str, agreement: Agreement) -> None:
        self.name, self.agreement = name, agreement
        self.run = agreement.digest

    @abstractmethod
    def pair(self, other: str) -> bytes:
        """Return 32 bytes that this client and another have, in this run."""

    @abstractmethod
    def cipher(self, holders: tuple[str, ...]) -> Cipher:
        """Return the cipher of some holders, of whom this client is one."""

    @abstractmethod
    def sealed(self) -> list[bytes]:
        """Return the keys that this client draws, sealed for whoever else has them.

        For each set of holders that it is the first of, one for each other holder.
        """

    def confirmation(self, sender: str, other: str) -> bytes:
        """Return the MAC by which ``sender`` tells ``other`` what it agreed to."""
        secret = self.pair(other if sender == self.name else sender)
        return expand(secret, "agreed", self.run, sender, other)


class CommonSecrets(Secrets):
    """Secrets derived from one key that all clients have."""

    def __init__(self, name: str, agreement: Agreement, key: Cipher) -> None:
        super().__init__(name, agreement)
        self._key = key

    def pair(self, other: str) -> bytes:  # noqa: D102
        return pair_of_key(self._key, self.run, self.name, other)

    def cipher(self, holders: tuple[str, ...]) -> Cipher:  # noqa: D102
        return self._key.bound("holders", self.run, len(holders), *holders)

    def sealed(self) -> list[bytes]:  # noqa: D102
        return []


class RosterSecrets(Secrets):
    """Secrets of pairs, and sealed keys of sets of holders.

    Parameters
    ----------
    name, agreement
        As above.
    identity : Identity
        This client's.
    roster : Roster
        Everybody's public keys, as this client's node pins them.
    received : mapping
        For each set of holders that this client is not the first of, what the first
        one sealed for it.
    backend : str
        The cipher of the groups.

    Raises
    ------
    EncryptionError
        The agreement has another public key for a client than the roster.
    """

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        received: Mapping[tuple[str, ...], bytes],
        backend: str,
    ) -> None:
        super().__init__(name, agreement)
        self._identity, self._roster = identity, roster
        self._received, self._backend = received, backend
        for member in agreement.members:
            pinned = roster.members.get(member.name)
            if pinned is None or pinned.hex() != member.key:
                raise EncryptionError(
                    f"client {member.name} has a public key that is not the roster's "
                    f"({roster.digest[:16]}): the roster has changed, or differs "
                    "between nodes"
                )

    def pair(self, other: str) -> bytes:  # noqa: D102
        return pair_of_roster(self._identity, self._roster, self.run, other)

    def cipher(self, holders: tuple[str, ...]) -> Cipher:  # noqa: D102
        if holders[0] == self.name:
            secret = self._drawn(holders)
        elif holders in self._received:
            secret = open_sealed(
                self.pair(holders[0]),
                self._received[holders],
                self._context(holders, self.name),
            )
        else:
            raise EncryptionError(
                f"client {self.name} has no key of the samples that it shares with "
                f"{', '.join(n for n in holders if n != self.name)}"
            )
        # a backend whose key is no more than a secret, which BFV's is not
        cipher: Cipher = backend_class(self._backend).from_secret(secret)
        return cipher.bound(self.run)

    def _drawn(self, holders: Sequence[str]) -> bytes:
        """The key of a set of holders: it follows from the first one's identity."""
        return self._identity.derive("holders", self.run, len(holders), *holders)

    def _context(
        self, holders: Sequence[str], to: str
    ) -> tuple[str | int | bytes, ...]:
        # the run's id is the digest of holders and ordered sample hashes, too
        return ("holders' key", self.run, holders[0], to, len(holders), *holders)

    def sealed(self) -> list[bytes]:  # noqa: D102
        return [
            seal(self.pair(other), self._drawn(holders), self._context(holders, other))
            for holders in self.agreement.holder_sets
            if holders[0] == self.name
            for other in holders[1:]
        ]
