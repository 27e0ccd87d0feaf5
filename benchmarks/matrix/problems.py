"""What is solved: run configs of the app's tasks, each with a certified optimum."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

import clients
import strategies
from fedtrellis.app import App, Experiment, pairs
from fedtrellis.objectives.reference import certified_minimum, unconstrained_minimum
from reproduce.common import LEDGER
from tasks import TASKS

from .entrants import plugin

__all__ = [
    "CERTIFIED",
    "NODES",
    "PROBLEMS",
    "QUICK",
    "Kind",
    "MissingError",
    "Optimum",
    "Problem",
    "experiment",
    "optimum",
]

_APP = App([*pairs(strategies, clients), *plugin.methods], TASKS.values())
#: Clients of every problem.
NODES = 10
#: How far F* may lie below what is taken for it, in units of F(x¹) − F*.
CERTIFIED = 1e-6

#: Which methods apply: those for a set, for an ℓ1 ball, without any, for a manifold.
Kind = Literal["set", "l1", "none", "manifold"]


class MissingError(Exception):
    """A data file that is not there; the message names it."""


@dataclass(frozen=True)
class Problem:
    """A task over a set.

    Attributes
    ----------
    name : str
        What ``--only`` takes, and the name of its results.
    title, over : str
        The loss and the set, as the page calls them.
    kind : str
        Which methods apply.
    config : mapping
        The run config, without a method.
    budget : int
        Gradients that a client may take in a run.
    files : mapping
        Data files by the keys of the run config that name them, relative to the
        folder ``FEDTRELLIS_DATA``.
    split : mapping
        The same problem's run config for methods on split data; empty: none.
    split_files : mapping
    """

    name: str
    title: str
    over: str
    kind: Kind
    config: Mapping[str, Any] = field(hash=False)
    budget: int = 300
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    split: Mapping[str, Any] = field(default_factory=dict, hash=False)
    split_files: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def quadratic(self) -> bool:
        """Whether F is, so that a curvature is all that a line search needs."""
        return self.config["task"] not in (
            "classification",
            "digits",
            "logistic-regression",
        )

    def settings(self, split: bool = False) -> dict[str, Any]:
        """The run config with the data files' whole paths.

        Raises
        ------
        MissingError
            One of them is not there.
        """
        files = self.split_files if split else self.files
        folder = os.environ.get("FEDTRELLIS_DATA", "")
        found = dict(self.split if split else self.config)
        for key, name in files.items():
            path = Path(folder) / name
            if not folder or not path.exists():
                raise MissingError(
                    f"{self.name} needs {name} in the folder FEDTRELLIS_DATA"
                )
            LEDGER.read(name, path)
            found[key] = str(path)
        return found


_LASSO = {"task": "lasso", "lasso.noise": 0.1}
_A9A = {
    "task": "logistic-regression",
    "logistic-regression.dataset": "libsvm",
    "logistic-regression.test-fraction": 0.0,
}
_A9A_FILE = {"logistic-regression.path": "libsvm/a9a.bz2"}
_CANCER = {"task": "logistic-regression", "logistic-regression.test-fraction": 0.0}
_SPLIT = {
    "task": "hybrid-linear",
    "hybrid-linear.partition": "horizontal",
    "hybrid-linear.test-fraction": 0.0,
    "hybrid-linear.bias": 0.0,
    "hybrid-linear.row-scaling": "unit",
    "hybrid-linear.regularization": 1e-3,
    "hybrid-linear.least-entries": 0,
}
_DIGITS = {"task": "digits", "digits.partition": "labels"}
_MNIST = {
    "task": "classification",
    "classification.dataset": "mnist",
    "classification.train-limit": 2000,
    "classification.partition": "labels",
}
_COMPLETION = {"task": "matrix-completion", "domain": "nuclear-norm-ball"}

#: By name; the page has them in this order.
PROBLEMS: dict[str, Problem] = {
    one.name: one
    for one in (
        Problem("lasso-l1", "LASSO, 200 × 400", "ℓ1 ball", "l1", _LASSO, 1000),
        Problem(
            "lasso-simplex",
            "least squares, 200 × 400",
            "simplex",
            "set",
            {**_LASSO, "domain": "simplex", "radius": 10.0},
            500,
        ),
        Problem(
            "lasso-k-support",
            "least squares, 200 × 400",
            "20-support ball",
            "set",
            {**_LASSO, "domain": "k-support-ball", "k-support-ball.k": 20}
            | {"radius": 3.0},
            400,
        ),
        Problem(
            "least-squares",
            "least squares, 1000 × 100",
            "none",
            "none",
            {"task": "linear-regression", "linear-regression.weighting": "examples"},
            600,
        ),
        Problem(
            "a9a-l1",
            "logistic, a9a",
            "ℓ1 ball",
            "l1",
            {**_A9A, "logistic-regression.l2": 0.0, "radius": 20.0},
            160,
            _A9A_FILE,
        ),
        Problem(
            "a9a",
            "logistic with ℓ2 term, a9a",
            "none",
            "none",
            {**_A9A, "logistic-regression.l2": 1e-3, "domain": "whole-space"},
            160,
            _A9A_FILE,
            {**_SPLIT, "hybrid-linear.dataset": "a9a"},
            {"hybrid-linear.path": "libsvm/a9a.bz2"},
        ),
        Problem(
            "cancer",
            "logistic with ℓ2 term, breast cancer",
            "none",
            "none",
            {**_CANCER, "logistic-regression.l2": 1e-3, "domain": "whole-space"},
            600,
        ),
        Problem(
            "digits-l1",
            "multinomial, digits",
            "ℓ1 ball",
            "l1",
            {**_DIGITS, "domain": "l1-ball", "radius": 30.0},
            600,
        ),
        Problem(
            "digits-nuclear",
            "multinomial, digits",
            "nuclear norm",
            "set",
            {**_DIGITS, "domain": "nuclear-norm-ball", "radius": 20.0},
            2500,
        ),
        Problem(
            "mnist-l1",
            "multinomial, MNIST (2000)",
            "ℓ1 ball",
            "l1",
            {**_MNIST, "domain": "l1-ball", "radius": 30.0},
            120,
            {"classification.path": "mnist"},
        ),
        Problem(
            "news20-l1",
            "multinomial, News20",
            "ℓ1 ball",
            "l1",
            {
                "task": "logistic-regression",
                "logistic-regression.dataset": "file",
                "logistic-regression.classes": 20,
                "logistic-regression.intercept": False,  # as over the ball
                "logistic-regression.test-fraction": 0.0,
                "logistic-regression.l2": 0.0,
                "radius": 300.0,
            },
            105,
            {"logistic-regression.path": "libsvm/news20_multiclass.bz2"},
        ),
        Problem(
            "completion",
            "matrix completion, 60 × 50",
            "nuclear norm",
            "set",
            _COMPLETION,
            2500,
        ),
        Problem(
            "pca",
            "principal components, digits",
            "orthonormal columns",
            "manifold",
            {"task": "kernel-pca"},
            500,
        ),
    )
}
#: Those of ``--quick``.
QUICK = ("lasso-l1", "least-squares")


@dataclass(frozen=True)
class Optimum:
    """F* with its certificate, and where the runs start.

    Attributes
    ----------
    value : float
        F at the best point found.
    gap : float
        F* lies in [value − gap, value].
    start : float
        F(x¹).
    how : str
        The solver and the kind of certificate.
    multiplier : float
        λ* of the ℓ1 ball, for methods that solve F(x) + λ*‖x‖₁ instead; else 0.
    radius : float
        Of the ℓ1 ball; else 0.
    """

    value: float
    gap: float
    start: float
    how: str
    multiplier: float = 0.0
    radius: float = 0.0

    @property
    def relative(self) -> float:
        """The certificate's gap in units of F(x¹) − F*."""
        return self.gap / (self.start - self.value)


def experiment(
    problem: Problem, seed: int, method: Mapping[str, Any], rounds: int = 1
) -> Experiment:
    """The app's experiment of a method's settings on a problem."""
    space = _APP.registry.methods[str(method["method"])].strategy.space
    config = _APP.default_config()
    config |= problem.settings(space == "split") | dict(method)
    config |= {"seed": seed, "rounds": rounds, "evaluate-gap": False}
    if space == "whole":
        config |= {"domain": "whole-space", "radius": 0.0}
        config.pop("k-support-ball.k", None)
    if space == "manifold":
        config |= {"domain": "", "radius": 0.0}
    return _APP.experiment(_APP.registry.without_foreign(config), NODES)


# The last minimum found over each problem's set.
_SOLVED: dict[str, Any] = {}


@lru_cache(maxsize=64)
def optimum(problem: Problem, seed: int) -> Optimum:
    """Solve a problem in one place, and certify what comes out.

    A convex F over a set: accelerated projected gradient descent, and the Frank-Wolfe
    gap. Without a set: L-BFGS, and ‖∇F‖²/(2μ) with F μ-strongly convex. Principal
    components: eigenvalues.

    Raises
    ------
    RuntimeError
        The certificate is worse than :data:`CERTIFIED`.
    """
    solver = "fedavg-gd" if problem.kind == "none" else "projected-fedavg"
    made = experiment(problem, seed, {"method": solver})
    task, point = made.task, made.start_point()
    x = np.asarray(made.layout.objective_point(point))
    start = float(task.value(x))
    if problem.kind == "manifold":
        value = float(task.objective().optimum())
        # of p × p eigenvalues
        return Optimum(value, 1e-12 * abs(value), start, "eigenvalues")
    F = task.objective()
    # where a seed only deals the data, the last seed's minimum is this one's
    x = _SOLVED.get(problem.name, x)
    if problem.kind == "none":
        lowest = unconstrained_minimum(F, x)
        gap = lowest.gradient_norm**2 / (2.0 * _strong_convexity(F))
        found = Optimum(lowest.value, gap, start, "L-BFGS, ‖∇F‖²/(2μ)")
    else:
        rough = certified_minimum(F, made.domain, x, tolerance=1e-2, max_iterations=50)
        aim = 0.2 * CERTIFIED * (start - rough.value) / max(1.0, abs(rough.value))
        best = certified_minimum(F, made.domain, rough.point, tolerance=aim)
        found = Optimum(best.value, best.gap, start, "FISTA, Frank-Wolfe gap")
        _SOLVED[problem.name] = best.point
        if problem.kind == "l1":
            slope = float(np.abs(F.gradient(best.point)).max())
            radius = float(getattr(made.domain, "radius", math.nan))
            found = Optimum(best.value, best.gap, start, found.how, slope, radius)
    if not 0.0 <= found.relative <= CERTIFIED:
        raise RuntimeError(f"{problem.name}: certified to {found.relative:.1e} only")
    return found


def _strong_convexity(F: Any) -> float:
    """μ with ∇²F ⪰ μ everywhere: the regulariser's, or of a quadratic its own."""
    known = float(F.strong_convexity())
    if known > 0.0:
        return known
    return float(np.linalg.eigvalsh(np.asarray(F.hessian_bound()))[0])
