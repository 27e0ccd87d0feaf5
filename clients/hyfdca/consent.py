"""What a client has agreed to, what it answers, and what it takes from the server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.dual.agreement import Agreement, feature_digests
from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.dual.questions import weights_mark
from fedtrellis.encryption import (
    Cipher,
    EncryptionError,
    decrypt_vector,
    encrypt_vector,
)
from fedtrellis.encryption.labels import Item, encode_items
from fedtrellis.encryption.ledger import Ledger
from fedtrellis.encryption.node_secrets import for_good
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import Named, RestoreNeededError

from .base import HOLDING, Config, IntArray, SplitClient, loss_of
from .rules import NodeRules, entry_counts
from .secrets import CommonSecrets, RosterSecrets, Secrets
from .terms import DEFAULTS

__all__ = ["ConsentingClient", "holding_digest", "moving", "targets_of"]

# Entries of a request that list groups of this client's samples.
_GROUPS = (
    *("groups", "products", "backup", "propose", "local", "report", "second-report"),
    *("dual", "moved", "renew", "tag-groups"),
)


# What a node answers at of the one weight that is not penalised, in units of its bound.
_FREE = 100.0

#: What is encrypted once, before round 1: an error may say how large a number is.
SETUP = ("labels", "counts", "norms", "weights", "weight-counts")


class ConsentingClient(SplitClient):
    """A client that answers within what it agreed to before round 1.

    Its ledger says what that is: nothing that the server sends later, and no state that
    the server gives back, changes samples, settings or keys.
    """

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
        if (
            ledger.agreement != agreement.digest.hex()
            or ledger.holding != holding_digest(self.state)
        ):
            raise SettingsError(
                f"client {self.client_id} was given samples or settings that it has "
                "not agreed to; its ledger has others"
            )
        return agreement

    def _pinned(self, config: Config, agreement: Agreement) -> Named:
        """A request's entries, and over them the settings that were agreed on."""
        pinned = Named(
            "the request's config", {**config, **DEFAULTS, **agreement.settings}
        )
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
            self.state[f"sealed/{i}"] = np.frombuffer(blob, dtype=np.uint8)
        known = sum(key.startswith("sealed/") for key in self.state)
        sealed = [self.state[f"sealed/{i}"].tobytes() for i in range(known)]
        received = dict(zip(sets, sealed, strict=True)) if sealed else {}
        with for_good():
            return RosterSecrets(
                self.client_id,
                agreement,
                self.node.identity,
                self.node.roster,
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

    def _grant(
        self, config: Config, version: int, w: FloatArray, query: str = ""
    ) -> None:
        """Take one more w, shape (C, p_k), to answer at, if this node's rules allow it.

        ``query`` is a digest of all clients' w, where there is one.

        Raises
        ------
        SettingsError
            They do not.
        """
        rules, ledger = self._rules_of(config), self._open_ledger(config)
        mark = weights_mark(w).hex()
        asked = version, mark, query
        if asked == (ledger.version, ledger.weights, ledger.query):
            return
        self._check_norm(config, w)
        if config["secure-sum"] and version < ledger.version:
            if ledger.resumes >= rules.resumes:
                raise SettingsError(
                    f"client {self.client_id} was sent back to an earlier iteration "
                    f"{ledger.resumes} times, as often as its node allows (resumes)"
                )
            ledger.resumes += 1
        ledger.version, ledger.weights, ledger.query = asked
        ledger.shared = [
            weights_mark(w[:, shared]).hex() for shared in self._shared_columns()
        ]
        ledger.save()

    def _shared_columns(self) -> list[IntArray]:
        """For each member, which of this client's features it has too.

        As columns of this client's, in the model's order, which both know.
        """
        agreement = self.secrets.agreement
        number = {digest: m for m, digest in enumerate(agreement.features)}
        columns = np.array([number[d] for d in feature_digests(self.feature_names)])
        order = np.argsort(columns)
        return [order[held[columns[order]]] for held in agreement.holdings]

    def _check_norm(self, config: Config, w: FloatArray) -> None:
        """Raise SettingsError at weights that no honest run comes to."""
        if not config["secure-sum"]:
            return  # the paper's steps promise nothing of w
        rules, y = self._rules_of(config), self.state["labels"]
        loss, classes = loss_of(config), config["classes"]
        if classes > 1:
            y = np.ones_like(y)  # numbers of classes; l(0) is the same for all signs
        s = self.state.get("weights") if classes == 1 else None
        bound = rules.weight_bound(loss, config["regularization"], y, s)
        if rules.max_weight_norm is None:
            # of all classes' w together; an elastic net has (1 − ρ)/2 of ‖w‖² only
            bound *= sqrt(classes / (1.0 - config["l1-ratio"]))
        if config["free-feature"] in self.feature_names and w.size:
            # D says nothing of a weight that is not penalised: a hundred times as much
            w = w.copy()
            w[:, list(self.feature_names).index(config["free-feature"])] /= _FREE
        norm = float(np.linalg.norm(w))
        if not norm <= bound:
            raise SettingsError(
                f"client {self.client_id} answers at weights of norm {bound:.4g} at "
                f"most, and was sent {norm:.4g} (max-weight-norm)"
            )

    def _allowed(self, config: Config) -> int:
        """How many different questions this node answers in the run."""
        answers = self._rules_of(config).answers
        return int(config["answers"]) if answers is None else answers

    def _count_answer(self, config: Config, mark: bytes) -> None:
        """Give one more answer that the server can read something from, if allowed.

        ``mark`` is a digest of what the answer is made from. The same again tells the
        server nothing more, and is not counted. With C classes it is C questions, each
        at weights of its own. Whoever answers saves the ledger before the answer
        leaves.

        Raises
        ------
        SettingsError
            This node's rules do not allow it.
        """
        ledger = self._open_ledger(config)
        if ledger.answered == mark.hex():
            return
        if ledger.answers + config["classes"] > self._allowed(config):
            raise SettingsError(
                f"client {self.client_id} has answered at {ledger.answers} different "
                "weights, as many as its node allows in this run (answers; where it "
                "does not say, by the rounds that were declared before round 1)"
            )
        ledger.answered = mark.hex()
        ledger.answers += config["classes"]

    # ---------------------------------------------------------------------- ciphertexts

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
        try:
            return encrypt_vector(cipher, values, label, self.client_id, count)
        except EncryptionError:
            if label[0] in SETUP:
                raise
            # how large would tell the server of this client's samples
            raise EncryptionError(
                f"{label[0]}: a number is too large to be encrypted; "
                "hyfdca.standardize = true brings raw columns to one scale"
            ) from None

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
        own = max(1, allowed // len(self.secrets.agreement.members))
        if book.refusals >= own:
            raise EncryptionError(
                f"client {self.client_id} has refused {book.refusals} ciphertexts "
                f"under key {cipher.fingerprint}, its part of {allowed} (refusals): "
                "make a new key"
            )
        return book

    def _holders(self, g: int) -> tuple[str, ...]:
        """Who holds a group."""
        return self.secrets.agreement.holders(g)

    # --------------------------------------------------------------------------- groups

    def _held(self) -> dict[int, HeldGroup]:
        """The client's groups, in the order of the state's vectors."""
        if self._groups is None or self._groups[0] is not self.state:
            groups = HeldGroup.unpack(self.state, self.features.shape[0])
            self._groups = self.state, {held.group: held for held in groups}
        return self._groups[1]

    def _targets(self, config: Config, held: HeldGroup) -> FloatArray:
        """Labels of a group, shape (C, n_g): one class against the rest in each row."""
        y = self.state["labels"][held.own]
        return targets_of(y, config["classes"])

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
        count = moving(held.size, fraction)
        cipher = self.secrets.cipher(self._holders(held.group))
        rng = self._rng(cipher, held.group, version)
        return np.sort(rng.choice(held.size, size=count, replace=False))


def targets_of(y: FloatArray, classes: int) -> FloatArray:
    """Labels as each class sees them, shape (C, n): +1 where it is the label, or −1.

    With one class the labels as they are.
    """
    if classes == 1:
        return y[None]
    return np.where(y == np.arange(classes)[:, None], 1.0, -1.0)


def moving(size: int, fraction: float) -> int:
    """How many of a group's samples move in one step."""
    return max(1, ceil(fraction * size - 1e-9))


def holding_digest(state: Mapping[str, NDArray[Any]]) -> str:
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
