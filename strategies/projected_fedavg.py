"""FedAvg with a projection after the average."""

from __future__ import annotations

from typing import Any

from fedtrellis.domains import Domain
from fedtrellis.server.answers import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.layout import DTYPES

__all__ = ["ProjectedFedAvg"]


class ProjectedFedAvg(RoundStrategy):
    """Local gradient steps, the mean of the local models, one projection.

    ::

        client   x_i = x̄;  k times:  x_i ← x_i − γ ∇f_i(x_i)
        server   x̄ ← P_D( (1/|S|) Σ over S of x_i )

    The projection commutes neither with the average nor with the local steps, so with
    more than one local step and unequal clients the limit is not the constrained
    minimiser; a baseline.

    Notes
    -----
    The matching client is ``ProjectedFedAvgClient(context, objective)``.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import ProjectedFedAvgClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import ProjectedFedAvg
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return ProjectedFedAvgClient(context, loss)
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = ProjectedFedAvg(L1Ball(1.0))
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=30)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1., 0., 0.])
    """

    name = "projected-fedavg"
    about = "FedAvg with a projection after the average"
    space = "domain"
    needs = "sum"
    dtypes = DTYPES

    stateful = False
    newcomers = True
    keep_model = False

    domain: Domain = given("D", kw_only=False)
    local_steps: int = setting(
        5, "gradient steps of a client in a round", symbol="k", minimum=1
    )
    local_step_size: float = setting(0.1, "their size", symbol="γ", above=0.0)
    batch_size: int = setting(
        0,
        "examples in a local mini-batch; 0: all",
        minimum=0,
    )

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing to prepare: the model is all of the state."""

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps."""
        return {
            "local-steps": self.local_steps,
            "local-step-size": self.local_step_size,
            "batch-size": self.batch_size,
            "seed": self.seed,
        }

    def audience(self, server_round: int, client: str) -> None:
        """All of them are told the same."""

    def check(self, answer: Answer) -> FloatArray:
        """The local model x_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average and project."""
        mean = self.mean_of(answers, self.broadcast.model)
        self.broadcast.replace(self.domain.project(mean))
        return {}
