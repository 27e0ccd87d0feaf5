"""The client of HyFDCA: its parts, and which function answers which phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from . import preparation, proposals, scoring
from .run import HOLDING, ClientRun, NodeRules, SplitPart

__all__ = ["HyFDCAClient"]

# What a phase returns.
Fit = tuple[list[NDArray[Any]], int, dict[str, Any]]
Phase = Callable[["HyFDCAClient", list[NDArray[Any]], dict[str, Any]], Fit]


def _phase(function: Callable[[ClientRun], list[NDArray[Any]]]) -> Phase:
    """Make a method of a function of a :class:`ClientRun` that returns arrays."""

    def fit(
        self: HyFDCAClient, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        run = self.run_of(parameters, config)
        arrays = function(run)
        self.numbers = run.numbers
        return arrays, 0, {}

    fit.__doc__ = function.__doc__
    return fit


class HyFDCAClient(SplitPart):
    """One client of HyFDCA; see ``HyFDCA`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given. Its node config may name, as PATHs, what is not
        given here: ``key-file``, or ``identity-file`` and ``roster-file``
        (``fedtrellis-keys``), and ``ledger``; and it may have the node's rules, those
        of :class:`~clients.hyfdca.run.NodeRules`.
    features : ndarray or scipy sparse array of shape (n_k, p_k)
        x_{k,i}: what this client knows of its samples. Load or make it behind a
        module-level ``functools.lru_cache``.
    feature_names : sequence of str
        Names of the columns, the same on every client that holds the feature.
    sample_ids : sequence of str
        Ids of the rows, the same on every client that holds the sample. They do not
        leave this client in the clear. The order must not change during a run.
    labels : ndarray of shape (n_k,), optional
        y_i; NaN where this client has none. One holder of a sample is enough. With
        ``classes`` = C, the number of the class, from 0 to C − 1.
    loss : str, optional
        The loss that this client agrees to; by default the server's.
    key : Cipher or path, optional
        A key that all clients have. Without it and without an identity the clients of
        one machine make a key for the run: for simulations.
    new_samples : NewSamples, optional
        Samples to score with the model (``client_evaluate_every`` of the strategy), of
        which this client has these features.
    on_scores : callable, optional
        Given the new samples' ids and their scores xᵀw, of shape (n,) or (n, C), NaN
        where another holder did not take part.
    identity : Identity or path, optional
        This client's own, of the name that it has in the run; instead of ``key``.
    roster : Roster or path, optional
        Everybody's public keys; with ``identity``.
    ledger : path, optional
        The private folder in which this client remembers what it has agreed to and
        answered; by default beside its key.
    rules : NodeRules, optional
        Instead of those of the node config.
    on_predictions : callable, optional
        Given the :class:`~clients.hyfdca.run.Predictions` of the new samples:
        scores, classes, and probabilities where there are any.
    weights : ndarray of shape (n_k,), optional
        s_i, what each sample counts: 0 or at least 1e-4; NaN where this client has
        none. One holder of a sample is enough, and if one client has weights every
        sample must have one.

    Notes
    -----
    State, samples in the order of the groups: rows, groups, sizes, holders (the
    alignment), labels, norms (‖x_i‖²), weights and their totals; for each group g the
    proposals that it remembers, ``points/g`` of shape (c, n_g), the last being α, their
    ``ids/g`` and ``step/g``. With the paper's steps ``alpha``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import HyFDCAClient
    >>> def client_fn(context):
    ...     X, ids = np.ones((2, 2)), ["patient-1", "patient-2"]
    ...     return HyFDCAClient(context, X, ["age", "dose"], ids, [1.0, -1.0])
    >>> app = client_app(client_fn)
    """

    #: What a node's owner may set in the node config.
    Rules = NodeRules
    #: A server may give these back to a client that lost them, and nothing else.
    restorable: ClassVar[frozenset[str]] = frozenset((*HOLDING, "agreement"))
    hides_by_itself = True

    def run_of(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> ClientRun:
        """What a phase works with."""
        return ClientRun(
            self, config, parameters[0] if parameters else np.zeros((1, 0))
        )

    @property
    def announcement(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What the server learns before round 1: kind of key, noise and weights."""
        noisy = self.run_of([], {}).rules.noise > 0.0
        found: dict[str, Any] = {"key-kind": self.node.kind, "noisy": noisy}
        return found if self.weights is None else {**found, "weighted": True}

    fit_blind = _phase(preparation.blind)
    fit_evaluate = _phase(preparation.evaluate_points)
    fit_align = _phase(preparation.align)
    fit_agree = _phase(preparation.agree)
    fit_labels = _phase(preparation.send_labels)
    fit_columns = _phase(preparation.send_sums)
    fit_ready = _phase(preparation.ready)
    fit_finish = _phase(preparation.finish)
    fit_inner_product = _phase(proposals.inner_product)
    fit_propose = _phase(proposals.propose)
    fit_backup = _phase(proposals.backup)
    fit_dual = _phase(proposals.dual)
    fit_primal = _phase(proposals.primal)
    fit_new_products = _phase(scoring.new_products)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores of the new samples, and what the server reads of them."""
        return scoring.evaluate(self.run_of(parameters, config))

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Not one of HyFDCA's phases."""
        raise NotImplementedError("HyFDCA has several waves a round: fit_NAME each")
