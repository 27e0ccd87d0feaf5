"""Every method on a small problem: a line each, for the contracts that all keep.

A new method is a line in ``METHODS`` or, where it is another way of one that is there,
in ``VARIANTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

import clients
import strategies
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import L1Ball, L2Ball
from fedtrellis.manifolds import Stiefel
from fedtrellis.objectives import LeastSquares
from tests.harness import Array, Played, number_of, play

NODES, P, ROWS, SEED = 10, 8, 30, 4
#: All faults of a LocalGrid at once.
EVERYTHING: dict[str, Any] = {
    "request_loss": 0.2,
    "reply_loss": 0.2,
    "late_reply": 0.1,
    "state_loss": 0.1,
    "wipe": 0.05,
    "crash": 0.05,
    "garbage": 0.1,
    "duplicate": 0.1,
}
#: What the clients take from a server: far more than these problems need.
RULES = ("mean", "median", "trimmed-mean", "clipping")


def _data() -> tuple[Array, Array]:
    """Rows and targets of each node: alike, and yet every node has its own minimum."""
    rng = np.random.default_rng(SEED)
    A = rng.standard_normal((NODES, ROWS, P))
    truth = rng.standard_normal(P)
    own = truth + 0.2 * rng.standard_normal((NODES, P))
    return A, np.einsum("nij,nj->ni", A, own) + 0.1 * rng.standard_normal((NODES, ROWS))


A, B = _data()
LOSSES = [LeastSquares(a, b, scale="half-mean") for a, b in zip(A, B, strict=True)]
#: What a node has that is honest about a loss which nobody else has.
POISONED = LeastSquares(5.0 * A[-1], -25.0 * B[-1], scale="half-mean")
MANIFOLD = Stiefel((6, 2))


class Matrices:
    """½⟨x, H_i x⟩ + ⟨b_i, x⟩ over matrices with orthonormal columns."""

    num_examples = 30

    def __init__(self, index: int, shape: tuple[int, ...] = (6, 2)) -> None:
        rng = np.random.default_rng([SEED, index])
        common = np.random.default_rng(SEED)
        square = shape[0], shape[0]
        H = common.standard_normal(square) + 0.2 * rng.standard_normal(square)
        self.H = 0.1 * (H + H.T)
        self.b = common.standard_normal(shape) + 0.2 * rng.standard_normal(shape)

    def value(self, x: Array) -> float:
        return float(0.5 * np.vdot(x, self.H @ x) + np.vdot(self.b, x))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.H @ x + self.b)


@dataclass(frozen=True)
class Method:
    """A method on its problem.

    Attributes
    ----------
    make, client : callable
        Make the strategy of further options, and the client of a context and a loss.
    losses : sequence
        One for each node, and one that nobody else has.
    rules : tuple of str
        What ``aggregation`` can be; only "mean" where atoms are checked instead.
    """

    make: Callable[..., Any]
    client: Callable[..., Any]
    start: NDArray[Any]
    rounds: int = 20
    losses: Sequence[Any] = (*LOSSES, POISONED)
    rules: tuple[str, ...] = RULES

    def grid(
        self,
        nodes: int = 6,
        kind: Any = LocalGrid,
        look: Callable[[int, int, dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> Any:
        """A grid; ``look`` is given a round, a node's number and the state it has."""
        losses = self.losses[:nodes]

        def client(context: Context) -> Any:
            number = number_of(context)
            made = self.client(context, losses[number])
            if look is not None:
                steps = made.steps

                def seen(x: Array, config: dict[str, Any]) -> Any:
                    look(config["server-round"], number, made.state)
                    return steps(x, config)

                made.steps = seen
            return made

        return kind(client_app(client), len(losses), **options)

    def strategy(self, **settings: Any) -> Any:
        return self.make(**{"seed": SEED, "max_failed_rounds": 10**6, **settings})

    def play(
        self,
        grid: LocalGrid,
        rounds: int = 0,
        *,
        sets: Sequence[Sequence[int]] | None = None,
        last_fault: int | None = None,
        **settings: Any,
    ) -> Played[Any]:
        strategy = self.strategy(**settings)
        if sets is not None:
            strategy.sample = lambda t: [str(i) for i in sets[t - 1]]
        number = len(sets) if sets else rounds or self.rounds
        start = self.start * (not settings.get("resume"))  # a checkpoint has its own
        return play(strategy, grid, start, number, last_fault=last_fault)


def on(losses: Any, start: Array, rounds: int) -> Callable[..., Method]:
    """What makes methods on losses, each of a name and what client and strategy have.

    Clients know nothing of the ``domain``.
    """

    def method(name: str, *more: Any, domain: Any = None, **own: Any) -> Method:
        names = ("rounds", "rules")
        traits: dict[str, Any] = {k: own.pop(k) for k in names if k in own}
        first = more if domain is None else (domain,)
        made = partial(getattr(strategies, name), *first, **own)

        def client(context: Context, loss: Any) -> Any:
            return getattr(clients, f"{name}Client")(context, loss, *more)

        traits = {"rounds": rounds, **traits}
        return Method(made, client, start, losses=losses, **traits)

    return method


_whole = on((*LOSSES, POISONED), np.zeros(P), 20)
_TURNED = Matrices(NODES)
_TURNED.b *= -20.0
_curved = on(
    (*(Matrices(i) for i in range(NODES)), _TURNED),
    MANIFOLD.random_point(np.random.default_rng(1)),
    20,
)


def _on_features(method: str) -> Method:
    """Everybody has all features, and rows of its own; a loss is labels and a node."""
    names = [f"feature {j}" for j in range(P)]

    def client(context: Context, labels: Array) -> Any:
        k = number_of(context)
        ids = [f"{k}-{i}" for i in range(ROWS)]
        return getattr(clients, f"{method}Client")(context, A[k], names, ids, labels)

    options = {"feature_names": names, "local_steps": 20, "step_size": 0.3}
    return Method(
        partial(getattr(strategies, method), "hinge", 0.05, **options),
        client,
        np.zeros(P),
        losses=(*np.sign(B), -np.sign(B[-1])),
        rules=("mean",),
    )


_BALL, _DIAMOND = L2Ball(2.0), L1Ball(3.0)
_LOCAL: dict[str, Any] = {"local_steps": 3, "step_size": 0.1}
_BATCH: dict[str, Any] = {**_LOCAL, "batch_fraction": 0.5}
_MOVED: dict[str, Any] = {**_BATCH, "server_momentum": 0.5}
_SIGNS: dict[str, Any] = {"samples": 20, "step_size": 0.05, "batch_size": 0}
_RFL: dict[str, Any] = {"step_size": 0.03, "local_steps": 2}
_ONCE = {"rules": ("mean",)}
#: Those whose robustness and whose arithmetic are measured.
METHODS: dict[str, Method] = {
    "fedavg-gd": _whole("FedAvgGD", **_LOCAL),
    "local-sgd": _whole("LocalSGD", **_BATCH),
    "fedavg": _whole("FedAvg", **_BATCH),
    "fedprox": _whole("FedProx", **_LOCAL),
    "fedopt": _whole("FedOpt", **_MOVED),
    "compressed-sgd": _whole("CompressedSGD", compressor="qsgd", **_MOVED),
    "scaffold": _whole("Scaffold", **_LOCAL),
    **{
        f"fedlmo {v}": _whole("FedLMO", variant=v, batch_size=0)
        for v in ("corrected", "averaged", "server")
    },
    "zeroth-order-sgd": _whole("ZerothOrderSGD", rounds=40, **_SIGNS),
    "projected-fedavg": _whole(
        "ProjectedFedAvg", domain=_BALL, local_steps=3, local_step_size=0.1
    ),
    "feddr": _whole(
        "FedDR",
        domain=_BALL,
        **{"local_steps": 10, "proximal_step": 1.0, "local_step_size": 0.1},
        relaxation=1.0,
    ),
    "fedgia": _whole("FedGiA", tolerance=0.0),
    "first-order-rfl": _curved("FirstOrderRFL", MANIFOLD, tolerance=0.0, **_RFL),
    "zeroth-order-rfl": _curved(
        "ZerothOrderRFL", MANIFOLD, **(_RFL | {"samples": 24, "upload": "scalars"})
    ),
    "hybrid-fedavg": _on_features("HybridFedAvg"),
    "hyfem": _on_features("HyFEM"),
    "fedfw corrective": _whole("FedFW", _DIAMOND, local_steps=5, tolerance=0.0),
    **{
        f"fedfw {v}": _whole("FedFW", _DIAMOND, **{"variant": v, "rounds": 30, **_ONCE})
        for v in ("plain", "augmented", "stochastic")
    },
    "naive-frank-wolfe": _whole("NaiveFrankWolfe", _DIAMOND, **_ONCE),
}
#: Other ways of the same methods, which keep another state or send something else.
VARIANTS: dict[str, Method] = {
    "fedprox batches": _whole("FedProx", proximal_weight=0.7, **_BATCH),
    "fedopt adam": _whole("FedOpt", optimizer="adam", local_deadline=1e6, **_BATCH),
    "compressed-sgd top-k": _whole("CompressedSGD", kept_fraction=0.3, **_MOVED),
    "compressed-sgd sign": _whole(
        "CompressedSGD", **{"compressor": "sign", "server_step_size": 0.1, **_BATCH}
    ),
    "fedlmo local": _whole("FedLMO", variant="local", batch_size=0),
    "fedlmo ef21": _whole("FedLMO", variant="ef21", batch_size=0, kept_fraction=0.3),
    "zeroth-order-sgd feedsign": _whole("ZerothOrderSGD", variant="feedsign", **_SIGNS),
    "zeroth-order-sgd fedkseed": _whole(
        "ZerothOrderSGD", variant="fedkseed", pool=30, **_SIGNS
    ),
    "projected-fedavg batches": _whole(
        "ProjectedFedAvg", domain=_BALL, local_step_size=0.1, batch_size=4
    ),
    "feddr batches": _whole(
        "FedDR",
        domain=_BALL,
        **{"relaxation": 1.7, "proximal_step": 2.0, "local_step_size": 0.1},
        batch_size=4,
    ),
    "fedgia gram": _whole(
        "FedGiA",
        **{"hessian": "gram", "sigma_scale": 1.0, "local_steps": 3},
        tolerance=0.0,
    ),
    "first-order-rfl plain": _curved(
        "FirstOrderRFL", MANIFOLD, correction=False, **_RFL
    ),
    "zeroth-order-rfl dense": _curved(
        "ZerothOrderRFL",
        MANIFOLD,
        **(_RFL | {"samples": 6, "smoothing": 1e-3, "upload": "dense"}),
    ),
    "fedfw certified": _whole("FedFW", _DIAMOND, certificate=True, tolerance=0.0),
    **{
        f"fedfw {v} of {k} steps": _whole(
            "FedFW",
            _DIAMOND,
            **{"variant": v, "local_steps": k, "step_count": count, **penalties},
        )
        for v, k, count, penalties in (
            ("plain", 1, "round", {"penalty": 1.2}),
            ("plain", 3, "own", {"penalty": 1.2}),
            ("augmented", 3, "round", {"penalty": 1.2}),
            ("augmented", 2, "own", {}),
        )
    },
    "naive-frank-wolfe constant": _whole(
        "NaiveFrankWolfe", _DIAMOND, schedule="constant"
    ),
}
EVERY = METHODS | VARIANTS


def of_dtype(method: Method, dtype: str) -> Method:
    """The same with a model of another dtype."""
    return replace(method, start=method.start.astype(dtype))
