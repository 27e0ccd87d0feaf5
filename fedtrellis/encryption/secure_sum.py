"""Sums of short vectors over clients, which a server learns without their terms.

Before round 1 each client sends a nonce and which key it has, and is then sent
everybody's. From what it was sent follows the run's digest, and of the digest and its
key what it shares with each other client. In a round it is sent the cohort. T, which
its masks follow from (:mod:`fedtrellis.encryption.masks`), is a hash of the digest, the
round, the cohort and all that its values depend on. A client that is sent anything
else than the others therefore has other masks, and the sum is noise.

A node answers for each round once. Its ledger has the answer, which a retry gets again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.labels import Item, encode_items, expand
from fedtrellis.encryption.ledger import Ledger
from fedtrellis.encryption.masks import Words, add_masks, as_words, from_words
from fedtrellis.encryption.node_secrets import (
    NodeSecrets,
    for_good,
    pair_of_key,
    pair_of_roster,
)
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

__all__ = ["LEAST_TERMS", "Member", "Question", "SumMember", "total_of"]

#: Terms of the smallest sum: of two, each client would learn the other's.
LEAST_TERMS = 3
_BACKEND = "stream"


class Member(NamedTuple):
    """What everybody is sent of a client before round 1.

    Attributes
    ----------
    name : str
    key : str
        The fingerprint of the key that all have, or its public key, hexadecimal.
    nonce : bytes
    """

    name: str
    key: str
    nonce: bytes


class Question(NamedTuple):
    """What a client is asked for in a round.

    Attributes
    ----------
    session : str
    server_round : int
    cohort : sequence of str
        Who is asked, in an order that all are sent.
    key : str
        The fingerprint of the key that all have; empty where each has its own.
    inputs : bytes
        A digest of what the values depend on.
    """

    session: str
    server_round: int
    cohort: Sequence[str]
    key: str
    inputs: bytes


class SumMember:
    """A client's part in such sums.

    Parameters
    ----------
    node : NodeSecrets
    least : int
        Terms of a sum that it takes part in, at least.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import mkdtemp
    >>> from fedtrellis.encryption import backend_class
    >>> from fedtrellis.encryption.node_secrets import NodeSecrets
    >>> from fedtrellis.encryption.secure_sum import (
    ...     Member, Question, SumMember, total_of)
    >>> key, names = backend_class("stream").generate(), ("a", "b", "c")
    >>> clients = [
    ...     SumMember(NodeSecrets(name, {"ledger": mkdtemp()}, key=key))
    ...     for name in names]
    >>> members = [client.introduction("run") for client in clients]
    >>> for client in clients:
    ...     client.agree("run", members)
    >>> asked = Question("run", 1, names, key.fingerprint, b"the same for all")
    >>> terms = [client.hidden(asked, np.array([k, 0.5]))
    ...          for k, client in enumerate(clients)]
    >>> total_of(terms)
    array([3. , 1.5])
    """

    def __init__(self, node: NodeSecrets, least: int = LEAST_TERMS) -> None:
        if isinstance(least, bool) or not isinstance(least, int) or least < 2:
            raise SettingsError(f"least = {least!r} must be an integer of at least 2")
        self._node, self._least = node, least

    def introduction(self, session: str) -> Member:
        """Return what the others are sent of this client.

        Raises
        ------
        SettingsError
            It has agreed to this run already, or its node's keys cannot be used.
        """
        ledger = self._node.ledger(session)
        if ledger.agreement is not None:
            raise SettingsError(
                f"client {self._node.client} has agreed to a run of session "
                f"{session!r} already"
            )
        ledger.save()
        if self._node.kind == "roster":
            key = self._node.identity.public.hex()
        else:
            key = self._node.common_key(session, _BACKEND, None).fingerprint
        return Member(self._node.client, key, ledger.nonce)

    def agree(self, session: str, members: Sequence[Member]) -> None:
        """Check what was sent of everybody, and remember it.

        Parameters
        ----------
        session : str
        members : sequence of Member

        Raises
        ------
        SettingsError
            There are too few or this client is not among them as it introduced itself,
            a key is not what the node knows, or it has agreed to something else.
        """
        who = f"client {self._node.client}"
        ledger, names = self._node.ledger(session), [one.name for one in members]
        digest = hashlib.sha256(
            encode_items(
                "secure sum", session, *(item for one in members for item in one)
            )
        ).hexdigest()
        if ledger.agreement == digest:  # the answer was lost
            return
        if ledger.agreement is not None:
            raise SettingsError(f"{who} has agreed to something else in this run")
        if len(set(names)) < max(len(names), self._least):
            raise SettingsError(
                f"{who}: a sum over {len(set(names))} clients shows too much of each; "
                f"its node wants {self._least} (least in its node config)"
            )
        own = [one for one in members if one.name == self._node.client]
        if [one.nonce for one in own] != [ledger.nonce]:
            raise SettingsError(f"{who}: what was agreed on does not have its nonce")
        if self._node.kind == "roster":
            with for_good():
                roster = self._node.roster
                strange = [
                    m.name for m in members if roster.public(m.name).hex() != m.key
                ]
        else:
            key = self._node.common_key(session, _BACKEND, own[0].key)
            strange = [m.name for m in members if m.key != key.fingerprint]
        if strange:
            raise SettingsError(
                f"{who}: client {strange[0]} has another key than this node knows"
            )
        ledger.agreement = digest
        ledger.save()

    def _opened(self, question: Question) -> tuple[Ledger, bytes]:
        """The ledger, and T; checks whom the sum is over."""
        who, names = f"client {self._node.client}", list(question.cohort)
        ledger = self._node.ledger(question.session)
        if ledger.agreement is None:
            raise SettingsError(
                f"{who} has agreed to no sums in this run: its ledger was lost"
            )
        if self._node.client not in names or len(set(names)) != len(names):
            raise SettingsError(f"{who}: the cohort is not one that it is in once")
        if len(names) < self._least:
            raise SettingsError(
                f"{who}: a sum over {len(names)} clients shows too much of each; its "
                f"node wants {self._least} (least in its node config)"
            )
        run = bytes.fromhex(ledger.agreement)
        items: list[Item] = [question.server_round, len(names), *names, question.inputs]
        return ledger, expand(run, "sum of a round", *items)

    def answered(self, question: Question) -> Words | None:
        """Return the answer that this question got before, if it is the last that did.

        Raises
        ------
        SettingsError
            As :meth:`hidden`.
        EncryptionError
            The round's answer was given for another question.
        """
        ledger, tag = self._opened(question)
        stored = ledger.replay(tag)
        if stored is not None:
            return np.frombuffer(stored, dtype="<u8").astype(np.uint64)
        if question.server_round <= ledger.version:
            raise EncryptionError(
                f"client {self._node.client} has answered in round {ledger.version} "
                f"already, and is asked something else in round {question.server_round}"
            )
        return None

    def hidden(self, question: Question, values: FloatArray) -> Words:
        """Return this client's term, masked.

        Parameters
        ----------
        question : Question
        values : ndarray of float64, shape (m,)

        Returns
        -------
        ndarray of uint64, shape (m + 1,)
            The last entry counts the terms.

        Raises
        ------
        SettingsError
            The sum is over too few, the node's ledger or key is another than when it
            agreed, or a value is beyond the range of the fixed point.
        EncryptionError
            The round's answer was given for another question, or the ledger cannot be
            written.
        """
        before = self.answered(question)
        if before is not None:
            return before
        (ledger, tag), names = self._opened(question), list(question.cohort)
        try:
            words = np.append(as_words(values, len(names)), np.uint64(1))
        except ValueError as error:
            raise SettingsError(
                f"client {self._node.client}: {error}; clip the values, or scale the "
                "loss down"
            ) from None
        assert ledger.agreement is not None
        run, everywhere = bytes.fromhex(ledger.agreement), np.arange(words.size)
        own = names.index(self._node.client)
        peers = [
            (i, self._pair(question, run, name), everywhere)
            for i, name in enumerate(names)
            if i != own
        ]
        add_masks(words, own, peers, tag)
        # on the disk before it leaves: the round is never answered for anything else
        ledger.version = question.server_round
        ledger.record(tag, words.astype("<u8").tobytes())
        return words

    def _pair(self, question: Question, run: bytes, other: str) -> bytes:
        node = self._node
        if node.kind == "roster":
            with for_good():
                return pair_of_roster(node.identity, node.roster, run, other)
        key = node.common_key(question.session, _BACKEND, question.key)
        return pair_of_key(key, run, node.client, other)


def total_of(terms: Sequence[Words]) -> FloatArray:
    """Return the sum of the terms of a whole cohort, float64 of shape (m,).

    Raises
    ------
    ValueError
        Their masks do not cancel: one is missing or spoilt, or was made for another
        question.
    """
    total = np.zeros(len(terms[0]), np.uint64)
    for term in terms:
        total += term  # modulo 2^64
    if int(total[-1]) != len(terms):
        raise ValueError(
            "the masks of the sum do not cancel: a client's answer is spoilt, or it "
            "was sent something else than the others"
        )
    return from_words(total[:-1])
