"""The client's half of local SGD."""

from __future__ import annotations

from .fedavg_gd import FedAvgGDClient

__all__ = ["LocalSGDClient"]


class LocalSGDClient(FedAvgGDClient):
    """Takes local steps on mini-batches from x; see ``LocalSGD``.

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
    >>> from fedtrellis.clients import LocalSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return LocalSGDClient(context, loss)
    >>> app = client_app(client_fn)
    """
