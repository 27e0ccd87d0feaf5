"""The obvious federated Frank-Wolfe, which does not work."""

from __future__ import annotations

from typing import Any, Literal

from fedtrellis.domains.atoms import Atom
from fedtrellis.schedules import FrankWolfeSchedule, Schedule
from fedtrellis.server.answers import Answer
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import Step

from .frank_wolfe import FrankWolfeStrategy

__all__ = ["NaiveFrankWolfe"]


class NaiveFrankWolfe(FrankWolfeStrategy):
    """Average the atoms of the clients' own gradients; a baseline that fails.

    ::

        client   s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩
        server   x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ over S of s_i

    The mean of the clients' oracles is not the oracle of the mean gradient. On
    min over [−1, 1] of ½(x − 3)² + ½(x + 1)² from 0 the two clients answer 1 and −1 for
    ever, and x̄ stays at 0; the solution is 1.

    Source: arXiv 2408.10090, Appendix A.

    Notes
    -----
    The matching client is ``NaiveFrankWolfeClient(context, objective, domain)``.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import NaiveFrankWolfeClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import NaiveFrankWolfe
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return NaiveFrankWolfeClient(context, loss, L1Ball(1.0))
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = NaiveFrankWolfe(L1Ball(1.0))
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=30)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1., 0., 0.])
    """

    name = "naive-frank-wolfe"
    about = "averaged oracles, a baseline that does not converge"
    stateful = False

    schedule: Schedule | Literal["auto"] = setting(
        None,
        "of the step size",
        note="see :class:`~fedtrellis.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=Schedule,
    )
    step_size: float = setting(
        0.01, "of the constant schedule", symbol="η", above=0.0, maximum=1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs_planned_rounds = self.schedule == "nonconvex"

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Make the schedule, now that rounds and clients are known."""
        self.settle_domains(layout.point_shape)
        self._schedule = FrankWolfeSchedule(
            self.schedule,
            penalty=0.0,
            participation=self.expected_participation,
            num_rounds=self.planned_rounds,
            step_size=self.step_size,
        )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Nothing: the client only needs x̄."""
        return {}

    def audience(self, server_round: int, client: str) -> None:
        """All of them are told the same."""

    def check(self, answer: Answer) -> Atom:
        """The atom s_i."""
        (atom,) = self.take_atoms(answer, 1)
        return atom

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the atoms."""
        eta = self._schedule.step(server_round)
        # x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ s_i
        step = Step(1.0 - eta, eta / len(answers), tuple(answers.values()))
        self.broadcast.advance(step)
        return self.whether_outside()
