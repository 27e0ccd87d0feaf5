"""Chaos: runs of every method under faults, against runs in which nothing fails.

``python -m tests.strategies.soak_runs`` runs each with three seeds and prints a table;
``--seeds`` and names of cases make it another; ``--dtype float32`` runs models of that.
All but HyFDCA are methods of ``methods.py``.
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
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from clients.hyfdca import NewSamples
from clients.hyfdca.run import NodeRules
from fedtrellis import Callback, LocalGrid, RoundRecord
from fedtrellis.encryption.cipher import PlainCipher
from strategies import HyFDCA
from tests.harness import Played, Recorder, Watch, calm, distance, node_states, restart
from tests.strategies.hyfdca_runs import Forgets, View, small
from tests.strategies.methods import EVERY, Method, of_dtype

Errors = dict[str, float]

NODES = 6
#: A message is lost with probability 1 − 0.84 · 0.9 · 0.926 = 0.3.
FAULTS: dict[str, Any] = {
    "request_loss": 0.16,
    "reply_loss": 0.1,
    "late_reply": 0.074,
    "garbage": 0.05,
    "duplicate": 0.05,
    "crash": 0.05,
    # not asked for, but what deployed nodes do: they answer, and store nothing
    "state_loss": 0.05,
}
#: By how much all arrays of server and nodes may grow between the samples, in bytes: a
#: node of HyFDCA that was just wiped has 28 kB less than it gets again. And blocks of
#: Python's memory, for good and in each round beside its record.
KEPT_ARRAYS, KEPT_AT_ALL, KEPT_A_ROUND = 90_000, 1_000, 15

_RESTART_EVERY, _CALM, _CHECKPOINT_EVERY, _AHEAD = 10, 10, 5, 3


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
    return Method(make, client, np.zeros(SPLIT.p), losses=numbers)


#: As they are fuzzed and soaked.
CASES: dict[str, Method] = {
    **EVERY,
    **{f"hyfdca {step}": _hyfdca(step) for step in ("bundle", "line-search")},
    **{f"hyfdca {step}": _hyfdca(step) for step in ("practical", "theoretical")},
    "hyfdca bundle apart": _hyfdca("bundle", secure_sum=False),
}
CASES |= {
    f"{name} float32": of_dtype(method, "float32")
    for name, method in CASES.items()
    if "float32" in method.strategy().dtypes
}

#: That go by who was asked as well: FedGiA with a σ of its own.
BY_ASKED = {name for name in CASES if name.split(" float")[0] == "fedgia"}

#: Enough for 1 000 faults; a round of HyFDCA takes several waves.
ROUNDS = {name: 200 if name.startswith("hyfdca") else 500 for name in CASES}


def evaluates(name: str) -> bool:
    """Whether clients can be asked for an evaluation."""
    return not name.startswith("hy")


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


def violations(name: str, strategy: Any, grid: LocalGrid) -> Errors:
    """By how much, after a round in which all took part.

    What the server can give back of a client's state is what the client has.
    """
    if name.startswith("hyfdca"):
        return _sum_of_alphas(strategy, grid)
    states = node_states(strategy, grid)
    left_out = strategy.stateful * (NODES - len(states))
    return {
        "every node's state is compared": float(left_out),
        "mirrors": mirrored(strategy, states),
    }


def table_of_states() -> list[str]:
    """What is lost of a state, and what a client does then: a page's line a method."""
    methods: dict[str, dict[str, set[str]]] = {}
    for case in CASES.values():
        ran = case.play(case.grid(NODES), 6)
        strategy = ran.strategy
        record, entries = strategy._state_for("0")
        given = {key.split("/")[0] for key in (*record, *entries)} - {"restore"}
        states = node_states(strategy, ran.grid).values()
        kept = {key.split("/")[0] for state in states for key in state}
        assert strategy._lost.keys() <= kept - given, strategy.name
        lost = methods.setdefault(strategy.name, {})
        for key, then in strategy._lost.items():
            lost.setdefault(then, set()).add(f"`{key}`")
    return [
        f"| `{name}` | {' or '.join(sorted(keys))}: {then} |"
        for name, lost in methods.items()
        for then, keys in lost.items()
    ]


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


class ServerDiedError(Exception):
    """The server's process ends in the middle of a run."""


class Conduct(Callback):
    """Restarts nodes, lets the server die, ends the faults; measures twice if asked."""

    def __init__(self, method: Method, rounds: int, measures: bool) -> None:
        self.last, self.measures = rounds, measures
        self.grid: Any = None
        #: What the method says that a client without its state does not get back.
        self.lost = method.strategy()._lost.keys()
        parts = (part * rounds // 5 // _CHECKPOINT_EVERY for part in (1, 2))
        self.dies_at = [part * _CHECKPOINT_EVERY + _AHEAD for part in parts]
        self.counts = {"wiped": 0, "new node id": 0, "server killed": 0}
        self.samples: list[tuple[int, int]] = []
        #: By round, whose answers were used and the model after it.
        self.rounds: dict[int, tuple[list[int], Any]] = {}
        #: By round and node, whether it began the round without what can be lost.
        self.forgot: dict[tuple[int, int], bool] = {}

    def look(self, server_round: int, number: int, state: dict[str, Any]) -> None:
        """Note down what a client has; the last look at a round counts."""
        self.forgot[server_round, number] = self.lost.isdisjoint(state)

    def forget(self, server_round: int, number: int, state: dict[str, Any]) -> None:
        """Lose what it has lost, in a run in which nothing else happens."""
        if self.forgot[server_round, number]:
            for key in self.lost & state.keys():
                del state[key]

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        t = record.round
        if t:
            used = [int(client) for client in strategy.used]
            self.rounds[t] = used, strategy.broadcast.model.copy()
        if self.measures and t == self.last // 2:
            measure(strategy, self.grid)  # what measuring itself makes and keeps
        if self.measures and t in (self.last // 2, self.last):
            self.samples.append(measure(strategy, self.grid))
        if t == self.last - _CALM:
            calm(self.grid)
        elif t % _RESTART_EVERY == 0 and 0 < t < self.last - _CALM:
            number = t // _RESTART_EVERY
            self.grid.faults["state_loss"] = FAULTS["state_loss"]
            restart(self.grid, number // 2 % NODES, moves=number % 2 == 0)
            self.counts["wiped" if number % 2 else "new node id"] += 1
        if t in self.dies_at:
            self.dies_at.remove(t)
            self.counts["server killed"] += 1
            # who stores nothing of a repeated round has what the first one left
            self.grid.faults["state_loss"] = 0.5
            raise ServerDiedError


def chaos(
    name: str,
    rounds: int,
    folder: Path,
    *,
    seed: int = 1,
    encode: bool = False,
    measures: bool = False,
    **options: Any,
) -> tuple[Played[Any], Conduct]:
    """Run a method for so many rounds under all faults, with a new server twice.

    The nodes are some rounds ahead of the checkpoint that the new one knows.
    """
    method, path = CASES[name], folder / "checkpoint.npz"
    conduct = Conduct(method, rounds, measures)
    look = conduct.look if conduct.lost and not name.startswith("hyfdca") else None
    grid = method.grid(NODES, Forgets, look, seed=seed, encode=encode, **FAULTS)
    conduct.grid = grid
    more = {"checkpoint": path, "checkpoint_every": _CHECKPOINT_EVERY, **options}
    more["callbacks"] = [conduct]
    arrays = ArrayRecord([method.start])
    for _ in range(3):
        strategy = method.strategy(**more)
        with suppress(ServerDiedError):
            strategy.start(grid, arrays, num_rounds=rounds)
        more["resume"] = path
    played = Played(strategy, grid, [strategy.broadcast.model], Watch(grid))
    kept = [conduct.rounds[t + 1] for t in range(rounds)]
    played.watch.used, played.watch.models = map(list, zip(*kept, strict=True))
    return played, conduct


def undisturbed(
    name: str, ran: Played[Any], conduct: Conduct, losses: bool = True, **options: Any
) -> Played[Any]:
    """The run of the same participants in which nobody and nothing fails.

    But, unless without ``losses``, clients lose what the method says that they do.
    """
    method = CASES[name]
    look = conduct.forget if conduct.lost and losses else None
    if name not in BY_ASKED:
        return method.play(method.grid(NODES, look=look), sets=ran.used, **options)
    grid = method.grid(NODES, Recorder, look)
    sets = enumerate(ran.used, start=1)
    grid.missed = {(t, i) for t, used in sets for i in range(NODES) if i not in used}
    return method.play(grid, len(ran.used), **options)


def soak(
    name: str, rounds: int, folder: Path, seed: int = 1
) -> tuple[list[str], dict[str, Any]]:
    """Chaos, with what is wrong, and the table's row.

    float32 rounds each number by 6e-8; the corrections on a manifold are a model's
    numbers over a step. Errors of that size are no drift.
    """
    method = CASES[name]
    every = 10 if evaluates(name) else 0
    began = time.process_time()
    ran, conduct = chaos(
        name, rounds, folder, seed=seed, measures=True, client_evaluate_every=every
    )
    seconds = time.process_time() - began
    strategy, last = ran.strategy, ran.strategy.history[-1]
    errors = violations(name, strategy, ran.grid)
    row: dict[str, Any] = {"method": name, "seed": seed, "faults": 0}
    row |= {fault: ran.grid.fault_counts[fault] for fault in FAULTS} | conduct.counts
    row["faults"] = sum(list(row.values())[3:])
    row |= {"difference": "", "lost": " ".join(conduct.lost), "apart by it": ""}
    if not name.startswith("hyfdca"):
        row["difference"] = distance(ran.models, undisturbed(name, ran, conduct).models)
        errors["each x is that of a calm run"] = row["difference"]
    if conduct.lost and not name.startswith("hyfdca"):
        whole = undisturbed(name, ran, conduct, losses=False)
        row["apart by it"] = distance(ran.models[-1], whole.models[-1])
    row["invariants"] = max(errors.values())
    blocks, kept = np.subtract(conduct.samples[1], conduct.samples[0])
    row |= {"blocks a round": blocks / (rounds // 2), "bytes of arrays": kept}
    row["CPU seconds"] = round(seconds)
    tolerance = 1e-9 if method.start.dtype == np.float64 else 1e-5
    struck = [count for fault, count in row.items() if fault in {*FAULTS}]
    wrong = {
        **{f"{what}: {off:.2g}": not off < tolerance for what, off in errors.items()},
        "the model is not finite": not np.isfinite(strategy.broadcast.model).all(),
        "not all took part in the end": (last.round, last.used) != (rounds, NODES),
        f"not enough went wrong: {row}": not all([*struck, *conduct.counts.values()]),
        f"{kept} bytes of arrays are kept": kept > KEPT_ARRAYS,
        f"{blocks} blocks are kept": blocks
        > KEPT_AT_ALL + KEPT_A_ROUND * (rounds // 2),
    }
    return [what for what, is_so in wrong.items() if is_so], row


def main() -> int:
    """Print the table; 1 if a run had a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--dtype", choices=("float64", "float32"))
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    single = given.dtype == "float32"
    failed, names = False, [n for n in CASES if n.endswith("float32") == single]
    for name, seed in product(given.names or names, given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            problems, row = soak(name, ROUNDS[name], Path(folder), seed)
        if (name, seed) == ((given.names or names)[0], given.seeds[0]):
            print(",".join(row))
        texts = (f"{x:.1e}" if isinstance(x, float) else str(x) for x in row.values())
        print(",".join(texts), flush=True)
        for problem in problems:
            failed = True
            print(f"{name}, seed {seed}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
