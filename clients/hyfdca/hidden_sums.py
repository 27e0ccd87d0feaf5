"""What a client hides in a sum over all: masks, mixing and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import feature_digests
from fedtrellis.dual.masks import (
    add_masks,
    as_words,
    inputs_digest,
    mask_tag,
    split_number,
)
from fedtrellis.encryption.labels import expand
from fedtrellis.wire.arrays import FloatArray

from .base import Config
from .preparation import Preparation

__all__ = ["HiddenSums"]


class HiddenSums(Preparation):
    """A client's term of a sum that the server reads, and what its numbers hide."""

    def _mixing(
        self, config: Config, g: int, number: int, version: int, z: FloatArray
    ) -> FloatArray:
        """R of a group's samples, in [1/2, 1]: the same on all holders, of no other.

        They follow from z: asked again at one w, clients propose the same, and the
        server learns nothing more.
        """
        if config["encryption"] == "none":  # nothing is hidden: the same in every run
            rng = np.random.default_rng([g, number, version])
        else:
            cipher = self.secrets.cipher(self._holders(g))
            rng = self._rng(cipher, "proposal", g, number, version, z.tobytes())
        return rng.uniform(0.5, 1.0, size=len(z))

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
    ) -> NDArray[np.uint64]:
        """The client's term of the sum over all, shape (c · p_k + 4 R,).

        v row by row, then the two lists of R sums, each as whole parts and rests.
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
        zero = [np.zeros(3 + 2 * count)]
        parts = [split_number(np.sum([*zero, *sums[key]], axis=0), K) for key in sums]
        words = np.concatenate([as_words(v, K).reshape(-1), *parts])
        add_masks(words, own, self._peers(own, len(v), len(words)), tag)
        # on the disk before it leaves: the nonce is never used for anything else
        ledger.record(tag, words.astype("<u8").tobytes())
        return words

    def _peers(
        self, own: int, rows: int, size: int
    ) -> list[tuple[int, bytes, NDArray[np.int64]]]:
        """The other members, their pair's secret, and which words they have too."""
        agreement = self.secrets.agreement
        number = {digest: m for m, digest in enumerate(agreement.features)}
        # where the model's features stand among this client's
        columns = np.array([number[d] for d in feature_digests(self.feature_names)])
        order = np.argsort(columns)
        p_k = len(columns)
        starts = p_k * np.arange(rows)[:, None]
        ends = np.arange(rows * p_k, size)
        peers = []
        for other, name in enumerate(agreement.names):
            if other == own:
                continue
            shared = order[agreement.holdings[other][columns[order]]]
            where = np.concatenate([(starts + shared).reshape(-1), ends])
            peers.append((other, self.secrets.pair(name), where))
        return peers

    def _noise(self, config: Config, mark: bytes, shape: tuple[int, ...]) -> FloatArray:
        """Gaussian numbers, in units of the most that one sample adds to v_k.

        They follow from z and this client's own secret: asked twice at one w, it
        gives the same, and no mean over answers takes the noise out.
        """
        secret = bytes.fromhex(self._open_ledger(config).secret)
        seed = expand(secret, "noise", mark)
        rng = np.random.default_rng(np.frombuffer(seed, dtype="<u4").tolist())
        values = getattr(self.features, "data", self.features)
        largest = float(np.abs(np.asarray(values)).max(initial=0.0))
        scale = config["regularization"] * config["num-samples-all"]
        noise: FloatArray = rng.standard_normal(shape) * (largest / scale)
        return noise
