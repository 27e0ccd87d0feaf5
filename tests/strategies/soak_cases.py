"""Every method on a small problem, and what has to hold of it whatever goes wrong.

For the soak and the fuzzing: a case makes a strategy and its ClientApp, and says by
how much the invariants of a run are violated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from clients import (
    FedDRClient,
    FedFWClient,
    FedGiAClient,
    FedLMOClient,
    FirstOrderRFLClient,
    HybridFedAvgClient,
    HyFEMClient,
    ScaffoldClient,
    ZerothOrderRFLClient,
)
from clients.hyfdca import NewSamples
from clients.hyfdca.node import NodeRules
from fedtrellis import Callback, LocalGrid, RoundRecord, client_app
from fedtrellis.corrective import Form
from fedtrellis.domains import L1Ball, L2Ball
from fedtrellis.encryption.cipher import PlainCipher
from fedtrellis.manifolds import Stiefel
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.arrays import decode, split_arrays
from fedtrellis.wire.protocol import ClientMemory
from strategies import (
    FedDR,
    FedFW,
    FedGiA,
    FedLMO,
    FirstOrderRFL,
    HybridFedAvg,
    HyFDCA,
    HyFEM,
    Scaffold,
    ZerothOrderRFL,
)
from strategies.fedfw import VARIANTS
from tests.harness import number_of, only_for
from tests.strategies.hyfdca_runs import View, small
from tests.strategies.methods import METHODS

Array = NDArray[np.float64]
Errors = dict[str, float]

NODES, P, ROWS, SEED = 6, 12, 8, 5
MANIFOLD = Stiefel((7, 3))
#: What the clients take from a server: far more than these problems need.
LIMITS: dict[str, Any] = {"max_parameters": 10_000, "max_count": 1_000}
#: Those whose clients keep nothing that a server does not give back.
IN_TABLE = (
    *("naive-frank-wolfe", "projected-fedavg", "fedavg-gd", "local-sgd"),
    *("fedprox", "fedopt", "compressed-sgd", "zeroth-order-sgd"),
)
#: Settings that all runs have in common.
COMMON: dict[str, Any] = {"seed": SEED, "max_failed_rounds": 10**6}


@dataclass
class Case:
    """One method.

    Attributes
    ----------
    name : str
    method : str
        What sim.py calls it.
    make : callable
        Makes a new strategy, given further options.
    app : ClientApp
    start : ndarray
        The initial model.
    errors : callable
        By how much a run, given as strategy and grid, violates each invariant after a
        round in which everybody took part.
    nodes : int
    aggregated : callable, optional
        Given the model before a round, the strategy after it, the round and the
        answers that were used: by how much the round was another than it should be.
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
    aggregated: Callable[[Array, Any, int, dict[str, Any]], float] | None = None
    evaluates: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def of_dtype(self, dtype: str) -> Case:
        """The same with a model of another dtype."""
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
        """A new strategy, which notes down in ``worst`` what its rounds did wrong."""
        made = self.make(**{**COMMON, **self.options, **options})
        made.worst = 0.0
        if self.aggregated is not None:
            self._watch(made, self.aggregated)
        return made

    @staticmethod
    def _watch(
        strategy: Any, look: Callable[[Array, Any, int, dict[str, Any]], float]
    ) -> None:
        aggregate = strategy.aggregate

        def watched(server_round: int, answers: dict[str, Any]) -> Any:
            before = strategy.broadcast.model.copy()
            metrics = aggregate(server_round, answers)
            error = look(before, strategy, server_round, answers)
            strategy.worst = max(strategy.worst, error)
            return metrics

        strategy.aggregate = watched


# ------------------------------------------------------------------ what the nodes have


def context_of(grid: LocalGrid, name: str) -> Context:
    """The node of a client."""
    (found,) = (
        context
        for context in grid._contexts.values()
        if str(context.node_config["partition-id"]) == name
    )
    return found


def node_states(strategy: Any, grid: LocalGrid) -> dict[str, dict[str, Array]]:
    """By client, its state after the last of its rounds that the server used.

    Clients that have neither that nor the one before it are left out: they will ask.
    """
    states = {}
    said = strategy.conversation
    for name in strategy.clients:
        memory = ClientMemory.load(context_of(grid, name).state, said.session)
        used = said.client(name).used_round
        if used == memory.provisional.round:
            arrays = memory.provisional.arrays
        elif used == memory.committed.round:
            arrays = memory.committed.arrays
        else:
            continue
        states[name] = {key: decode(array) for key, array in arrays.items()}
    return states


def distance(a: Any, b: Any) -> float:
    """The largest difference of two arrays' entries; infinite if one is not finite."""
    difference = float(np.abs(np.asarray(a) - np.asarray(b)).max(initial=0.0))
    return difference if np.isfinite(difference) else np.inf


# ------------------------------------------------------------------------- the problems


class Problem:
    """Least squares on every client, and how its clients are made."""

    def __init__(self, rows: int = ROWS) -> None:
        rng = np.random.default_rng(3)
        self.A = rng.standard_normal((NODES, rows, P))
        self.b = rng.standard_normal((NODES, rows))
        self.objectives = [
            LeastSquares(A, b, scale="half-mean")
            for A, b in zip(self.A, self.b, strict=True)
        ]

    def gradient(self, i: int, x: Array) -> Array:
        residual = self.A[i] @ x - self.b[i]
        return np.asarray(self.A[i].T @ residual / len(residual))

    def app(self, kind: Callable[..., Any], *more: Any) -> ClientApp:
        def client_fn(context: Context) -> Any:
            i = int(context.node_config["partition-id"])
            return kind(context, self.objectives[i], *more)

        return client_app(client_fn, **LIMITS)


class Matrices:
    """½⟨x, H_i x⟩ + ⟨b_i, x⟩ over matrices with orthonormal columns."""

    num_examples = 1

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        H = rng.standard_normal((MANIFOLD.shape[0],) * 2)
        self.H, self.b = 0.1 * (H + H.T), rng.standard_normal(MANIFOLD.shape)

    def value(self, x: Array) -> float:
        return float(0.5 * np.vdot(x, self.H @ x) + np.vdot(self.b, x))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.H @ x + self.b)


# ----------------------------------------------------------------------- the invariants


def _fedfw(problem: Problem, variant: Any) -> Case:
    domain = L1Ball(2.5)

    def iterate(packed: Array) -> Array:
        if packed.dtype != np.uint8:
            return packed
        return Form(domain).unpack(split_arrays(packed), (P,)).dense()

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        mirrors = {name: strategy._client_iterate(name) for name in strategy.clients}
        mean = np.mean(list(mirrors.values()), axis=0)
        states = node_states(strategy, grid)
        found = {
            "x̄ = mean of the x_i": distance(strategy._result_point(), mean),
            "mirrors = clients' x_i": max(
                distance(iterate(state["x"]), mirrors[name])
                for name, state in states.items()
            ),
        }
        if variant == "corrective":
            outside = (not domain.contains(x, 1e-9) for x in mirrors.values())
            found["clients outside of D"] = float(sum(outside))
        if variant in ("augmented", "corrective"):
            found["mirrors = clients' y_i"] = max(
                distance(state["y"], strategy.half._duals[name])
                for name, state in states.items()
            )
        return found

    # corrective steps: ρ by itself, from what is sent beside the arrays
    own: dict[str, Any] = {"local_steps": 5, "certificate": True}
    if variant != "corrective":
        own = {"penalty": 1.2, **only_for(variant, dual_penalty=0.3, batch_size=2)}
    make = partial(FedFW, domain, variant=variant, **own)
    app = problem.app(FedFWClient, domain)
    return Case(f"fedfw {variant}", "fedfw", make, app, np.full(P, 0.1), errors)


def _of_table(name: str) -> Case:
    """A method whose run is the one in which only those who were used were asked."""
    method = METHODS[name]
    losses = method.losses[:NODES]
    noted: dict[int, tuple[list[int], Array]] = {}

    class Notes(Callback):
        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            used = [int(client) for client in strategy.used]
            noted[record.round] = used, strategy.broadcast.model.copy()

    def make(**options: Any) -> Any:
        options["callbacks"] = [Notes(), *options.get("callbacks", [])]
        return method.make(**options)

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        rounds = [noted[t] for t in range(1, len(strategy.history) + 1)]
        sets, models = zip(*rounds, strict=True)
        alike = replace(method, start=method.start.astype(models[-1].dtype))
        calm = alike.play(alike.grid(NODES), sets=sets, **COMMON)
        return {"each x is that of a run without faults": distance(models, calm.models)}

    def client_fn(context: Context) -> Any:
        return method.client(context, losses[number_of(context)])

    app = client_app(client_fn, **LIMITS)
    return Case(name, name, make, app, method.start, errors)


def _onto_ball(x: Array, radius: float = 1.5) -> Array:
    return np.asarray(x * min(1.0, radius / float(np.linalg.norm(x))))


def _feddr(problem: Problem) -> Case:
    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        reflections = strategy._reflections
        mean = np.mean([reflections[name] for name in strategy.clients], axis=0)
        return {
            "x̄ = P(mean of the x̂_i)": distance(
                strategy.broadcast.model, _onto_ball(mean)
            ),
            "mirrors = clients' 2x_i − y_i": max(
                distance(2.0 * state["x"] - state["y"], reflections[name])
                for name, state in node_states(strategy, grid).items()
            ),
        }

    make = partial(FedDR, L2Ball(1.5), local_steps=3, proximal_step=1.0)
    app = problem.app(FedDRClient)
    return Case("feddr", "feddr", make, app, np.full(P, 0.1), errors)


def _mirrored(
    problem: Problem, name: str, make: Callable[..., Any], kind: Any, key: str
) -> Case:
    """A method whose server knows each client's vector of that name in its state."""

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        return {
            f"mirrors = clients' {key}": max(
                distance(state[key], strategy.client_state(client)[key])
                for client, state in node_states(strategy, grid).items()
            )
        }

    method, app = name.split()[0], problem.app(kind)
    return Case(name, method, make, app, np.full(P, 0.1), errors)


def _fedgia(hessian: Any) -> Case:
    problem = Problem(rows=16)

    class Noted(FedGiA):
        """Notes down the x that each client's last used answer was made at."""

        def aggregate(self, server_round: int, answers: Any) -> Any:
            x = self.broadcast.model.copy()
            known: dict[str, Array] = self.__dict__.setdefault("asked_at", {})
            known.update(dict.fromkeys(answers, x))
            return super().aggregate(server_round, answers)

        def state(self) -> Any:
            asked = getattr(self, "asked_at", {})
            return {**super().state(), **{f"{k}/at": x for k, x in asked.items()}}

        def load_state(self, state: Any) -> None:
            super().load_state(state)
            self.asked_at = {
                key.removesuffix("/at"): np.array(x)
                for key, x in state.items()
                if key.endswith("/at")
            }

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        z = {name: strategy.client_point(name) for name in strategy.clients}
        mean = np.mean(list(z.values()), axis=0)
        worst = 0.0
        for name, state in node_states(strategy, grid).items():
            # in both branches, x_i = z_i − π_i/σ:  (H_i/m)(x − x_i) = ḡ_i(x) + π_i
            i, x, pi = int(name), strategy.asked_at[name], state["pi"]
            A = problem.A[i]
            H: Array = A.T @ A / len(A)
            if hessian == "diagonal":
                H = np.linalg.eigvalsh(H)[-1] * np.eye(P)
            x_i = z[name] - pi / strategy.settled_sigma
            left = H @ (x - x_i) / NODES
            worst = max(worst, distance(left, problem.gradient(i, x) / NODES + pi))
        return {
            "x = mean of the z_i": distance(strategy.broadcast.model, mean),
            "z_i = x_i + π_i/σ with clients' π_i": worst,
        }

    # the paper's σ: with an adapted one x is not the mean of the z_i
    settings: dict[str, Any] = {"sigma_scale": 1.0, "local_steps": 3, "tolerance": 0.0}
    make = partial(Noted, hessian=hessian, **settings)
    app = problem.app(FedGiAClient)
    return Case(f"fedgia {hessian}", "fedgia", make, app, np.zeros(P), errors)


def _riemannian(name: str, order: int, **settings: Any) -> Case:
    losses = [Matrices(i) for i in range(NODES)]
    kind: Any = FirstOrderRFLClient if order else ZerothOrderRFLClient

    def client_fn(context: Context) -> Any:
        return kind(context, losses[int(context.node_config["partition-id"])], MANIFOLD)

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        corrections = {k: strategy.client_correction(k) for k in strategy.clients}
        x, worst = strategy.broadcast.model, 0.0
        for key, state in node_states(strategy, grid).items():
            c = state.get("c")
            if "z" in state:
                # c_i = (P_M(x^k) − x^{k+1})/(η_g η τ) − mean of G
                c = (state["z"] - x) / strategy.total_step - state["g"]
            if c is not None:
                worst = max(worst, distance(c, corrections[key]))
        total = np.sum(list(corrections.values()), axis=0)
        z = strategy._result_point()
        return {
            "Σ c_i = 0": distance(total, np.zeros_like(total)),
            "mirrors = clients' c_i": worst,
            "result on M": distance(z.T @ z, np.eye(MANIFOLD.shape[1])),
        }

    method: Any = FirstOrderRFL if order else ZerothOrderRFL
    if not order:
        settings = {"samples": 6, "smoothing": 1e-3, **settings}
    make = partial(method, MANIFOLD, step_size=0.01, local_steps=2, **settings)
    start = MANIFOLD.random_point(np.random.default_rng(1))
    sim = f"{'first' if order else 'zeroth'}-order-rfl"
    return Case(name, sim, make, client_app(client_fn, **LIMITS), start, errors)


def _hyfdca(step: str, *, parts: Any = "hybrid", **settings: Any) -> Case:
    split = small(parts=parts)
    key = PlainCipher.generate()
    paper = step in ("practical", "theoretical")
    rng = np.random.default_rng(8)
    new_X = rng.standard_normal((10, split.p)) / sqrt(split.p)
    new_y = np.where(new_X.sum(axis=1) > 0, 1.0, -1.0)
    new_ids = [f"new-{i}" for i in range(len(new_X))]

    def client_fn(context: Context) -> Any:
        columns = split.parts[int(context.node_config["partition-id"])][1]
        new = NewSamples(new_X[:, columns], new_ids, new_y)
        # one client for each feature scores
        own = new if int(context.node_config["partition-id"]) < 2 else None
        rules = NodeRules(exposed="accept")  # so few samples
        return split.client(context, key=key, new_samples=own, rules=rules)

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        view = View(split, grid, strategy)
        known = np.stack(list(view.alphas().values()))
        some = ~np.isnan(known).all(axis=0)
        if not some.all():
            return {"a holder of each sample knows its α": np.inf}
        highest, lowest = np.nanmax(known, axis=0), np.nanmin(known, axis=0)
        w = split.problem.primal_of(lowest)
        return {
            "holders agree on α": distance(highest, lowest),
            "w = (1/λN) Σ α_i x_i": distance(w, strategy.steps.w),
        }

    options: dict[str, Any] = {
        "tolerance": 0.0,
        "feature_names": split.names,
        "context": key.evaluation_bytes(),
        "step": step,
        "encryption": "none",
        "secure_sum": not paper,
        # what is remembered is full when the soak looks for the first time
        "memory": 20,
        # the practical step diverges with many samples at once
        "local_fraction": 0.05 if step == "practical" else 1.0,
    }
    make = partial(HyFDCA, split.loss, split.regularization, **{**options, **settings})
    name = " ".join(["hyfdca", step, *(["apart"] if settings else [])])
    return Case(
        name,
        "hyfdca",
        make,
        client_app(client_fn, **LIMITS),
        np.zeros(split.p),
        errors,
        nodes=split.num_clients,
    )


def _split_by_features(method: str) -> Case:
    """HyFEM and HybridFedAvg: features overlap, some labels are missing."""
    rng = np.random.default_rng(0)
    held = [[0, 1, 2], [2, 1, 3], [3, 4, 5, 6], [0, 6], [5, 7], [8, 0]]
    X = [rng.standard_normal((9, len(columns))) for columns in held]
    y = [np.where(rng.standard_normal(9) > 0.0, 1.0, -1.0) for _ in held]
    y[2][[0, 3, 7]] = np.nan
    stateful = method == "hyfem"
    kind: Any = HyFEMClient if stateful else HybridFedAvgClient

    def make_client(context: Context) -> Any:
        k = int(context.node_config["partition-id"])
        names = [f"feature {j}" for j in held[k]]
        return kind(context, X[k], names, [f"{i}" for i in range(9)], y[k])

    def mean_of(local: Mapping[str, Array], w: Array) -> Array:
        result = w.copy()
        for j in range(len(w)):
            own = [
                local[str(k)][columns.index(j)]
                for k, columns in enumerate(held)
                if j in columns and str(k) in local
            ]
            result[j] = np.mean(own) if own else w[j]
        return result

    def aggregated(
        before: Array, strategy: Any, t: int, answers: dict[str, Any]
    ) -> float:
        worst = 0.0
        for name, w_k in answers.items() if not stateful else ():
            context = Context(0, 0, {"partition-id": int(name)}, None, {})  # type: ignore[arg-type]
            config = {"server-round": t, **strategy.instruction(t, name)}
            expected = make_client(context).descend(before[held[int(name)]], config)
            worst = max(worst, distance(w_k, expected))
        local = strategy._local if stateful else answers
        return max(worst, distance(strategy.broadcast.model, mean_of(local, before)))

    def errors(strategy: Any, grid: LocalGrid) -> Errors:
        found = {"w_j = mean of the w_kj": strategy.worst}
        if stateful:
            found["mirrors = clients' w_k"] = max(
                distance(state["w"], strategy.local_model(name))
                for name, state in node_states(strategy, grid).items()
            )
        return found

    strategy: Any = HyFEM if stateful else HybridFedAvg
    return Case(
        method,
        method,
        partial(
            strategy,
            regularization=0.05,
            local_steps=7,
            step_size=0.6,
            feature_names=[f"feature {j}" for j in range(9)],
        ),
        client_app(make_client, **LIMITS),
        np.linspace(-0.4, 0.5, 9),
        errors,
        aggregated=aggregated,
        evaluates=False,
    )


def _make_cases() -> Sequence[Case]:
    problem = Problem()
    local: dict[str, Any] = {"local_steps": 3, "step_size": 0.05}
    lmo: dict[str, Any] = {"batch_size": 0, "step_schedule": "constant"}
    fed_back: dict[str, Any] = {"variant": "ef21", "kept_fraction": 0.3}
    return [
        *(_fedfw(problem, v) for v in VARIANTS),
        *(_of_table(name) for name in IN_TABLE),
        _feddr(problem),
        _fedgia("diagonal"),
        _fedgia("gram"),
        _mirrored(
            problem, "scaffold", partial(Scaffold, **local), ScaffoldClient, "control"
        ),
        _mirrored(
            problem, "fedlmo corrected", partial(FedLMO, **lmo), FedLMOClient, "control"
        ),
        _mirrored(
            problem,
            "fedlmo ef21",
            partial(FedLMO, **lmo, **fed_back),
            FedLMOClient,
            "estimate",
        ),
        _riemannian("first-order-rfl", 1),
        _riemannian("zeroth-order-rfl scalars", 0),
        _riemannian("zeroth-order-rfl dense", 0, upload="dense"),
        *(
            _hyfdca(step)
            for step in ("bundle", "line-search", "practical", "theoretical")
        ),
        _hyfdca("bundle", secure_sum=False),
        _split_by_features("hyfem"),
        _split_by_features("hybrid-fedavg"),
    ]


_MADE = {case.name: case for case in _make_cases()}
# one of each way to keep a state
_NARROW = (
    *("fedfw corrective", "fedfw augmented", "fedgia gram", "first-order-rfl"),
    *("scaffold", "fedlmo ef21"),
)
CASES = _MADE | {
    case.name: case for case in (_MADE[name].of_dtype("float32") for name in _NARROW)
}
