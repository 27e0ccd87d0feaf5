"""What a client hides in a sum over all: masks, mixing and noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import second_holder
from fedtrellis.dual.columns import Shifted
from fedtrellis.dual.group_steps import GroupStep
from fedtrellis.dual.questions import inputs_digest, weights_mark
from fedtrellis.encryption import RefusedError
from fedtrellis.encryption.labels import expand
from fedtrellis.encryption.masks import add_masks, as_words, mask_tag, split_number
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

from .base import Config, loss_of
from .preparation import Preparation
from .weights import weighs

__all__ = ["HiddenSums"]


def _scaled(config: Config) -> str:
    """What to scale: α of a loss of numbers is as large as the labels."""
    signs = loss_of(config).labels == "signs"
    return "scale the features" if signs else "scale the features or the labels"


class HiddenSums(Preparation):
    """A client's term of a sum that the server reads, and what its numbers hide."""

    def _mixing(
        self, config: Config, g: int, number: int, version: int, z: FloatArray
    ) -> FloatArray:
        """R of a group's samples, in [1/2, 1]: the same on all holders, of no other.

        Of shape (C, n_g), as z: with one r for all classes the difference of two
        classes' sums would be one over the samples of these two classes alone.

        They follow from z and from how α came about: asked the same again, clients
        propose the same, and the server learns nothing more; asked anything else, they
        take other numbers.
        """
        if config["encryption"] == "none":
            # nothing is hidden: the same in every run, in whatever order a key puts
            # the samples
            ids = [str(self.sample_ids[i]) for i in self._held()[g].rows]
            rng = np.random.default_rng([number, version])
            return rng.uniform(0.5, 1.0, size=z.shape)[:, np.argsort(np.argsort(ids))]
        cipher = self.secrets.cipher(self._holders(g))
        chain = self._chain(g)
        rng = self._rng(cipher, "proposal", g, number, version, chain, z.tobytes())
        return rng.uniform(0.5, 1.0, size=z.shape)

    def _chain(self, g: int) -> bytes:
        """How α of a group came about, see ``next_chain``."""
        return self.state[f"chain/{g}"].tobytes() if f"chain/{g}" in self.state else b""

    # -------------------------------------------------------------- what may be asked

    def _check_whole(self, config: Config, w: FloatArray) -> None:
        """Raise ValueError unless this is what an honest server asks for a sum.

        All of this client's groups, at one w, from one α, and the sums of losses that
        this client is the one to report: of parts of that the server could tell what
        single clients or groups add.
        """
        agreement = self.secrets.agreement
        own = self._held()
        holders = {g: agreement.holders(g) for g in own}
        local = [g for g in own if len(holders[g]) == 1]
        expected = {
            "groups": list(own),
            "propose": list(own),
            "local": local,
            "rows": [0] * len(local),
            "report": [g for g in own if holders[g][0] == self.client_id],
            "second-report": [
                g for g in own if second_holder(holders[g]) == self.client_id
            ],
        }
        for key, groups in expected.items():
            if list(config[key]) != groups:
                raise ValueError(f"{key} is {config[key]}, where it must be {groups}")
        if len(config["versions"]) != len(own) or len(set(config["versions"])) != 1:
            raise ValueError("the groups are not all asked at one version of w")
        expected_shape = (config["classes"], len(self.feature_names))
        if w.shape != (expected_shape if local else (1, 0)):
            raise ValueError(f"the weights have shape {w.shape}")
        first, *others = GroupStep.unpack(config, config["classes"])
        for other in others:
            if replace(other, group=first.group, alpha=first.alpha) != first:
                raise ValueError("the groups do not all stand at one step")
        each = 1 + len(config["proposals"])
        if first.alpha_id != each * first.step:
            raise ValueError(f"α of step {first.step} is not point {first.alpha_id}")

    def _granted(self, config: Config, w: FloatArray) -> None:
        """Check that inner products and proposals are of one w, which is granted.

        Raises
        ------
        RefusedError
            This client's inner products that the sums are made of were of another.
        """
        version, query = config["versions"][0], config["query"]
        ledger = self._open_ledger(config)
        if any(len(self._holders(g)) > 1 for g in self._held()):
            known = ledger.version, ledger.query
            if known != (version, query) or (
                w.size and ledger.weights != weights_mark(w).hex()
            ):
                raise RefusedError(
                    "the inner products are not of the weights that were sent last"
                )
        else:
            self._grant(config, version, w, query)

    def _known_to_both(
        self, config: Config, scores: Mapping[int, FloatArray]
    ) -> list[tuple[bytes | str | int, ...]]:
        """For each member, what it and this client are both asked, if all is well."""
        agreement, ledger = self.secrets.agreement, self._open_ledger(config)
        version, query = config["versions"][0], config["query"]
        step = config["steps"][0]
        common = self._known_sums()
        marks = {g: hashlib.sha256(z.tobytes()).digest() for g, z in scores.items()}
        known = []
        for member, name in enumerate(agreement.names):
            both = [g for g in marks if name in agreement.holders(g)]
            sums: list[bytes | int] = [item for g in both for item in (g, marks[g])]
            chain = self._chain(next(iter(marks)))
            items = version, query, step, chain, ledger.shared[member]
            known.append((*items, *common[member], *sums))
        return known

    def _known_sums(self) -> list[tuple[bytes, ...]]:
        """For each member, what both were sent of sums before round 1.

        Given a smaller total of the weights, or smaller scales of its columns, one
        client would outweigh the others in every sum.
        """
        known = []
        for shared in self._shared_columns():
            shared_sums = [self.state[key] for key in ("totals",) if key in self.state]
            both = [self.state[k] for k in ("means", "scales") if k in self.state]
            shared_sums += [one[shared] for one in both]
            known.append(tuple(weights_mark(one) for one in shared_sums))
        return known

    # ------------------------------------------------------------------ what is hidden

    def _tag(self, config: Config, w: FloatArray) -> bytes | None:
        """T of this wave, if this client's nonce is in it; None if another is.

        Raises
        ------
        ValueError
            What this client was asked is not what the server says it was.
        """
        agreement = self.secrets.agreement
        own = agreement.index(self.client_id)
        nonces, inputs = config["nonces"], config["inputs"]
        if len(nonces) != len(agreement.members) or len(inputs) != len(nonces):
            raise ValueError("the wave does not have all members' nonces and inputs")
        if inputs[own] != inputs_digest(config, w):
            raise ValueError("this client's inputs are not those of the wave")
        tag = mask_tag(agreement.digest, "propose", nonces, inputs)
        ledger = self._open_ledger(config)
        if ledger.replay(tag) is None and nonces[own] != ledger.nonce:
            return None
        return tag

    def _hidden(
        self,
        config: Config,
        tag: bytes,
        mark: bytes,
        v: FloatArray,
        sums: Mapping[str, Sequence[FloatArray]],
        scores: Mapping[int, FloatArray],
    ) -> NDArray[np.uint64]:
        """The client's term of the sum over all, shape (c C p_k + 4 C R,).

        v row by row, then the two lists of C R sums, each as whole parts and rests.
        """
        ledger = self._open_ledger(config)
        stored = ledger.replay(tag)
        if stored is not None:
            return np.frombuffer(stored, dtype="<u8").astype(np.uint64)
        noise = self._rules_of(config).noise
        if noise:
            v = v + noise * self._noise(config, mark, v.shape)
        agreement = self.secrets.agreement
        own, K = agreement.index(self.client_id), len(agreement.members)
        count = len(config["proposals"])
        zero = [np.zeros(config["classes"] * (3 + 2 * count))]
        try:
            parts = [
                split_number(np.sum([*zero, *sums[key]], axis=0), K) for key in sums
            ]
            words = np.concatenate([as_words(v, K).reshape(-1), *parts])
        except ValueError:
            ledger.save()  # that v_k is so large is an answer too
            raise SettingsError(
                f"client {self.client_id}: its part of a sum is too large to be hidden;"
                f" {_scaled(config)} down, raise regularization, or set "
                "hyfdca.standardize = true, which brings raw columns to one scale"
            ) from None
        known = self._known_to_both(config, scores)
        add_masks(words, own, self._peers(own, len(v), len(words), known), tag)
        # on the disk before it leaves: the nonce is never used for anything else
        ledger.record(tag, words.astype("<u8").tobytes())
        return words

    def _noise(self, config: Config, mark: bytes, shape: tuple[int, ...]) -> FloatArray:
        """Gaussian numbers, in units of the most that one sample adds to v_k.

        They follow from z and this client's own secret: asked twice at one w, it
        gives the same, and no mean over answers takes the noise out.
        """
        secret = bytes.fromhex(self._open_ledger(config).secret)
        seed = expand(secret, "noise", mark)
        rng = np.random.default_rng(np.frombuffer(seed, dtype="<u4").tolist())
        columns = self.columns
        if isinstance(columns, Shifted):
            columns = columns.features
        values = getattr(columns, "data", columns)
        largest = float(np.abs(np.asarray(values)).max(initial=0.0))
        if weighs(config):
            found = [self._weights_of(config, held) for held in self._held().values()]
            largest *= max(float(s.max()) for s in found if s is not None)
        scale = config["regularization"] * config["num-samples-all"]
        noise: FloatArray = rng.standard_normal(shape) * (largest / scale)
        return noise
