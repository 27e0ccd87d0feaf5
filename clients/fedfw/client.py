"""The client's half of FedFW, FedFW+ and FedFW-sto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import PackedAtoms, pack_atoms
from fedtrellis.domains.description import describe
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.client import StatefulClient, evaluate_objective

from .cohort import take_steps_together
from .corrective import correct
from .paper import take_steps

__all__ = ["FedFWClient"]


class FedFWClient(StatefulClient):
    """One client of federated Frank-Wolfe; see ``FedFW`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, for the stochastic variant
        ``stochastic_gradient(x, rng, batch_size)``, and for evaluation ``value(x)`` and
        ``num_examples``. ``x`` is one ndarray, or the list of the model's arrays.
    domain : Domain
        D, or this client's own D_i ⊇ D (§4.3: a set with a cheaper oracle, or with
        smaller atoms), which the strategy has to know of (``client_domains``). The
        intersection of all D_i must be D.

    Notes
    -----
    State: x (x_i), y (y_i, FedFW+), d (d_i, FedFW-sto).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedFWClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FedFWClient(context, loss, L1Ball(1.0))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        super().__init__(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The round's steps from x_i: s_i of each, or what they correct of x_i."""
        if config.get("variant") != "corrective":
            return pack_atoms(take_steps(self, parameters, config)), 0, {}
        arrays, self.numbers = correct(
            self.objective, self.domain, parameters, config, self.state
        )
        return arrays, 0, {}

    @classmethod
    def fit_many(
        cls,
        clients: Sequence[Self],
        parameters: Sequence[list[NDArray[Any]]],
        config: dict[str, Any],
    ) -> list[tuple[PackedAtoms, int, dict[str, Any]]] | None:
        """The steps of many clients at once, of the variants with full gradients."""
        plain = config.get("variant", "plain") in ("plain", "augmented")
        if not plain or "lmo-noise" in config or "privacy-clip" in config:
            return None
        return take_steps_together(clients, parameters, config)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x̄) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
