"""One client in one run: data, state and keys, and what all clients agreed on."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from logging import ERROR
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedtrellis.admm.kept import KeptFor
from fedtrellis.dual.alignment import Agreement, HeldGroup, feature_digests
from fedtrellis.dual.weights import Shifted, normalised, targets_of
from fedtrellis.encryption import Cipher, EncryptionError, backend_class
from fedtrellis.encryption.block_sum import BlockMember, Introduction
from fedtrellis.encryption.fixed_point import RangeError, Words
from fedtrellis.encryption.identity import Identity, Roster
from fedtrellis.encryption.node_secrets import NodeSecrets, for_good
from fedtrellis.encryption.symmetric import Item, Keystream, expand, open_sealed, seal
from fedtrellis.objectives.losses import DualLoss, make_loss
from fedtrellis.settings import CodedError, SettingsError, keys, parse, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import RestoreNeededError
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import Named

from ..hybrid import SplitClient

IntArray = NDArray[np.int64]
Arrays = list[NDArray[Any]]
Holders = tuple[str, ...]

#: Settings that an agreement may leave out: these are their values then.
_DEFAULTS: dict[str, Any] = {
    "classes": 1,
    "l1-ratio": 0.0,
    "free-feature": "",
    "weighted": False,
    "class-weight": "",
    "secure-sum": False,  # which a node refuses, unless it accepts that
}
# the wishes of a run that a node without a key follows
_WISHES = ("least", "exposed", "noise")


class ClientRun:
    """What a phase works with, of one request at one client.

    ``config`` has the request's entries and, once a run is opened, over them the
    settings that were agreed on; ``w`` are the request's weights. ``numbers`` are for
    the answer, beside its arrays.
    """

    numbers: FloatArray | None = None

    def __init__(
        self,
        part: SplitPart,
        config: Mapping[str, Any],
        parameters: Sequence[FloatArray] = (),
    ) -> None:
        self.part, self.node, self.state = part, part.node, part.state
        self.config = config
        self.w = parameters[0] if parameters else np.zeros((1, 0))

    @property
    def who(self) -> str:
        """The client, for an error."""
        return f"client {self.part.client_id}"

    def refusal(self, kind: type[CodedError], private: str, public: str) -> CodedError:
        """An error that says what is private in the node's log, or in a simulation."""
        if self.node.kind == "run":
            return kind(private)
        log(ERROR, "%s: %s", self.who, private)
        return kind(public)

    @cached_property
    def rules(self) -> NodeRules:
        """The node's rules; in a simulation the run's wishes, too."""
        if self.part.rules is not None:
            return self.part.rules
        wishes = self.config if self.node.kind == "run" else {}
        known = {key: wishes[key] for key in _WISHES if key in wishes}
        return NodeRules.of({**known, **self.part.context.node_config})

    @cached_property
    def block(self) -> BlockMember:
        """The client's part in sums over all, and what its node remembers of them."""
        # how many clients a feature has is what the node's rules are about
        session, backend = self.config["session"], self.config["encryption"]
        return BlockMember(self.node, session, least=1, backend=backend)

    # ------------------------------------------------------------- what was agreed upon

    @cached_property
    def agreement(self) -> Agreement:
        """What all clients agreed on, or are to agree on."""
        if "agreement" not in self.state or "groups" not in self.state:
            raise RestoreNeededError("this client has no alignment")
        return Agreement.from_bytes(self.state["agreement"].tobytes())

    def open(self) -> None:
        """Take the settings that the node's keys are made for; else SettingsError."""
        self.pin()
        with for_good():
            self.block.check_agreed(*self.agreed_on)

    @property
    def agreed_on(self) -> tuple[tuple[Introduction, ...], bytes]:
        """What the block's keys are made for; no other use of blocks has it."""
        return self.agreement.members, b"hyfdca " + self.agreement.digest

    def pin(self) -> None:
        """Put what was agreed on over the request's entries; check members' keys."""
        entries = {**self.config, **_DEFAULTS, **self.agreement.settings}
        self.config = Named("the request's config", entries)
        self.__dict__.pop("rules", None)
        for i, blob in enumerate(self.config.get("sealed", [])):
            self.state[f"sealed/{i}"] = np.frombuffer(blob, dtype=np.uint8)
        if self.node.kind != "roster":
            return
        roster = self.node.roster
        for member in self.agreement.members:
            pinned = roster.members.get(member.name)
            if pinned is None or pinned.hex() != member.key:
                raise SettingsError(
                    f"{self.who}: client {member.name} has a public key that is not "
                    f"the roster's ({roster.digest[:16]}): the roster has changed, or "
                    "differs between nodes"
                )

    def holders(self, g: int) -> Holders:
        """Who holds a group."""
        return self.agreement.holders(g)

    @cached_property
    def held(self) -> dict[int, HeldGroup]:
        """The client's groups, in the order of the state's vectors."""
        groups = HeldGroup.unpack(self.state, self.part.features.shape[0])
        return {held.group: held for held in groups}

    @cached_property
    def new_rows(self) -> dict[int, IntArray]:
        """The rows of the new samples of each of this client's groups of them."""
        new = self.part.new_samples
        count = 0 if new is None else len(new.sample_ids)
        groups = HeldGroup.unpack(self.state, count, "new-")
        return {held.group: held.rows for held in groups}

    @cached_property
    def shared_columns(self) -> dict[str, IntArray]:
        """Which of this client's columns each member has, in the model's order."""
        number = {digest: m for m, digest in enumerate(self.agreement.features)}
        digests = feature_digests(self.part.feature_names)
        columns = np.array([number[digest] for digest in digests])
        order = np.argsort(columns)
        holdings = zip(self.agreement.names, self.agreement.holdings, strict=True)
        return {name: order[held[columns[order]]] for name, held in holdings}

    # -------------------------------------------------------------------- secrets, keys

    @property
    def common_key(self) -> Cipher:
        """The key that all clients have, if it is the run's."""
        return self.node.common_key(
            self.config["session"],
            self.config["encryption"],
            self.config.get("key"),
            own=bool(self.config.get("own-key")),
        )

    def pair(self, other: str) -> bytes:
        """Return 32 bytes that this client and another have, in this run."""
        agreement, config = self.agreement, self.config
        key = agreement.members[agreement.names.index(other)].key
        of = other, key, config["session"], config["encryption"]
        return expand(self.node.shared_with(*of), "run", agreement.digest)

    def cipher(self, holders: Holders) -> Cipher:
        """Return the cipher of some holders, of whom this client is one."""
        run, name = self.agreement.digest, self.part.client_id
        if self.node.kind != "roster":
            return self.common_key.bound("holders", run, len(holders), *holders)
        if holders[0] == name:
            secret = self._drawn_key(holders)
        else:
            own = [sets for sets in self.agreement.holder_sets if name in sets[1:]]
            sealed = self.state.get(f"sealed/{own.index(holders)}")
            if sealed is None:
                raise EncryptionError(
                    f"{self.who} has no key of the samples that it shares with "
                    f"{', '.join(n for n in holders if n != name)}"
                )
            context = self._sealing(holders, name)
            secret = open_sealed(self.pair(holders[0]), sealed.tobytes(), context)
        # a backend whose key is no more than a secret, which BFV's is not
        return backend_class(self.config["encryption"]).from_secret(secret).bound(run)

    def sealed_keys(self) -> list[bytes]:
        """Keys of holders that this client is the first of, sealed for each other."""
        if self.node.kind != "roster":
            return []
        name, sets = self.part.client_id, self.agreement.holder_sets
        pairs = [(own, other) for own in sets if own[0] == name for other in own[1:]]
        with for_good():
            return [
                seal(self.pair(to), self._drawn_key(own), self._sealing(own, to))
                for own, to in pairs
            ]

    def _drawn_key(self, holders: Holders) -> bytes:
        """The key of a set of holders: it follows from the first one's identity."""
        run = self.agreement.digest
        return self.node.identity.derive("holders", run, len(holders), *holders)

    def _sealing(self, holders: Holders, to: str) -> tuple[Item, ...]:
        # the run's id is the digest of holders and ordered sample hashes, too
        run = self.agreement.digest
        return ("holders' key", run, holders[0], to, len(holders), *holders)

    def encrypt(
        self,
        holders: Holders,
        label: tuple[str | int, ...],
        values: ArrayLike,
        terms: int | None = None,
    ) -> list[bytes]:
        """Numbers for the server to add to those of the other holders."""
        cipher, count = self.cipher(holders), len(holders) if terms is None else terms
        try:
            return cipher.encrypt(values, label, self.part.client_id, count)
        except RangeError:
            # how large would tell the server of this client's samples
            room = 2.0 ** (cipher.word - 1 - cipher.coding.bits) / count
            raise EncryptionError(
                f"{label[0]}: a number is not below {room:.6g}, too large to be "
                "encrypted; scale labels and weights down, and "
                "hyfdca.standardize = true brings raw columns to one scale"
            ) from None

    def decrypt(
        self,
        holders: Holders,
        blobs: Sequence[bytes],
        label: tuple[str | int, ...],
        count: int,
        whole: bool = True,
    ) -> FloatArray:
        """The numbers of a sum over all holders, or over any of them (``whole``)."""
        senders = holders if whole else None
        return self.cipher(holders).decrypt(blobs, label, count, senders)

    def uniform(self, g: int, count: int, *purpose: Item) -> FloatArray:
        """Numbers in [0, 1) that all holders of a group have, and the server not."""
        key = self.cipher(self.holders(g)).derive("draw", g, *purpose)
        return uniform_of(key, count)

    def hidden(self, rows: Words, ends: Words) -> Words:
        """Words under masks that cancel in the sum over all, in this attempt.

        ``rows``, shape (r, p_k), are of each feature; ``ends`` all clients have.
        """
        count, p_k = rows.shape
        starts = p_k * np.arange(count)[:, None]
        last = rows.size + np.arange(len(ends))
        where = {
            name: np.concatenate([(starts + shared).reshape(-1), last])
            for name, shared in self.shared_columns.items()
        }
        words = np.concatenate([rows.reshape(-1), ends])
        return self.block.term(self.config["attempt"], words, where)

    # --------------------------------------------------------------------------- data

    @cached_property
    def loss(self) -> DualLoss:
        """The loss of the run."""
        return _make_loss(self.config["loss"], self.config["smoothing"])

    @property
    def scale(self) -> float:
        """λN."""
        return float(self.config["regularization"] * self.config["num-samples-all"])

    @property
    def weighs(self) -> bool:
        """Whether samples or classes have weights."""
        return bool(self.config["weighted"] or self.config["class-weight"])

    def targets(self, held: HeldGroup) -> FloatArray:
        """Labels of a group, shape (C, n_g): one class against the rest in each row."""
        return targets_of(self.state["labels"][held.own], self.config["classes"])

    @property
    def sample_weights(self) -> FloatArray:
        """Weights s of all samples, group by group; 1 where there are none."""
        y: FloatArray = self.state["labels"]
        return self.state["weights"] if "weights" in self.state else np.ones_like(y)

    def weights_of(self, held: HeldGroup) -> FloatArray | None:
        """s̃ of a group, shape (C, n_g); None where nothing has weights."""
        if not self.weighs:
            return None
        s, y = self.sample_weights[held.own], self.state["labels"][held.own]
        rules = self.config["classes"], self.config["class-weight"]
        N = self.config["num-samples-all"]
        return normalised(s, y, *rules, self.state["totals"], N)

    @cached_property
    def features(self) -> Any:
        """The samples' features, with zeros for rare entries if that is the rule."""
        if self.rules.exposed == "leave-out":
            return without_rare(self.part.features, self.rules.least)
        return self.part.features

    @cached_property
    def columns(self) -> Any:
        """The samples' features as the run has them: standardised, if it does that."""
        groups = {g: held.rows for g, held in self.held.items()}
        return self.standardized(self.features, groups, new=False)

    def rows_of(self, held: HeldGroup) -> Any:
        """A group's rows of the columns, in the order of ``held.by_row``."""
        whole = held.size == self.part.features.shape[0]
        return self.columns if whole else self.columns[held.rows[held.by_row]]

    def standardized(
        self, features: Any, groups: Mapping[int, IntArray], new: bool
    ) -> Any:
        """(x − m)/s; m only where this client is the first of a sample's holders.

        Where each has other entries of it, two clients may have one sample's feature.
        """
        if "scales" not in self.state:
            return features
        means, scales = self.state["means"], self.state["scales"]
        firsts = np.stack([self.first_columns(g, new) for g in groups])
        shifts = np.where(firsts, means, 0.0)
        kinds = np.zeros(features.shape[0], dtype=np.int64)
        for kind, rows in enumerate(groups.values()):
            kinds[rows] = kind

        def made() -> Any:
            if isinstance(features, np.ndarray):
                moved = features - shifts[kinds]
                moved /= scales
                return moved
            from scipy import sparse

            divided = sparse.csr_array(features.multiply(1.0 / scales[None, :]))
            return Shifted(divided, shifts / scales, kinds) if shifts.any() else divided

        numbers = np.concatenate([shifts.ravel(), scales, kinds])
        mark = hashlib.sha256(numbers.tobytes()).digest()
        return _made.get(features, ("standardised", mark), made)

    def first_columns(self, g: int, new: bool) -> NDArray[np.bool_]:
        """Which of this client's columns no holder before it in a group has."""
        holders = self.agreement.holders(g, new)
        first = np.ones(len(self.part.feature_names), dtype=np.bool_)
        for name in holders[: holders.index(self.part.client_id)]:
            first[self.shared_columns[name]] = False
        return first

    def ranks(self, held: HeldGroup) -> IntArray:
        """Each sample's place in the order of the ids, the same on all holders."""
        ids = [str(self.part.sample_ids[i]) for i in held.rows]
        return np.argsort(np.argsort(ids))

    def drawn(self, held: HeldGroup, version: int) -> IntArray:
        """The samples of a group that move in this step."""
        fraction = self.config["local-fraction"]
        if fraction == 1.0:
            return np.arange(held.size)
        if self.config["encryption"] == "none":
            # nothing is hidden: the same in every run, whatever pseudonyms it has
            u = np.random.default_rng([held.group, version]).uniform(size=held.size)
            u = u[self.ranks(held)]
        else:
            u = self.uniform(held.group, held.size, version)
        order = np.argsort(u)
        return np.sort(order[: moving(held.size, fraction)])


def moving(size: int, fraction: float) -> int:
    """How many of a group's samples move in one step."""
    return max(1, ceil(fraction * size - 1e-9))


def uniform_of(key: bytes, count: int) -> FloatArray:
    """Numbers in [0, 1), of 53 bits of a keystream each, shape (count,)."""
    words = np.frombuffer(Keystream(key).read(8 * count), dtype="<u8")
    return np.ldexp((words >> np.uint64(11)).astype(np.float64), -53)


def as_arrays(blobs: Sequence[bytes]) -> Arrays:
    """Ciphertexts, as ``fit`` returns them."""
    return [as_bytes(blob) for blob in blobs]


def as_bytes(data: bytes) -> NDArray[np.uint8]:
    """Bytes as an array."""
    return np.frombuffer(data, dtype=np.uint8)


_make_loss = lru_cache(maxsize=8)(make_loss)


# ---------------------------------------------------------------------------- the node


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


class Predictions(NamedTuple):
    """Of new samples, on a node that holds some of their features.

    Attributes
    ----------
    sample_ids : sequence of str
    scores : ndarray of shape (n,), or (n, C) of C classes
        xᵀw; NaN where another holder of a sample did not take part.
    predicted : ndarray of shape (n,)
        −1 or 1; of several classes their number; of regressions the expected value.
    probabilities : ndarray of the scores' shape, or None
        σ(xᵀw) of the logistic loss, whose model says so; None of other losses.
    """

    sample_ids: Sequence[str]
    scores: FloatArray
    predicted: FloatArray
    probabilities: FloatArray | None

    def write(self, path: str | Path) -> None:
        """Write a csv file, a line a sample; what is not known is empty.

        Of several classes scores and probabilities have a column each.
        """
        parts = {"score": self.scores, "predicted": self.predicted}
        unknown = np.full_like(self.scores, np.nan)
        parts["probability"] = (
            unknown if self.probabilities is None else self.probabilities
        )
        columns: dict[str, Sequence[str]] = {"id": self.sample_ids}
        for name, values in parts.items():
            for c, numbers in enumerate(np.atleast_2d(values.T)):
                column = f"{name}-{c}" if values.ndim > 1 else name
                columns[column] = ["" if np.isnan(x) else f"{x:.17g}" for x in numbers]
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(columns)
            lines.writerows(zip(*columns.values(), strict=True))


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """A node's own rules, in its node config under these names.

    Without a key of its own (in a simulation) a node takes the run's wishes instead.
    """

    least: int = setting(
        3,
        "least number of holders of a feature, of samples of a group, and of this "
        "node's non-zero entries of a feature; two more than may collude with the "
        "server",
        minimum=2,
    )
    exposed: str = setting(
        "refuse",
        "what to do if a sum over fewer would reveal single numbers: refuse the run, "
        "leave out this node's rare entries, or accept it",
        choices=("refuse", "leave-out", "accept"),
    )
    noise: float = setting(
        0.0,
        "standard deviation of the Gaussian noise on each number of v_k, in units of "
        "what one sample adds to it at most; the certificate does not hold then",
        minimum=0.0,
    )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NodeRules:
        """Read the rules that a mapping has, by their names.

        SettingsError: one has a value that is not allowed; or a key looks like a
        rule's, and is none: a rule with a slip in its name would protect nothing.
        """
        for key in set(config) - set(keys(cls)):
            meant = get_close_matches(str(key).replace("_", "-"), keys(cls), 1, 0.8)
            if meant:
                raise SettingsError(
                    f"{key} = {config[key]!r} in the node config is not known; did you "
                    f"mean {meant[0]!r}?"
                )
        return parse(cls, config)


class SplitPart(SplitClient):
    """One client's part of the split data, its keys and its state: ``HyFDCAClient``."""

    state: Any

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
        *,
        identity: Identity | str | Path | None = None,
        roster: Roster | str | Path | None = None,
        ledger: str | Path | None = None,
        rules: NodeRules | None = None,
        on_predictions: Callable[[Predictions], None] | None = None,
        weights: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(context, features, feature_names, sample_ids, labels, loss)
        self.weights, self.rules = weights, rules
        self.new_samples, self.on_predictions = new_samples, on_predictions
        self.node = NodeSecrets(
            self.client_id,
            context.node_config,
            key=key,
            identity=identity,
            roster=roster,
            ledger=ledger,
        )


# What was made of data that is alive, so that a client that is made anew for each
# message does not make it for each.
_made: KeptFor[Any] = KeptFor(most=4)


def without_rare(features: Any, least: int) -> Any:
    """Features with zeros in the columns that have fewer than ``least`` entries."""

    def left() -> Any:
        counts = np.asarray((features != 0.0).sum(axis=0)).ravel()
        keep = np.where((counts > 0) & (counts < least), 0.0, 1.0)
        if keep.all():
            return None
        if isinstance(features, np.ndarray):
            return features * keep
        from scipy import sparse

        found = sparse.csr_array(features.multiply(keep[None, :]))
        found.eliminate_zeros()
        return found

    found = _made.get(features, ("without rare", least), left)
    return features if found is None else found


def column_sums(features: Any, weights: FloatArray | None = None) -> FloatArray:
    """Σ x and Σ x² of each column, or Σ s x and Σ s x², shape (2, p_k)."""
    both = features, _squares(features)
    if weights is not None:
        return np.stack([np.asarray(f.T @ weights) for f in both])
    return np.stack([np.asarray(f.sum(axis=0), np.float64).ravel() for f in both])


def squared_norms(features: Any) -> FloatArray:
    """‖x_{k,i}‖² of every row."""
    if isinstance(features, Shifted):
        return features.squared_norms()
    return np.asarray(_squares(features).sum(axis=1), dtype=np.float64).reshape(-1)


def _squares(features: Any) -> Any:
    sparse = hasattr(features, "multiply")
    return features.multiply(features) if sparse else features**2
