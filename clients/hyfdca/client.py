"""The client of HyFDCA: which function answers which phase; scores of new samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import shares, targets_of
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray

from . import preparation, proposals
from .preparation import learn
from .run import ClientRun, NodeRules, Predictions, SplitPart, as_arrays


def predictions_of(
    loss: DualLoss, sample_ids: Sequence[str], scores: FloatArray
) -> Predictions:
    """Predict from scores, (n,) or (n, C)."""
    several = scores.ndim == 2
    there = ~np.isnan(scores if not several else scores.sum(axis=1))
    if several:
        predicted = np.where(there[:, None], scores, 0.0).argmax(axis=1)
    elif loss.labels == "signs":
        predicted = np.where(scores >= 0.0, 1.0, -1.0)
    else:
        predicted = np.exp(scores) if loss.labels == "counts" else scores
    predicted = np.where(there, predicted, np.nan)
    probabilities = shares(scores) if loss.name == "logistic" else None
    return Predictions(sample_ids, scores, predicted, probabilities)


def new_products(run: ClientRun) -> list[NDArray[Any]]:
    """enc(x_{k,i}ᵀ w_k) of the new samples."""
    learn(run)
    assert run.part.new_samples is not None
    features = run.part.new_samples.features
    columns = run.standardized(features, run.new_rows, new=True)
    products = np.stack([columns @ own for own in run.w])
    blobs: list[bytes] = []
    for g, rows in run.new_rows.items():
        holders = run.agreement.holders(g, new=True)
        label = ("new-product", g, run.config["prediction"])
        blobs += run.encrypt(holders, label, products[:, rows].reshape(-1))
    return as_arrays(blobs)


def evaluate(run: ClientRun) -> tuple[float, int, dict[str, Any]]:
    """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

    The server reads the two means.
    """
    learn(run)
    part, C = run.part, run.config["classes"]
    new = part.new_samples
    assert new is not None
    n = len(new.sample_ids)
    scores = np.full((C, n), np.nan)
    for g, rows in run.new_rows.items():
        if blobs := run.config.get(f"scores/{g}"):
            holders = run.agreement.holders(g, new=True)
            label = ("new-product", g, run.config["prediction"])
            sums = run.decrypt(holders, blobs, label, C * len(rows))
            scores[:, rows] = sums.reshape(C, len(rows))
    y = np.full(n, np.nan) if new.labels is None else np.asarray(new.labels, float)
    found = scores[0] if C == 1 else scores.T.copy()
    predictions = predictions_of(run.loss, new.sample_ids, found)
    if part.on_predictions is not None:
        part.on_predictions(predictions)
    if file := part.context.node_config.get("scores-file"):
        predictions.write(str(file))
    return _measured(run, scores, y)


def _measured(
    run: ClientRun, scores: FloatArray, y: FloatArray
) -> tuple[float, int, dict[str, Any]]:
    """Mean loss, samples and accuracy, of groups with ``least`` labels or more."""
    known, least = ~np.isnan(y) & ~np.isnan(scores[0]), run.rules.least
    for rows in run.new_rows.values():
        if known[rows].sum() < least:
            # which groups are scored depends on who is there: a mean with this one and
            # a mean without it would give single losses away
            known[rows] = False
    if known.sum() < least:
        return 0.0, 0, {}
    y, z = y[known], scores[:, known]
    metrics = {}
    if run.loss.labels == "signs":
        found = z.argmax(axis=0) if len(z) > 1 else np.where(z[0] >= 0.0, 1.0, -1.0)
        metrics["accuracy"] = float((found == y).mean())
    # Σ over the classes, each against the rest
    losses = run.loss.value(z, targets_of(y, len(z)))
    return float(losses.sum(axis=0).mean()), int(known.sum()), metrics


# What a phase returns.
Fit = tuple[list[NDArray[Any]], int, dict[str, Any]]
Phase = Callable[["HyFDCAClient", list[NDArray[Any]], dict[str, Any]], Fit]


def _phase(function: Callable[[ClientRun], list[NDArray[Any]]]) -> Phase:
    """Make a method of a function of a :class:`ClientRun` that returns arrays."""

    def fit(
        self: HyFDCAClient, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        run = ClientRun(self, config, parameters)
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
        What ``client_fn`` was given. Its node config may name, as PATHs, where the
        new samples' predictions are written, ``scores-file``, and what is not given
        here: ``key-file``, or ``identity-file`` and ``roster-file``
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
    hides_by_itself = True

    @property
    def announcement(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What the server learns before round 1: kind of key, noise and weights."""
        noisy = ClientRun(self, {}).rules.noise > 0.0
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
    fit_new_products = _phase(new_products)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores of the new samples, and what the server reads of them."""
        return evaluate(ClientRun(self, config, parameters))
