"""What fedtrellis and Flower's messages add to FedFW's own arithmetic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedFW

from .report import Aim, Comparison, Spread, ratios
from .runs import array_of, fedfw_app, least_squares, synthetic

__all__ = ["FULL", "QUICK", "Case", "compare"]

_RADIUS, _PENALTY, _AIM = 1.0, 1e-3, 1.3


@dataclass(frozen=True)
class Case:
    """A size, and how long it is measured: ``blocks`` blocks of ``rounds`` rounds."""

    columns: int
    rows: int
    nodes: int
    blocks: int
    rounds: int
    aimed: bool = True


QUICK = [Case(100_000, 20, 10, 4, 8), Case(1_000, 20, 10, 4, 50, aimed=False)]
# beyond 256 rounds, after which the server works in the steps that it has noted down
FULL = [
    Case(100_000, 20, 10, 9, 32),
    Case(100_000, 100, 10, 5, 16),
    Case(1_000, 20, 10, 9, 100, aimed=False),
]


class BareLoop:
    """FedFW with full participation as one writes it down in NumPy.

    The arithmetic of the clients and of the server, and nothing else: no messages, no
    checks, no copies that the mathematics does not ask for.
    """

    def __init__(self, matrices: list[tuple[FloatArray, FloatArray]]) -> None:
        self.matrices = matrices
        columns = matrices[0][0].shape[1]
        self.x_bar = np.zeros(columns)
        self.iterates = [np.zeros(columns) for _ in matrices]
        self.t = 0

    def run(self, rounds: int) -> None:
        """Run some more rounds."""
        n, x_bar = len(self.matrices), self.x_bar
        for _ in range(rounds):
            self.t += 1
            # η_t = 2 / (t + 1), λ_t = λ_0 √(t + 1)
            eta, penalty = 2.0 / (self.t + 1.0), _PENALTY * sqrt(self.t + 1.0)
            steps = []
            for (A, b), x in zip(self.matrices, self.iterates, strict=True):
                # g_i = (1/n) 2 A_iᵀ(A_i x_i − b_i) + λ_t (x_i − x̄)
                residuals = A @ x
                residuals -= b
                residuals *= 2.0
                g = A.T @ residuals
                g /= n
                difference = x - x_bar
                difference *= penalty
                g += difference
                # argmax |g|, by the two ends: faster than making |g|
                top, bottom = int(g.argmax()), int(g.argmin())
                j = top if g[top] >= -g[bottom] else bottom
                atom = -math.copysign(_RADIUS, g[j])
                # x_i ← (1 − η_t) x_i + η_t s_i
                x *= 1.0 - eta
                x[j] += eta * atom
                steps.append((j, atom))
            # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
            x_bar *= 1.0 - eta
            for j, atom in steps:
                x_bar[j] += eta / n * atom


class Alternate(Callback):
    """Runs a block of the other side after every block of rounds of this one."""

    def __init__(self, rounds: int, other: Callable[[int], None]) -> None:
        self.rounds = rounds
        self.other = other
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
        """Stop the clock at a block's end, and let the other side run its block."""
        if record.round % self.rounds:
            return
        now = time.perf_counter()
        self.ours.append((now - self._began) / self.rounds)
        self.other(self.rounds)
        self._began = time.perf_counter()
        self.theirs.append((self._began - now) / self.rounds)


def _measure(case: Case) -> tuple[Spread, Spread, float]:
    """Seconds per round of FedFW and of the bare loop, and how far they differ."""
    matrices = synthetic(case.columns, case.rows, case.nodes)
    problem, bare = least_squares(matrices, _RADIUS), BareLoop(matrices)
    turns = Alternate(case.rounds, bare.run)
    strategy = FedFW(
        problem.domain, penalty=_PENALTY, callbacks=[turns], variant="plain"
    )
    grid = LocalGrid(fedfw_app(problem), problem.nodes)
    # the first block is warm-up for both
    rounds = (case.blocks + 1) * case.rounds
    result = strategy.start(grid, problem.initial_arrays(), num_rounds=rounds)
    error = float(np.abs(array_of(result.arrays) - bare.x_bar).max())
    if not error <= 1e-9:
        raise AssertionError(f"FedFW and the bare loop differ by {error:g}")
    ours, theirs = tuple(turns.ours[1:]), tuple(turns.theirs[1:])
    return Spread(ours, "ms"), Spread(theirs, "ms"), error


def compare(cases: Sequence[Case]) -> Comparison:
    """FedFW on ``LocalGrid`` against :class:`BareLoop`, a row a case."""
    result = Comparison(
        "overhead",
        "FedFW on LocalGrid against a bare NumPy loop: seconds per round",
        "f_i(x) = ‖A_i x − b_i‖², ℓ1 ball, full participation, the same model to 1e-9. "
        "Blocks of rounds in turns; median (min – max) of the blocks' means.",
    )
    for case in cases:
        fedfw, bare, error = _measure(case)
        ratio = ratios(fedfw, bare)
        result.rows.append(
            {
                "p": case.columns,
                "rows a client": case.rows,
                "clients": case.nodes,
                "blocks": f"{case.blocks} of {case.rounds}",
                "FedFW": fedfw,
                "NumPy": bare,
                "FedFW / NumPy": ratio,
                "difference": f"{error:.0e}",
            }
        )
        if case.aimed:
            result.aims.append(
                Aim(
                    f"p = {case.columns:,}, {case.rows} rows: within {_AIM} times",
                    f"{ratio.median:.2f}",
                    ratio.median <= _AIM,
                )
            )
    return result
