"""Local SGD: FedAvg's local steps on mini-batches."""

from __future__ import annotations

from fedtrellis.settings import setting

from .fedavg_gd import FedAvgGD

__all__ = ["LocalSGD"]


class LocalSGD(FedAvgGD):
    """:class:`FedAvgGD` with a small mini-batch in every local step.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, with
    the settings of Zhou and Li, arXiv 2205.01438, section V.D, for its least squares.

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed.

    Notes
    -----
    The matching client is ``LocalSGDClient(context, objective)``; its objective needs
    ``stochastic_gradient(x, rng, batch_size)`` and ``num_examples``. Batches depend on
    the run's seed, the client and the round alone.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import LocalSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import LocalSGD
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return LocalSGDClient(context, loss)
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = LocalSGD(step_size=0.1, batch_fraction=1.0)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=60)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1.5 , 0.25, 0.  ])
    """

    name = "local-sgd"
    about = "FedAvg with mini-batches, without a constraint"
    space = "whole"

    step_size: float = setting(
        0.005,
        "size of the first local step",
        symbol="a",
        above=0.0,
    )
    batch_fraction: float = setting(
        0.05,
        "part of a client's examples in a mini-batch",
        above=0.0,
        maximum=1.0,
    )
