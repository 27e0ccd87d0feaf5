"""HyFEM: hybrid federated learning by matching local models with a global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray

from .hybrid_fedavg import HybridFedAvg

__all__ = ["HyFEM"]


class HyFEM(HybridFedAvg):
    """Local models of each client's own features, pulled towards a global model.

    Minimises over the local models w_k and the global model w, without encryption::

        Σ_k [ (1/n_k) Σ_i l(x_{k,i}ᵀ w_k; y_i) + (λ/2)‖w_k‖² ]
            + (μ/2) Σ_k ‖w_k − w|_{M_k}‖²

    by turns, M_k being client k's features. In round t::

        client k  from its own w_k, H times, with i drawn from its labelled samples:
                      w_k ← w_k − γ_t (λ w_k − u x_{k,i}),  −u ∈ ∂l(x_{k,i}ᵀ w_k; y_i)
                      w_k ← (w_k + γ_t μ w|_{M_k}) / (1 + γ_t μ),   γ_t = a / (b + √t)
        server    w_j ← the mean over all holders of feature j of their last w_{k,j}

    The server's step is the exact minimiser for fixed w_k; the local model of a client
    that has not answered yet is the initial one. μ = 0: the w_k are independent, and w
    is their mean; for μ → ∞ they agree. In between the solution is neither the local
    optima nor, unless the data is horizontal, the minimum of
    P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), by which w is evaluated.

    Source: Zhang, Yin, Hong and Chen, "Hybrid Federated Learning: Algorithms and
    Implementation", NeurIPS-SpicyFL 2020, arXiv 2012.12420. From the paper: local
    models on the features that a client has, beside a global model at the server; the
    objective, local losses plus μ times how far the local models are from the parts of
    the global one that they are matched with; block coordinate descent, local SGD
    first, then the server's matching; labels that stay with the clients. There a
    model is a network: a feature extractor for each part of the data, averaged over
    its holders, and a classifier whose hidden units first have to be matched between
    clients. In a linear model the extractor is the identity and the classifier the
    vector of weights, one for each named feature: the matching is known, and what is
    left of the server's step is the mean over the holders, as the authors' programs
    have it for a classifier's last layer. Those add μ times the norm of the difference,
    not squared, with a fixed μ = 0.5.

    Ours: the batch of one and γ_t, as in the comparison of Overman, Blum and Klabjan,
    arXiv 2210.08106, appendix 7.3, for whom HyFEM is one round trip a round, FedAvg's
    steps and μ; λ; the penalty by its proximal map, as a plain gradient step would
    diverge for γ_t μ > 2; the last w_k of clients that are away, where the paper's
    theory has everybody in every round.

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed; before round 1 also if clients
        and model do not fit together, or no client has any label.

    Notes
    -----
    The matching client is ``HyFEMClient(context, features, feature_names, sample_ids,
    labels, loss)``. Clients keep w_k between rounds; one that lost it is given it back.
    Clients without labels have no local model. Metrics of a round: ``disagreement``,
    Σ_k ‖w_k − w|_{M_k}‖² after it. The server sees every w_k.

    Examples
    --------
    Two nodes have the same 20 samples, and two of the four features each:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import HyFEMClient
    >>> from fedtrellis.strategies import HyFEM
    >>> X = np.random.default_rng(0).normal(size=(20, 4))
    >>> y = np.sign(X.sum(axis=1))
    >>> ids = [f"patient-{i}" for i in range(20)]
    >>> def client_fn(context):
    ...     own = [0, 1] if context.node_config["partition-id"] == 0 else [2, 3]
    ...     names = [f"feature-{j}" for j in own]
    ...     return HyFEMClient(context, X[:, own], names, ids, y)
    >>> strategy = HyFEM(loss="logistic")
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=2)
    >>> result = strategy.start(grid, ArrayRecord([np.zeros(4)]), num_rounds=20)
    >>> w = result.arrays.to_numpy_ndarrays()[0]
    >>> bool((np.sign(X @ w) == y).mean() > 0.85)
    True
    """

    name = "hyfem"
    about = "feature matching of local models, a baseline of hyfdca"

    stateful = True

    matching: float = setting(
        1.0,
        "weight of the distance between local models and the global one",
        note="the search of arXiv 2210.08106 is over [10⁻², 10⁴]",
        symbol="μ",
        minimum=0.0,
    )

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Learn who has which features; every local model starts as the initial w."""
        if self._alignment is not None:
            return  # a run that goes on
        super().prepare(conversation, timeout)
        w = self.broadcast.model
        self._local = {
            name: w[self.alignment.columns[name]].copy()
            for name in self.clients
            if name in self._labelled
        }

    def local_model(self, client: str) -> FloatArray:
        """The w_k that the global model counts, a new array."""
        return self._local[client].copy()

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """w_k, which the server knows as well as the client."""
        if self._alignment is None:
            return {}, {}
        return {"w": self._local[client]}, {}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The weights of the client's features, its local steps, and μ."""
        return {
            **super().instruction(server_round, client),
            "matching": self.matching,
        }

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average all clients' last local models at each feature."""
        self._local.update(answers)
        w = self._matched(self._local)
        self.broadcast.replace(w)
        distances = [
            w_k - w[self.alignment.columns[name]] for name, w_k in self._local.items()
        ]
        return {"disagreement": float(sum(np.vdot(d, d) for d in distances))}

    def state(self) -> dict[str, NDArray[Any]]:
        """Who holds which features, who has labels, and every w_k."""
        return {
            **super().state(),
            **{f"local/{name}": w_k for name, w_k in self._local.items()},
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        self._local = {
            name: np.array(state[f"local/{name}"])
            for name in self.clients
            if name in self._labelled
        }
