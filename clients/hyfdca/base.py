"""What all phases of a client of HyFDCA need: its secrets, its groups, its ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedtrellis.dual.agreement import Agreement
from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.encryption import (
    Cipher,
    EncryptionError,
    decrypt_vector,
    encrypt_vector,
    load_key,
    run_ledgers,
    shared_run_key,
)
from fedtrellis.encryption.identity import Identity, load_identity
from fedtrellis.encryption.labels import Item, encode_items
from fedtrellis.encryption.ledger import Ledger
from fedtrellis.encryption.roster import Roster, load_roster
from fedtrellis.objectives.losses import Loss, make_loss
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.protocol import Named, RestoreNeededError

from .rules import NodeRules, entry_counts
from .secrets import CommonSecrets, RosterSecrets, Secrets

__all__ = [
    "HOLDING",
    "Fit",
    "IntArray",
    "NewSamples",
    "SplitClient",
    "as_arrays",
    "keyed_hashes",
    "loss_of",
]

IntArray = NDArray[np.int64]
#: What a phase returns.
Fit = tuple[list[NDArray[Any]], int, dict[str, Any]]
Config = Mapping[str, Any]

#: The client's samples and new samples, group by group, as its state has them.
HOLDING = ("rows", "groups", "sizes", "new-rows", "new-groups", "new-sizes")

# Entries of a request that list groups of this client's samples.
_GROUPS = (
    *("groups", "products", "backup", "propose", "local", "report", "second-report"),
    *("dual", "moved", "renew", "tag-groups"),
)


class NewSamples(NamedTuple):
    """Samples to be scored, as one client knows them.

    Attributes
    ----------
    features : ndarray or scipy sparse array of shape (n, p_k)
        The columns are those of the client's training data.
    sample_ids : sequence of str
    labels : ndarray of shape (n,) or None
        To measure loss and accuracy; NaN where there is none.
    """

    features: Any
    sample_ids: Sequence[str]
    labels: NDArray[Any] | None = None


class SplitClient(StatefulClient):
    """A client of HyFDCA without its phases.

    Parameters are those of ``HyFDCAClient``.
    """

    #: A server may give these back to a client that lost them, and nothing else.
    restorable: ClassVar[frozenset[str]] = frozenset((*HOLDING, "agreement"))

    def __init__(
        self,
        context: Context,
        features: Any,
        feature_names: Sequence[str],
        sample_ids: Sequence[str],
        labels: NDArray[Any] | None = None,
        loss: str | None = None,
        key: Cipher | str | Path | None = None,
        new_samples: NewSamples | None = None,
        on_scores: Callable[[Sequence[str], FloatArray], None] | None = None,
        *,
        identity: Identity | str | Path | None = None,
        roster: Roster | str | Path | None = None,
        ledger: str | Path | None = None,
        rules: NodeRules | None = None,
    ) -> None:
        super().__init__(context)
        self.features = features
        self.feature_names = feature_names
        self.sample_ids = sample_ids
        self.labels = labels
        self.loss = loss
        node = context.node_config
        self.key = key or node.get("key-file")
        self.identity = identity or node.get("identity-file")
        self.roster = roster or node.get("roster-file")
        self.ledger_folder = ledger or node.get("ledger")
        self.new_samples = new_samples
        self.on_scores = on_scores
        self._rules = rules
        self._groups: tuple[Any, dict[int, HeldGroup]] | None = None  # and the state
        self._ledger: Ledger | None = None
        self._secrets: Secrets | None = None
        if bool(self.identity) != bool(self.roster):
            raise SettingsError(
                f"client {self.client_id}: identity-file and roster-file belong "
                "together; give both, or a key-file instead"
            )
        if self.identity and self.key:
            raise SettingsError(
                f"client {self.client_id} has a key-file and an identity-file; give "
                "one of them"
            )

    # ------------------------------------------------------------------ keys and rules

    @property
    def announcement(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Before round 1 the server hears of its kind of key, and whether of noise."""
        noisy = self._rules_of({}).noise > 0.0
        return {"key-kind": self.key_kind, "noisy": noisy}

    @property
    def key_kind(self) -> str:
        """``roster``, ``key`` or, where the clients make a key for the run, ``run``."""
        return "roster" if self.identity else "key" if self.key else "run"

    @cached_property
    def _identity(self) -> Identity:
        found = self.identity
        with _for_good():
            identity = (
                found if isinstance(found, Identity) else _load_identity(str(found))
            )
        if identity.name != self.client_id:
            raise SettingsError(
                f"client {self.client_id} has the identity of {identity.name!r}"
            )
        with _for_good():
            self._roster.check(identity)
        return identity

    @cached_property
    def _roster(self) -> Roster:
        found = self.roster
        with _for_good():
            return found if isinstance(found, Roster) else _load_roster(str(found))

    def _common_key(self, config: Config) -> Cipher:
        """The key that all clients have, if it is the run's (once it is known which)."""
        expected = config.get("key")
        if isinstance(self.key, Cipher):
            cipher = self.key
        elif self.key:
            with _for_good():
                cipher = _load_key(str(self.key))
        elif config.get("own-key"):
            raise SettingsError(
                f"client {self.client_id} has no key: start the node with "
                "--node-config 'key-file=\"PATH\"', a key made by fedtrellis-keys"
            )
        else:
            with _for_good():
                cipher = shared_run_key(
                    config["session"], config["encryption"], make=expected is None
                )
        if expected not in (None, cipher.fingerprint):
            raise SettingsError(
                f"this client's key has fingerprint {cipher.fingerprint}, that of the "
                f"run has {expected}"
            )
        return cipher

    def _rules_of(self, config: Config) -> NodeRules:
        """This node's rules; in a simulation the run's wishes, too."""
        if self._rules is not None:
            return self._rules
        wishes = config if self.key_kind == "run" else {}
        known = {k: wishes[k] for k in ("least", "exposed", "noise") if k in wishes}
        return NodeRules.of({**known, **self.context.node_config})

    def _open_ledger(self, config: Config) -> Ledger:
        """What this node remembers of the run."""
        if self._ledger is None:
            folder = self.ledger_folder
            named = self.identity if self.identity else self.key
            if not folder and isinstance(named, str | Path):
                folder = Path(named).expanduser().with_suffix(".ledger")
            durable = self.key_kind != "run"
            where = folder or run_ledgers(config["session"])
            with _for_good():
                self._ledger = Ledger.open(
                    where, config["session"], self.client_id, durable
                )
        return self._ledger

    # ------------------------------------------------------------- what was agreed upon

    def _agreed(self, config: Config) -> Agreement:
        """What this node has agreed to in this run, and nothing else.

        Raises
        ------
        RestoreNeededError
            This client does not have it any more.
        EncryptionError
            The server gave back something else than this node's ledger says.
        """
        if "agreement" not in self.state or "groups" not in self.state:
            raise RestoreNeededError("this client has no alignment")
        agreement = Agreement.from_bytes(self.state["agreement"].tobytes())
        ledger = self._open_ledger(config)
        if ledger.agreement is None:
            raise SettingsError(
                f"client {self.client_id} has no ledger of this run "
                f"({str(ledger.path)!r}): it was removed, or the node has moved. What "
                "it agreed to and answered is not known any more: start a new run"
            )
        if ledger.agreement != agreement.digest.hex() or ledger.holding != _holding(
            self.state
        ):
            raise SettingsError(
                f"client {self.client_id} was given samples or settings that it has "
                "not agreed to; its ledger has others"
            )
        return agreement

    def _pinned(self, config: Config, agreement: Agreement) -> Named:
        """A request's entries, and over them the settings that were agreed on."""
        pinned = Named("the request's config", {**config, **agreement.settings})
        if self._secrets is None:
            self._secrets = self._make_secrets(pinned, agreement)
        self._leave_out(self._rules_of(pinned))
        return pinned

    def _make_secrets(self, config: Config, agreement: Agreement) -> Secrets:
        if self.key_kind != "roster":
            return CommonSecrets(self.client_id, agreement, self._common_key(config))
        sets = [
            holders
            for holders in agreement.holder_sets
            if self.client_id in holders[1:]
        ]
        for i, blob in enumerate(config.get("sealed", [])):
            self.state[f"sealed/{i}"] = np.frombuffer(blob, dtype=np.uint8)  # type: ignore[assignment]
        known = sum(key.startswith("sealed/") for key in self.state)
        sealed = [self.state[f"sealed/{i}"].tobytes() for i in range(known)]
        received = dict(zip(sets, sealed, strict=True)) if sealed else {}
        with _for_good():
            return RosterSecrets(
                self.client_id,
                agreement,
                self._identity,
                self._roster,
                received,
                config["encryption"],
            )

    @property
    def secrets(self) -> Secrets:
        """What this client shares with others, once the run is agreed on."""
        assert self._secrets is not None
        return self._secrets

    def _leave_out(self, rules: NodeRules) -> None:
        """Take rare entries for zeros, if that is this node's rule."""
        if rules.exposed == "leave-out":
            counts = entry_counts(self.features)
            rare = (counts > 0) & (counts < rules.least)
            if rare.any():
                self.features = _without(self.features, rare)

    def _grant(self, config: Config, version: int, w: FloatArray) -> None:
        """Take one more w to answer at, if this node's rules allow it.

        Raises
        ------
        SettingsError
            They do not.
        """
        rules, ledger = self._rules_of(config), self._open_ledger(config)
        mark = hashlib.sha256(np.ascontiguousarray(w).tobytes()).hexdigest()[:32]
        if (version, mark) == (ledger.version, ledger.weights):
            return
        self._check_norm(config, w)
        if config["secure-sum"] and version < ledger.version:
            if ledger.resumes >= rules.resumes:
                raise SettingsError(
                    f"client {self.client_id} was sent back to an earlier iteration {ledger.resumes} "
                    "times, as often as its node allows (resumes)"
                )
            ledger.resumes += 1
        ledger.version, ledger.weights = version, mark
        ledger.save()

    def _check_norm(self, config: Config, w: FloatArray) -> None:
        """Raise SettingsError at weights that no honest run comes to."""
        if not config["secure-sum"]:
            return  # the paper's steps promise nothing of w
        rules, y = self._rules_of(config), self.state["labels"]
        bound = rules.weight_bound(loss_of(config), config["regularization"], y)
        norm = float(np.linalg.norm(w))
        if not norm <= bound:
            raise SettingsError(
                f"client {self.client_id} answers at weights of norm {bound:.4g} at "
                f"most, and was sent {norm:.4g} (max-weight-norm)"
            )

    def _count_answer(self, config: Config, mark: bytes) -> None:
        """Give one more answer that the server can read something from, if allowed.

        ``mark`` is a digest of what the answer is made from. The same again tells the
        server nothing more, and is not counted. Whoever answers saves the ledger
        before the answer leaves.

        Raises
        ------
        SettingsError
            This node's rules do not allow it.
        """
        rules, ledger = self._rules_of(config), self._open_ledger(config)
        if ledger.answered == mark.hex():
            return
        allowed = config["answers"] if rules.answers is None else rules.answers
        if ledger.answers >= allowed:
            raise SettingsError(
                f"client {self.client_id} has answered at {ledger.answers} different "
                "weights, as many as its node allows in this run (answers)"
            )
        ledger.answered = mark.hex()
        ledger.answers += 1

    # ----------------------------------------------------------------------- ciphertexts

    def _encrypt(
        self,
        holders: tuple[str, ...],
        label: tuple[str | int, ...],
        values: ArrayLike,
        terms: int | None = None,
    ) -> list[bytes]:
        """Numbers for the server to add to those of the other holders."""
        cipher = self.secrets.cipher(holders)
        count = len(holders) if terms is None else terms
        return encrypt_vector(cipher, values, label, self.client_id, count)

    def _decrypt(
        self,
        config: Config,
        holders: tuple[str, ...],
        blobs: Sequence[bytes],
        label: tuple[str | int, ...],
        count: int,
        senders: Sequence[str] | None = (),
    ) -> FloatArray:
        """The numbers that a sum has, if it is what it should be.

        ``senders`` are all holders if it is empty; None: any of them.
        """
        cipher = self.secrets.cipher(holders)
        expected = holders if senders is not None and not senders else senders
        book = self._refusals_of(config, cipher)
        try:
            return decrypt_vector(cipher, blobs, label, count, expected)
        except EncryptionError:
            if book is not None:
                book.refusals += 1
                book.save()
            raise

    def _refusals_of(self, config: Config, cipher: Cipher) -> Ledger | None:
        """The book on a key that refusals wear out, if it still is to be used.

        Each answer "refused" or "not refused" tells a server that makes ciphertexts up
        one bit about a BFV key, whichever holder gives it, in whichever run.
        """
        if not cipher.wears_out:
            return None
        run = self._open_ledger(config)
        book = Ledger.open(
            run.path.parent, f"key {cipher.fingerprint}", self.client_id, run.durable
        )
        allowed = self._rules_of(config).refusals
        own = max(1, allowed // config["num-clients"])
        if book.refusals >= own:
            raise EncryptionError(
                f"client {self.client_id} has refused {book.refusals} ciphertexts under "
                f"key {cipher.fingerprint}, its part of {allowed} (refusals): make a "
                "new key"
            )
        return book

    def _holders(self, g: int) -> tuple[str, ...]:
        """Who holds a group."""
        return self.secrets.agreement.holders(g)

    # ----------------------------------------------------------------------------- groups

    def _held(self) -> dict[int, HeldGroup]:
        """The client's groups, in the order of the state's vectors."""
        if self._groups is None or self._groups[0] is not self.state:
            groups = HeldGroup.unpack(self.state, self.features.shape[0])
            self._groups = self.state, {held.group: held for held in groups}
        return self._groups[1]

    def _new_rows(self) -> dict[int, IntArray]:
        """The rows of the new samples of each of this client's groups of them."""
        sizes = self.state["new-sizes"].astype(int)
        parts = np.split(self.state["new-rows"].astype(np.int64), np.cumsum(sizes)[:-1])
        groups = self.state["new-groups"].astype(int).tolist()
        return dict(zip(groups, parts, strict=True)) if groups else {}

    def _check_groups(self, config: Config) -> None:
        """Raise ValueError if the server asks for samples that this client has not."""
        own = set(self.state["groups"].astype(int).tolist())
        for key in _GROUPS:
            strange = [g for g in config.get(key, []) if g not in own]
            if strange:
                raise ValueError(f"{key} names group {strange[0]!r}, not held here")

    def _rng(self, cipher: Cipher, *purpose: Item) -> np.random.Generator:
        """Random numbers that all who have a key can draw, and the server not."""
        words = np.frombuffer(cipher.derive("draw", *purpose), dtype="<u4").tolist()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

    def _drawn(self, config: Config, held: HeldGroup, version: int) -> IntArray | None:
        """The samples of a group that move in this step; None: all."""
        fraction = config["local-fraction"]
        if fraction == 1.0:
            return None
        count = max(1, ceil(fraction * held.size - 1e-9))
        cipher = self.secrets.cipher(self._holders(held.group))
        rng = self._rng(cipher, held.group, version)
        return np.sort(rng.choice(held.size, size=count, replace=False))


@contextmanager
def _for_good() -> Iterator[None]:
    """Say of what is wrong with a node's files that asking again is no use."""
    try:
        yield
    except EncryptionError as error:
        raise SettingsError(str(error)) from error


def _holding(state: Mapping[str, NDArray[Any]]) -> str:
    """A digest of which of its samples a client has in which group."""
    arrays = [state[key].astype("<i8").tobytes() for key in HOLDING]
    return hashlib.sha256(encode_items(*arrays)).hexdigest()


def _without(features: Any, columns: NDArray[np.bool_]) -> Any:
    """Features whose columns that are named are zero; a copy."""
    keep = np.where(columns, 0.0, 1.0)
    if isinstance(features, np.ndarray):
        return features * keep
    from scipy import sparse

    kept = sparse.csr_array(features.multiply(keep[None, :]))
    kept.eliminate_zeros()
    return kept


@lru_cache(maxsize=4)
def _load_key(path: str) -> Cipher:
    return load_key(path)


@lru_cache(maxsize=4)
def _load_identity(path: str) -> Identity:
    return load_identity(path)


@lru_cache(maxsize=4)
def _load_roster(path: str) -> Roster:
    return load_roster(path)


@lru_cache(maxsize=8)
def _make_loss(name: str, smoothing: float) -> Loss:
    return make_loss(name, smoothing=smoothing)


def loss_of(config: Config) -> Loss:
    """The loss of the run."""
    return _make_loss(config["loss"], config["smoothing"])


def keyed_hashes(
    cipher: Cipher, purpose: str, names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under a key of clients, cut to ``length`` bytes."""
    import hmac

    key = cipher.derive("alignment", purpose)
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def as_arrays(blobs: Sequence[bytes]) -> list[NDArray[Any]]:
    """Ciphertexts, as ``fit`` returns them."""
    return [np.frombuffer(blob, dtype=np.uint8) for blob in blobs]
