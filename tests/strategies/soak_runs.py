"""Long runs of every method under faults, with what they violate and what they keep.

``python -m tests.strategies.soak_runs`` runs 2 000 rounds of each and prints a table;
``--rounds``, and names of cases, make it shorter; ``--dtype float32`` runs models of
that. All but HyFDCA are methods of ``methods.py``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from clients.hyfdca import NewSamples
from clients.hyfdca.run import NodeRules
from fedtrellis import Callback, LocalGrid, RoundRecord
from fedtrellis.encryption.cipher import PlainCipher
from strategies import HyFDCA
from tests.harness import calm, contexts, distance, node_states
from tests.strategies.hyfdca_runs import Forgets, View, small
from tests.strategies.methods import EVERY, METHODS, A, Method, of_dtype

Errors = dict[str, float]

NODES = 6
#: A message is lost with probability 1 − 0.84 · 0.9 · 0.926 = 0.3.
FAULTS: dict[str, Any] = {
    "request_loss": 0.16,
    "reply_loss": 0.1,
    "late_reply": 0.074,
    "garbage": 0.05,
    "duplicate": 0.05,
    # not asked for, but what deployed nodes do: they answer, and store nothing
    "state_loss": 0.01,
}
#: By how much all arrays of server and nodes may grow between the samples, in bytes: a
#: node of HyFDCA that was just wiped has 28 kB less than it gets again. And blocks of
#: Python's memory, for good and in each round beside its record.
KEPT_ARRAYS, KEPT_AT_ALL, KEPT_A_ROUND = 60_000, 1_000, 15

_WIPE_EVERY, _CALM, _CHECKPOINT_EVERY, _AHEAD = 40, 10, 10, 3


# ---------------------------------------------------------------------------- the cases

SPLIT, _KEY = small(parts="hybrid"), PlainCipher.generate()


def _hyfdca(step: str, **settings: Any) -> Method:
    rng = np.random.default_rng(8)
    new_X = rng.standard_normal((10, SPLIT.p)) / sqrt(SPLIT.p)
    new_y = np.where(new_X.sum(axis=1) > 0, 1.0, -1.0)
    new_ids = [f"new-{i}" for i in range(len(new_X))]

    def client(context: Any, number: int) -> Any:
        new = NewSamples(new_X[:, SPLIT.parts[number][1]], new_ids, new_y)
        # one client for each feature scores
        own = new if number < 2 else None
        rules = NodeRules(exposed="accept")  # so few samples
        return SPLIT.client(context, key=_KEY, new_samples=own, rules=rules)

    options: dict[str, Any] = {
        **{"tolerance": 0.0, "feature_names": SPLIT.names, "step": step},
        **{"context": _KEY.evaluation_bytes(), "encryption": "none"},
        "secure_sum": step not in ("practical", "theoretical"),
        # what is remembered is full when the soak looks for the first time
        "memory": 20,
        # the practical step diverges with many samples at once
        "local_fraction": 0.05 if step == "practical" else 1.0,
    }
    make = partial(HyFDCA, SPLIT.loss, SPLIT.regularization, **{**options, **settings})
    numbers = range(SPLIT.num_clients)
    return Method(make, client, np.zeros(SPLIT.p), losses=numbers, forgets=True)


#: As they are fuzzed and soaked; "fedgia" has no invariant of its σ.
CASES: dict[str, Method] = {
    **{n: EVERY[n] for n in METHODS if n not in ("fedgia", "fedlmo averaged")},
    **{n: EVERY[n] for n in ("fedgia gram", "fedlmo ef21", "zeroth-order-rfl dense")},
    **{f"hyfdca {step}": _hyfdca(step) for step in ("bundle", "line-search")},
    **{f"hyfdca {step}": _hyfdca(step) for step in ("practical", "theoretical")},
    "hyfdca bundle apart": _hyfdca("bundle", secure_sum=False),
}
CASES |= {
    f"{name} float32": of_dtype(method, "float32")
    for name, method in CASES.items()
    if "float32" in method.strategy().dtypes
}


def evaluates(name: str) -> bool:
    """Whether clients can be asked for an evaluation."""
    return not name.startswith("hy")


# ----------------------------------------------------------------------- the invariants


def mirrored(strategy: Any, states: dict[str, dict[str, Any]]) -> float:
    """How far the nodes' states are from what the server can give back of them."""
    return max(
        (
            distance(state[key], known[key])
            for client, state in states.items()
            for known in [strategy.client_state(client)]
            for key in state.keys() & known.keys()
            if known[key].shape == state[key].shape
        ),
        default=0.0,
    )


def _sum_of_alphas(strategy: Any, grid: LocalGrid) -> Errors:
    """HyFDCA: holders agree on α, and w = (1/λN) Σ α_i x_i."""
    known = np.stack(list(View(SPLIT, grid, strategy).alphas().values()))
    highest, lowest = np.nanmax(known, axis=0), np.nanmin(known, axis=0)
    w = SPLIT.problem.primal_of(lowest)
    return {
        "holders agree on α": distance(highest, lowest),
        "w = (1/λN) Σ α_i x_i": distance(w, strategy.steps.w),
    }


def _optimal_in_parts(strategy: Any, states: Any, asked_at: Any) -> float:
    """FedGiA with the paper's σ: in both branches (H_i/m)(x − x_i) = ḡ_i(x) + π_i."""
    worst = distance(strategy.broadcast.model, strategy._z.mean(axis=0))
    for name, state in states.items():
        loss, a, x = EVERY["fedgia"].losses[int(name)], A[int(name)], asked_at(name)
        z = strategy._z[strategy._index[name]]
        x_i = z - state["pi"] / strategy.settled_sigma
        left = a.T @ (a @ (x - x_i)) / len(a) / NODES
        worst = max(worst, distance(left, loss.gradient(x) / NODES + state["pi"]))
    return worst


def violations(name: str, strategy: Any, grid: LocalGrid, conduct: Conduct) -> Errors:
    """By how much, after a round in which all took part.

    The run is that in which only those who were used were asked, unless a client keeps
    what its server cannot give back. What the server can is what the client has.
    """
    if name.startswith("hyfdca"):
        return _sum_of_alphas(strategy, grid)
    method, states = CASES[name], node_states(strategy, grid)
    left_out = strategy.stateful * (NODES - len(states))
    found = {"every node's state is compared": float(left_out)}
    if name == "feddr":  # its server counts with 2x_i − y_i
        known = strategy._reflections
        mean = np.mean([known[client] for client in strategy.clients], axis=0)
        x_bar = mean * min(1.0, 2.0 / float(np.linalg.norm(mean)))
        found["x̄ = P(mean of the x̂_i)"] = distance(strategy.broadcast.model, x_bar)
        for state, own in ((s, known[client]) for client, s in states.items()):
            off = distance(2.0 * state["x"] - state["y"], own)
            found["mirrors"] = max(off, found.get("mirrors", 0.0))
    else:
        found["mirrors"] = mirrored(strategy, states)
    if name == "hyfem":
        pairs = [(s["w"], strategy._local[who]) for who, s in states.items()]
        found["mirrors = clients' w_k"] = max(distance(*pair) for pair in pairs)
    if name.startswith("fedgia gram"):
        parts = _optimal_in_parts(strategy, states, conduct.asked_at)
        found["(H_i/m)(x − x_i) = ḡ_i(x) + π_i"] = parts
    if not method.forgets:
        rounds = [conduct.rounds[t + 1] for t in range(len(conduct.rounds))]
        sets, models = zip(*rounds, strict=True)
        calm_run = method.play(method.grid(NODES), sets=sets)
        found["each x is that of a calm run"] = distance(models, calm_run.models)
    return found


# ---------------------------------------------------------------------------- measuring


def _walk(root: Any, skip: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Everything that can be reached from an object of ours, each once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            waiting += item
        elif not callable(item) or hasattr(item, "configure_train"):
            attributes = getattr(item, "__dict__", {})
            waiting += [v for k, v in attributes.items() if k not in skip]


def measure(strategy: Any, grid: LocalGrid) -> tuple[int, int]:
    """Blocks of memory but the history's, and bytes of server's and nodes' arrays."""
    strategy.state()  # steps that were only noted down are worked in
    for item in gc.get_objects():
        # caches have a bound each, and are full at different times; isinstance would
        # ask proxies of lazy modules, which then load theirs
        if type(item) is functools._lru_cache_wrapper:
            module = str(getattr(item, "__module__", ""))
            if module.split(".")[0] in ("fedtrellis", "strategies", "clients"):
                item.cache_clear()
    gc.collect()
    blocks = sys.getallocatedblocks() - sum(1 for _ in _walk(strategy.history))
    skip = frozenset({"history", "result", "callbacks", "client_app"})
    items = list(_walk([strategy, grid], skip))
    sizes = [item.nbytes for item in items if isinstance(item, np.ndarray)]
    sizes += [len(item.data) for item in items if isinstance(item, Array)]
    return blocks, sum(sizes)


# ------------------------------------------------------------------------------ the run


class ServerDiedError(Exception):
    """The server's process ends in the middle of a run."""


class Conduct(Callback):
    """Wipes nodes, lets the server die, ends the faults, and measures twice."""

    def __init__(self, grid: LocalGrid, start: Any, rounds: int) -> None:
        self.grid, self.start, self.last, self.wipes = grid, start, rounds, 0
        self.dies_at = 2 * rounds // 5 // _CHECKPOINT_EVERY * _CHECKPOINT_EVERY + _AHEAD
        self.samples: list[tuple[int, int]] = []
        #: By round, whose answers were used and the model after it.
        self.rounds: dict[int, tuple[list[int], Any]] = {}

    def asked_at(self, client: str) -> Any:
        """The model that a client's last answer in use is for."""
        t = max(t for t, (used, _) in self.rounds.items() if int(client) in used)
        return self.rounds[t - 1][1] if t > 1 else self.start

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        t = record.round
        if t:
            used = [int(client) for client in strategy.used]
            self.rounds[t] = used, strategy.broadcast.model.copy()
        if t == self.last // 2:
            measure(strategy, self.grid)  # what measuring itself makes and keeps
        if t in (self.last // 2, self.last):
            self.samples.append(measure(strategy, self.grid))
        if t == self.last - _CALM:
            calm(self.grid)
        elif t % _WIPE_EVERY == 0 and 0 < t < self.last - _CALM:
            name = strategy.clients[self.wipes % len(strategy.clients)]
            contexts(self.grid)[int(name)].state = RecordDict()
            self.wipes += 1
        if t == self.dies_at:
            self.dies_at = -1
            raise ServerDiedError


def soak(name: str, rounds: int, folder: Path) -> tuple[list[str], str]:
    """Run a method for so many rounds, with a new server once in between.

    Returns what is wrong, and the table's row. float32 rounds each number by 6e-8; the
    corrections on a manifold are a model's numbers over a step. Errors of that size are
    no drift.
    """
    method = CASES[name]
    grid = method.grid(NODES, Forgets, seed=1, **FAULTS)
    conduct = Conduct(grid, method.start, rounds)
    path = folder / "checkpoint.npz"
    options: dict[str, Any] = {
        "callbacks": [conduct],
        "checkpoint": path,
        "checkpoint_every": _CHECKPOINT_EVERY,
        "client_evaluate_every": 10 if evaluates(name) else 0,
    }
    began, arrays = time.process_time(), ArrayRecord([method.start])
    with suppress(ServerDiedError):
        method.strategy(**options).start(grid, arrays, num_rounds=rounds)
    # a new process knows the checkpoint; the nodes are some rounds ahead of it
    strategy = method.strategy(resume=path, **options)
    strategy.start(grid, arrays, num_rounds=rounds)
    seconds = time.process_time() - began
    errors, last = violations(name, strategy, grid, conduct), strategy.history[-1]
    struck = [grid.fault_counts[fault] for fault in FAULTS if fault != "state_loss"]
    blocks, kept = np.subtract(conduct.samples[1], conduct.samples[0])
    tolerance = 1e-9 if method.start.dtype == np.float64 else 1e-5
    wrong = {
        **{f"{what}: {off:.2g}": not off < tolerance for what, off in errors.items()},
        "the model is not finite": not np.isfinite(strategy.broadcast.model).all(),
        "not all took part in the end": (last.round, last.used) != (rounds, NODES),
        "not enough went wrong": min(*struck, 3 * conduct.wipes) <= 5,
        f"{kept} bytes of arrays are kept": kept > KEPT_ARRAYS,
        f"{blocks} blocks are kept": blocks
        > KEPT_AT_ALL + KEPT_A_ROUND * (rounds // 2),
    }
    each, worst = blocks / (rounds // 2), max(errors.values())
    row = f"{name},{worst:.1e},{each:.1f},{kept},{seconds:.0f}"
    return [what for what, is_so in wrong.items() if is_so], row


def main() -> int:
    """Print the table; 1 if a run had a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--dtype", choices=("float64", "float32"))
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    single = given.dtype == "float32"
    failed, names = False, [n for n in CASES if n.endswith("float32") == single]
    print('method,worst violation,blocks a round,"arrays, bytes",CPU seconds')
    for name in given.names or names:
        with tempfile.TemporaryDirectory() as folder:
            problems, row = soak(name, given.rounds, Path(folder))
        print(row, flush=True)
        for problem in problems:
            failed = True
            print(f"{name}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
