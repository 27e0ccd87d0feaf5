"""Every method on a small problem, and what has to hold of it whatever goes wrong.

For the soak and the fuzzing: a case makes a strategy and its ClientApp, and says by
how much the invariants of a run are violated. All but HyFDCA's are those of
``methods.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from clients.hyfdca import NewSamples
from clients.hyfdca.run import NodeRules
from fedtrellis import Callback, LocalGrid, RoundRecord, client_app
from fedtrellis.encryption.cipher import PlainCipher
from strategies import HyFDCA
from tests.harness import Array, distance, node_states, number_of
from tests.strategies.hyfdca_runs import View, small
from tests.strategies.methods import EVERY, METHODS, A

Errors = dict[str, float]

NODES, SEED = 6, 5
#: What the clients take from a server: far more than these problems need.
LIMITS: dict[str, Any] = {"max_parameters": 10_000, "max_count": 1_000}


@dataclass
class Case:
    """One method.

    Attributes
    ----------
    name, method : str
        Its own, and what sim.py calls it.
    make : callable
        Makes a new strategy, given further options.
    app : ClientApp
    start : ndarray
        The initial model.
    errors : callable
        By how much a run, given as strategy and grid, violates each invariant after a
        round in which everybody took part.
    nodes : int
    evaluates : bool
        Whether clients can be asked for an evaluation.
    """

    name: str
    method: str
    make: Callable[..., Any]
    app: ClientApp
    start: Array
    errors: Callable[[Any, LocalGrid], Errors]
    nodes: int = NODES
    evaluates: bool = True

    def of_dtype(self, dtype: str) -> Case:
        start = self.start.astype(dtype)
        return replace(self, name=f"{self.name} {dtype}", start=start)

    @property
    def tolerance(self) -> float:
        """By how much an invariant may be violated.

        float32 rounds each number by 6e-8; the corrections on a manifold are a model's
        numbers over a step. Errors of that size are no drift.
        """
        return 1e-9 if self.start.dtype == np.float64 else 1e-5

    def strategy(self, **options: Any) -> Any:
        return self.make(**{"seed": SEED, "max_failed_rounds": 10**6, **options})


class Notes(Callback):
    """By round, whose answers were used and the model before and after."""

    def __init__(self, start: Array) -> None:
        self.rounds: dict[int, tuple[list[int], Array]] = {0: ([], start)}

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round:
            used = [int(client) for client in strategy.used]
            self.rounds[record.round] = used, strategy.broadcast.model.copy()

    def asked_at(self, client: str, last: int) -> Array:
        used = [t for t in range(1, last + 1) if int(client) in self.rounds[t][0]]
        return self.rounds[used[-1] - 1][1] if used else self.rounds[0][1]


def _feddr(strategy: Any, states: Any, notes: Notes) -> Errors:
    """Its server counts with 2x_i − y_i, and gives back another x_i of that."""
    known = strategy._reflections
    mean = np.mean([known[name] for name in strategy.clients], axis=0)
    x_bar = mean * min(1.0, 2.0 / float(np.linalg.norm(mean)))
    return {
        "x̄ = P(mean of the x̂_i)": distance(strategy.broadcast.model, x_bar),
        "mirrors = clients' 2x_i − y_i": max(
            distance(2.0 * state["x"] - state["y"], known[name])
            for name, state in states.items()
        ),
    }


def _fedgia(strategy: Any, states: Any, notes: Notes) -> Errors:
    """With the paper's σ, in both branches (H_i/m)(x − x_i) = ḡ_i(x) + π_i."""
    z = {name: strategy._z[strategy._index[name]].copy() for name in strategy.clients}
    worst = 0.0
    for name, state in states.items():
        loss, a = METHODS["fedgia"].losses[int(name)], A[int(name)]
        x = notes.asked_at(name, strategy.history[-1].round)
        x_i = z[name] - state["pi"] / strategy.settled_sigma
        left = a.T @ (a @ (x - x_i)) / len(a) / NODES
        worst = max(worst, distance(left, loss.gradient(x) / NODES + state["pi"]))
    mean = np.mean(list(z.values()), axis=0)
    return {
        "x = mean of the z_i": distance(strategy.broadcast.model, mean),
        "z_i = x_i + π_i/σ with clients' π_i": worst,
    }


def _hyfem(strategy: Any, states: Any, notes: Notes) -> Errors:
    pairs = ((s["w"], strategy.local_model(name)) for name, s in states.items())
    return {"mirrors = clients' w_k": max(distance(*pair) for pair in pairs)}


#: What else holds of a method.
MORE: dict[str, Callable[[Any, Any, Notes], Errors]] = {
    "feddr": _feddr,
    "fedgia gram": _fedgia,
    "hyfem": _hyfem,
}


def mirrored(strategy: Any, states: dict[str, dict[str, Array]]) -> float:
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


def _of_table(name: str) -> Case:
    """The run is that in which only those who were used were asked.

    Unless a client keeps what its server cannot give back. What the server can is what
    the client has.
    """
    method = EVERY[name]
    losses, notes = method.losses[:NODES], Notes(method.start)

    def make(**options: Any) -> Any:
        options["callbacks"] = [notes, *options.get("callbacks", [])]
        return method.make(**options)

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        found, states = {}, node_states(strategy, grid)
        if name in MORE:
            found = MORE[name](strategy, states, notes)
        if not name.startswith("feddr"):
            found["mirrors = clients' states"] = mirrored(strategy, states)
        if not method.forgets:
            rounds = [notes.rounds[t] for t in range(1, strategy.history[-1].round + 1)]
            sets, models = zip(*rounds, strict=True)
            alike = replace(method, start=method.start.astype(models[-1].dtype))
            calm = alike.play(alike.grid(NODES), sets=sets, seed=SEED)
            found["each x is that of a calm run"] = distance(models, calm.models)
        return found

    def client_fn(context: Context) -> Any:
        return method.client(context, losses[number_of(context)])

    app, kind = client_app(client_fn, **LIMITS), method.make().name
    whole = kind not in ("hyfem", "hybrid-fedavg")
    return Case(name, kind, make, app, method.start, errors, evaluates=whole)


def _hyfdca(step: str, **settings: Any) -> Case:
    split, key = small(parts="hybrid"), PlainCipher.generate()
    rng = np.random.default_rng(8)
    new_X = rng.standard_normal((10, split.p)) / sqrt(split.p)
    new_y = np.where(new_X.sum(axis=1) > 0, 1.0, -1.0)
    new_ids = [f"new-{i}" for i in range(len(new_X))]

    def client_fn(context: Context) -> Any:
        number = number_of(context)
        new = NewSamples(new_X[:, split.parts[number][1]], new_ids, new_y)
        # one client for each feature scores
        own = new if number < 2 else None
        rules = NodeRules(exposed="accept")  # so few samples
        return split.client(context, key=key, new_samples=own, rules=rules)

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        known = np.stack(list(View(split, grid, strategy).alphas().values()))
        if np.isnan(known).all(axis=0).any():
            return {"a holder of each sample knows its α": np.inf}
        highest, lowest = np.nanmax(known, axis=0), np.nanmin(known, axis=0)
        w = split.problem.primal_of(lowest)
        return {
            "holders agree on α": distance(highest, lowest),
            "w = (1/λN) Σ α_i x_i": distance(w, strategy.steps.w),
        }

    options: dict[str, Any] = {
        **{"tolerance": 0.0, "feature_names": split.names, "step": step},
        **{"context": key.evaluation_bytes(), "encryption": "none"},
        "secure_sum": step not in ("practical", "theoretical"),
        # what is remembered is full when the soak looks for the first time
        "memory": 20,
        # the practical step diverges with many samples at once
        "local_fraction": 0.05 if step == "practical" else 1.0,
    }
    make = partial(HyFDCA, split.loss, split.regularization, **{**options, **settings})
    name = " ".join(["hyfdca", step, *(["apart"] if settings else [])])
    app, start = client_app(client_fn, **LIMITS), np.zeros(split.p)
    return Case(name, "hyfdca", make, app, start, errors, nodes=split.num_clients)


#: As they are fuzzed and soaked; "fedgia" has no invariant of its σ.
_NAMES = (
    *(name for name in METHODS if name not in ("fedgia", "fedlmo averaged")),
    *("fedgia gram", "fedlmo ef21", "zeroth-order-rfl dense"),
)
_MADE = [
    *map(_of_table, _NAMES),
    *map(_hyfdca, ("bundle", "line-search", "practical", "theoretical")),
    _hyfdca("bundle", secure_sum=False),
]
# one of each way to keep a state
_NARROW = (
    *("fedfw corrective", "fedfw augmented", "fedgia gram", "first-order-rfl"),
    *("scaffold", "fedlmo ef21"),
)
CASES = {
    case.name: case
    for case in (*_MADE, *(c.of_dtype("float32") for c in _MADE if c.name in _NARROW))
}
