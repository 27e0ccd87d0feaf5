"""Who takes part: methods, what they are told, and the one setting that is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, count, takewhile
from typing import Any

import numpy as np

from .entrants import steps_drawn
from .problems import NODES, Kind, Problem, experiment

__all__ = ["METHODS", "Facts", "Method", "compressed", "facts", "methods_of"]

#: Local steps of everything that has local steps.
STEPS = 5


@dataclass(frozen=True)
class Facts:
    """What the middle of a grid is made of, from the training data of the tuning seed.

    Attributes
    ----------
    lipschitz : float
        L, the largest Lipschitz constant of the ∇f_i.
    slope : float
        Mean of |∇f_i(x¹)|/n over clients and entries.
    vertex : float
        Largest entry of the extreme point that the oracle gives for ∇F(x¹).
    parameters : int
        p.
    """

    lipschitz: float
    slope: float
    vertex: float
    parameters: int


@lru_cache(maxsize=32)
def facts(problem: Problem, seed: int) -> Facts:
    """Measure a problem for the grids."""
    solver = "fedavg-gd" if problem.kind == "none" else "projected-fedavg"
    made = experiment(problem, seed, {"method": solver})
    x = made.layout.objective_point(made.start_point())
    losses: list[Any] = [made.task.client_objective(i) for i in range(NODES)]
    slopes = [np.asarray(f.gradient(x)) for f in losses]
    vertex = 1.0
    if made.domain.bounded:
        g = np.mean(slopes, axis=0)
        vertex = float(np.abs(made.domain.lmo(g).dense()).max())
    return Facts(
        max(float(f.lipschitz()) for f in losses),
        float(np.mean(np.abs(slopes))) / NODES,
        vertex,
        int(np.size(x)),
    )


@dataclass(frozen=True)
class Method:
    """A method as it takes part.

    Attributes
    ----------
    name, title : str
        In results, and on the page.
    kinds : tuple of str
        Problems that it is for.
    gradients : float
        What a client computes in a round, in gradients; a function value or a curvature
        along a line is half of one.
    settings : mapping
        The method's own.
    tuned : str
        The setting that is tuned; empty: nothing is.
    centre : callable
        Where its grid has its middle.
    also : callable
        Settings that follow from the tuned one's value and the facts.
    search : float
        What it computes more where the loss is not quadratic, for its line searches.
    penalised : str
        λ's setting, of methods that solve min F(x) + λ‖x‖₁ instead of the ℓ1 ball's
        problem; they are given the λ* that has the same solution.
    method : str
        The method's name in run configs, if it is another one.
    of_run : mapping
        Settings that are not the method's own.
    drawn : callable, optional
        From a run's seed and a round to the round's gradients, of a method that draws
        how many they are; ``gradients`` is their mean.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    gradients: float
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tuned: str = ""
    centre: Callable[[Facts], float] = field(default=lambda known: 1.0, hash=False)
    also: Callable[[float, Facts], Mapping[str, Any]] = field(
        default=lambda value, known: {}, hash=False
    )
    search: float = 0.0
    penalised: str = ""
    method: str = ""
    of_run: Mapping[str, Any] = field(default_factory=dict, hash=False)
    drawn: Callable[[int, int], float] | None = field(default=None, hash=False)

    def cost(self, problem: Problem) -> float:
        """What a client computes in a round, in gradients."""
        return self.gradients + (0.0 if problem.quadratic else self.search)

    def spent(self, problem: Problem, seed: int, budget: int) -> list[float]:
        """A client's gradients after 0, 1, ... rounds, as many as the budget allows."""
        work, drawn = self.cost(problem), self.drawn
        if drawn is None:
            return [work * t for t in range(max(1, int(budget / work)) + 1)]
        each = accumulate((drawn(seed, t) for t in count(1)), initial=0.0)
        return list(takewhile(lambda total: total <= budget, each))

    def given(self, problem: Problem) -> str:
        """What it is told of the problem that no user knows; empty: nothing."""
        return "given λ*" if self.penalised and problem.kind == "l1" else ""

    def key(self, setting: str) -> str:
        """The run config's key of a setting."""
        return f"{self.method or self.name}.{setting}" if setting else ""

    def config(self, value: float | None, known: Facts) -> dict[str, Any]:
        """Its part of the run config, with a value of the tuned setting."""
        own = dict(self.settings)
        if value is not None:
            own |= {self.tuned: value, **self.also(value, known)}
        named = {self.key(setting): what for setting, what in own.items()}
        return {"method": self.method or self.name, **self.of_run, **named}


def _step(known: Facts) -> float:
    return 1.0 / known.lipschitz


def _inner_step(value: float, known: Facts) -> dict[str, float]:
    """The clients' step where the server's is tuned."""
    return {"step-size": _step(known)}


def _local(
    name: str,
    title: str,
    more: Mapping[str, Any] | None = None,
    cost: float = STEPS,
    method: str = "",
) -> Method:
    """A relative of FedAvg without a constraint, whose step size is tuned."""
    own = {"local-steps": STEPS, "step-schedule": "constant", **(more or {})}
    return Method(name, title, ("none",), cost, own, "step-size", _step, method=method)


def compressed(compressor: str, title: str, **more: Any) -> Method:
    """FedAvg whose changes are compressed."""
    own = {key.replace("_", "-"): value for key, value in more.items()}
    own |= {"compressor": compressor, "batch-fraction": 1.0, "server-momentum": 0.0}
    name = compressor.replace("-", "")
    made = _local(name, title, own, method="compressed-sgd")
    if compressor != "sign":
        return made
    # a sign has no length: the server's step is what is tuned, and the clients' fixed
    return replace(
        made, tuned="server-step-size", centre=lambda known: 0.01, also=_inner_step
    )


def _papers(name: str, title: str, variant: str, factor: float) -> Method:
    """FedFW as the papers have it."""
    return Method(
        name,
        title,
        _SETS,
        STEPS,
        {"local-steps": STEPS, "variant": variant},
        "penalty",
        lambda known: factor * known.slope / known.vertex,
        method="fedfw",
    )


_CONVEX: tuple[Kind, ...] = ("set", "l1")
_SETS: tuple[Kind, ...] = (*_CONVEX, "manifold")
_BALL: tuple[Kind, ...] = ("none", "l1")

#: By name, in the order of the page.
METHODS: dict[str, Method] = {
    one.name: one
    for one in (
        Method(
            "fedfw",
            "FedFW",
            _SETS,
            # a gradient and a curvature for each step, and a curvature before the first
            STEPS + (STEPS + 1) / 2,
            {"local-steps": STEPS},
            "penalty",
            lambda known: 0.03 * known.lipschitz / NODES,
            search=STEPS,
        ),
        Method(
            "fedfw-default",
            "FedFW, untuned",
            _SETS,
            20 + (20 + 1) / 2,
            search=20,
            method="fedfw",
        ),
        _papers("fedfw-plain", "FedFW of the paper", "plain", 4.0),
        _papers("fedfw-plus", "FedFW+ of the paper", "augmented", 2.0),
        Method(
            "feddr",
            "FedDR",
            _SETS,
            STEPS,
            {"local-steps": STEPS, "relaxation": 1.0},
            "proximal-step",
            lambda known: 10.0 / known.lipschitz,
            lambda value, known: {
                "local-step-size": 1.0 / (known.lipschitz + 1.0 / value)
            },
        ),
        Method(
            "projected-fedavg",
            "projected FedAvg",
            _SETS,
            STEPS,
            {"local-steps": STEPS},
            "local-step-size",
            _step,
        ),
        Method(
            "feddualavg",
            "FedDualAvg",
            _CONVEX,
            STEPS,
            {"local-steps": STEPS},
            "step-size",
            _step,
        ),
        Method(
            "fedgia",
            "FedGiA",
            _BALL,
            1.0,
            {"tolerance": 0.0},
            "sigma-scale",
            lambda known: 0.15,
            penalised="l1",
        ),
        Method(
            "fedgia-default",
            "FedGiA, untuned",
            _BALL,
            1.0,
            {"tolerance": 0.0},
            penalised="l1",
            method="fedgia",
        ),
        _local("fedavg-gd", "FedAvg, full gradients"),
        # a fifth of the examples in each of five steps
        _local("local-sgd", "LocalSGD", {"batch-fraction": 1.0 / STEPS}, 1.0),
        _local("fedprox", "FedProx"),
        _local("scaffold", "SCAFFOLD"),
        Method(
            "proxskip",
            "ProxSkip (Scaffnew)",
            ("none",),
            STEPS,
            {"probability": 1.0 / STEPS},
            "step-size",
            _step,
            drawn=lambda seed, t: steps_drawn(seed, 1.0 / STEPS, t),
        ),
        Method(
            "feddyn",
            "FedDyn",
            ("none",),
            STEPS,
            {"local-steps": STEPS},
            "alpha",
            lambda known: 0.1 * known.lipschitz,
            lambda value, known: {"step-size": 1.0 / (known.lipschitz + value)},
        ),
        Method(
            "fedopt",
            "FedAdam",
            ("none",),
            STEPS,
            {"optimizer": "adam", "local-steps": STEPS, "batch-fraction": 1.0},
            "server-step-size",
            lambda known: 0.03,
            _inner_step,
        ),
        compressed("top-k", "error-feedback top-k"),
        Method(
            "ef21",
            "EF21, top-k",
            ("none",),
            1.0,
            {},
            "step-size",
            lambda known: 0.25 / known.lipschitz,
        ),
        compressed("qsgd", "QSGD"),
        compressed("sign", "sign, majority"),
        Method(
            "zeroth-order-sgd",
            "zeroth-order SGD",
            ("none",),
            # ten differences from one value
            11 / 2,
            {"batch-size": 0},
            "step-size",
            lambda known: 10.0 / (known.parameters + 10.0) / known.lipschitz,
        ),
        # rare entries are part of the problem, so its nodes let them be summed
        Method(
            "hyfdca", "HyFDCA", ("none",), 1.0, {"tolerance": 0.0, "exposed": "accept"}
        ),
        Method(
            "first-order-rfl",
            "first-order RFL",
            ("manifold",),
            STEPS,
            {"local-steps": STEPS},
            "step-size",
            lambda known: 0.1 / known.lipschitz,
        ),
        Method(
            "zeroth-order-rfl",
            "zeroth-order RFL",
            ("manifold",),
            STEPS * 11 / 2,
            {"local-steps": STEPS, "samples": 10},
            "step-size",
            lambda known: 0.03 / known.lipschitz,
        ),
    )
}


def methods_of(problem: Problem) -> list[Method]:
    """Those that apply to a problem."""
    return [
        method
        for method in METHODS.values()
        if problem.kind in method.kinds and (method.name != "hyfdca" or problem.split)
    ]
