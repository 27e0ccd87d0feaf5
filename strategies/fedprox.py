"""FedProx: local steps that are held near the server's model."""

from __future__ import annotations

from typing import Any

from fedtrellis.settings import setting

from .fedavg_gd import FedAvgGD

__all__ = ["FedProx"]


class FedProx(FedAvgGD):
    """:class:`FedAvgGD` with a proximal term in the local objectives.

    ::

        client   x_i = x;  k_0 times:  x_i ← x_i − γ_k (∇f_i(x_i) + μ (x_i − x))
        server   x ← (1/|S|) Σ over S of x_i, S those who answered

    The client's steps minimise h_i(x_i) = f_i(x_i) + (μ/2)‖x_i − x‖², so that many of
    them do not carry it off to its own minimiser.

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
    Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, algorithm 2, with k_0
    gradient steps as the inexact minimiser of h_i.

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed.

    Notes
    -----
    The matching client is ``FedProxClient(context, objective)``.

    Flower's own ``FedProx`` cannot stand in for this one: it weighs the local models by
    their numbers of examples, which is another objective than (1/m) Σ f_i, and its
    messages carry neither a session nor the state protocol, so that it neither drives
    these clients nor writes this package's run records.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedProxClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedProx
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return FedProxClient(context, loss)
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = FedProx(step_size=0.1)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=60)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1.5 , 0.25, 0.  ])
    """

    name = "fedprox"
    about = "FedAvg with a proximal term, without a constraint"
    space = "whole"

    proximal_weight: float = setting(
        0.01,
        "weight of the proximal term; 0 is FedAvgGD",
        note="the steps contract while γ_k < 2/(r_i + μ), r_i the Lipschitz constant "
        "of ∇f_i",
        symbol="μ",
        minimum=0.0,
    )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and μ if there is one."""
        entries = super().instruction(server_round, client)
        if self.proximal_weight:
            entries["proximal-weight"] = float(self.proximal_weight)
        return entries

    def audience(self, server_round: int, client: str) -> None:
        """All of them are told the same."""
