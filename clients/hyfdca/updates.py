"""The paper's steps on a client: encrypted updates of α."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.group_records import MAX_SHARES
from fedtrellis.wire.protocol import RestoreNeededError

from .preparation import learn
from .run import ClientRun, as_arrays, uniform_of

__all__ = ["dual", "primal"]

Arrays = list[NDArray[Any]]


def dual(run: ClientRun) -> Arrays:
    """LocalDualMethod: enc(γ_t/|B_n| Δα) of H samples (algorithms 3 and 5)."""
    learn(run)
    config, loss, n = run.config, run.loss, run.features.shape[0]
    λ, γ, c_k = config["regularization"], config["gamma"], config["c"]
    if config["moved"] and "alpha" not in run.state:
        raise RestoreNeededError("this client has no α")
    alpha_all = run.state.get("alpha", np.zeros(n))
    # H samples, drawn without replacement, of all that this client has
    H = max(1, ceil(config["local-fraction"] * n - 1e-9))
    key = run.cipher((run.part.client_id,)).derive("draw", config["iteration"])
    drawn = np.zeros(n, dtype=bool)
    drawn[np.argsort(uniform_of(key, n))[:H]] = True
    local = np.asarray(run.columns @ run.w[0])
    blobs: list[bytes] = []
    numbers: list[float] = []
    for g in config["dual"]:
        held, holders = run.held[g], run.holders(g)
        alpha, y = alpha_all[held.own], run.state["labels"][held.own]
        if len(holders) == 1:
            z = local[held.rows]
        elif f"scores/{g}" in config:
            blobs_of, label = config[f"scores/{g}"], ("product", g, 0)
            z = run.decrypt(holders, blobs_of, label, len(alpha), None)
        else:
            z = np.zeros(len(alpha))
        if config["step"] == "practical":
            delta = loss.coordinate_step(alpha, z, 1.0, y, run.scale)
        else:
            delta = loss.theoretical_step(alpha, z, y, c_k, γ, λ)
        delta = np.where(drawn[held.rows], delta, 0.0)
        share = γ / len(holders) * delta
        blobs += run.encrypt(holders, ("dual", g), share, MAX_SHARES)
        if g in config["report"]:
            conjugates = loss.conjugate(loss.feasible(alpha, y), y)
            sums = loss.value(z, y), conjugates
            numbers += [float(one[held.by_row].sum()) for one in sums]
    run.numbers = np.array(numbers)
    return as_arrays(blobs)


def primal(run: ClientRun) -> Arrays:
    """PrimalAggregation: ŵ_k/(λN) = (1/λN) Σ_i α_i x_{k,i} (algorithm 4)."""
    learn(run)
    n = run.features.shape[0]
    alpha, in_rows = np.zeros(n), np.empty(n)
    for g in run.config["moved"]:
        held, blobs_of = run.held[g], run.config[f"alpha/{g}"]
        alpha[held.own] = run.decrypt(
            run.holders(g), blobs_of, ("dual", g), held.size, None
        )
    run.state["alpha"] = alpha
    in_rows[run.state["rows"].astype(int)] = alpha
    blobs: list[bytes] = []
    for g in run.config["renew"]:
        own = alpha[run.held[g].own]
        blobs += run.encrypt(run.holders(g), ("dual", g), own, MAX_SHARES)
    v = np.asarray(run.columns.T @ in_rows) / run.scale
    return [v, *as_arrays(blobs)]
