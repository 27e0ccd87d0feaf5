"""The client's half of FedFW, FedFW+ and FedFW-sto."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import PackedAtoms
from fedtrellis.domains.description import describe
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.local_work import Steps

from .corrective import correct
from .paper import oracle_steps

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
        self.objective = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The round's steps from x_i: s_i of each, or what they correct of x_i."""
        if config.get("variant") == "corrective":
            layers = self.layout.layers(x)
            arrays, self.numbers = correct(
                self.objective, self.domain, layers, config, self.state
            )
            return arrays, 0, {}
        atoms = yield from oracle_steps(self, x, self.domain, config)
        return PackedAtoms(atoms), 0, {}
