"""Ours: convex problems dealt to clients, what solves them in one place, and a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from numpy.typing import NDArray

import sim
from clients import FedFWClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Simplex,
)
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
)
from fedtrellis.objectives.base import MeanObjective
from fedtrellis.server.callbacks import EarlyStop
from fedtrellis.wire.arrays import record_arrays
from reproduce.common import app_config
from strategies import FedFW

__all__ = [
    "HELD_OUT",
    "LEVELS",
    "PROBLEMS",
    "Curve",
    "Federated",
    "made",
    "reached",
    "solve",
]

Array = NDArray[np.float64]

NODES = 10
#: Errors whose first rounds are told.
LEVELS = (1e-3, 1e-6, 1e-9)


class Minimum(NamedTuple):
    """F at a feasible point, and the Frank-Wolfe gap there: F* ≥ value − gap."""

    value: float
    gap: float


@dataclass
class Federated:
    """min over D of F(x) = (1/n) Σ f_i(x), convex, each f_i a client's.

    Attributes
    ----------
    objectives : sequence of Objective
        f_i.
    domain : Domain
    start : ndarray
    known : float, optional
        F*, where it is known.
    """

    objectives: Sequence[Any]
    domain: Domain
    start: Array
    known: float | None = None

    @cached_property
    def mean(self) -> MeanObjective:
        """F."""
        return MeanObjective(list(self.objectives))

    @cached_property
    def minimum(self) -> Minimum:
        """F* by a solver that has all the data, certified by its gap."""
        if self.known is not None:
            return Minimum(self.known, 0.0)
        return central(self.mean, self.domain, self.start)

    def error(self, x: Array) -> float:
        """(F(x) − F*) / |F*|, or F(x) where F* is 0."""
        best = self.minimum.value
        return (float(self.mean.value(x)) - best) / (abs(best) or 1.0)


def central(
    objective: Any, domain: Domain, start: Array, tolerance: float = 1e-13
) -> Minimum:
    """Minimise by accelerated projected steps, whose bound is the curvature they meet.

    As :func:`fedtrellis.objectives.reference.certified_minimum`, whose steps are judged
    by values, does not come below 10⁻¹⁰ of F: there differences of values are rounding.
    These are judged by ⟨∇F(x⁺) − ∇F(y), x⁺ − y⟩ ≤ L ‖x⁺ − y‖².
    """
    x = y = domain.project(start)
    momentum, bound = 1.0, 1.0
    best = Minimum(math.inf, math.inf)
    for iteration in range(200_000):
        g = objective.gradient(y)
        while True:
            moved = domain.project(y - g / bound)
            d = moved - y
            square = float(np.vdot(d, d))
            bend = float(np.vdot(objective.gradient(moved) - g, d))
            if bend <= bound * square * (1.0 + 1e-9):
                break
            bound *= 1.6
        if float(np.vdot(y - moved, moved - x)) > 0.0 and momentum > 1.0:
            y, momentum = x, 1.0  # it points uphill: start it again
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        y = moved + (momentum - 1.0) / following * (moved - x)
        x, momentum = moved, following
        bound *= 0.998
        if iteration % 20 == 0 or square == 0.0:
            gap = domain.gap(objective.gradient(x), x)
            if gap < best.gap:
                best = Minimum(float(objective.value(x)), gap)
            if gap <= tolerance * abs(best.value) or square == 0.0:
                break
    return best


# ------------------------------------------------------------------------ the problems


def _task(**settings: Any) -> Federated:
    """A task of the app with the set that it suggests."""
    experiment = sim.app.experiment(app_config({"method": "fedfw", **settings}), NODES)
    task, domain = experiment.task, experiment.domain
    objectives = [task.client_objective(i) for i in range(NODES)]
    known = task.reference_optimum(domain)
    return Federated(objectives, domain, experiment.start_point(), known)


def _rows(
    rng: np.random.Generator, rows: int, p: int, nonzeros: int, nodes: int = NODES
) -> tuple[Array, list[Array]]:
    """A sparse x, and clients' rows around means and on scales of their own."""
    x = np.zeros(p)
    x[rng.choice(p, nonzeros, replace=False)] = rng.standard_normal(nonzeros)
    made = []
    for _ in range(nodes):
        mean, scale = 0.3 * rng.standard_normal(p), rng.uniform(0.5, 1.5)
        made.append(scale * (rng.standard_normal((rows, p)) + mean))
    return x, made


def _squares(
    rng: np.random.Generator,
    designs: Sequence[Array],
    x: Array,
    domain: Domain,
    noise: float = 0.5,
) -> Federated:
    """f_i = (n/2) ‖A_i x − b_i‖²."""
    n = len(designs)
    objectives = [
        LeastSquares(A, A @ x + noise * rng.standard_normal(len(A)), weight=0.5 * n)
        for A in designs
    ]
    return Federated(objectives, domain, domain.centre(x.shape))


def _labels(
    rng: np.random.Generator,
    designs: Sequence[Array],
    x: Array,
    domain: Domain,
    noise: float = 0.5,
) -> Federated:
    """F the mean logistic loss of all clients' examples."""
    n, total = len(designs), sum(len(A) for A in designs)
    objectives = [
        Logistic(
            A,
            A @ x + noise * rng.standard_normal(len(A)) > 0.0,
            weight=n * len(A) / total,
        )
        for A in designs
    ]
    return Federated(objectives, domain, domain.centre(x.shape))


def _squares_l1() -> Federated:
    rng = np.random.default_rng(1)
    x, designs = _rows(rng, 30, 400, 20)
    return _squares(rng, designs, x, L1Ball(0.7 * float(np.abs(x).sum())))


def _logistic_l1() -> Federated:
    rng = np.random.default_rng(1)
    x, designs = _rows(rng, 30, 400, 20)
    return _labels(rng, designs, x, L1Ball(0.7 * float(np.abs(x).sum())))


def _mixture(rng: np.random.Generator, scale: float) -> Array:
    x = np.zeros(200)
    x[:15] = scale * rng.dirichlet(np.ones(15))
    return x


def _squares_simplex() -> Federated:
    rng = np.random.default_rng(2)
    _, designs = _rows(rng, 25, 200, 15)
    return _squares(rng, designs, _mixture(rng, 1.0), Simplex(1.0), noise=0.3)


def _logistic_simplex() -> Federated:
    rng = np.random.default_rng(3)
    _, designs = _rows(rng, 40, 200, 15)
    return _labels(rng, designs, _mixture(rng, 20.0), Simplex(20.0), noise=1.0)


class _OfMatrix:
    """An objective of vectors, as one of matrices."""

    def __init__(self, vectors: Any, shape: tuple[int, int]) -> None:
        self._of, self.shape = vectors, shape
        self.num_examples, self.quadratic = vectors.num_examples, vectors.quadratic

    def value(self, x: Array) -> float:
        return float(self._of.value(x.ravel()))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self._of.gradient(x.ravel())).reshape(self.shape)

    def curvature(self, x: Array, direction: Array) -> float:
        return float(self._of.curvature(x.ravel(), direction.ravel()))


def _squares_birkhoff() -> Federated:
    """Linear measurements of a mean of five permutations."""
    rng, order = np.random.default_rng(4), 12
    weights = rng.dirichlet(np.ones(5))
    x = sum(w * np.eye(order)[rng.permutation(order)] for w in weights)
    _, designs = _rows(rng, 30, order**2, order)
    flat = _squares(rng, designs, np.asarray(x).ravel(), L2Ball(1.0), noise=1.0)
    objectives = [_OfMatrix(one, (order, order)) for one in flat.objectives]
    domain = BirkhoffPolytope()
    return Federated(objectives, domain, domain.centre((order, order)))


def _squares_box() -> Federated:
    rng = np.random.default_rng(5)
    x, designs = _rows(rng, 20, 100, 100)
    return _squares(rng, designs, x, Box(-0.2, 0.8))


def _logistic_l2() -> Federated:
    rng = np.random.default_rng(7)
    x, designs = _rows(rng, 40, 100, 20)
    return _labels(rng, designs, x, L2Ball(0.7 * float(np.linalg.norm(x))))


def _squares_k_support() -> Federated:
    rng = np.random.default_rng(8)
    x, designs = _rows(rng, 30, 300, 15)
    radius = 0.7 * KSupportBall(10, 1.0).norm(x)
    return _squares(rng, designs, x, KSupportBall(10, radius))


def _completion(seed: int, rank: int) -> Federated:
    """Half of the entries of a noisy 60 × 50 matrix."""
    rng, shape = np.random.default_rng(seed), (60, 50)
    M = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    seen = rng.permutation(M.size)[: M.size // 2]
    noisy = M + 0.1 * rng.standard_normal(shape)
    objectives = []
    for own in np.array_split(seen, NODES):
        rows, columns = np.divmod(own, shape[1])
        objectives.append(
            MatrixCompletion(
                rows,
                columns,
                noisy[rows, columns],
                shape,
                weight=NODES * len(own) / len(seen),
            )
        )
    domain = NuclearNormBall(0.8 * float(np.linalg.norm(M, "nuc")))
    return Federated(objectives, domain, domain.centre(shape))


# ------------------------------------------ what nobody looked at to make the rule of ρ


def _digits_by_label() -> Federated:
    """Two shards of sorted labels a client."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    kept = rng.permutation(len(y))[:1437]
    X, y = X[kept] / 16.0, y[kept]
    shards = np.array_split(np.argsort(y, kind="stable"), 2 * NODES)
    deal = rng.permutation(2 * NODES)
    objectives = []
    for i in range(NODES):
        own = np.concatenate([shards[deal[2 * i]], shards[deal[2 * i + 1]]])
        weight = NODES * len(own) / len(y)
        objectives.append(MultinomialLogistic(X[own], y[own], 10, weight=weight))
    return Federated(objectives, L1Ball(50.0), np.zeros((65, 10)))


def _cancer() -> Federated:
    """Clients of tumours of different sizes."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = np.hstack([(X - X.mean(0)) / X.std(0), np.ones((len(y), 1))])
    parts = np.array_split(np.argsort(X[:, 0], kind="stable"), 7)
    objectives = [
        Logistic(X[own], y[own], weight=7 * len(own) / len(y)) for own in parts
    ]
    return Federated(objectives, L1Ball(8.0), np.zeros(X.shape[1]))


class _Portfolio:
    """f(x) = ½ xᵀQx − cᵀx."""

    quadratic, num_examples = True, 1

    def __init__(self, Q: Array, c: Array) -> None:
        self._Q, self._c, self.shape = Q, c, c.shape

    def value(self, x: Array) -> float:
        return float(0.5 * x @ (self._Q @ x) - self._c @ x)

    def gradient(self, x: Array) -> Array:
        return np.asarray(self._Q @ x - self._c)

    def curvature(self, x: Array, direction: Array) -> float:
        return float(direction @ (self._Q @ direction))


def _portfolio() -> Federated:
    """Mean and variance of 120 assets, as 20 clients estimate them."""
    rng = np.random.default_rng(21)
    loadings = rng.standard_normal((120, 6))
    objectives = []
    for _ in range(20):
        factors = 0.01 * rng.uniform(0.5, 3.0) * rng.standard_normal((60, 6))
        returns = factors @ loadings.T + 0.01 * rng.standard_normal((60, 120))
        objectives.append(_Portfolio(np.cov(returns.T), 0.2 * returns.mean(0)))
    domain = Simplex(1.0)
    return Federated(objectives, domain, domain.centre((120,)))


def _logistic_linf() -> Federated:
    """Features on scales from 0.2 to 5 that are other ones with every client."""
    rng = np.random.default_rng(23)
    x, designs = _rows(rng, 20, 60, 60, nodes=15)
    scaled = [A * 10.0 ** rng.uniform(-0.7, 0.7, 60) for A in designs]
    return _labels(rng, scaled, x, LInfBall(0.3), noise=1.0)


def _diabetes() -> Federated:
    """Ten features, each with its square and cube: groups of three."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X = X / X.std(0)
    Z = np.stack([X, X**2 - 1.0, X**3], axis=2).reshape(len(y), 30)
    parts = np.array_split(np.random.default_rng(24).permutation(len(y)), 8)
    objectives = [
        LeastSquares(Z[own], y[own] - y.mean(), weight=0.5 * 8 / len(y))
        for own in parts
    ]
    return Federated(objectives, GroupL1Ball(60.0, 3), np.zeros(30))


#: The rule of ρ was made on these kinds of problems, and on others.
PROBLEMS: dict[str, Callable[[], Federated]] = {
    "LASSO, ℓ1": lambda: _task(task="lasso"),
    "digits, softmax, ℓ1": lambda: _task(task="digits"),
    "least squares, ℓ1": _squares_l1,
    "logistic, ℓ1": _logistic_l1,
    "least squares, simplex": _squares_simplex,
    "logistic, simplex": _logistic_simplex,
    "least squares, Birkhoff": _squares_birkhoff,
    "least squares, box": _squares_box,
    "logistic, ℓ2": _logistic_l2,
    "least squares, k-support": _squares_k_support,
    "completion, nuclear norm": lambda: _completion(10, 3),
}
#: These were tried once the rule stood.
HELD_OUT: dict[str, Callable[[], Federated]] = {
    "digits by label, ℓ1": _digits_by_label,
    "breast cancer, logistic, ℓ1": _cancer,
    "portfolio, simplex": _portfolio,
    "completion, rank 6, nuclear norm": lambda: _completion(22, 6),
    "logistic, scaled, ℓ∞": _logistic_linf,
    "diabetes, least squares, groups": _diabetes,
}


def made(name: str) -> Federated:
    """Return a problem by its name."""
    return (PROBLEMS | HELD_OUT)[name]()


# ----------------------------------------------------------------------------- the runs


class Curve(NamedTuple):
    """A run, round by round; round 0 is the start.

    Attributes
    ----------
    error : list of float
        That of x̄, see :meth:`Federated.error`.
    penalty : list of float
        ρ that the round was made with.
    up : float
        Bytes of a client's answer, mean over all.
    """

    error: list[float]
    penalty: list[float]
    up: float


def solve(problem: Federated, rounds: int, lowest: float, **settings: Any) -> Curve:
    """Run FedFW on a problem, through messages, down to an error.

    Parameters
    ----------
    problem : Federated
    rounds : int
        At most so many.
    lowest : float
        The error to stop at.
    **settings
        Of the strategy.
    """

    def client_fn(context: Context) -> FedFWClient:
        number = int(context.node_config["partition-id"])
        return FedFWClient(context, problem.objectives[number], problem.domain)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (x,) = record_arrays(arrays)
        return MetricRecord({"error": problem.error(x)})

    n = len(problem.objectives)
    stop = EarlyStop("error", lowest)
    strategy = FedFW(domain=problem.domain, seed=0, callbacks=[stop], **settings)
    strategy.start(
        LocalGrid(client_app(client_fn), num_nodes=n, seed=0),
        ArrayRecord([problem.start]),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )
    history = strategy.history
    trained = [record for record in history if record.round]
    answers = n * settings.get("participation", 1.0) * len(trained)
    return Curve(
        [record.evaluation["error"] for record in history],
        [record.train.get("penalty", math.nan) for record in trained],
        sum(record.bytes_up for record in trained) / answers,
    )


def reached(
    error: Sequence[float], levels: Sequence[float] = LEVELS
) -> list[int | None]:
    """Return the first rounds whose errors are at most the levels; None: not seen."""
    return [next((t for t, e in enumerate(error) if e <= at), None) for at in levels]
