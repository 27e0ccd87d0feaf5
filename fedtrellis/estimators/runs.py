"""Runs of the methods behind the estimators, on a grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedtrellis.domains import NonNegativeL1Ball
from fedtrellis.objectives.checks import Array
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid

from .objectives import Distance, SplitLasso
from .partitions import Partitions

__all__ = ["Found", "Grids", "Sums", "dual_ascent", "shared_sums", "sparse_regression"]

#: What ``grid`` of an estimator may be.
Grids = LocalGrid | Callable[[ClientApp, int], Grid] | None

# The constant feature whose weight is the intercept.
_INTERCEPT = "(intercept)"
# Rounds in which everybody could answer.
_ATTEMPTS = 100


@dataclass(frozen=True)
class Found:
    """What a run came to.

    Attributes
    ----------
    coef : ndarray of shape (p,), or (C, p) of more than two classes
    intercept : float, or ndarray of shape (C,)
    objective, bound : float
        The value there, and what no model is below.
    scale : float
        What the method's tolerance counts in: the value there, or at the start.
    history : list of dict
        Of each round what :class:`~fedtrellis.RoundRecord` has.
    """

    coef: Array
    intercept: Any
    objective: float
    bound: float
    scale: float
    history: list[dict[str, Any]]

    @property
    def gap(self) -> float:
        """How far above the minimum the model is at most."""
        return self.objective - self.bound


@lru_cache(maxsize=1)
def _methods() -> tuple[Any, Any]:
    # in a wheel they lie in this package, and only there under these names
    return import_module("fedtrellis.strategies"), import_module("fedtrellis.clients")


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    logger = logging.getLogger("flwr")
    level = logger.level
    if not verbose:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run(
    strategy: Any,
    client_fn: Callable[[Context], Any],
    count: int,
    start: Array,
    rounds: int,
    grids: Grids,
    verbose: bool,
) -> Array:
    """Run a strategy on nodes that are numbered from 0; the model."""
    app = client_app(client_fn)
    grid: Grid
    if grids is None:
        grid = LocalGrid(app, count)
    elif isinstance(grids, LocalGrid):
        if len(grids.get_node_ids()) != count:
            raise ValueError(
                f"grid has {len(grids.get_node_ids())} nodes for {count} partitions"
            )
        grid, grids.client_app = grids, app
    else:
        grid = grids(app, count)
    with _quiet(verbose):
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord([start]), num_rounds=rounds
        )
    (model,) = result.arrays.to_numpy_ndarrays()
    return np.asarray(model, dtype=np.float64)


def _number(context: Context) -> int:
    return int(context.node_config["partition-id"])


# ------------------------------------------------------------------ sums over the nodes


@dataclass(frozen=True)
class Sums:
    """Means over all rows.

    Attributes
    ----------
    count : float
        N, or Σ s.
    mean, square : ndarray of shape (p,)
        Of x_j and x_j².
    target, target_square : float
        Of y and y².
    """

    count: float
    mean: Array
    square: Array
    target: float
    target_square: float


class _Complete(Callback):
    """Ends a run with the first round in which all nodes answered."""

    def __init__(self, count: int) -> None:
        self._count = count

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        return record.used == self._count


def shared_sums(
    partitions: Partitions, targets: Sequence[Array], grids: Grids, verbose: bool
) -> Sums:
    """Add up Σ 1, Σ x, Σ x², Σ y and Σ y² of all nodes, in one round.

    With weights s of the rows Σ s, Σ s x and so on.

    FedAvg does it: a gradient step of length 1 on ½‖v − s_i‖² ends at node i's sums s_i
    wherever it begins, and the average of these is the round's model. So the server
    sees every node's s_i in the clear.

    Raises
    ------
    RuntimeError
        There was no round in which all nodes answered.
    """
    strategies, clients = _methods()
    parts = partitions.parts
    goals = []
    for part, y in zip(parts, targets, strict=True):
        squares = part.features * part.features
        both = part.features, squares
        if part.weights is None:
            columns = [np.asarray(m.sum(axis=0)).ravel() for m in both]
            totals = [len(y), y.sum(), y @ y]
        else:
            s = part.weights
            columns = [np.asarray(m.T @ s) for m in both]
            totals = [s.sum(), s @ y, s @ (y * y)]
        goals.append(np.concatenate([totals, *columns]))
    strategy = strategies.FedAvgGD(
        local_steps=1,
        step_size=1.0,
        step_schedule="constant",
        callbacks=[_Complete(len(parts))],
    )

    def client_fn(context: Context) -> Any:
        return clients.FedAvgGDClient(context, Distance(goals[_number(context)]))

    start = np.zeros_like(goals[0])
    rounds = _ATTEMPTS
    mean = _run(strategy, client_fn, len(parts), start, rounds, grids, verbose)
    if strategy.history[-1].used < len(parts):
        raise RuntimeError(
            f"{len(parts)} nodes did not answer in one of {rounds} rounds, and the "
            "means need all of them"
        )
    p = len(partitions.names)
    total, mean = float(mean[0]), mean / mean[0]
    count = total * len(parts)
    return Sums(
        count if partitions.weighted else round(count),
        mean[3 : 3 + p],
        mean[3 + p :],
        float(mean[1]),
        float(mean[2]),
    )


# --------------------------------------------------------------------------- the method


def sparse_regression(
    partitions: Partitions,
    targets: Sequence[Array],
    *,
    l1: float,
    l2: float,
    intercept: bool,
    tolerance: float,
    rounds: int,
    grids: Grids,
    verbose: bool,
) -> Found:
    """Minimise (1/2N)‖y − Xw − b‖² + l1 ‖w‖₁ + (l2/2)‖w‖² over w and b, by FedFW.

    With weights of the rows (1/2S) Σ s_i (y − Xw − b)_i², S = Σ s_i.

    With w_j = (u_j − v_j)/s_j and u, v ≥ 0 that is a smooth function of u and v, and at
    its minimum l1 Σ (u_j + v_j)/s_j is at most its value at 0, (1/2N)‖y − b‖². So FedFW
    finds it on the non-negative vectors of a bounded sum. s_j is the root of
    the curvature along w_j, the column's variance and l2: it changes what a step is,
    and not the minimum.
    """
    strategies, clients = _methods()
    sums = shared_sums(partitions, targets, grids, verbose)
    centre = sums.mean if intercept else np.zeros_like(sums.mean)
    offset = sums.target if intercept else 0.0
    spread = sums.square - centre * centre
    # a column that does not vary, but for rounding, has the coefficient 0
    varies = spread > 1e-14 * sums.square
    # the function's own curvature along w_j
    scale = np.sqrt(np.where(varies, spread, 1.0) + l2)
    # half the mean of (y − b)², a little more where rounding may have taken some
    at_zero = 0.5 * (sums.target_square - offset * offset) + 1e-12 * sums.target_square
    p = len(partitions.names)
    if at_zero == 0.0:  # y = b everywhere
        return Found(np.zeros(p), offset, 0.0, 0.0, 0.0, [])
    domain = NonNegativeL1Ball(at_zero * float(scale.max()) / l1)
    count = len(partitions.parts)
    objectives = [
        SplitLasso(
            part.features,
            y - offset,
            centre,
            scale,
            factor=count / sums.count,
            l1=l1,
            l2=l2,
            weights=part.weights,
        )
        for part, y in zip(partitions.parts, targets, strict=True)
    ]
    strategy = strategies.FedFW(domain, tolerance=tolerance, certificate=True)

    def client_fn(context: Context) -> Any:
        return clients.FedFWClient(context, objectives[_number(context)], domain)

    start = np.zeros(2 * p)
    x = _run(strategy, client_fn, count, start, rounds, grids, verbose)
    scaled = x[:p] - x[p:]
    # what is below the tolerance is on its way to 0 with one of the nodes
    scaled[~varies | (np.abs(scaled) <= tolerance * np.abs(scaled).max())] = 0.0
    w = scaled / scale
    end = np.concatenate([np.maximum(scaled, 0.0), np.maximum(-scaled, 0.0)])
    history = [record.to_dict() for record in strategy.history]
    bound = max(r.metrics.get("lower-bound", -math.inf) for r in strategy.history)
    return Found(
        w,
        offset - float(centre @ w),
        # the mean of the nodes' f_i is the function
        float(np.mean([f.value(end) for f in objectives])),
        bound,
        at_zero,
        history,
    )


def dual_ascent(
    partitions: Partitions,
    targets: Sequence[Array | None],
    *,
    loss: str,
    classes: int = 1,
    class_weight: str | Mapping[float, float] | None = None,
    regularization: float,
    l1_ratio: float = 0.0,
    intercept: bool,
    standardize: bool,
    tolerance: float,
    rounds: int,
    grids: Grids,
    verbose: bool,
) -> Found:
    """Minimise λ g(w) + (1/N) Σ l(x_iᵀw + b; y_i), by HyFDCA, however it is split.

    With weights of the rows (1/S) Σ s_i l, S = Σ s_i.
    g is ((1 − ρ)/2)‖w‖² + ρ‖w‖₁ of the weights of the columns, or of standardised ones.

    Parameters
    ----------
    targets : sequence of ndarray or None
        Of each node its samples' targets, NaN where it has none.
    classes : int
        1; or C > 2: targets are then classes from 0, there is such a problem for each
        of them against the rest, and values are sums over these.
    class_weight : str or mapping, optional
        What samples of a class count, as :class:`~strategies.HyFDCA` takes it.
    """
    scale = partitions.weight_scale()
    strategies, clients = _methods()
    held = []
    for part, first in zip(partitions.parts, partitions.first, strict=True):
        features, names = part.features, part.names
        if intercept and first.any():
            # once for every sample: the first that holds it has the constant, too
            features = _with_column(features, first)
            names = (*names, _INTERCEPT)
        held.append((features, names))
    order = [*partitions.names, *([_INTERCEPT] if intercept else [])]
    # all nodes are in this process: rules against the server protect from nobody
    # and an intercept without a penalty may be beyond a node's bound on ‖w‖
    rules = clients.HyFDCAClient.Rules(exposed="accept", max_weight_norm=1e12)
    strategy = strategies.HyFDCA(
        loss=loss,
        classes=classes,
        class_weight=class_weight,
        regularization=regularization,
        l1_ratio=l1_ratio,
        free_feature=_INTERCEPT if intercept else "",
        standardize=standardize,
        tolerance=tolerance,
        feature_names=order,
        exposed="accept",
    )

    def client_fn(context: Context) -> Any:
        number = _number(context)
        features, names = held[number]
        own = partitions.parts[number].weights
        return clients.HyFDCAClient(
            context,
            features=features,
            feature_names=names,
            sample_ids=partitions.parts[number].ids,
            labels=targets[number],
            rules=rules,
            weights=None if own is None else scale * own,
        )

    count = len(partitions.parts)
    start = np.zeros((len(order), classes) if classes > 1 else len(order))
    w = _run(strategy, client_fn, count, start, rounds, grids, verbose)
    history = [record.to_dict() for record in strategy.history]
    best = min(r.metrics["primal"] for r in strategy.history if "primal" in r.metrics)
    gap = strategy.history[-1].metrics.get("duality-gap", math.inf)
    p = len(partitions.names)
    b = w[p] if intercept else np.zeros(start.shape[1:])
    return Found(w[:p].T, b, best, best - gap, best, history)


def _with_column(features: Any, column: Any) -> Any:
    """Return a table with one more column, dense or CSR as it is."""
    if isinstance(features, np.ndarray):
        return np.column_stack([features, column])
    from scipy import sparse

    return sparse.csr_array(sparse.hstack([features, column[:, None]]))
