"""FedAvg on data that is split by samples and features, naively, and HyFEM."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.server.aggregation import Aggregation, Mean
from fedtrellis.server.conversation import Answer, Conversation
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from .hybrid import ROWS, HybridStrategy


class HybridFedAvg(HybridStrategy, RoundStrategy):
    """Local SGD on each client's own features, averaged where clients share them.

    For min over w of P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), where client k has of
    its n_k samples the features M_k only. It takes their part of the score for all of
    it. In round t::

        client k  w_k = w|_{M_k};  H times, with i drawn from its labelled samples:
                      w_k ← w_k − γ_t (λ w_k − u x_{k,i}),  −u ∈ ∂l(x_{k,i}ᵀ w_k; y_i)
                      γ_t = a / (b + √t)
        server    w_j ← the mean of w_{k,j} over the round's clients with feature j

    A feature whose holders are all away keeps its weight. With horizontal data this is
    FedAvg. Otherwise it solves another problem than P: every client fits the labels
    alone, and the scores, which are sums over a sample's holders, come out too large.

    Source: Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated
    Learning", AAAI 2024, arXiv 2210.08106, section 2 and appendix 7.3, the baseline
    FedAvg: "computing client weights locally, as before, then concatenating the model
    weights and averaging at the overlaps", batch size one and γ_t = a/(b + √t). We take
    t for the round, draw with replacement, and give clients equal weights.

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed; before round 1 also if clients
        and model do not fit together, or no client has any label.

    Notes
    -----
    The matching client is ``HybridFedAvgClient(context, features, feature_names,
    sample_ids, labels, loss)``. Clients without labels are never asked; a feature that
    nobody else holds keeps its initial weight. One round trip a round, nothing
    encrypted: the server sees every w_k, and of the samples whether a client has
    labels.

    Examples
    --------
    Two nodes have the same 20 samples, and two of the four features each:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import HybridFedAvgClient
    >>> from fedtrellis.strategies import HybridFedAvg
    >>> X = np.random.default_rng(0).normal(size=(20, 4))
    >>> y, ids = np.sign(X.sum(axis=1)), [f"patient-{i}" for i in range(20)]
    >>> def client_fn(context):
    ...     own = [0, 1] if context.node_config["partition-id"] == 0 else [2, 3]
    ...     names = [f"feature-{j}" for j in own]
    ...     return HybridFedAvgClient(context, X[:, own], names, ids, y)
    >>> strategy = HybridFedAvg(loss="logistic", step_size=0.1)
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=2)
    >>> result = strategy.start(grid, ArrayRecord([np.zeros(4)]), num_rounds=20)
    >>> w = result.arrays.to_numpy_ndarrays()[0]
    >>> bool((np.sign(X @ w) == y).mean() > 0.85)
    True
    """

    name = "hybrid-fedavg"
    about = "FedAvg of each node's own features, a baseline of hyfdca"
    # features have different holders
    needs = "each"
    # a feature of too few answers keeps its weight
    _least_answers = 1

    stateful = False
    match_samples = False
    _kept: tuple[str, ...] = ("_alignment", "_labelled")

    # nobody waits for those who did not answer, so nobody is asked twice
    retries: int = given("requests of a round are not repeated", default=0, shown=False)
    local_steps: int = setting(
        100,
        "stochastic gradient steps of a client in a round",
        note="the paper's is ⌈IIC · N/(KQ)⌉ with N/(KQ) samples a client and IIC up "
        "to 5",
        symbol="H",
        minimum=1,
    )
    step_size: float = setting(
        0.1,
        "of γ_t = a/(b + √t)",
        note="the paper's search is over [10⁻⁵, 25]. Steps that are too long end the "
        "run with an error that says so",
        symbol="a",
        above=0.0,
    )
    step_offset: float = setting(
        1.0,
        "of γ_t = a/(b + √t)",
        note="the paper's search is over [10⁻⁵, 25]",
        symbol="b",
        minimum=0.0,
    )

    def _admits(self, kind: type[Aggregation]) -> bool:
        """The mean: most features have too few holders for a robust rule."""
        return issubclass(kind, Mean) and kind.seen_by != "client"

    # ------------------------------------------------------------------ before round 1

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing is known yet of features and labels."""
        super().setup(point, layout)
        self._labelled: set[str] = set()

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Learn who has which features, and who has labels to learn from."""
        if self._alignment is not None:
            return  # a run that goes on
        entries = {"loss": self.loss, "smoothing": self.smoothing}
        rest = self.align_clients(entries)
        self._labelled = {name for name in self.clients if rest[name][0].any()}
        if not self._labelled:
            raise SettingsError("no client has a label to learn from")
        columns = [self.alignment.columns[name] for name in self._labelled]
        size = self.broadcast.model.size
        holders = np.bincount(np.concatenate(columns), minlength=size)
        unlearnt = int((holders == 0).sum())
        if unlearnt:
            log(
                WARNING,
                "%d of %d features are held by clients without labels only: "
                "their weights stay as they are",
                *(unlearnt, size),
            )

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Check that it is one flag: whether the client has labels."""
        if [array.shape for array in rest] != [(1,)]:
            raise ValueError("the answer to the alignment is malformed")

    # ---------------------------------------------------------------------- the rounds

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round that have labels."""
        drawn = super().sample(server_round)
        return [name for name in drawn if name in self._labelled]

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The weights of the client's features, and its local steps."""
        return {
            ROWS: self.own(client, self.broadcast.model),
            "loss": self.loss,
            "smoothing": self.smoothing,
            "regularization": self.regularization,
            "local-steps": self.local_steps,
            "step-size": self.step_size,
            "step-offset": self.step_offset,
            "seed": self.seed,
        }

    def check(self, answer: Answer) -> FloatArray:
        """The local model w_k."""
        columns = self.alignment.columns[answer.client]
        return self.take_point(answer, self.broadcast.model[columns])

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models at each feature."""
        self.broadcast.replace(self._matched(answers))
        return {}

    def _matched(self, local: Mapping[str, FloatArray]) -> FloatArray:
        """The average of some local models at each feature; w where none has it."""
        w = self.broadcast.model
        # in the clients' order, whoever answered first
        names = [name for name in self.clients if name in local]
        points, held = np.zeros((len(names), w.size)), np.zeros((len(names), w.size))
        for row, name in enumerate(names):
            columns = self.alignment.columns[name]
            points[row, columns], held[row, columns] = local[name], 1.0
        counts = held.sum(axis=0)
        # w_j ← (1/|S_j|) Σ over S_j of w_{k,j}
        return np.where(counts > 0.0, points.sum(axis=0) / np.maximum(counts, 1.0), w)


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
    Implementation", NeurIPS-SpicyFL 2020, arXiv 2012.12420: the objective, and block
    coordinate descent by local SGD and the server's matching. There a model is a
    network, whose hidden units first have to be matched between clients. In a linear
    model the features' names say how, and what is left of the server's step is the mean
    over the holders, as the authors' programs have it for a classifier's last layer.
    Those add μ times the norm of the difference, not squared, with a fixed μ = 0.5.

    Ours: the batch of one and γ_t, as in the comparison of arXiv 2210.08106, appendix
    7.3; λ; the penalty by its proximal map, as a plain gradient step would diverge for
    γ_t μ > 2; the last w_k of clients that are away, where the paper's theory has
    everybody in every round.

    Notes
    -----
    The matching client is ``HyFEMClient(context, features, feature_names, sample_ids,
    labels, loss)``. Clients keep w_k between rounds; one that lost it is given it back.
    Clients without labels have no local model. Metrics of a round: ``disagreement``,
    Σ_k ‖w_k − w|_{M_k}‖² after it. The server sees every w_k. Errors are those of
    :class:`HybridFedAvg`.

    Examples
    --------
    It runs as in the example of :class:`HybridFedAvg`, on nodes with ``HyFEMClient``:

    >>> from fedtrellis.strategies import HyFEM
    >>> strategy = HyFEM(loss="logistic", matching=10.0)
    """

    name = "hyfem"
    about = "feature matching of local models, a baseline of hyfdca"

    stateful = True
    _kept = (*HybridFedAvg._kept, "_local")

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
        self._local = {
            name: self.own(name, self.broadcast.model)[0]
            for name in self.clients
            if name in self._labelled
        }

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """w_k, which the server knows as well as the client."""
        return ({} if self._alignment is None else {"w": self._local[client]}), {}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The weights of the client's features, its local steps, and μ."""
        asked = super().instruction(server_round, client)
        return {**asked, "matching": self.matching}

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average all clients' last local models at each feature."""
        self._local.update(answers)
        self.broadcast.replace(self._matched(self._local))
        w = self.broadcast.model
        distances = [w_k - self.own(name, w)[0] for name, w_k in self._local.items()]
        return {"disagreement": float(sum(np.vdot(d, d) for d in distances))}
