"""Sums over a block of clients, whose terms the server does not see.

A block is a list of clients; all that the server ever learns of a round is the block's
sum, always over the same clients. Each member i sends a fresh public key, and is sent
everybody's. It shares with each other member j

    k_ij = HKDF( DH(fresh_i, fresh_j) ‖ DH(identity_i, identity_j),
                 names, both fresh public keys, digest of what all were sent )

where a key that all have stands for the identities if there are none. These
authenticate; the fresh keys are forgotten, so that an identity that leaks later opens
no sum; a member's file keeps its k_ij. Its term of a sum is

    round(v 2^f) + Σ_{j after i} PRF(k_ij, attempt) − Σ_{j before i} PRF(k_ij, attempt)

modulo 2^64 or 2^32, and a last word, which counts it: in the sum over all members every
mask occurs with both signs. ``attempt`` is 16 random bytes of the server's. A node
answers each once, writes the answer down before it leaves, and repeats it when it is
asked again; older attempts are refused. (Bonawitz et al., "Practical Secure Aggregation
for Privacy-Preserving Machine Learning", CCS 2017, without recovery of those who drop
out: a sum over fewer clients is never made.)
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedtrellis.encryption.fixed_point import EncryptionError, Words
from fedtrellis.encryption.identity import exchange
from fedtrellis.encryption.node_file import (
    DamagedFileError,
    NodeFile,
    private_folder,
    remove_expired,
)
from fedtrellis.encryption.node_secrets import NodeSecrets, for_good
from fedtrellis.encryption.releases import OwnRows, ReleaseMemory
from fedtrellis.encryption.symmetric import Keystream, derive_key, encode_items, expand
from fedtrellis.settings import SettingsError

ATTEMPT_BYTES = 16
_FRESH_BYTES = 32
#: Members of a block, at least: of a sum of two, each would learn the other's term.
LEAST = 3

Places = NDArray[np.int64]


class LostKeyError(EncryptionError):
    """A node does not have its block's keys any more: the block has to begin anew."""

    code = "lost-key"


class Introduction(NamedTuple):
    """What all members of a block are sent of each.

    ``key`` is its identity's public key, or the fingerprint of the key that all have;
    ``fresh`` its public key for this block, 32 bytes.
    """

    name: str
    key: str
    fresh: bytes

    @classmethod
    def of(cls, client: str, arrays: Sequence[NDArray[Any]]) -> Introduction:
        """Inverse of :meth:`arrays`; ValueError if they are something else."""
        if len(arrays) != 2 or any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays):
            raise ValueError("the answer is not a key's name and a fresh key")
        key, fresh = (array.tobytes() for array in arrays)
        if len(fresh) != _FRESH_BYTES or not 0 < len(key) <= 200 or not key.isascii():
            raise ValueError("the answer's key, or its name, has another form")
        return cls(client, key.decode(), fresh)

    def arrays(self) -> list[NDArray[np.uint8]]:
        """The key's name and the fresh key, as a client sends them."""
        key = np.frombuffer(self.key.encode(), np.uint8)
        return [key, np.frombuffer(self.fresh, np.uint8)]


class BlockMember:
    """A client's part in the sums of its block.

    ``session`` is the run, ``least`` how many members its block must have (at least two
    more than its node config's ``colluders``), ``backend`` that of the key that the
    clients of a simulation make for the run.
    """

    def __init__(
        self,
        node: NodeSecrets,
        session: str,
        least: int = LEAST,
        backend: str = "stream",
    ) -> None:
        self._node, self._session, self._backend = node, session, backend
        self._who = f"client {node.client}"
        colluders = node.number("colluders", 0)
        wanted = colluders + 2 if colluders else 0
        self._least = max(node.number("least", least), wanted)
        with for_good():
            folder = private_folder(node.folder(session))
        remove_expired(folder, "*.block")
        # a digest: the session is the server's word, and no part of a path
        mark = hashlib.sha256(encode_items("block", session, node.client)).hexdigest()
        path = folder / f"{mark[:32]}.block"
        self._file = NodeFile(path, durable=node.kind != "run")

    def introduce(self, beginning: bytes) -> Introduction:
        """Return what the others are sent of this client: a fresh key.

        ``beginning`` is another one each time that the block begins; the same again
        gets the same answer. A SettingsError: the node's keys cannot be used. An
        EncryptionError: it is an older beginning, delivered late.
        """
        self._node.check_simulated()
        content, begun = self._read()[0], beginning.hex()
        before = content.get("begun", [])
        if before[-1:] != [begun]:
            if begun in before:
                raise EncryptionError(f"{self._who} has begun its block anew already")
            private = X25519PrivateKey.generate()
            content = {
                "begun": [*before, begun],
                "private": private.private_bytes_raw().hex(),
                "fresh": private.public_key().public_bytes_raw().hex(),
                # whoever begins anew does so with the same clients
                "names": content.get("names"),
            }
            self._file.write(content)
        fresh = bytes.fromhex(content["fresh"])
        if self._node.kind == "roster":
            key = self._node.identity.public.hex()
        else:
            key = self._node.common_key(self._session, self._backend, None).fingerprint
        return Introduction(self._node.client, key, fresh)

    def agree(
        self,
        members: Sequence[Introduction],
        told: bytes = b"",
        rows: OwnRows | None = None,
    ) -> None:
        """Check what was sent of everybody, and derive what is shared with each.

        ``members`` are in an order that all are sent. ``told`` is what else all were
        sent: whoever was sent something else has other keys, and no sum comes out.
        ``rows`` are this client's, for its node's memory of releases, which may raise a
        ReleaseError. A SettingsError: there are too few, this client is not among them
        as it introduced itself, a key is not what the node knows, or the block was
        another one before. A LostKeyError: its fresh key is gone.
        """
        names = [one.name for one in members]
        content, _ = self._read()
        digest = self._digest(members, told)
        if content.get("agreed") == digest.hexdigest():  # the answer was lost
            return
        if "private" not in content:
            raise LostKeyError(f"{self._who} has no key for this block")
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(content["private"]))
        own = [one.fresh.hex() for one in members if one.name == self._node.client]
        if len(set(names)) < len(names) or own != [content["fresh"]]:
            why = "is not in this block once, with its own key"
            raise SettingsError(f"{self._who} {why}")
        if len(names) < self._least:
            why = f"a sum over {len(names)} clients shows too much of each"
            wants = f"its node wants {self._least} (least in its node config)"
            raise SettingsError(f"{self._who}: {why}; {wants}")
        if content["names"] not in (None, names):
            why = "its block has other clients than before in this run"
            raise SettingsError(f"{self._who}: {why}")
        ReleaseMemory(self._node, self._session).admit(names, rows)
        del content["private"]  # forgotten
        content |= {"agreed": digest.hexdigest(), "names": names, "keys": {}}
        mark = digest.digest()
        for other in members:
            if other.name == self._node.client:
                continue
            run = self._session, self._backend
            secret = self._node.shared_with(other.name, other.key, *run)
            whose = f"client {other.name} for this run"
            with for_good():
                secret = exchange(private, other.fresh, whose) + secret
            both = [m for m in members if m.name in (self._node.client, other.name)]
            pair, fresh = [m.name for m in both], [m.fresh for m in both]
            # k_ij = HKDF(DH(fresh_i, fresh_j) ‖ DH(identity_i, identity_j), ...)
            key = derive_key(secret, "fedtrellis block", *pair, *fresh, mark)
            content["keys"][other.name] = key.hex()
        self._file.write(content)

    def check_agreed(self, members: Sequence[Introduction], told: bytes) -> None:
        """LostKeyError: nothing is agreed on; SettingsError: something else is."""
        if self._agreed()[0]["agreed"] != self._digest(members, told).hexdigest():
            raise SettingsError(f"{self._who} has agreed on something else")

    def _digest(self, members: Sequence[Introduction], told: bytes) -> Any:
        parts = [part for one in members for part in one]
        return hashlib.sha256(encode_items("block", self._session, told, *parts))

    @property
    def names(self) -> list[str]:
        """The block, as agreed on; LostKeyError where it is not known."""
        names: list[str] = self._agreed()[0]["names"]
        return names

    def answered(self, attempt: bytes) -> Words | None:
        """Return the term that this attempt got, if it is the last that got one.

        An EncryptionError: it is none, or an older one. A LostKeyError: the node does
        not have the block's keys any more.
        """
        content, blob = self._agreed()
        if len(attempt) != ATTEMPT_BYTES:  # what is used is told apart by its length
            raise EncryptionError(f"an attempt has {ATTEMPT_BYTES} bytes")
        count = content.get("attempts", 0) * ATTEMPT_BYTES
        used, words = blob[:count], blob[count:]
        if attempt == used[count - ATTEMPT_BYTES :]:
            return np.frombuffer(words, content["dtype"])
        starts = range(0, len(used), ATTEMPT_BYTES)
        if attempt in {used[start : start + ATTEMPT_BYTES] for start in starts}:
            raise EncryptionError(f"{self._who} has answered a later attempt already")
        return None

    def term(
        self,
        attempt: bytes,
        words: Words,
        where: Mapping[str, Places] | None = None,
        noise: Callable[[], Words] | None = None,
    ) -> Words:
        """Return this client's term of a sum.

        ``attempt`` are 16 bytes of the server's. The same again gets what it got, if
        its words are the same; an EncryptionError: they are others, or it is an older
        attempt. ``words``, of shape (m,), are what is hidden
        (:class:`~fedtrellis.encryption.fixed_point.Coding`). ``where`` says of each
        other member the places in ``words`` that both hold, in an order that both know;
        by default all. A place that nobody else holds stays as it is. ``noise`` makes
        words of noise to be added, once for each attempt.

        The term has shape (m + 1,) and the same dtype; its last word counts.
        """
        mark = hashlib.sha256(words.tobytes()).hexdigest()
        before = self.answered(attempt)
        content, blob = self._agreed()
        if before is not None:
            if content["words"] != mark:
                why = "has answered this attempt with something else"
                raise EncryptionError(f"{self._who} {why}")
            return before
        noisy = words if noise is None else words + noise()
        hidden: Words = np.append(noisy, words.dtype.type(1))
        own = content["names"].index(self._node.client)
        for index, name in enumerate(content["names"]):
            if index != own:
                places = None if where is None else where[name]
                key = bytes.fromhex(content["keys"][name])
                _mask(hidden, key, attempt, places, add=index > own)
        # on the disk before it leaves
        count = content.get("attempts", 0)
        used = blob[: count * ATTEMPT_BYTES] + attempt
        dtype = hidden.dtype.newbyteorder("<")
        content |= {"attempts": count + 1, "dtype": dtype.str, "words": mark}
        self._file.write(content, used + hidden.astype(dtype).tobytes())
        return hidden

    def _read(self) -> tuple[dict[str, Any], bytes]:
        try:
            return self._file.read()
        except DamagedFileError:  # as good as lost
            return {}, b""

    def _agreed(self) -> tuple[dict[str, Any], bytes]:
        content, blob = self._read()
        if "keys" not in content:
            why = "has no keys of its block: their file was removed, or has expired"
            raise LostKeyError(f"{self._who} {why}")
        return content, blob


def _mask(
    hidden: Words, key: bytes, attempt: bytes, places: Places | None, *, add: bool
) -> None:
    """Add ± PRF(k_ij, attempt) at some places and to the count, modulo 2^word."""
    count = (len(hidden) - 1 if places is None else len(places)) + 1
    stream = Keystream(expand(key, "zero-sum mask", attempt))
    size, dtype = hidden.dtype.itemsize, hidden.dtype.newbyteorder("<")
    mask = np.frombuffer(stream.read(size * count), dtype)
    change = np.add if add else np.subtract
    at: Any = slice(-1) if places is None else places
    hidden[at] = change(hidden[at], mask[:-1])
    hidden[-1:] = change(hidden[-1:], mask[-1:])


def deal(clients: Sequence[str], size: int, least: int = LEAST) -> list[list[str]]:
    """Deal ``least`` or more clients, in order, into blocks of ``size`` or more."""
    if len(clients) < least:
        why = f"needs at least {least} clients (least); there are {len(clients)}"
        raise SettingsError(f"a secure sum {why}")
    count = max(1, len(clients) // size)
    cuts = [round(len(clients) * k / count) for k in range(count + 1)]
    return [list(clients[start:stop]) for start, stop in pairwise(cuts)]


def total_of(
    terms: Sequence[Words], places: Sequence[Places] | None = None, length: int = 0
) -> Words:
    """Add up the terms of all members of a block.

    ``places`` are where each term's words stand in a sum of ``length`` words; by
    default the terms are alike. The sum has neither masks nor the word that counts.
    A ValueError: the masks do not cancel, as a term is missing or spoilt, or a client
    was sent something else than the others.
    """
    length = len(terms[0]) - 1 if places is None else length
    total = np.zeros(length + 1, terms[0].dtype)
    for index, term in enumerate(terms):
        at: Any = slice(-1) if places is None else places[index]
        total[at] += term[:-1]
        total[-1:] += term[-1:]
    if int(total[-1]) != len(terms):
        raise ValueError(
            "the masks of the sum do not cancel: an answer is missing or spoilt, or a "
            "client was sent something else than the others"
        )
    return total[:-1]


#: The largest deviation of :func:`discrete_normal`, whose integers fit into 64 bits.
MOST_DEVIATION = 2**25


class _Bits:
    """Random integers and coins from a keystream, seeded by the operating system."""

    def __init__(self) -> None:
        self._stream = Keystream(secrets.token_bytes(32))

    def below(self, bound: int, count: int) -> NDArray[np.uint64]:
        """Integers that are uniform in [0, bound), bound at most 2^63."""
        last = 2**64 // bound * bound - 1  # the words beyond it would favour some
        found: NDArray[np.uint64] = np.empty(0, np.uint64)
        while (missing := count - found.size) > 0:
            words = np.frombuffer(self._stream.read(8 * missing), np.uint64)
            words = words[words <= np.uint64(last)]
            found = np.append(found, words % np.uint64(bound))
        return found

    def coins(self, numerators: NDArray[np.uint64], denominator: int) -> Any:
        """Coins that are true with probability exp(−n/d), exactly, where n ≤ d."""
        result = np.zeros(numerators.size, bool)
        left, k = np.arange(numerators.size), 1
        while left.size:
            # heads with probability n/(dk), until the first tails, at an odd throw
            heads = self.below(denominator * k, left.size) < numerators[left]
            result[left[~heads]] = k % 2 == 1
            left, k = left[heads], k + 1
        return result


def discrete_normal(deviation: int, count: int) -> NDArray[np.int64]:
    """Integers of the discrete Gaussian, exactly: P(x) ∝ exp(−x²/(2σ²)).

    Where σ is large, a sum of m of them is a discrete Gaussian of deviation σ√m but for
    10 m exp(−2π²σ²/2), and as private as the continuous one: ½(Δ/σ)²-zCDP.

    ``deviation`` is σ, from 1 to 2^25; values beyond 32σ, of probability e^−512, are
    left out. Randomness is from the operating system's generator for keys.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
    NeurIPS 2020, arXiv 2004.00010, algorithms 1 to 3; for sums, Kairouz, Liu, Steinke,
    "The Distributed Discrete Gaussian Mechanism", ICML 2021, arXiv 2102.06387.
    """
    if not 1 <= deviation <= MOST_DEVIATION:
        raise ValueError(f"deviation = {deviation} must be from 1 to {MOST_DEVIATION}")
    bits, result = _Bits(), np.empty(count, np.int64)
    left = np.arange(count)
    while left.size:
        y, kept = _discrete_laplace(deviation, left.size, bits)
        # with exp(−(|y| − σ)²/(2σ²)), its whole part first
        offset = np.abs(np.abs(y) - deviation).astype(np.uint64)
        kept &= offset <= np.uint64(32 * deviation)
        square = np.where(kept, offset, np.uint64(0)) ** np.uint64(2)
        whole, rest = np.divmod(square, np.uint64(2 * deviation**2))
        for k in range(int(whole.max()) if whole.size else 0):
            (some,) = np.nonzero(kept & (whole > k))
            kept[some] = bits.coins(np.ones(some.size, np.uint64), 1)
        (some,) = np.nonzero(kept)
        kept[some] = bits.coins(rest[some], 2 * deviation**2)
        result[left[kept]] = y[kept]
        left = left[~kept]
    return result


def _discrete_laplace(
    scale: int, count: int, bits: _Bits
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Integers with P(y) ∝ exp(−|y|/scale), and which of them count."""
    u = bits.below(scale, count)
    kept = bits.coins(u, scale)
    v = np.zeros(count, np.int64)
    (going,) = np.nonzero(kept)
    while going.size:
        going = going[bits.coins(np.ones(going.size, np.uint64), 1)]
        v[going] += 1
    x = u.astype(np.int64) + scale * v
    minus = bits.below(2, count) == 1
    kept &= ~(minus & (x == 0))  # or zero would count twice
    return np.where(minus, -x, x), kept
