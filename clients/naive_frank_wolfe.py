"""The client's half of the naive federated Frank-Wolfe."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import pack_atoms
from fedtrellis.domains.description import describe
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import MethodClient, evaluate_objective

__all__ = ["NaiveFrankWolfeClient"]


class NaiveFrankWolfeClient(MethodClient):
    """Answers with the oracle of its own gradient at x̄; see ``NaiveFrankWolfe``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``.
    domain : Domain
        D.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import NaiveFrankWolfeClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return NaiveFrankWolfeClient(context, loss, L1Ball(1.0))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        self.context = context
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The atom s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩."""
        layout = Layout.of(parameters)
        x = layout.objective_point(layout.point(parameters))
        gradient = layout.objective_gradient(self.objective.gradient(x))
        atom = self.domain.lmo(gradient).of_dtype(layout.point_dtype)
        return pack_atoms([atom]), 0, {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x̄) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
