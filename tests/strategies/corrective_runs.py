"""Small problems for corrective FedFW, each twice, and runs beside the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import FedFWClient
from fedtrellis import LocalGrid, RoundRecord
from fedtrellis.domains import (
    BirkhoffPolytope,
    Domain,
    L1Ball,
    NuclearNormBall,
    Simplex,
)
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    QuadraticAssignment,
)
from fedtrellis.server.callbacks import Callback
from strategies import FedFW
from tests.harness import calm, grid_of, play
from tests.strategies import corrective_loop as plain
from tests.strategies.soak_cases import node_states

Array = NDArray[np.float64]


@dataclass
class Problem:
    """A problem of the package, and the same one for the plain loop."""

    objectives: list[Any]
    domain: Domain
    losses: list[plain.Loss]
    ball: plain.Ball
    start: Array
    steps: int = 8
    penalty: float | None = None


def _vectors(seed: int, p: int, n: int = 5, rows: int = 7) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    # the clients differ: in what they want, and in how their losses bend
    a = rng.standard_normal((n, rows, p)) * rng.uniform(0.5, 2.0, (n, 1, 1))
    return a, rng.standard_normal((n, rows)) + rng.standard_normal((n, 1))


def _least_squares(domain: Domain, ball: plain.Ball, start: Array) -> Problem:
    a, b = _vectors(1, start.size)
    return Problem(
        [LeastSquares(*pair, weight=len(a)) for pair in zip(a, b, strict=True)],
        domain,
        [plain.least_squares(*pair, len(a)) for pair in zip(a, b, strict=True)],
        ball,
        start,
    )


def _least_squares_l1() -> Problem:
    return _least_squares(L1Ball(1.5), plain.l1_ball(1.5), np.full(20, 0.02))


def _least_squares_simplex() -> Problem:
    start = np.random.default_rng(0).dirichlet(np.ones(20)) * 2.0
    return _least_squares(Simplex(2.0), plain.simplex(2.0), start)


def _logistic(domain: Domain, ball: plain.Ball, start: Array) -> Problem:
    a, b = _vectors(2, 15, rows=12)
    labels = (b > 0).astype(np.float64)
    return Problem(
        [Logistic(x, y, weight=5.0) for x, y in zip(a, labels, strict=True)],
        domain,
        [plain.logistic(x, y, 5.0) for x, y in zip(a, labels, strict=True)],
        ball,
        start,
    )


def _logistic_l1() -> Problem:
    return _logistic(L1Ball(2.0), plain.l1_ball(2.0), np.zeros(15))


def _logistic_simplex() -> Problem:
    return _logistic(Simplex(3.0), plain.simplex(3.0), np.full(15, 0.2))


class Quartic:
    """A user's own class: Σ (X_ij − c_ij)⁴ + (X_ij − c_ij)², and no curvature."""

    num_examples = 1

    def __init__(self, centre: Array, weight: float) -> None:
        self.centre, self.weight = centre, weight

    def value(self, x: Array) -> float:
        """The sum."""
        away = x - self.centre
        return float(self.weight * np.sum(away**4 + away**2))

    def gradient(self, x: Array) -> Array:
        """Its gradient."""
        away = x - self.centre
        return np.asarray(self.weight * (4.0 * away**3 + 2.0 * away))


def _quartic() -> Problem:
    centres = np.random.default_rng(5).uniform(-0.5, 1.0, (4, 5, 5))
    return Problem(
        [Quartic(centre, 3.0) for centre in centres],
        BirkhoffPolytope(),
        [plain.quartic(centre, 3.0) for centre in centres],
        plain.birkhoff(5),
        np.full((5, 5), 0.2),
        steps=5,
    )


def _assignment() -> Problem:
    rng = np.random.default_rng(6)
    order, n = 5, 3
    a, b = rng.uniform(0, 1, (n, order, order)), rng.uniform(0, 1, (order, order))
    start = np.full((order, order), 1.0 / order)
    return Problem(
        [QuadraticAssignment(part, b, weight=2.0) for part in a],
        BirkhoffPolytope(),
        [plain.assignment(part, b, 2.0) for part in a],
        plain.birkhoff(order),
        start,
        steps=5,
        # so that L_i bends upward: otherwise steps go far out, where a rounding error
        # decides whether an entry is zero
        penalty=4.0,
    )


def _completion() -> Problem:
    rng = np.random.default_rng(4)
    shape, n, known = (9, 7), 4, 30
    target = rng.standard_normal((9, 2)) @ rng.standard_normal((2, 7))
    rows, columns = rng.integers(9, size=(n, known)), rng.integers(7, size=(n, known))
    values = target[rows, columns] + 0.1 * rng.standard_normal((n, known))
    radius = 0.6 * float(np.linalg.norm(target, "nuc"))
    parts = list(zip(rows, columns, values, strict=True))
    return Problem(
        [MatrixCompletion(*part, shape, weight=30.0) for part in parts],
        NuclearNormBall(radius),
        [plain.completion(*part, 30.0) for part in parts],
        plain.nuclear_ball(radius),
        np.zeros(shape),
        steps=4,
    )


_MAKERS: dict[str, Callable[[], Problem]] = {
    "least squares, l1": _least_squares_l1,
    "least squares, simplex": _least_squares_simplex,
    "logistic, l1": _logistic_l1,
    "logistic, simplex": _logistic_simplex,
    "assignment": _assignment,
    "quartic": _quartic,
    "completion": _completion,
}
#: Names of the problems.
PROBLEMS = tuple(_MAKERS)


@cache
def problem(name: str) -> Problem:
    """One of them; nobody changes it."""
    return _MAKERS[name]()


@dataclass
class Rounds(Callback):
    """All that the server replays, after every round."""

    grid: LocalGrid
    last_fault: int | None = None
    used: list[list[int]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Note a round down."""
        if not record.round:
            return
        half, names = strategy.half, strategy.clients
        self.used.append([int(name) for name in strategy.used])
        self.kept.append(
            {
                "x": [strategy._client_iterate(name) for name in names],
                "y": [half._duals[name].copy() for name in names],
                "z": strategy.broadcast.model.copy(),
                "model": half.model.copy(),
                "rho": half.penalty,
                "metrics": record.train,
            }
        )
        if record.round == self.last_fault:
            calm(self.grid)


@dataclass
class Run:
    """A run of the package."""

    strategy: FedFW
    grid: LocalGrid
    watch: Rounds
    model: Array

    @property
    def used(self) -> list[list[int]]:
        """Whose answers were used, by round."""
        return self.watch.used

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """What the server replayed, by round."""
        return self.watch.kept


def run(
    made: Problem,
    rounds: int,
    faults: Mapping[str, Any] | None = None,
    *,
    encode: bool = False,
    grid_seed: int = 0,
    last_fault: int | None = None,
    callbacks: Sequence[Callback] = (),
    client: Any = FedFWClient,
    **settings: Any,
) -> Run:
    """Corrective FedFW on a problem."""
    own = {"local_steps": made.steps, "penalty": made.penalty, "seed": 7}
    settings = {**own, **settings}
    options = {"seed": grid_seed, "encode": encode, **(faults or {})}
    grid = grid_of(client, made.objectives, made.domain, **options)
    watch = Rounds(grid, last_fault)
    strategy = FedFW(
        made.domain, callbacks=[watch, *callbacks], max_failed_rounds=1000, **settings
    )
    played = play(strategy, grid, made.start, rounds)
    return Run(strategy, grid, watch, played.model)


def loop(made: Problem, **options: Any) -> plain.Loop:
    """The plain loop on a problem."""
    options = {"penalty": made.penalty, **options}
    return plain.Loop(made.losses, made.ball, made.start, made.steps, **options)


def differences(ran: Run, beside: plain.Loop, first: int = 0) -> dict[str, float]:
    """The largest differences over all rounds, given the answers that were used."""
    worst = dict.fromkeys(("x", "y", "z", "model", "rho"), 0.0)
    for used, kept in zip(ran.used[first:], ran.rounds[first:], strict=True):
        beside.round(used)
        own = {
            "x": np.array(beside.x),
            "y": np.array(beside.y),
            "z": beside.z,
            "model": beside.mean,
            "rho": beside.rho or 0.0,
        }
        for key, value in own.items():
            theirs = np.array(kept[key] or 0.0 if key == "rho" else kept[key])
            off = float(np.abs(theirs - value).max())
            # in units of what is compared, where that is large
            off /= max(1.0, float(np.abs(theirs).max()))
            worst[key] = max(worst[key], off)
    return worst


def check_nodes(ran: Run) -> None:
    """What lies in the nodes' state is what the server replays, bit for bit.

    A node in step with neither round that it knows will ask to be restored.
    """
    strategy, states = ran.strategy, node_states(ran.strategy, ran.grid)
    for name, state in states.items():
        expected = strategy.client_state(name)
        for key in ("x", "y"):
            if expected[key].dtype == state[key].dtype:
                assert state[key].tobytes() == expected[key].tobytes(), (name, key)
            else:  # no step of this client was used yet
                assert strategy.conversation.client(name).used_round == 0
    assert states.keys() >= set(strategy.used)
    assert strategy.history[-1].used == strategy.history[-1].sampled
    assert strategy.used
