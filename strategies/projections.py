"""Methods on a convex set that project an average: FedAvg's, and Douglas-Rachford's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.settings import given, setting
from fedtrellis.wire.arrays import FloatArray, Layout

from ._entries import entries_of
from .fedavg import LocalModels

__all__ = ["FedDR", "ProjectedFedAvg"]


class ProjectedFedAvg(LocalModels):
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

    domain: Domain = given("D", kw_only=False)
    local_steps: int = setting(
        5, "gradient steps of a client in a round", symbol="k", minimum=1
    )
    local_step_size: float = setting(0.1, "their size", symbol="γ", above=0.0)
    batch_size: int = setting(0, "examples in a local mini-batch; 0: all", minimum=0)

    def _check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps."""
        return entries_of(self, "local_steps", "local_step_size", "batch_size", "seed")

    def audience(self, server_round: int, client: str) -> None:
        """All of them are sent the same."""

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average and project."""
        mean = self.mean_of(answers, self.broadcast.model)
        self.broadcast.replace(self.domain.project(mean))
        return {}


class FedDR(ProjectedFedAvg):
    """Randomised Douglas-Rachford splitting for min F(x) over x in D.

    ::

        client   y_i ← y_i + α (x̄ − x_i)
                 x_i ≈ prox_{η f_i}(y_i) = argmin_x f_i(x) + ‖x − y_i‖²/(2η)
                 sends x̂_i = 2 x_i − y_i
        server   x̄ = P_D( (1/n) Σ_i x̂_i ), with the last x̂_i of those who sat out

    The proximal operator is solved by k gradient steps of size γ from the client's x_i.

    Source: Tran Dinh, Pham, Phan, Nguyen, "FedDR", NeurIPS 2021, algorithm 1, with g
    the indicator of D, whose proximal operator is the projection.

    Notes
    -----
    The matching client is ``FedDRClient(context, objective)``. A client that lost its
    state starts again at x_i = y_i = x̂_i, which is the x̂_i that the server counts.

    Examples
    --------
    Run as :class:`ProjectedFedAvg` is, with ``FedDRClient`` on the nodes:

    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import FedDR
    >>> FedDR(L1Ball(1.0), proximal_step=1.0).relaxation
    1.95
    """

    name = "feddr"
    about = "federated Douglas-Rachford splitting"
    # of every client the last is kept
    needs = "each"
    _least_answers = 1
    stateful, _newcomers = True, False

    relaxation: float = setting(
        1.95,
        "relaxation; 1.95 in the authors' experiments",
        symbol="α",
        above=0.0,
        below=2.0,
    )
    proximal_step: float = setting(
        10.0, "step of the proximal operator", symbol="η", above=0.0
    )
    local_steps: int = setting(
        20, "gradient steps of a client in a round", symbol="k", minimum=1
    )
    local_step_size: float = setting(
        0.1,
        "their size",
        note="the steps contract when γ < 2 / (L + 1/η), L the Lipschitz constant of "
        "∇f_i",
        symbol="γ",
        above=0.0,
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with every x̂_i at the initial model."""
        start = self.broadcast.model
        self._reflections = {name: start.copy() for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Relaxation, proximal step and local steps."""
        steps = super().instruction(server_round, client)
        return entries_of(self, "relaxation", "proximal_step") | steps

    def audience(self, server_round: int, client: str) -> None:
        """All of them are sent the same."""

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Project the mean of all clients' last x̂_i."""
        self._reflections.update(answers)
        # x̃ = (1/n) Σ x̂_i;  x̄ = P_D(x̃); in the clients' order, whoever answered
        points = [self._reflections[name] for name in self.clients]
        mean = self.average(points, self.broadcast.model)
        self.broadcast.replace(self.domain.project(mean))
        return {}

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """A state whose x̂ = 2x − y is the one that the server has."""
        reflection = self._reflections[client]
        return {"x": reflection, "y": reflection}

    def state(self) -> dict[str, NDArray[Any]]:
        """Every client's x̂_i."""
        return dict(self._reflections)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._reflections = {name: np.array(state[name]) for name in self.clients}
