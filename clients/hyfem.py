"""The client's half of HyFEM."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .hybrid_fedavg import HybridFedAvgClient

__all__ = ["HyFEMClient"]


class HyFEMClient(HybridFedAvgClient):
    """One client of HyFEM; see ``HyFEM`` for the algorithm.

    Parameters are those of :class:`HybridFedAvgClient`.

    Notes
    -----
    State: w (w_k, this client's own model, in the order of its features).

    Examples
    --------
    A hospital that has two of its patients' features, and the labels:

    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import HyFEMClient
    >>> def client_fn(context):
    ...     X, y = np.ones((2, 2)), np.array([1.0, -1.0])
    ...     ids = ["patient-1", "patient-2"]
    ...     return HyFEMClient(context, X, ["age", "dose"], ids, y)
    >>> app = client_app(client_fn)
    """

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The local model w_k after H steps from where it was."""
        (rows,) = parameters
        # matching is by name: the server's weights come in the order of w_k
        w_k = self.descend(self.state["w"], config, pull=rows[0])
        self.state["w"] = w_k
        return [w_k], 0, {}
