"""The agreement: what a client checks before any label leaves it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import Agreement, feature_digests
from fedtrellis.dual.alignment import HASH_BYTES, hashes_digest
from fedtrellis.dual.columns import STATISTICS
from fedtrellis.settings import SettingsError
from fedtrellis.wire.protocol import RestoreNeededError

from .._split_data import check_split_data
from .base import (
    Config,
    Fit,
    as_arrays,
)
from .consent import holding_digest, moving
from .matching import Matching, as_bytes, as_text, same_bytes
from .rules import NodeRules, entry_counts
from .terms import check_settings

__all__ = ["Agreeing"]

_MAC_BYTES = 32
# How many features or groups an error names
_NAMED = 5


class Agreeing(Matching):
    """Alignment, and consent to what the server wrote down of it."""

    # ------------------------------------------------------------------ the agreement

    def fit_align(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Hashes of the samples' ids, features' names, which key this is, a nonce."""
        check_split_data(self, config)
        hashes = self._pseudonyms(config)
        n = len(self.sample_ids)
        if self.key_kind == "roster":
            key = self.node.identity.public.hex()
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
            as_text("\n".join(self.feature_names)),
            as_text(key),
            as_bytes(ledger.nonce),
            hashes[n:],
        ]
        if config["send-context"]:
            context = self._common_key(config).evaluation_bytes()
            answer.append(as_bytes(context))
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
        # before the agreement's own settings take the place of the request's
        if agreement.settings.get("session") != config["session"]:
            raise SettingsError(
                f"client {self.client_id}: the agreement is of another session"
            )
        if self.client_id not in agreement.names:
            raise SettingsError(f"client {self.client_id} is not in the agreement")
        check_settings(agreement, self.client_id)
        pinned = self._pinned(config, agreement)
        self._check_agreement(pinned, agreement)
        if ledger.agreement is None:
            ledger.agreement, ledger.holding = digest, holding_digest(self.state)
            ledger.stored = None
            ledger.save()
        macs = b"".join(
            self.secrets.confirmation(self.client_id, name)
            if name != self.client_id
            else bytes(_MAC_BYTES)
            for name in agreement.names
        )
        return [as_bytes(macs), *as_arrays(self.secrets.sealed())], 0, {}

    def _check_agreement(self, config: Config, agreement: Agreement) -> None:
        """Raise SettingsError if it is not what was sent, or breaks a rule here."""
        who = f"client {self.client_id}"
        own = agreement.index(self.client_id)
        member, ledger = agreement.members[own], self._open_ledger(config)
        if member.nonce != ledger.nonce.hex():
            raise SettingsError(f"{who}: the agreement does not have its nonce")
        if self.key_kind == "roster":
            self.secrets.pair(agreement.names[own - 1]) if own else None
        else:
            cipher = self._common_key(config)
            if any(other.key != cipher.fingerprint for other in agreement.members):
                raise SettingsError(f"{who}: not all clients have one key")
            if cipher.name != config["encryption"]:
                raise SettingsError(
                    f"{who}: encryption = {config['encryption']!r} on the server, but "
                    f"the key is of backend {cipher.name!r}"
                )
        mine = set(feature_digests(self.feature_names))
        named = {agreement.features[m] for m in agreement.columns_of(own)}
        if len(set(agreement.features)) != len(agreement.features) or named != mine:
            raise SettingsError(f"{who}: the agreement has other features for it")
        self._check_samples(agreement, own)
        if self.weights is not None and not config["weighted"]:
            raise SettingsError(
                f"{who}: its samples have weights, of which the agreement says nothing"
            )
        if config["num-samples-all"] != agreement.num_samples:
            raise SettingsError(f"{who}: the agreement has another number of samples")
        check_split_data(self, config)
        self._check_hidden(self._rules_of(config), config, agreement, own)

    def _check_samples(self, agreement: Agreement, own: int) -> None:
        """The groups have this client's samples, each once, in the order agreed on."""
        ledger = self.node.ledger(agreement.settings["session"])
        who = f"client {self.client_id}"
        known = ledger.replay(b"pseudonyms")
        if known is None:
            if ledger.agreement is None:
                raise SettingsError(f"{who} was not asked for its samples first")
            if ledger.holding != holding_digest(self.state):
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
        if self.key_kind == "roster" and config["encryption"] == "none":
            shown.append("nothing is encrypted (encryption = 'none')")
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
        sizes = [
            moving(agreement.groups[g][1], config["local-fraction"])
            for g in agreement.held_groups(own)
        ]
        some = " that move in one step" * (config["local-fraction"] < 1.0)
        small = [
            f"{sizes.count(size)} group{'s' * (sizes.count(size) > 1)} of samples with "
            f"the same holders of size {size}{some}"
            for size in sorted({size for size in sizes if size < rules.least})
        ]
        thin: list[str] = []
        if config["standardize"]:
            # two sums are two equations for a column's entries
            least = rules.least + STATISTICS
            thin = [
                f"feature {name!r} is not zero in {count} of its samples only, and "
                f"standardize needs {least}"
                for name, count in self._few_values(least)
            ]
        for found in (few, rare, thin, small):
            shown += found[:_NAMED]
            if len(found) > _NAMED:
                shown.append(f"and {len(found) - _NAMED} more like that")
        if not shown:
            return
        out = ", or 'leave-out' to leave the rare entries out" if rare else ""
        raise SettingsError(
            f"sums would give single numbers of client {self.client_id} away (least = "
            f"{rules.least}): {'; '.join(shown)}. Its node allows it with exposed = "
            f"'accept'{out}, or with a smaller least (in a simulation hyfdca.exposed, "
            "hyfdca.least)"
        )

    def _few_values(self, least: int) -> list[tuple[str, int]]:
        """Features of which Σ x and Σ x² would give single entries away.

        With fewer than ``least`` entries that are not 0, unless all of them are equal:
        then the sums say how many, and what.
        """
        counts = entry_counts(self.features)
        found = []
        for m in np.flatnonzero((counts > 0) & (counts < least)).tolist():
            column = np.asarray(self.features[:, [m]] @ np.ones(1)).ravel()
            if len(np.unique(column[column != 0.0])) > 1:
                found.append((str(self.feature_names[m]), int(counts[m])))
        return found

    def _check_confirmed(self, config: Config, agreement: Agreement) -> None:
        """Every other client has agreed to the same, or no label leaves."""
        macs = config["confirmations"]
        for i, name in enumerate(agreement.names):
            if name == self.client_id:
                continue
            expected = self.secrets.confirmation(name, self.client_id)
            if not same_bytes(expected, macs[i]):
                raise SettingsError(
                    f"client {self.client_id}: client {name} has not agreed to the "
                    "same run (other samples, features, settings or keys)"
                )
