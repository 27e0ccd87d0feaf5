"""FedFW, FedFW+ and FedFW-sto: federated Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.schedules import SCHEDULES, FrankWolfeSchedule
from fedtrellis.server.answers import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from .paper import PaperSteps

__all__ = ["VARIANTS", "FedFW"]

VARIANTS = ("plain", "augmented", "stochastic")


class FedFW(RoundStrategy):
    """Federated Frank-Wolfe: clients send extreme points, never gradients or models.

    Solves min over x in D of F(x) = (1/n) Σ_i f_i(x). Every client i keeps its own
    x_i, the server keeps x̄ = (1/n) Σ_i x_i. In round t, with S the clients whose
    answers were used::

        client   g_i = (1/n) ∇f_i(x_i) + λ_t (x_i − x̄)                       plain
                 y_i ← y_i + λ_0 (x_i − x̄);  g_i as above, plus y_i          augmented
                 d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω),
                 g_i = d_i + λ_t (x_i − x̄)                                   stochastic
                 s_i = argmin over s in D of ⟨g_i, s⟩
                 x_i ← (1 − η_t) x_i + η_t s_i
                 sends s_i, and nothing else that depends on its data
        server   x̄ ← x̄ + (η_t / n) Σ over S of (s_i − x_i)

    With everybody in S the server's step is x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i: n atoms,
    which is how x̄ travels back to the clients. The server knows every x_i without ever
    seeing one, because it can replay it from the s_i it used; so it can take the exact
    step when clients sit out or answers are lost, and give a client that lost its state
    x_i (and y_i) back. A gradient average d_i that is lost starts again with ρ = 1.

    Source: arXiv 2408.10090, algorithm 1 with its variants FedFW+ and FedFW-sto, §4.2
    (participation), §4.3 (clients with a larger D_i of their own).

    Notes
    -----
    The matching client is ``FedFWClient(context, objective, domain)``. No theory covers
    FedFW-sto with p < 1 or on non-convex losses.
    """

    name = "fedfw"
    about = "federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto"
    space = "domain"
    bounded = True
    state_settings = ("variant",)

    domain: Domain = given(
        "D, in the shape of the model: an array's own shape if the model has one "
        "array, else the vector of all entries, layer after layer",
        kw_only=False,
    )
    penalty: float = setting(
        None, "weight of the consensus penalty", symbol="λ_0", auto=1e-3, minimum=0.0
    )
    variant: str = setting(
        "plain", "FedFW, FedFW+ (augmented) or FedFW-sto", choices=VARIANTS
    )
    schedule: str = setting(
        None,
        "of step size and penalty",
        note="see :class:`~fedtrellis.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=SCHEDULES,
    )
    step_size: float = setting(
        0.01, "of the constant schedule", symbol="η", above=0.0, maximum=1.0
    )
    averaging: float = setting(
        0.1,
        "weight of a new gradient in FedFW-sto's constant schedule",
        symbol="ρ",
        above=0.0,
        maximum=1.0,
    )
    dual_penalty: float = setting(
        None, "λ_0 of y_i in FedFW+; auto: that of penalty", minimum=0.0
    )
    batch_size: int = setting(64, "examples in a mini-batch of FedFW-sto", minimum=1)
    lmo_noise: float = setting(
        0.0,
        "standard deviation of Gaussian noise on g_i, added by the client before its "
        "oracle; 0: none",
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_penalty is None:
            self.dual_penalty = self.penalty
        # T and n are known when the run starts; this checks the rest now
        self._schedule = self._make_schedule(1, self.participation)
        self.needs_planned_rounds = self._schedule.depends_on_rounds

    def _make_schedule(self, rounds: int, participation: float) -> FrankWolfeSchedule:
        return FrankWolfeSchedule(
            self.schedule,
            self.penalty,
            participation,
            rounds,
            self.step_size,
            self.averaging,
        )

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start the variant's half, with every client at the initial model."""
        self._schedule = self._make_schedule(
            self.planned_rounds, self.expected_participation
        )
        if not self.domain.contains(point):
            log(WARNING, "The initial model lies outside %r", self.domain)
        self.half = PaperSteps(self, self._schedule)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What the variant's client needs for its answer."""
        return self.half.instruction(server_round)

    def check(self, answer: Answer) -> Any:
        """What the variant makes of an answer."""
        return self.half.check(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Take the variant's server step, and replay every used client's."""
        return self.half.aggregate(server_round, answers)

    def client_iterate(self, client: str) -> FloatArray:
        """x_i as the server replays it, a new array."""
        return self.half.client_iterate(client)

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """x_i, and what else of the variant's state the server can replay."""
        return self.half.client_state(client)

    def state(self) -> dict[str, NDArray[Any]]:
        """What the server replays, for a checkpoint."""
        return self.half.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.half.load_state(state)
