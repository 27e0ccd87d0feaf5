"""FedFW, FedFW+ and FedFW-sto: federated Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedtrellis.domains.atoms import rounding
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, sparse_or_dense
from fedtrellis.wire.flower_internals import log

from ._corrective import CorrectiveSteps
from ._paper import PaperSteps
from .settings import PAPERS, FedFWSettings

__all__ = ["FedFW"]

# entry of an evaluation's request: it is to bring x̄
_EVALUATED = "evaluated"


class FedFW(FedFWSettings):
    """Federated Frank-Wolfe: clients send points of a set in their smallest form.

    Solves min over x in D of F(x) = (1/n) Σ_i f_i(x). Every client i keeps its own
    x_i, the server keeps x̄ = (1/n) Σ_i x_i. In round t, with S the clients whose
    answers were used::

        client   g_i = (1/n) ∇f_i(x_i) + λ_t (x_i − x̄)                       plain
                 y_i ← y_i + λ_0 (x_i − x̄);  g_i as above, plus y_i          augmented
                 d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω),
                 g_i = d_i + λ_t (x_i − x̄)                                   stochastic
                 s_i = argmin over s in D of ⟨g_i, s⟩
                 x_i ← (1 − η_i) x_i + η_i s_i
                 sends s_i, and ‖g_i‖ once if λ_0 is to find itself
        server   x̄ ← x̄ + (1/n) Σ over S of η_i (s_i − x_i)

    k ``local_steps`` are k of the client's lines against one x̄, and k atoms. With
    ``step_count = "own"`` the convex schedule's t is 1 + k_i for client i, which has
    taken k_i steps that were used, and in λ_t 1 + the mean of all k_i; with "round" it
    is that of the round, one η_t for all.

    With everybody in S and one η the server's step is x̄ ← (1 − η) x̄ + (η / n) Σ s_i: n
    atoms, which is how x̄ travels back to the clients. The server knows every x_i
    without ever seeing one, because it can replay it from the s_i it used; so it can
    take the exact step when clients sit out or answers are lost, and give a client that
    lost its state x_i (and y_i) back. A gradient average d_i that is lost starts again
    with ρ = 1.

    Source: arXiv 2408.10090, algorithm 1 with its variants FedFW+ and FedFW-sto, §4.2
    (participation), §4.3 (clients with a larger D_i of their own). Own steps, several
    steps a round and λ_0 by itself are ours.

    Notes
    -----
    Nothing of this is private: from what it replays the server can compute gradients
    of f_i, see ``docs/fedfw.md``.

    The matching client is ``FedFWClient(context, objective, domain)``. No theory covers
    FedFW-sto with p < 1 or on non-convex losses, or clients with steps of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedFWClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedFW
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return FedFWClient(context, loss, L1Ball(1.0))
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = FedFW(L1Ball(1.0))
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=30)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1., 0., 0.])
    """

    name = "fedfw"
    about = "federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto"
    _state_settings = ("variant", "correction")
    _least_answers = 1
    _private_mechanism = "exponential"
    _free_to_change = ("penalty",)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start the variant's half, with every client at the initial model."""
        self._settle_domains(layout.point_shape)
        if not self.domain.contains(point, rounding(layout.point_dtype)):
            log(WARNING, "The initial model lies outside %r", self.domain)
        kind = PaperSteps if self.variant in PAPERS else CorrectiveSteps
        self.half: PaperSteps | CorrectiveSteps = kind(self)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What the variant's client needs for its answer."""
        return self.half.instruction(server_round, client)

    def audience(self, server_round: int, client: str) -> Hashable:
        """What of a client the variant's steps depend on."""
        return self.half.audience(client)

    def check(self, answer: Answer) -> Any:
        """What the variant makes of an answer."""
        return self.half.check(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Take the variant's server step, and replay every used client's."""
        return self.half.aggregate(server_round, answers)

    def _client_iterate(self, client: str) -> FloatArray:
        """x_i as the server replays it, a new array."""
        return self.half._client_iterate(client)

    def _result_point(self) -> FloatArray:
        """x̄, which the corrective variant does not send."""
        return self.half.model

    def converged(self) -> bool:
        """Whether the corrective variant's residuals are within the tolerance."""
        return self.half.converged()

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """What the broadcast has, or for an evaluation x̄ where that is not the same."""
        if not entries.pop(_EVALUATED, False):
            return super()._model_for(client, entries)
        layout = self.broadcast.layout
        parts = sparse_or_dense(layout.to_wire(self.half.model))
        return array_record(parts, join=True), {
            "model-encoding": "dense" if len(parts) == 1 else "sparse",
            **layout.entries(),
            "model-version": self.broadcast.version,
            # what the client keeps is z
            "keep-model": False,
        }

    def _evaluate_clients(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> MetricRecord | None:
        """Mean of the clients' metrics at x̄."""
        if self.half.model is self.broadcast.model:
            return super()._evaluate_clients(
                conversation, server_round, config, timeout
            )
        entries = {name: {**config, _EVALUATED: True} for name in self.clients}
        answers = conversation.ask(server_round, "evaluate", entries, timeout)
        return self._mean_evaluation(answers)

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        """x_i, and what else of the variant's state the server can replay."""
        return self.half.client_state(client)

    def state(self) -> dict[str, NDArray[Any]]:
        """What the server replays, for a checkpoint."""
        return self.half.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.half.load_state(state)
