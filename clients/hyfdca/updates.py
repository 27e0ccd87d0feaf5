"""The iteration with the paper's steps: encrypted updates of α."""

from __future__ import annotations

import hashlib
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.held_groups import MAX_SHARES
from fedtrellis.encryption.labels import expand
from fedtrellis.wire.protocol import RestoreNeededError

from .base import Fit, as_arrays, loss_of
from .preparation import Preparation

__all__ = ["Updates"]


class Updates(Preparation):
    """LocalDualMethod and PrimalAggregation of the paper."""

    def fit_dual(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """LocalDualMethod: enc(γ_t/|B_n| Δα) of H samples (algorithms 3 and 5)."""
        config = self._learn(config, "dual")
        (w,) = parameters
        self._count_answer(config, hashlib.sha256(w.tobytes()).digest())
        self._open_ledger(config).save()
        loss = loss_of(config)
        λ, N = config["regularization"], config["num-samples-all"]
        gamma, c_k = config["gamma"], config["c"]
        if not (0.0 < gamma <= 1.0 and 0.0 < c_k <= 1.0):
            raise ValueError(f"γ = {gamma} and c = {c_k} must be in (0, 1]")
        groups, n = self._held(), self.features.shape[0]
        if config["moved"] and "alpha" not in self.state:
            raise RestoreNeededError("this client has no α")
        alpha_all = self.state.get("alpha", np.zeros(n))
        # H samples, drawn without replacement, of all that this client has
        H = max(1, ceil(config["local-fraction"] * n - 1e-9))
        secret = bytes.fromhex(self._open_ledger(config).secret)
        seed = expand(secret, "draw", config["iteration"])
        rng = np.random.default_rng(np.frombuffer(seed, dtype="<u4").tolist())
        drawn = np.zeros(n, dtype=bool)
        drawn[rng.choice(n, size=H, replace=False)] = True
        local = np.asarray(self.columns @ w[0])
        blobs: list[bytes] = []
        numbers: list[float] = []
        for g in config["dual"]:
            held = groups[g]
            alpha, y = alpha_all[held.own], self.state["labels"][held.own]
            if len(self._holders(g)) == 1:
                z = local[held.rows]
            elif f"scores/{g}" in config:
                blobs_of = config[f"scores/{g}"]
                label = ("product", g, 0, "")
                z = self._decrypt(
                    config, self._holders(g), blobs_of, label, len(alpha), None
                )
            else:
                z = np.zeros(len(alpha))
            if config["step"] == "practical":
                delta = loss.coordinate_step(alpha, z, 1.0, y, λ * N)
            else:
                delta = loss.theoretical_step(alpha, z, y, c_k, gamma, λ)
            delta = np.where(drawn[held.rows], delta, 0.0)
            share = gamma / len(self._holders(g)) * delta
            blobs += self._encrypt(self._holders(g), ("dual", g), share, MAX_SHARES)
            if g in config["report"]:
                numbers.append(float(loss.value(z, y).sum()))
                numbers.append(float(loss.conjugate(loss.feasible(alpha, y), y).sum()))
        self.numbers = np.array(numbers)
        return as_arrays(blobs), 0, {}

    def fit_primal(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """PrimalAggregation: ŵ_k/(λN) = (1/λN) Σ_i α_i x_{k,i} (algorithm 4)."""
        config = self._learn(config, "dual")
        scale = config["regularization"] * config["num-samples-all"]
        groups, n = self._held(), self.features.shape[0]
        alpha = np.zeros(n)
        for g in config["moved"]:
            held = groups[g]
            alpha[held.own] = self._decrypt(
                config,
                self._holders(g),
                config[f"alpha/{g}"],
                ("dual", g),
                held.size,
                None,
            )
        self.state["alpha"] = alpha
        in_rows = np.empty(n)
        in_rows[self.state["rows"].astype(int)] = alpha
        blobs: list[bytes] = []
        for g in config["renew"]:
            own = alpha[groups[g].own]
            blobs += self._encrypt(self._holders(g), ("dual", g), own, MAX_SHARES)
        v = np.asarray(self.columns.T @ in_rows) / scale
        return [v, *as_arrays(blobs)], 0, {}
