"""The clients' half of FedAvg and HyFEM for data split by samples and features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.local_steps import check_steps
from fedtrellis.objectives.losses import make_loss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray

from .hybrid import SplitClient

IntArray = NDArray[np.int64]


class HybridFedAvgClient(SplitClient):
    """Takes local SGD steps on its own features; see ``HybridFedAvg``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    features : ndarray or scipy sparse array of shape (n_k, p_k)
        x_{k,i}: what this client knows of its samples. Load or make it behind a
        module-level ``functools.lru_cache``.
    feature_names : sequence of str
        Names of the columns, the same on every client that holds the feature.
    sample_ids : sequence of str
        Ids of the rows, as ``HyFDCAClient`` takes them; they are not used or sent.
    labels : ndarray of shape (n_k,), optional
        y_i; NaN where this client has none. Only labelled samples are learnt from.
    loss : str, optional
        The loss that this client agrees to; by default the server's.

    Notes
    -----
    No state. What is drawn depends on the run's seed, the client and the round alone.

    Examples
    --------
    A hospital that has two of its patients' features, and the labels:

    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import HybridFedAvgClient
    >>> def client_fn(context):
    ...     X, y = np.ones((2, 2)), np.array([1.0, -1.0])
    ...     ids = ["patient-1", "patient-2"]
    ...     return HybridFedAvgClient(context, X, ["age", "dose"], ids, y)
    >>> app = client_app(client_fn)
    """

    def fit_align(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Names of the features, and whether there are labels; asked before round 1.

        SettingsError: data and settings do not fit; one line says what.
        """
        self.check_data(config)
        names = np.frombuffer("\n".join(self.feature_names).encode(), dtype=np.uint8)
        return [names, np.array([len(self._labelled()) > 0], dtype=np.uint8)], 0, {}

    def _labelled(self) -> IntArray:
        """The rows that have a label."""
        if self.labels is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(~np.isnan(np.asarray(self.labels, np.float64)))

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The local model w_k after H steps from the server's weights."""
        (rows,) = parameters
        return [self.descend(rows[0], config)], 0, {}

    def descend(
        self,
        start: FloatArray,
        config: Mapping[str, Any],
        pull: FloatArray | None = None,
    ) -> FloatArray:
        """H steps of SGD, batch size one, on (λ/2)‖w_k‖² + the mean of local losses.

        From ``start``, of shape (p_k,), which stays as it is. With ``pull``, w̄ of the
        same shape, each step ends with the proximal map of γ_t (μ/2)‖w_k − w̄‖²,
        ``config``'s ``matching`` being μ. A FloatingPointError: the steps have carried
        w_k away from all proportion to w.
        """
        loss = make_loss(config["loss"], config["smoothing"])
        labelled = self._labelled()
        rng = generator(
            config["seed"], "mini-batch", self.client_id, config["server-round"]
        )
        drawn = labelled[rng.integers(len(labelled), size=config["local-steps"])]
        labels = np.asarray(self.labels, np.float64)[drawn, None]
        # γ_t = a / (b + √t)
        root = sqrt(config["server-round"])
        gamma = config["step-size"] / (config["step-offset"] + root)
        shrink = 1.0 - gamma * config["regularization"]
        closer = 0.0
        if pull is not None:
            closer = gamma * config["matching"] / (1.0 + gamma * config["matching"])
        w = np.array(start, dtype=np.float64)
        # what overflows on the way is reported once, by the error
        with np.errstate(over="ignore", invalid="ignore"):
            for y, (where, x) in zip(labels, _rows(self.features, drawn), strict=True):
                # w_k ← w_k − γ_t (λ w_k − u x_{k,i}),  −u ∈ ∂l(x_{k,i}ᵀ w_k; y_i)
                u = loss.dual_point(np.atleast_1d(x @ w[where]), y)
                w *= shrink
                w[where] += gamma * u * x
                if pull is not None:
                    # w_k ← (w_k + γ_t μ w̄) / (1 + γ_t μ)
                    w += closer * (pull - w)
        # HyFEM's own model goes on from itself; the server looks at its proportion to w
        check_steps(w, start if pull is None else pull, config)
        return w


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


def _rows(features: Any, drawn: IntArray) -> Iterator[tuple[Any, FloatArray]]:
    """The drawn rows one by one: where they have entries, and these."""
    if isinstance(features, np.ndarray):
        for row in drawn:
            yield slice(None), features[row]
        return
    # only where the data is sparse is this loaded at all
    from scipy.sparse import csr_array

    batch: Any = csr_array(features)[drawn]
    batch.sum_duplicates()
    for start, stop in zip(batch.indptr[:-1], batch.indptr[1:], strict=True):
        yield batch.indices[start:stop], batch.data[start:stop]
