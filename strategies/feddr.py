"""FedDR: federated Douglas-Rachford splitting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.local_steps import LocalSteps
from fedtrellis.server.answers import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout

from .projected_fedavg import one_point

__all__ = ["FedDR"]


class FedDR(RoundStrategy):
    """Randomised Douglas-Rachford splitting for min F(x) over x in D.

    ::

        client   y_i ← y_i + α (x̄ − x_i)
                 x_i ≈ prox_{η f_i}(y_i) = argmin_x f_i(x) + ‖x − y_i‖²/(2η)
                 sends x̂_i = 2 x_i − y_i
        server   x̄ = P_D( (1/n) Σ_i x̂_i ), with the last x̂_i of those who sat out

    The proximal operator is solved by k gradient steps of size γ from the client's x_i.

    Source: Tran Dinh, Pham, Phan, Nguyen, "FedDR", NeurIPS 2021, algorithm 1, with g
    the indicator of D, whose proximal operator is the projection.

    Parameters
    ----------
    domain : Domain
        D.
    relaxation : float
        α in (0, 2); the authors' experiments use 1.95.
    proximal_step : float
        η > 0.
    local_steps : int
        k.
    local_step_size : float
        γ. The steps contract when γ < 2 / (L + 1/η), L the Lipschitz constant of ∇f_i.
    batch_size : int
        Examples in a local mini-batch; 0: all.
    **options
        Those of :class:`~fedtrellis.server.rounds.RoundStrategy`.

    Notes
    -----
    The matching client is ``FedDRClient(context, objective)``. A client that lost its
    state starts again at x_i = y_i = x̂_i, which is the x̂_i that the server counts.
    """

    keep_model = False

    def __init__(
        self,
        domain: Domain,
        *,
        relaxation: float = 1.95,
        proximal_step: float = 10.0,
        local_steps: int = 20,
        local_step_size: float = 0.1,
        batch_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not 0.0 < relaxation < 2.0:
            raise SettingsError(
                f"relaxation = {relaxation} must be greater than 0 and below 2"
            )
        if not 0.0 < proximal_step < np.inf:
            raise SettingsError(
                f"proximal_step = {proximal_step} must be greater than 0"
            )
        self.domain = domain
        self.relaxation = relaxation
        self.proximal_step = proximal_step
        self.local = LocalSteps(local_steps, local_step_size, batch_size)

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs."""
        return {
            "domain": self.domain,
            "relaxation α": self.relaxation,
            "proximal step η": self.proximal_step,
            "local steps": self.local.count,
            "local step size": self.local.size,
            **super().settings(),
        }

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with every x̂_i at the initial model."""
        start = self.broadcast.model
        self._reflections = {name: start.copy() for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The method's numbers."""
        return {
            "relaxation": self.relaxation,
            "proximal-step": self.proximal_step,
            **self.local.instruction(self.seed),
        }

    def check(self, answer: Answer) -> FloatArray:
        """The reflected point x̂_i."""
        return one_point(answer, self.broadcast.layout.point_shape)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Project the mean of all clients' last x̂_i."""
        self._reflections.update(answers)
        # x̃ = (1/n) Σ x̂_i;  x̄ = P_D(x̃); in the clients' order, whoever answered
        mean = np.mean([self._reflections[name] for name in self.clients], axis=0)
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
