"""Who takes part: methods, what they are told, and the one setting that is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from .problems import NODES, Kind, Problem, experiment

__all__ = ["METHODS", "RATIO", "Facts", "Method", "facts", "methods_of"]

#: Local steps of everything that has local steps.
STEPS = 5
#: From one value of a tuned setting to the next.
RATIO = 4.0


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
    settings : mapping
        Of the run config, ``method`` among them.
    gradients : float
        What a client computes in a round, in gradients; a function value or a curvature
        along a line is half of one.
    search : float
        What it computes more where the loss is not quadratic, for its line searches.
    tuned : str
        The key of the setting that is tuned; empty: nothing is.
    centre : callable
        Where its grid has its middle.
    also : callable
        Settings that follow from the tuned one's value and the facts.
    penalised : str
        The key of λ, of methods that solve min F(x) + λ‖x‖₁ instead of the ℓ1 ball's
        problem; they are given the λ* that has the same solution.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    settings: Mapping[str, Any] = field(hash=False)
    gradients: float
    tuned: str = ""
    centre: Callable[[Facts], float] = field(default=lambda known: 1.0, hash=False)
    also: Callable[[float, Facts], Mapping[str, Any]] = field(
        default=lambda value, known: {}, hash=False
    )
    penalised: str = ""
    search: float = 0.0

    def cost(self, problem: Problem) -> float:
        """What a client computes in a round, in gradients."""
        return self.gradients + (0.0 if problem.quadratic else self.search)

    @property
    def family(self) -> str:
        """What it is compared with others as: a method and its variants are one."""
        method = self.settings["method"]
        return str(self.settings.get("compressed-sgd.compressor", method))

    def config(self, value: float | None, known: Facts) -> dict[str, Any]:
        """Its part of the run config, with a value of the tuned setting."""
        config = dict(self.settings)
        if value is not None:
            config |= {self.tuned: value, **self.also(value, known)}
        return config


def _step(known: Facts) -> float:
    return 1.0 / known.lipschitz


def _local(name: str, title: str, cost: float = STEPS, **more: Any) -> Method:
    """A relative of FedAvg without a constraint, whose step size is tuned."""
    method = str(more.pop("method", name))
    settings = {"local-steps": STEPS, "step-schedule": "constant", **more}
    return Method(
        name,
        title,
        ("none",),
        {"method": method, **{f"{method}.{key}": v for key, v in settings.items()}},
        cost,
        f"{method}.step-size",
        _step,
    )


def _compressed(compressor: str, title: str, tuned: str, **more: Any) -> Method:
    settings: dict[str, Any] = {"compressor": compressor, "batch-fraction": 1.0, **more}
    settings["server-momentum"] = 0.0
    name = compressor.replace("-", "")
    made = _local(name, title, method="compressed-sgd", **settings)
    if tuned == "step-size":
        return made
    # a sign has no length: the server's step is what is tuned, and the clients' fixed
    return Method(
        name,
        title,
        made.kinds,
        made.settings,
        made.gradients,
        f"compressed-sgd.{tuned}",
        lambda known: 0.01,
        lambda value, known: {"compressed-sgd.step-size": 1.0 / known.lipschitz},
    )


_SETS: tuple[Kind, ...] = ("set", "l1", "manifold")
_PAPER = {"method": "fedfw", "fedfw.local-steps": STEPS}

#: By name, in the order of the page.
METHODS: dict[str, Method] = {
    one.name: one
    for one in (
        Method(
            "fedfw",
            "FedFW",
            _SETS,
            {"method": "fedfw", "fedfw.local-steps": STEPS},
            # a gradient and a curvature for each step, and a curvature before the first
            STEPS + (STEPS + 1) / 2,
            "fedfw.penalty",
            lambda known: 0.03 * known.lipschitz / NODES,
            search=STEPS,
        ),
        Method(
            "fedfw-default",
            "FedFW, untuned",
            _SETS,
            {"method": "fedfw"},
            20 + (20 + 1) / 2,
            search=20,
        ),
        Method(
            "fedfw-plain",
            "FedFW of the paper",
            _SETS,
            {**_PAPER, "fedfw.variant": "plain"},
            STEPS,
            "fedfw.penalty",
            lambda known: 4.0 * known.slope / known.vertex,
        ),
        Method(
            "fedfw-plus",
            "FedFW+ of the paper",
            _SETS,
            {**_PAPER, "fedfw.variant": "augmented"},
            STEPS,
            "fedfw.penalty",
            lambda known: 2.0 * known.slope / known.vertex,
        ),
        Method(
            "feddr",
            "FedDR",
            _SETS,
            {"method": "feddr", "feddr.local-steps": STEPS, "feddr.relaxation": 1.0},
            STEPS,
            "feddr.proximal-step",
            lambda known: 10.0 / known.lipschitz,
            lambda value, known: {
                "feddr.local-step-size": 1.0 / (known.lipschitz + 1.0 / value)
            },
        ),
        Method(
            "projected-fedavg",
            "projected FedAvg",
            _SETS,
            {"method": "projected-fedavg", "projected-fedavg.local-steps": STEPS},
            STEPS,
            "projected-fedavg.local-step-size",
            _step,
        ),
        Method(
            "fedgia",
            "FedGiA",
            ("none", "l1"),
            {"method": "fedgia", "fedgia.tolerance": 0.0},
            1.0,
            "fedgia.sigma-scale",
            lambda known: 0.15,
            penalised="fedgia.l1",
        ),
        Method(
            "fedgia-default",
            "FedGiA, untuned",
            ("none", "l1"),
            {"method": "fedgia", "fedgia.tolerance": 0.0},
            1.0,
            penalised="fedgia.l1",
        ),
        _local("fedavg-gd", "FedAvg, full gradients"),
        # a fifth of the examples in each of five steps
        _local("local-sgd", "LocalSGD", 1.0, **{"batch-fraction": 1.0 / STEPS}),
        _local("fedprox", "FedProx"),
        _local("scaffold", "SCAFFOLD"),
        Method(
            "fedopt",
            "FedAdam",
            ("none",),
            {
                "method": "fedopt",
                "fedopt.optimizer": "adam",
                "fedopt.local-steps": STEPS,
                "fedopt.batch-fraction": 1.0,
            },
            STEPS,
            "fedopt.server-step-size",
            lambda known: 0.03,
            lambda value, known: {"fedopt.step-size": 1.0 / known.lipschitz},
        ),
        _compressed("top-k", "error-feedback top-k", "step-size"),
        _compressed("qsgd", "QSGD", "step-size"),
        _compressed("sign", "sign, majority", "server-step-size"),
        Method(
            "zeroth-order-sgd",
            "zeroth-order SGD",
            ("none",),
            {"method": "zeroth-order-sgd", "zeroth-order-sgd.batch-size": 0},
            # ten differences from one value
            11 / 2,
            "zeroth-order-sgd.step-size",
            lambda known: 10.0 / (known.parameters + 10.0) / known.lipschitz,
        ),
        Method(
            "hyfdca",
            "HyFDCA",
            ("none",),
            # rare entries are part of the problem, so its nodes let them be summed
            {
                "method": "hyfdca",
                "hyfdca.tolerance": 0.0,
                "hyfdca.exposed": "accept",
            },
            1.0,
        ),
        Method(
            "first-order-rfl",
            "first-order RFL",
            ("manifold",),
            {"method": "first-order-rfl", "first-order-rfl.local-steps": STEPS},
            STEPS,
            "first-order-rfl.step-size",
            lambda known: 0.1 / known.lipschitz,
        ),
        Method(
            "zeroth-order-rfl",
            "zeroth-order RFL",
            ("manifold",),
            {
                "method": "zeroth-order-rfl",
                "zeroth-order-rfl.local-steps": STEPS,
                "zeroth-order-rfl.samples": 10,
            },
            STEPS * 11 / 2,
            "zeroth-order-rfl.step-size",
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
