"""Before round 1: what the clients agree on, and check."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import Agreement, feature_digests
from fedtrellis.dual.alignment import HASH_BYTES, hashes_digest
from fedtrellis.encryption import Cipher, remove_run_key
from fedtrellis.encryption.intersection import (
    blind,
    evaluate,
    pseudonyms,
    scalar_from,
    unblind,
)
from fedtrellis.encryption.labels import encode_items, expand
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import Named, RestoreNeededError

from .._split_data import check_split_data
from .base import (
    Config,
    Fit,
    IntArray,
    SplitClient,
    _holding,
    as_arrays,
    keyed_hashes,
    loss_of,
)
from .rules import NodeRules, entry_counts

__all__ = ["LabelError", "Preparation"]

# So that one of them and the server together cannot try ids.
_EVALUATORS = 2
_MAC_BYTES = 32
_POINT_BYTES = 32
# How many features or groups an error names
_NAMED = 5


class LabelError(ValueError):
    """The clients' labels do not fit together."""


class Preparation(SplitClient):
    """Matching samples, agreeing, sharing labels and norms, and the end of a key."""

    # ------------------------------------------------ ids without a common key (roster)

    def fit_blind(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """This client's ids, blinded, and a MAC of them for each evaluator."""
        check_split_data(self, config)
        # what is blinded with this nonce is unblinded with it, whatever happens
        self._open_ledger(config).save()
        points = blind(self._all_ids(), self._blinding(config), config["session"])
        macs = [
            self._points_mac(config, points, other, self.client_id)
            for other in config["evaluators"]
        ]
        return [points, _bytes(b"".join(macs))], 0, {}

    def fit_evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Every client's points times this evaluator's secret, and MACs of them.

        An evaluator takes points of clients of its roster only, as their MACs show:
        else a server could try ids of its own.
        """
        ledger = self._open_ledger(config)
        if ledger.agreement is not None:
            raise SettingsError(
                f"client {self.client_id} has agreed to this run already"
            )
        # once in a run: who colludes with the server could try ids otherwise
        count = len(config["owners"])
        asked = [config[f"points/{i}"] for i in range(count)]
        mark = hashlib.sha256(encode_items(*config["owners"], *asked)).hexdigest()
        if ledger.evaluated not in ("", mark) or len(set(config["owners"])) != count:
            raise SettingsError(
                f"client {self.client_id} has evaluated other ids for this run already"
            )
        ledger.evaluated = mark
        ledger.save()
        secret = scalar_from(self._identity.derive("evaluate", config["session"]))
        answer: list[NDArray[Any]] = []
        for i, owner in enumerate(config["owners"]):
            points = _points(config[f"points/{i}"])
            expected = self._points_mac(config, points, self.client_id, owner)
            if not _same(expected, config[f"mac/{i}"]):
                raise SettingsError(
                    f"client {self.client_id} was given ids of client {owner} that "
                    "this client has not sent"
                )
            found = evaluate(points, secret)
            mac = self._points_mac(config, found, owner, self.client_id)
            answer += [found, _bytes(mac)]
        return answer, 0, {}

    def _all_ids(self) -> list[str]:
        """Ids of the samples, and of the new ones, which are ids of another kind."""
        new = [] if self.new_samples is None else self.new_samples.sample_ids
        return [f"sample {i}" for i in self.sample_ids] + [f"new {i}" for i in new]

    def _blinding(self, config: Config) -> int:
        nonce = self._open_ledger(config).nonce
        return scalar_from(self._identity.derive("blind", config["session"], nonce))

    def _points_mac(
        self, config: Config, points: NDArray[np.uint8], to: str, sender: str
    ) -> bytes:
        """The MAC of some points, of one of two clients for the other."""
        other = to if sender == self.client_id else sender
        if other == self.client_id:  # an evaluator's own points
            secret = self._identity.derive("points")
        elif other not in self._roster.members:
            raise SettingsError(f"client {other} is not in this node's roster")
        else:
            secret = self._identity.pair_secret(self._roster.members[other])
        context = ("points", config["session"], sender, to)
        return expand(secret, *context, points.tobytes())

    def _pseudonyms(self, config: Config) -> NDArray[np.uint8]:
        """The samples' hashes, then the new samples': shape (n + n_new, 16)."""
        if self.key_kind == "roster":
            evaluated = []
            if len(set(config["evaluators"])) != _EVALUATORS:
                raise SettingsError(
                    f"client {self.client_id}: ids are evaluated by {_EVALUATORS} "
                    f"clients, not by {config['evaluators']}"
                )
            for i, evaluator in enumerate(config["evaluators"]):
                points = _points(config[f"points/{i}"])
                mac = self._points_mac(config, points, self.client_id, evaluator)
                if not _same(mac, config[f"mac/{i}"]):
                    raise SettingsError(
                        f"client {self.client_id} was given ids that client "
                        f"{evaluator} has not sent"
                    )
                evaluated.append(unblind(points, self._blinding(config)))
            return pseudonyms(*evaluated)
        cipher = self._common_key(config)
        hashes = keyed_hashes(cipher, "sample", self.sample_ids, HASH_BYTES)
        if self.new_samples is not None:
            ids = self.new_samples.sample_ids
            hashes += keyed_hashes(cipher, "new-sample", ids, HASH_BYTES)
        return _bytes(hashes).reshape(-1, HASH_BYTES)

    # ------------------------------------------------------------------ the agreement

    def fit_align(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Hashes of the samples' ids, features' names, which key this is, a nonce."""
        check_split_data(self, config)
        hashes = self._pseudonyms(config)
        n = len(self.sample_ids)
        if self.key_kind == "roster":
            key = self._identity.public.hex()
        else:
            key = self._common_key(config).fingerprint
        ledger = self._open_ledger(config)
        if ledger.agreement is not None:
            raise SettingsError(
                f"client {self.client_id} has agreed to a run of session "
                f"{config['session']!r} already"
            )
        # what the agreement is to be compared with, if this process ends before it
        ledger.stored = (b"pseudonyms", hashes.tobytes())
        ledger.save()
        answer = [
            hashes[:n],
            _text("\n".join(self.feature_names)),
            _text(key),
            _bytes(ledger.nonce),
            hashes[n:],
        ]
        if config["send-context"]:
            context = self._common_key(config).evaluation_bytes()
            answer.append(_bytes(context))
        return answer, 0, {}

    def fit_agree(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Check what the server wrote down, and confirm it to every other client.

        Returns the MACs for all members, one after the other, and the keys that this
        client draws, sealed.
        """
        if "agreement" not in self.state or "groups" not in self.state:
            raise RestoreNeededError("this client has no alignment")
        agreement = Agreement.from_bytes(self.state["agreement"].tobytes())
        ledger = self._open_ledger(config)
        digest = agreement.digest.hex()
        if ledger.agreement not in (None, digest):
            raise SettingsError(
                f"client {self.client_id} has agreed to something else in this run"
            )
        if agreement.settings.get("session") != config["session"]:
            raise SettingsError(
                f"client {self.client_id}: the agreement is of another session"
            )
        pinned = self._pinned(config, agreement)
        self._check_agreement(pinned, agreement)
        if ledger.agreement is None:
            ledger.agreement, ledger.holding = digest, _holding(self.state)
            ledger.stored = None
            ledger.save()
        macs = b"".join(
            self.secrets.confirmation(self.client_id, name)
            if name != self.client_id
            else bytes(_MAC_BYTES)
            for name in agreement.names
        )
        return [_bytes(macs), *as_arrays(self.secrets.sealed())], 0, {}

    def _check_agreement(self, config: Config, agreement: Agreement) -> None:
        """Raise SettingsError if it is not what this client said, or breaks its rules."""
        who = f"client {self.client_id}"
        own = agreement.index(self.client_id)
        member, ledger = agreement.members[own], self._open_ledger(config)
        if member.nonce != ledger.nonce.hex():
            raise SettingsError(f"{who}: the agreement does not have its nonce")
        if self.key_kind == "roster":
            self.secrets.pair(agreement.names[own - 1]) if own else None
        else:
            key = self._common_key(config).fingerprint
            if any(other.key != key for other in agreement.members):
                raise SettingsError(f"{who}: not all clients have one key")
        mine = set(feature_digests(self.feature_names))
        said = {agreement.features[m] for m in agreement.columns_of(own)}
        if len(set(agreement.features)) != len(agreement.features) or said != mine:
            raise SettingsError(f"{who}: the agreement has other features for it")
        self._check_samples(agreement, own)
        check_split_data(self, config)
        self._check_hidden(self._rules_of(config), config, agreement, own)

    def _check_samples(self, agreement: Agreement, own: int) -> None:
        """The groups have this client's samples, each once, in the order agreed on."""
        ledger, who = self._ledger, f"client {self.client_id}"
        assert ledger is not None
        known = ledger.replay(b"pseudonyms")
        if known is None:
            if ledger.agreement is None:
                raise SettingsError(f"{who} was not asked for its samples first")
            if ledger.holding != _holding(self.state):
                raise SettingsError(f"{who} was given other samples than it agreed to")
            return
        hashes = np.frombuffer(known, np.uint8).reshape(-1, HASH_BYTES)
        n = len(self.sample_ids)
        train = {g: one.rows for g, one in self._held().items()}
        for rows, groups, listed, own_hashes in (
            (train, agreement.groups, agreement.held_groups(own), hashes[:n]),
            (
                self._new_rows(),
                agreement.new_groups,
                agreement.held_groups(own, new=True),
                hashes[n:],
            ),
        ):
            wrong = sorted(rows) != listed
            wrong |= sum(map(len, rows.values())) != len(own_hashes)
            for g, these in rows.items():
                _, size, digest = groups[g]
                wrong |= len(these) != size
                wrong |= hashes_digest(own_hashes[these]) != digest
            if wrong:
                raise SettingsError(f"{who}: the agreement has other samples for it")

    def _check_hidden(
        self, rules: NodeRules, config: Config, agreement: Agreement, own: int
    ) -> None:
        """Refuse a run whose sums give single numbers of this client away.

        A sum hides its terms only if there are several: several holders of a feature,
        several entries of it on this client, several samples in a group.
        """
        if rules.exposed == "accept":
            return
        shown: list[str] = []
        if not config["secure-sum"]:
            shown.append(
                "secure-sum is off (each client's own sums travel in the clear)"
            )
        columns = {d: m for m, d in enumerate(agreement.features)}
        digests = feature_digests(self.feature_names)
        counts = entry_counts(self.features)
        holders = [
            int(agreement.holders_of_features[columns[digest]]) for digest in digests
        ]
        few = [
            f"feature {name!r} has {count} holder{'s' * (count > 1)}"
            for name, count, entries in zip(
                self.feature_names, holders, counts, strict=True
            )
            if count < rules.least and entries
        ]
        rare = [
            f"feature {name!r} is not zero in {count} of its samples only"
            for name, count in zip(self.feature_names, counts, strict=True)
            if 0 < count < rules.least
        ]
        sizes = [agreement.groups[g][1] for g in agreement.held_groups(own)]
        small = [
            f"{sizes.count(size)} group{'s' * (sizes.count(size) > 1)} of samples with "
            f"the same holders of size {size}"
            for size in sorted({size for size in sizes if size < rules.least})
        ]
        for found in (few, rare, small):
            shown += found[:_NAMED]
            if len(found) > _NAMED:
                shown.append(f"and {len(found) - _NAMED} more like that")
        if not shown:
            return
        out = ", or exposed = 'leave-out' to leave the rare entries out" if rare else ""
        raise SettingsError(
            f"client {self.client_id}: sums would give single numbers away (least = "
            f"{rules.least}): {'; '.join(shown)}. Allow it on this node with exposed = "
            f"'accept'{out}"
        )

    # --------------------------------------------------------------- labels and norms

    def fit_labels(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Labels, whether there are any, and ‖x_{k,i}‖², encrypted, by group."""
        agreement = self._agreed(config)
        pinned = self._pinned(config, agreement)
        self._check_confirmed(pinned, agreement)
        known, labels = self._own_labels()
        norms = _squared_norms(self.features)
        blobs: list[bytes] = []
        for g, held in self._held().items():
            for what, values in (
                ("labels", labels),
                ("counts", known),
                ("norms", norms),
            ):
                blobs += self._encrypt(self._holders(g), (what, g), values[held.rows])
        answer = as_arrays(blobs)
        self._check_groups(pinned)
        for g in pinned.get("tag-groups", []):
            cipher = self.secrets.cipher(self._holders(g))
            answer.append(self._entry_tags(cipher, self._held()[g].rows))
        return answer, 0, {}

    def _check_confirmed(self, config: Config, agreement: Agreement) -> None:
        """Every other client has agreed to the same, or no label leaves."""
        macs = config["confirmations"]
        for i, name in enumerate(agreement.names):
            if name == self.client_id:
                continue
            expected = self.secrets.confirmation(name, self.client_id)
            if not _same(expected, macs[i]):
                raise SettingsError(
                    f"client {self.client_id}: client {name} has not agreed to the "
                    "same run (other samples, features, settings or keys)"
                )

    def _own_labels(self) -> tuple[FloatArray, FloatArray]:
        """1 where this client has a label, and the label (0 where it has none)."""
        n = self.features.shape[0]
        if self.labels is None:
            return np.zeros(n), np.zeros(n)
        known = ~np.isnan(np.asarray(self.labels, dtype=np.float64))
        return known.astype(np.float64), np.where(known, self.labels, 0.0)

    def _entry_tags(self, cipher: Cipher, rows: IntArray) -> NDArray[np.uint8]:
        """A keyed number for each non-zero entry, to find those held twice.

        From 64 bits of the sample's and of the feature's own keyed hash each; without
        the key a tag says nothing but whether two clients have it.
        """
        from scipy import sparse

        own = sparse.csr_array(self.features)[rows].tocoo()
        entries = own.data != 0.0
        ids = [self.sample_ids[i] for i in rows]
        samples = np.frombuffer(keyed_hashes(cipher, "entry-sample", ids, 8), "<u8")
        features = np.frombuffer(
            keyed_hashes(cipher, "entry-feature", self.feature_names, 8), "<u8"
        )
        i, m = own.coords[0][entries], own.coords[1][entries]
        with np.errstate(over="ignore"):
            # a keyed odd multiplier for each feature, then two rounds of mixing
            tags = samples[i] * (features[m] | np.uint64(1)) + features[m]
            for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
                tags = (tags ^ (tags >> np.uint64(31))) * np.uint64(factor)
        tags.sort()
        return np.frombuffer(tags.astype("<u8").tobytes(), dtype=np.uint8)

    def fit_ready(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Check the key, and the labels of all holders against each other."""
        self._learn(config, check=True)
        return [_bytes(self._open_ledger(config).nonce)], 0, {}

    def _learn(self, config: Config, check: bool = False) -> Named:
        """A request's entries, with groups, labels and secrets there to answer it."""
        pinned = self._pinned(config, self._agreed(config))
        self._check_groups(pinned)
        if "labels" not in self.state:
            self._take_labels(pinned, check)
        return pinned

    def _take_labels(self, config: Config, check: bool) -> None:
        """Take labels and norms from the sums over the holders, if they came along."""
        if not any(k.startswith("labels/") for k in config):
            raise RestoreNeededError("this client has no labels")
        known, own = self._own_labels()
        labels, norms = [], []
        for g, held in self._held().items():
            rows, holders = held.rows, self._holders(g)
            sums, counts, squares = (
                self._decrypt(
                    config, holders, config[f"{what}/{g}"], (what, g), held.size
                )
                for what in ("labels", "counts", "norms")
            )
            if check and not counts.all():
                raise LabelError(
                    f"{int((counts == 0).sum())} samples are labelled by none of their "
                    f"{len(holders)} holders"
                )
            y = sums / np.maximum(counts, 1.0)
            wrong = (known[rows] > 0) & (np.abs(y - own[rows]) > 1e-9)
            if check and wrong.any():
                raise LabelError(
                    f"{int(wrong.sum())} samples have other labels on another client"
                )
            # a mean of rounded sums is a label to the resolution; a sign exactly
            labels.append(np.rint(y) if loss_of(config).labels == "signs" else y)
            norms.append(np.maximum(squares, 0.0))
        self.state["labels"] = np.concatenate(labels)
        self.state["norms"] = np.concatenate(norms)

    def fit_finish(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Remove the key that the clients of this machine made for the run."""
        if config.get("forget-key"):
            remove_run_key(config["session"])
        return [], 0, {}


def _squared_norms(features: Any) -> FloatArray:
    """‖x_{k,i}‖² of every row."""
    squares = (
        features.multiply(features) if hasattr(features, "multiply") else features**2
    )
    return np.asarray(squares.sum(axis=1), dtype=np.float64).reshape(-1)


def _text(text: str) -> NDArray[np.uint8]:
    return _bytes(text.encode())


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _points(data: bytes) -> NDArray[np.uint8]:
    """Points of the curve, shape (n, 32), as a request has them."""
    if not isinstance(data, bytes) or len(data) % _POINT_BYTES:
        raise ValueError("the request's points are malformed")
    return _bytes(data).reshape(-1, _POINT_BYTES)


def _same(expected: bytes, given: Any) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(expected, given)
