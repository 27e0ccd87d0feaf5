"""Labels, norms, weights and sums of columns before round 1; the end of a run's key."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as Ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from numpy.typing import NDArray

from fedtrellis.dual.agreement import Agreement, needs_norms
from fedtrellis.dual.columns import PARTS, in_parts
from fedtrellis.encryption import Cipher, remove_run_key
from fedtrellis.encryption.masks import add_masks, mask_tag
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import Named, RestoreNeededError

from .base import (
    Config,
    Fit,
    IntArray,
    as_arrays,
    keyed_hashes,
    loss_of,
)
from .columns import Standardizing, column_sums, squared_norms
from .matching import as_bytes
from .terms import STEPS
from .weights import weighs

__all__ = ["LabelError", "Preparation"]


class LabelError(CodedError):
    """The clients' labels do not fit together."""

    code = "labels"


class Preparation(Standardizing):
    """Sharing labels, norms and weights, sums over all, and the end of a run's key."""

    def fit_labels(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Labels, whether there are any, and ‖x_{k,i}‖² if need be, encrypted."""
        agreement = self._agreed(config)
        pinned = self._pinned(config, agreement)
        self._check_confirmed(pinned, agreement)
        known, labels = self._own_labels()
        sent = {"labels": labels, "counts": known}
        if needs_norms(pinned):
            if pinned["standardize"]:
                self._take_sums(pinned)
            sent["norms"] = squared_norms(self.columns)
        if pinned["weighted"]:
            sent["weight-counts"], sent["weights"] = self._own_weights()
        blobs: list[bytes] = []
        for g, held in self._held().items():
            for what, values in sent.items():
                blobs += self._encrypt(self._holders(g), (what, g), values[held.rows])
        answer = as_arrays(blobs)
        self._check_groups(pinned)
        shared = dict(zip(agreement.names, self._shared_columns(), strict=True))
        for g in pinned.get("tag-groups", []):
            others = [name for name in self._holders(g) if name != self.client_id]
            columns = np.unique(np.concatenate([[], *(shared[n] for n in others)]))
            cipher = self.secrets.cipher(self._holders(g))
            rows = self._held()[g].rows
            answer.append(self._entry_tags(cipher, rows, columns.astype(np.int64)))
        return answer, 0, {}

    def _own_labels(self) -> tuple[FloatArray, FloatArray]:
        """1 where this client has a label, and the label (0 where it has none)."""
        n = self.features.shape[0]
        if self.labels is None:
            return np.zeros(n), np.zeros(n)
        known = ~np.isnan(np.asarray(self.labels, dtype=np.float64))
        return known.astype(np.float64), np.where(known, self.labels, 0.0)

    def _entry_tags(
        self, cipher: Cipher, rows: IntArray, columns: IntArray
    ) -> NDArray[np.uint8]:
        """A number for each non-zero entry, to find those that are held twice.

        AES of 64 bits of the sample's keyed hash and 64 of the feature's, cut to 64:
        without the key a tag says nothing but whether two clients have it. Only of
        features that another holder of these samples has too.
        """
        from scipy import sparse

        own = sparse.csr_array(self.features)[rows][:, columns].tocoo()
        entries = own.data != 0.0
        ids = [self.sample_ids[i] for i in rows]
        names = [self.feature_names[m] for m in columns]
        samples = np.frombuffer(keyed_hashes(cipher, "entry-sample", ids, 8), "<u8")
        features = np.frombuffer(keyed_hashes(cipher, "entry-feature", names, 8), "<u8")
        i, m = own.coords[0][entries], own.coords[1][entries]
        blocks = np.stack([samples[i], features[m]], axis=1).astype("<u8").tobytes()
        key = cipher.derive("entry tags")
        # each block is another one, and nothing is to be decrypted
        aes = Ciphers(algorithms.AES(key), modes.ECB()).encryptor()
        words = np.frombuffer(aes.update(blocks) + aes.finalize(), "<u8")
        tags = np.sort(words[::2])
        return np.frombuffer(tags.tobytes(), dtype=np.uint8)

    def fit_ready(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Check the key, and the labels of all holders against each other."""
        pinned = self._learn(config, "", check=True)
        if "answers-to-come" in config:
            self._check_to_come(pinned)
        return [as_bytes(self._open_ledger(config).nonce)], 0, {}

    def _check_to_come(self, config: Config) -> None:
        """Raise SettingsError if the rest of a longer run is more than is allowed.

        A run that goes on with more rounds than were declared would end with that
        refusal, after all the rounds before it.
        """
        given, allowed = self._open_ledger(config).answers, self._allowed(config)
        rounds, to_come = config["rounds"], config["answers-to-come"]
        excess = given + to_come - allowed
        if excess > 0:
            raise SettingsError(
                f"client {self.client_id} answers {allowed} times in this run "
                "(answers; where its node does not say, by the rounds that were "
                f"declared before round 1), has answered {given} times, and rounds = "
                f"{rounds} would take {to_come} more: go on with rounds = "
                f"{rounds - ceil(excess / config['classes'])} at most, or start a new "
                "run"
            )

    def _learn(self, config: Config, steps: str = "", check: bool = False) -> Named:
        """A request's entries, with groups, labels and secrets there to answer it.

        ``steps`` says of which steps' iterations the phase is, if it is not of all.
        """
        pinned = self._pinned(config, self._agreed(config))
        if steps not in ("", STEPS[pinned["step"]]):
            raise SettingsError(
                f"client {self.client_id} was asked for a phase that a run with "
                f"step = {pinned['step']!r} does not have"
            )
        self._check_groups(pinned)
        # weights are normalised by what the labels' holders add up
        if weighs(pinned) and "labels" not in self.state:
            self._take_labels(pinned, check)
        if (pinned["standardize"] and "scales" not in self.state) or (
            weighs(pinned) and "totals" not in self.state
        ):
            self._take_sums(pinned)
        if "labels" not in self.state:
            self._take_labels(pinned, check)
        if check and weighs(pinned):
            self._check_weighed(pinned, balanced=True)
        return pinned

    def _take_labels(self, config: Config, check: bool) -> None:
        """Take labels and norms from the sums over the holders, if they came along."""
        if not any(k.startswith("labels/") for k in config):
            raise RestoreNeededError("this client has no labels")
        known, own = self._own_labels()
        labels, norms, weights = [], [], []
        shared = ["labels", "counts", *["norms"] * needs_norms(config)]
        if config["weighted"]:
            shared += ["weights", "weight-counts"]
        for g, held in self._held().items():
            rows, holders = held.rows, self._holders(g)
            found = {
                what: self._decrypt(
                    config, holders, config[f"{what}/{g}"], (what, g), held.size
                )
                for what in shared
            }
            sums, counts = found["labels"], found["counts"]
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
            if "norms" in found:
                norms.append(np.maximum(found["norms"], 0.0))
            if config["weighted"]:
                s, counts = found["weights"], found["weight-counts"]
                weights.append(self._group_weights(s, counts, rows, check))
        self.state["labels"] = np.concatenate(labels)
        if norms:
            self.state["norms"] = np.concatenate(norms)
        if weights:
            self.state["weights"] = np.concatenate(weights)

    def _group_weights(
        self, sums: FloatArray, counts: FloatArray, rows: IntArray, check: bool
    ) -> FloatArray:
        """A group's weights, from their sums over those who have sent them."""
        if check and not counts.all():
            raise LabelError(
                f"{int((counts == 0).sum())} samples have a weight on none of their "
                "holders, and others have one"
            )
        # exact where they have 40 fractional bits, as whole numbers do
        s: FloatArray = np.maximum(sums / np.maximum(counts, 1.0), 0.0)
        known, own = self._own_weights()
        wrong = (known[rows] > 0) & (np.abs(s - own[rows]) > 1e-9)
        if check and wrong.any():
            raise LabelError(
                f"{int(wrong.sum())} samples have other weights on another client"
            )
        return s

    # ------------------------------------------------------------ sums before round 1

    def fit_columns(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Sums of columns and of weights, hidden in those over all who have them.

        Σ x and Σ x² of each column with ``standardize``, shape (PARTS · 2 · p_k,); with
        samples' weights Σ s x and Σ s x², and Σ s over the samples of which this client
        is the first to hold the column. Then the totals that weights are normalised by.
        Once in a run, as the nonce that the masks are of is used up.
        """
        agreement = self._agreed(config)
        pinned = self._pinned(config, agreement)
        self._check_confirmed(pinned, agreement)
        if not pinned["standardize"] and not weighs(pinned):
            raise SettingsError(
                f"client {self.client_id} was asked for sums of its columns in a run "
                "with standardize = False"
            )
        ledger = self._open_ledger(config)
        nonces = [bytes.fromhex(member.nonce) for member in agreement.members]
        tag = mask_tag(agreement.digest, "columns", nonces, ())
        stored = ledger.replay(tag)
        if stored is not None:
            return [np.frombuffer(stored, "<u8").astype(np.uint64)], 0, {}
        own, K = agreement.index(self.client_id), len(agreement.members)
        if ledger.nonce != nonces[own]:
            raise SettingsError(
                f"client {self.client_id} has sent the sums of its columns already"
            )
        sums, totals = np.zeros((0, len(self.feature_names))), np.zeros(0)
        if weighs(pinned):
            if "labels" not in self.state:
                self._take_labels(pinned, True)
            self._check_weighed(pinned, balanced=False)
            totals = self._own_totals(pinned)
        if pinned["standardize"]:
            sums = self._column_sums(pinned, agreement)
        try:
            words = np.concatenate(
                [in_parts(numbers, K).reshape(-1) for numbers in (sums, totals)]
            )
        except ValueError:
            raise SettingsError(
                f"client {self.client_id}: a column's sum of squares is too large, or "
                "not finite, and cannot be hidden"
            ) from None
        nothing: list[tuple[bytes | str | int, ...]] = [()] * K
        rows = PARTS * len(sums)
        add_masks(words, own, self._peers(own, rows, len(words), nothing), tag)
        # on the disk before it leaves: the nonce is never used for anything else
        ledger.record(tag, words.astype("<u8").tobytes())
        return [words], 0, {}

    def _column_sums(self, config: Config, agreement: Agreement) -> FloatArray:
        """Statistics of the columns, shape (2, p_k), or with weights (3, p_k)."""
        if not config["weighted"]:
            return column_sums(self.features)
        s = np.empty(self.features.shape[0])
        mass = np.zeros(len(self.feature_names))
        for g, held in self._held().items():
            own = self._sample_weights()[held.own]
            s[held.rows] = own
            mass += own.sum() * self._first_columns(agreement, g, False)
        return np.vstack([column_sums(self.features, s), mass])

    def fit_finish(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Remove the key that the clients of this machine made for the run."""
        if config.get("forget-key") and self.key_kind == "run":
            remove_run_key(config["session"])
        return [], 0, {}
