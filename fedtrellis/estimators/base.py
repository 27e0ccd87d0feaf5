"""What the estimators have in common: data in, runs on a grid, rows, a score."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from fedtrellis.domains import NonNegativeL1Ball
from fedtrellis.objectives.base import Array, check_count, check_examples, check_number
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid

from .partitions import Part, Partitions, check_positive, is_frame, read_partitions

#: What ``grid`` of an estimator may be.
Grids = LocalGrid | Callable[[ClientApp, int], Grid] | None


@dataclass(frozen=True)
class Found:
    """What a run came to: its model, the value there, and what no model is below.

    ``scale`` is what the tolerance counts in: the value there, or at the start.
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


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedModel(BaseEstimator):  # type: ignore[misc]
    """Base class of linear models that are learnt from partitions.

    A subclass is a dataclass, whose fields are scikit-learn's parameters, and
    implements :meth:`_learn`.
    """

    fit_intercept: bool = True
    tol: float = 1e-10
    max_iter: int = 1000
    label: str = "label"
    grid: Grids = None
    verbose: bool = False
    #: Whether targets are numbers.
    _numeric: ClassVar[bool] = False

    def _learn(self, partitions: Partitions) -> None:
        """Set ``coef_`` and ``intercept_`` and what else there is."""
        raise NotImplementedError

    def fit(
        self, partitions: Any, y: ArrayLike | None = None, sample_weight: Any = None
    ) -> Self:
        """Learn from what the nodes hold.

        Parameters
        ----------
        partitions : sequence
            An element a node: a pair (X, y); or a pandas data frame with a column
            ``label``. Frames of different columns hold parts of the same samples,
            which their indices name; y, or the column, may be missing in some of them.
            With ``y`` an X like scikit-learn's: one node has everything.
        y : array_like of shape (N,), optional
        sample_weight : sequence, optional
            What each row counts, from 0 on: with ``y`` an array of shape (N,), else for
            each partition an array of shape (n_k,), NaN where it has none, or None. A
            weight of 2 is a row twice.

        ValueError if the partitions do not make one table, or a parameter is not
        allowed.
        """
        check_count("max_iter", self.max_iter, 1)
        check_number("tol", self.tol)
        found = self._read(partitions, y, sample_weight)
        check_positive(found.weights())
        self._learn(found)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _read(self, partitions: Any, y: ArrayLike | None, weights: Any) -> Partitions:
        for name in ("feature_names_in_", "n_features_in_"):
            self.__dict__.pop(name, None)
        if y is None:
            found = read_partitions(partitions, self.label, weights=weights)
            self.n_features_in_ = len(found.names)
            if found.named:
                self.feature_names_in_ = np.array(found.names, dtype=object)
            return found
        kinds: Any = {"dtype": np.float64, "y_numeric": self._numeric}
        X, target = validate_data(self, partitions, y, accept_sparse="csr", **kinds)
        X = check_examples("X", X)
        names = tuple(f"x{j}" for j in range(X.shape[1]))
        names = tuple(getattr(self, "feature_names_in_", names))
        rows = np.arange(X.shape[0])
        if weights is not None:
            weights = _check_sample_weight(
                weights, X, dtype=np.float64, ensure_non_negative=True
            )
        part, ids = Part(X, names, rows, target, weights), tuple(map(str, rows))
        return Partitions((part,), names, ids, False, False)

    def _rows(self, X: Any) -> Any:
        """Return rows to predict for, (n, p): those of one table, or of frames."""
        check_is_fitted(self)
        if isinstance(X, list | tuple) and X and all(map(is_frame, X)):
            partitions = read_partitions(X, self.label, targets=False)
            names = getattr(self, "feature_names_in_", partitions.names)
            return partitions.table(list(names))[0]
        return validate_data(
            self, X, accept_sparse="csr", dtype=np.float64, reset=False
        )

    def _linear(self, X: Any) -> Array:
        """Return x_iᵀw + b of each row, for each row of ``coef_``: (n,) or (n, K)."""
        rows = self._rows(X)
        return np.asarray(rows @ np.asarray(self.coef_).T + self.intercept_)

    def _keep(self, found: Found, units: float) -> None:
        """Set what a run certifies, and warn if it ended before its gap was small."""
        self.objective_ = units * found.objective
        self.gap_ = units * found.gap
        self.history_ = found.history
        if not found.gap <= self.tol * found.scale:
            warnings.warn(
                f"not converged after {len(found.history)} of max_iter = "
                f"{self.max_iter} rounds: the gap is {found.gap:.3g}, tol = "
                f"{self.tol:g} allows {self.tol * found.scale:.3g}",
                ConvergenceWarning,
                stacklevel=4,
            )


# The constant feature whose weight is the intercept.
_INTERCEPT = "(intercept)"


def _methods() -> tuple[Any, Any]:
    # in a wheel they lie in this package, and only there under these names
    return import_module("fedtrellis.strategies"), import_module("fedtrellis.clients")


def _run(
    model: FederatedModel,
    strategy: Any,
    client_fn: Callable[[Context], Any],
    count: int,
    start: Array,
    rounds: int,
) -> Array:
    """Run a strategy on nodes that are numbered from 0; its last iterate."""
    app = client_app(client_fn)
    grid: Grid
    if model.grid is None:
        grid = LocalGrid(app, count)
    elif isinstance(model.grid, LocalGrid):
        grid, nodes = model.grid, len(model.grid.get_node_ids())
        if nodes != count:
            raise ValueError(f"grid has {nodes} nodes for {count} partitions")
        model.grid.client_app = app
    else:
        grid = model.grid(app, count)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(level if model.verbose else logging.ERROR)
    try:
        arrays = ArrayRecord([start])
        result = strategy.start(grid, arrays, num_rounds=int(rounds))
    finally:
        logger.setLevel(level)
    (found,) = result.arrays.to_numpy_ndarrays()
    return np.asarray(found, dtype=np.float64)


@dataclass(eq=False, repr=False)
class SplitLasso:
    """A node's share of an elastic net, as a smooth function of w's two signs.

    f(u, v) = ½ Σ_k c_k ((x_k − μ)ᵀw − y_k)² + Σ_j (l1/s_j)(u_j + v_j) + (l2/2)‖w‖² with
    w_j = (u_j − v_j)/s_j, a point being u and v one after the other. X is not centred
    itself, and may be sparse.

    ``features`` is X, an ndarray or CSR array of shape (n, p), ``targets`` y,
    ``weights`` c, ``centre`` μ and ``scale`` s > 0.
    """

    features: Any
    targets: Array
    weights: Array
    centre: Array
    scale: Array
    l1: float
    l2: float
    quadratic: ClassVar[bool] = True

    @property
    def num_examples(self) -> int:
        """Return n."""
        return len(self.targets)

    def _coef(self, x: Array) -> Array:
        u, v = np.split(x, 2)
        return np.asarray((u - v) / self.scale)

    def _scores(self, w: Array) -> Array:
        # (X − 1μᵀ)w
        return np.asarray(self.features @ w - self.centre @ w)

    def value(self, x: Array) -> float:
        """Return f at a point of shape (2p,)."""
        w = self._coef(x)
        r = self._scores(w) - self.targets
        u, v = np.split(x, 2)
        smooth = float(r @ (self.weights * r)) + self.l2 * float(w @ w)
        return 0.5 * smooth + float(self.l1 / self.scale @ (u + v))

    def gradient(self, x: Array) -> Array:
        """Return ∇f, of shape (2p,)."""
        w = self._coef(x)
        r = self.weights * (self._scores(w) - self.targets)
        # with respect to w: (X − 1μᵀ)ᵀ(c r) + l2 w
        g = self.features.T @ r - self.centre * r.sum() + self.l2 * w
        g = g / self.scale
        l1 = self.l1 / self.scale
        return np.concatenate([l1 + g, l1 - g])

    def curvature(self, x: Array, direction: Array) -> float:
        """Return dᵀ∇²f d, the same at every x."""
        w = self._coef(direction)
        change = self._scores(w)
        return float(change @ (self.weights * change)) + self.l2 * float(w @ w)


def _means(
    nodes: Sequence[tuple[Any, Array, Array]],
) -> tuple[float, float, float, Array, Array]:
    """Return Σ s, and the means of y, y², x and x² over all rows (X, y, s)."""
    sums = []
    for X, y, s in nodes:
        columns = [np.asarray(m.T @ s) for m in (X, X * X)]
        sums.append(np.concatenate([[s.sum(), s @ y, s @ (y * y)], *columns]))
    total = np.sum(sums, axis=0)
    _, y_mean, y_square, *rest = total / total[0]
    centre, square = np.split(np.array(rest), 2)
    return float(total[0]), float(y_mean), float(y_square), centre, square


def sparse_regression(
    model: FederatedModel,
    partitions: Partitions,
    targets: Sequence[Array],
    *,
    l1: float,
    l2: float,
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
    nodes = [
        (part.features, y, np.ones(len(y)) if part.weights is None else part.weights)
        for part, y in zip(partitions.parts, targets, strict=True)
    ]
    rows, offset, y_square, centre, square = _means(nodes)
    shift, whole = np.zeros_like(centre), square
    if not model.fit_intercept:
        centre, offset = shift, 0.0
    elif not any(sparse.issparse(X) for X, *_ in nodes):
        # a mean square less a squared mean would lose a small variance
        shift = centre
        nodes = [(X - shift, y, s) for X, y, s in nodes]
        *_, centre, square = _means(nodes)
    spread = square - centre * centre
    # a column that does not vary, but for rounding, has the coefficient 0
    varies = spread > np.maximum(1e-14 * square, 1e-28 * whole)
    # the function's own curvature along w_j
    scale = np.sqrt(np.where(varies, spread, 1.0) + l2)
    # half the mean of (y − b)², a little more where rounding may have taken some
    at_zero = 0.5 * (y_square - offset * offset) + 1e-12 * y_square
    p = len(partitions.names)
    if at_zero == 0.0:  # y = b everywhere
        return Found(np.zeros(p), offset, 0.0, 0.0, 0.0, [])
    domain = NonNegativeL1Ball(at_zero * float(scale.max()) / l1)
    count = len(partitions.parts)
    objectives = [
        SplitLasso(X, y - offset, count / rows * s, centre, scale, l1, l2)
        for X, y, s in nodes
    ]
    strategy = strategies.FedFW(domain, tolerance=model.tol, certificate=True)

    def client_fn(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        return clients.FedFWClient(context, objectives[number], domain)

    x = _run(model, strategy, client_fn, count, np.zeros(2 * p), model.max_iter)
    scaled = x[:p] - x[p:]
    # what is below the tolerance is on its way to 0 with one of the nodes
    scaled[~varies | (np.abs(scaled) <= model.tol * np.abs(scaled).max())] = 0.0
    w = scaled / scale
    end = np.concatenate([np.maximum(scaled, 0.0), np.maximum(-scaled, 0.0)])
    bound = max(r.metrics.get("lower-bound", -math.inf) for r in strategy.history)
    return Found(
        w,
        offset - float((centre + shift) @ w),
        # the mean of the nodes' f_i is the function
        float(np.mean([f.value(end) for f in objectives])),
        bound,
        at_zero,
        [record.to_dict() for record in strategy.history],
    )


def dual_ascent(
    model: FederatedModel,
    partitions: Partitions,
    targets: Sequence[Array | None],
    *,
    loss: str,
    classes: int = 1,
    class_weight: str | Mapping[float, float] | None = None,
    regularization: float,
    l1_ratio: float = 0.0,
    standardize: bool = False,
) -> Found:
    """Minimise λ g(w) + (1/N) Σ l(x_iᵀw + b; y_i), by HyFDCA, however it is split.

    With weights of the rows (1/S) Σ s_i l, S = Σ s_i.
    g is ((1 − ρ)/2)‖w‖² + ρ‖w‖₁ of the weights of the columns, or of standardised ones.
    Targets are NaN where a node has none. With C > 2 ``classes`` they are classes from
    0; there is such a problem for each of them against the rest, and values are sums.
    """
    scale, intercept = partitions.weight_scale(), model.fit_intercept
    strategies, clients = _methods()
    held = []
    for part, first in zip(partitions.parts, partitions.first, strict=True):
        features, names = part.features, part.names
        if intercept and first.any():
            # once for every sample: the first that holds it has the constant, too
            if isinstance(features, np.ndarray):
                features = np.column_stack([features, first])
            else:
                column: Any = first[:, None]
                features = sparse.csr_array(sparse.hstack([features, column]))
            names = (*names, _INTERCEPT)
        held.append((features, names))
    order = [*partitions.names, *([_INTERCEPT] if intercept else [])]
    # all nodes are in this process: rules against the server protect from nobody
    rules = clients.HyFDCAClient.Rules(exposed="accept")
    strategy = strategies.HyFDCA(
        loss=loss,
        classes=classes,
        class_weight=class_weight,
        regularization=regularization,
        l1_ratio=l1_ratio,
        free_feature=_INTERCEPT if intercept else "",
        standardize=standardize,
        tolerance=model.tol,
        feature_names=order,
        exposed="accept",
    )

    def client_fn(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        features, names = held[number]
        own = partitions.parts[number].weights
        return clients.HyFDCAClient(
            context,
            features=features,
            feature_names=names,
            sample_ids=[partitions.ids[i] for i in partitions.parts[number].rows],
            labels=targets[number],
            rules=rules,
            weights=None if own is None else scale * own,
        )

    count = len(partitions.parts)
    start = np.zeros((len(order), classes) if classes > 1 else len(order))
    w = _run(model, strategy, client_fn, count, start, model.max_iter)
    history = [record.to_dict() for record in strategy.history]
    best = float(strategy._primals.sum())  # of each class the lowest, as w has them
    gap = strategy.history[-1].metrics.get("duality-gap", math.inf)
    p = len(partitions.names)
    b = w[p] if intercept else np.zeros(start.shape[1:])
    return Found(w[:p].T, b, best, best - gap, best, history)
