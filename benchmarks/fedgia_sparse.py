"""FedGiA on wide sparse data: seconds a round, and memory a client."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from clients import FedGiAClient
from fedtrellis.objectives import Logistic
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedGiA

from .report import Aim, Comparison, Spread
from .runs import array_of

__all__ = ["FULL", "QUICK", "Case", "Memory", "compare", "run", "sparse_data"]

# The paper's t = 0.1 lets F grow on such data.
_L2, _SIGMA_SCALE, _AIM = 1e-3, 1.0, 3.0

Shares = list[tuple[Any, FloatArray]]
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


@dataclass(frozen=True)
class Case:
    """Sizes: every node has ``rows`` rows of ``nonzeros`` entries that are not 0."""

    features: int
    rows: int
    nonzeros: int
    nodes: int = 10
    rounds: int = 3
    local_steps: int = 5


# with so few rows of n = 100 000 a vector would be half as large as the data
QUICK = Case(20_000, 1_000, 200)
FULL = Case(100_000, 5_000, 200)


def sparse_data(case: Case) -> Shares:
    """Every node's rows, of norm about 1, and labels that depend on them."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(case.features)
    shares: Shares = []
    for _ in range(case.nodes):
        count = case.rows * case.nonzeros
        # a feature drawn twice for a row is added up
        columns = rng.integers(0, case.features, count, dtype=np.int32)
        starts = np.arange(0, count + 1, case.nonzeros, dtype=np.int32)
        entries = rng.standard_normal(count) / np.sqrt(case.nonzeros)
        shape = case.rows, case.features
        A = scipy.sparse.csr_array((entries, columns, starts), shape=shape)
        A.sum_duplicates()
        noise = 0.1 * rng.standard_normal(case.rows)
        shares.append((A, (A @ direction + noise > 0.0).astype(np.float64)))
    return shares


def data_bytes(shares: Shares) -> float:
    """Mean bytes of a client's CSR arrays."""
    sizes = [A.data.nbytes + A.indices.nbytes + A.indptr.nbytes for A, _ in shares]
    return float(np.mean(sizes))


def _objectives(shares: Shares) -> list[Logistic]:
    return [Logistic(A, b, l2=_L2) for A, b in shares]


def _app(objectives: Sequence[Logistic], mods: list[Mod]) -> ClientApp:
    def client_fn(context: Context) -> FedGiAClient:
        index = int(context.node_config["partition-id"])
        return FedGiAClient(context, objectives[index])

    return client_app(client_fn, mods=mods)


def _strategy(case: Case, hessian: Any) -> FedGiA:
    return FedGiA(
        sigma_scale=_SIGMA_SCALE,
        local_steps=case.local_steps,
        hessian=hessian,
        tolerance=0.0,
    )


def run(case: Case, shares: Shares, hessian: str) -> tuple[Spread, FloatArray]:
    """Seconds of every round, and the model after the last."""
    strategy = _strategy(case, hessian)
    grid = LocalGrid(_app(_objectives(shares), []), case.nodes)
    start = ArrayRecord([np.zeros(case.features)])
    result = strategy.start(grid, start, num_rounds=case.rounds)
    seconds = tuple(record.seconds for record in strategy.history)
    return Spread(seconds, "ms" if max(seconds) < 1.0 else "s"), array_of(result.arrays)


@dataclass(frozen=True)
class Memory:
    """Bytes of a client, beyond its CSR data.

    Attributes
    ----------
    kept : float
        After the rounds: objective, caches and state in the node's context; mean of
        the clients.
    peak : float
        While it handles one message, beyond what was there before, decoding and the
        answer included; the largest of all.
    """

    kept: float
    peak: float


def memory(case: Case, shares: Shares, hessian: str) -> Memory:
    """Run with ``tracemalloc``, which sees the buffers of NumPy, too."""
    peaks: list[int] = []

    def measure(
        message: Message,
        context: Context,
        handle: Callable[[Message, Context], Message],
    ) -> Message:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        reply = handle(message, context)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return reply

    gc.collect()
    tracemalloc.start()
    try:
        # with what is left: the nodes' contexts and the objectives with their caches
        grid, objectives = _traced_run(case, shares, hessian, measure)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] / case.nodes
    finally:
        tracemalloc.stop()
    assert len(objectives) == len(grid.get_node_ids())
    return Memory(kept, float(max(peaks)))


def _traced_run(
    case: Case, shares: Shares, hessian: str, mod: Mod
) -> tuple[LocalGrid, list[Logistic]]:
    """What the clients have after a run whose server is gone."""
    objectives = _objectives(shares)
    grid = LocalGrid(_app(objectives, [mod]), case.nodes)
    start = ArrayRecord([np.zeros(case.features)])
    _strategy(case, hessian).start(grid, start, num_rounds=case.rounds)
    return grid, objectives


def compare(case: Case) -> Comparison:
    """FedGiA_G, by conjugate gradients, and FedGiA_D: a row each."""
    shares = sparse_data(case)
    data = data_bytes(shares)
    result = Comparison(
        "fedgia-sparse",
        f"FedGiA on sparse data, n = {case.features:,}: a round and a client's memory",
        f"Logistic loss, l2 = {_L2:g}, {case.nodes} nodes with {case.rows:,} rows of "
        f"{case.nonzeros} non-zeros, on LocalGrid, s = 0.5, k_0 = {case.local_steps}, "
        f"t = {_SIGMA_SCALE:g}; median (min – max) of {case.rounds} rounds. Memory "
        "in a run of its own, by tracemalloc, in multiples of a client's CSR arrays. "
        "Kept: what objective, caches and the node's state add, after the rounds. "
        "Peak: of one client's handling of one message, beyond what was there before.",
    )
    before = _mean_loss(shares, np.zeros(case.features))
    for name, hessian in (("FedGiA_G (CG)", "gram"), ("FedGiA_D", "diagonal")):
        seconds, x = run(case, shares, hessian)
        used = memory(case, shares, hessian)
        total = (data + used.kept + used.peak) / data
        result.rows.append(
            {
                "method": name,
                "seconds a round": seconds,
                "F before, after": f"{before:.6f}, {_mean_loss(shares, x):.6f}",
                "data of a client": Spread((data,), "B"),
                "kept / data": Spread((used.kept / data,), "x"),
                "peak / data": Spread((used.peak / data,), "x"),
                "in all": Spread((total,), "x"),
            }
        )
        result.aims.append(
            Aim(
                f"{name}: data, kept and peak below {_AIM:g} times the data",
                f"{total:.2f} times",
                total < _AIM,
            )
        )
    return result


def _mean_loss(shares: Shares, x: FloatArray) -> float:
    return float(np.mean([f.value(x) for f in _objectives(shares)]))
