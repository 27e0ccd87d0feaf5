"""The client's half of FedOpt."""

from __future__ import annotations

from .local_sgd import LocalSGDClient

__all__ = ["FedOptClient"]


class FedOptClient(LocalSGDClient):
    """Takes FedAvg's local steps; see ``FedOpt``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``stochastic_gradient(x, rng, batch_size)`` and ``num_examples``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedOptClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> loss = LeastSquares(np.eye(3), np.ones(3))
    >>> app = client_app(lambda context: FedOptClient(context, loss))
    """
