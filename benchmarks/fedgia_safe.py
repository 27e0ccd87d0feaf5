"""FedGiA on its defaults beside every fixed σ, FedAvg, and gradients in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite

import numpy as np
from flwr.app import ArrayRecord

from clients import FedGiAClient
from fedtrellis.admm.hessians import majoriser_of
from fedtrellis.random import generator
from fedtrellis.server.callbacks import Call, RoundRecord
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedGiA

from .fedgia_problems import PROBLEMS, Problem, problem
from .report import Aim, Comparison, Row
from .traffic import app_of

__all__ = ["FULL", "QUICK", "TS", "Cases", "Run", "adapted", "compare", "fixed"]

TOLERANCE, ROUNDS = 1e-6, 1000
#: t of σ = t·r/m, and of its diagonal like.
TS = tuple(np.geomspace(0.01, 10.0, 12))
#: FedAvg's step, in units of 1/max r_i.
STEPS = tuple(np.geomspace(0.02, 32.0, 12))
# Where a run is given up: it has diverged.
_FAR = 1e9

#: A method's points after its rounds 1, 2, …
Points = Iterator[FloatArray]


@dataclass(frozen=True, order=True)
class Run:
    """How a run went; of two the lesser one went better.

    ``late``: it did not arrive. ``rounds`` until it did, else 0; the ``error`` in the
    end, 0 if it arrived; ``setting`` is t, or the step.
    """

    late: bool
    rounds: int
    error: float
    setting: float

    def __str__(self) -> str:
        if not self.late:
            return str(self.rounds)
        return f"{self.error:.0e}" if isfinite(self.error) else "diverges"


def follow(task: Problem, points: Points, rounds: int, setting: float = 0.0) -> Run:
    """Take points until the error is at most the tolerance."""
    error = inf
    with np.errstate(over="ignore", invalid="ignore"):
        for k, x in zip(range(1, rounds + 1), points, strict=False):
            error = task.error(x) if np.abs(x).max() < 1e150 else inf
            if error <= TOLERANCE:
                return Run(False, k, 0.0, setting)
            if not error < _FAR:
                return Run(True, 0, inf, setting)
    return Run(True, 0, error, setting)


# -------------------------------------------------------------------------- FedGiA


def adapted(task: Problem, rounds: int) -> Run:
    """FedGiA as it is, with all its messages, without one setting."""
    errors = [inf]

    def small(record: RoundRecord) -> bool:
        if record.round:
            errors.append(task.error(strategy._result_point().ravel()))
        return errors[-1] <= TOLERANCE

    # its own stop rule is another one
    strategy = FedGiA(tolerance=0.0, callbacks=[Call(small)])
    start = ArrayRecord([np.zeros(task.losses[0].shape)])
    grid = LocalGrid(app_of(FedGiAClient, task.losses), task.m)
    strategy.start(grid, start, num_rounds=rounds)
    error = errors[-1]
    if error <= TOLERANCE:
        return Run(False, len(errors) - 1, 0.0, 0.0)
    return Run(True, 0, error if isfinite(error) else inf, 0.0)


def fixed(task: Problem, diagonal: bool, t: float, seed: int = 0) -> Points:
    """Algorithm 1 of FedGiA_D with k_0 = 5 and s = 1/2, in plain NumPy.

    ``diagonal``: H_i = c_i diag Θ_i and σ = (t/m) · mean_i H_i, the like of the scalar
    H_i = r_i I and σ = t · max_i r_i/m.
    """
    m, n, steps = task.m, task.size, 5
    if diagonal:
        H = np.array([np.broadcast_to(majoriser_of(f), n) for f in task.losses])
        sigma = t / m * H.mean(axis=0)
        sigma[sigma == 0.0] = sigma.max()
    else:
        H = np.repeat(task.lipschitz[:, None], n, axis=1)
        sigma = np.full(n, t * task.lipschitz.max() / m)
    M = H / m + sigma
    x, pi = np.zeros(n), np.zeros((m, n))
    k = 0
    while True:
        k += 1
        chosen = np.zeros((m, 1), dtype=bool)
        rng = generator(seed, "selection", k)
        chosen[rng.choice(m, size=int(np.ceil(m / 2)), replace=False)] = True
        g = task.gradients(x)
        u = (H / m / M) ** (steps - 1) * (g + pi)
        multipliers = u - sigma * u / M - g
        z = np.where(chosen, x - u / M + multipliers / sigma, x - g / sigma)
        pi = np.where(chosen, multipliers, -g)
        x = z.mean(axis=0)
        yield x


# -------------------------------------------------------------------------- the others


def fedavg(task: Problem, steps: int, size: float) -> Points:
    """Everybody takes that many gradient steps of f_i, and the mean is the next x."""
    x = np.zeros(task.size)
    gamma = size / float(task.lipschitz.max())
    while True:
        points = np.repeat(x[None], task.m, axis=0)
        for _ in range(steps):
            for i, f in enumerate(task.losses):
                gradient = f.gradient(points[i].reshape(f.shape))
                points[i] -= gamma * gradient.ravel()
        x = points.mean(axis=0)
        if not np.isfinite(x).all():
            x = np.full(task.size, inf)
        yield x


def nesterov(task: Problem) -> Points:
    """Accelerated gradients at 1/L, restarted where they point uphill."""
    x, y, momentum = np.zeros(task.size), np.zeros(task.size), 1.0
    while True:
        gradient = task.gradients(y).sum(axis=0)
        following = y - gradient / task.curvature
        if float(gradient @ (following - x)) > 0.0:
            momentum = 1.0
        faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        y = following + (momentum - 1.0) / faster * (following - x)
        x, momentum = following, faster
        yield x


# -------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Cases:
    """Which problems, and how many rounds a run may take."""

    names: Sequence[str]
    rounds: int


_NAMES = tuple(PROBLEMS)
QUICK = Cases((*_NAMES[:4], *_NAMES[6:8], _NAMES[10], _NAMES[13], _NAMES[19]), 100)
FULL = Cases(_NAMES, ROUNDS)


def _best(
    task: Problem,
    make: Callable[[float], Points],
    grid: Sequence[float],
    rounds: int,
    *,
    goes_on: bool = False,
) -> Run:
    """The best run of a grid, which may go on by factors of 2 where an end is best."""
    best = Run(True, 0, inf, 0.0)
    for setting in grid:
        # no longer than it can be the best
        most = rounds if best.late else best.rounds
        best = min(best, follow(task, make(setting), most, float(setting)))
    for end, ahead in ((grid[0], 0.5), (grid[-1], 2.0)):
        setting = float(end)
        while goes_on and best.setting == setting and best.error < inf:
            setting *= ahead
            best = min(best, follow(task, make(setting), rounds, setting))
    return best


def _allowed(ours: Run, best: Run) -> bool:
    """Twice the rounds plus ten; where none arrives, the smaller error."""
    if best.late:
        return not ours.late or ours.error <= best.error
    return not ours.late and ours.rounds <= 2 * best.rounds + 10


def compare(cases: Cases) -> Iterator[Comparison]:
    """A row for each problem."""
    result = Comparison(
        "fedgia-safe",
        f"Rounds to a relative error of {TOLERANCE:g}, or the error after "
        f"{cases.rounds}",
        "(F − F*)/(F(0) − F*), of non-convex problems ‖∇F‖²/‖∇F(0)‖², at the model "
        "after each round. FedGiA: no setting, real messages on LocalGrid. t: "
        f"FedGiA_D with a fixed σ, the best of {len(TS)} from {TS[0]:g} to {TS[-1]:g}. "
        f"FedAvg: the best of {len(STEPS)} steps from {STEPS[0]:g} to {STEPS[-1]:g} "
        "times 1/max r_i, and further where an end is best. Nesterov at 1/L with "
        "restarts knows L of the mean Hessian bound. All but FedGiA are plain NumPy "
        "loops with the data in one place.",
    )
    met = []
    for name in cases.names:
        task = problem(name)
        ours = adapted(task, cases.rounds)
        scalar, diagonal = (
            _best(task, partial(fixed, task, which), TS, cases.rounds)
            for which in (False, True)
        )
        row: Row = {"problem": name, "FedGiA": str(ours)}
        row["best t, scalar"] = f"{scalar} ({scalar.setting:.2g})"
        row["best t, diagonal"] = f"{diagonal} ({diagonal.setting:.2g})"
        for steps in (1, 5):
            make = partial(fedavg, task, steps)
            best = _best(task, make, STEPS, cases.rounds, goes_on=True)
            row[f"FedAvg, k_0 = {steps}"] = f"{best} ({best.setting:.2g})"
        row["Nesterov"] = str(follow(task, nesterov(task), cases.rounds))
        met.append(_allowed(ours, min(scalar, diagonal)))
        result.rows.append(row)
    text = (
        "within twice the rounds plus 10 of the best fixed t, scalar or diagonal; "
        "where none arrives, the smaller error"
    )
    result.aims.append(Aim(text, f"{sum(met)} of {len(met)}", all(met)))
    yield result
