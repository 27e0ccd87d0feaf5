"""Runs of HyFDCA of which the server's view is kept: w, and what it is told at w."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from clients import HyFDCAClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.dual import bundle as bundles
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.random import generator
from strategies import HyFDCA

from .attacks import Query

__all__ = [
    "CANCER",
    "DIGITS",
    "HORIZONTAL",
    "HYBRID",
    "LOSSES",
    "ONE_HOT",
    "SPLITS",
    "Case",
    "Traffic",
    "depart",
    "listening",
    "record",
    "split",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Proposals = dict[int, tuple[Array, Array]]


@dataclass(frozen=True)
class Case:
    """Data, λ, and who holds which rows and columns of it."""

    X: Array
    y: Array
    regularization: float
    parts: tuple[tuple[Indices, Indices], ...]
    exposed: str = "refuse"

    def as_sent(self, least: int = 3) -> Case:
        """The case as clients take part in it: without rare entries, if so asked.

        With ``exposed = "leave-out"`` a client takes its entries of a feature for
        zeros where they are fewer than ``least``.
        """
        if self.exposed != "leave-out":
            return self
        X = self.X.copy()
        for rows, columns in self.parts:
            counts = np.count_nonzero(self.X[np.ix_(rows, columns)], axis=0)
            X[np.ix_(rows, columns[counts < least])] = 0.0
        return replace(self, X=X, exposed="refuse")

    @property
    def scale(self) -> float:
        """λN."""
        return self.regularization * len(self.y)

    @property
    def blocks(self) -> list[Indices]:
        """The different feature sets of clients."""
        return [np.array(b) for b in dict.fromkeys(tuple(c) for _, c in self.parts)]

    def client(self, context: Context, **options: Any) -> HyFDCAClient:
        """Return a node's client."""
        rows, columns = self.parts[int(str(context.node_config["partition-id"]))]
        return HyFDCAClient(
            context,
            self.X[np.ix_(rows, columns)],
            [f"feature {m}" for m in columns],
            [f"sample {i}" for i in rows],
            self.y[rows],
            **options,
        )


def _grid(X: Array, sample_groups: int, blocks: list[Indices]) -> Any:
    rows = [np.arange(g, len(X), sample_groups) for g in range(sample_groups)]
    return tuple((r, b) for r in rows for b in blocks)


def _columns(p: int, groups: int) -> list[Indices]:
    return [np.asarray(b, dtype=np.int64) for b in np.array_split(np.arange(p), groups)]


def _breast_cancer() -> Case:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    X = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    X = np.hstack([X, np.ones((len(X), 1))])
    y = np.where(data.target == 1, 1.0, -1.0)
    return Case(X, y, 1e-3, _grid(X, 3, _columns(X.shape[1], 3)))


def _noisy(sample_groups: int, feature_groups: int) -> Case:
    """96 samples of 12 features, two noisy classes."""
    rng = generator(0, "hyfdca attacks", "noisy")
    X = rng.standard_normal((96, 12)) / np.sqrt(12)
    z = X @ rng.standard_normal(12) + 0.3 * rng.standard_normal(96)
    y = np.where(z > 0.0, 1.0, -1.0)
    return Case(X, y, 1e-2, _grid(X, sample_groups, _columns(12, feature_groups)))


def _digits() -> Case:
    from sklearn.datasets import load_digits

    data = load_digits()
    X = np.hstack([data.data / 16.0, np.ones((len(data.data), 1))])
    y = np.where(data.target >= 5, 1.0, -1.0)
    # two pixels at the edge are black in all but one of a client's images
    parts = _grid(X, 4, _columns(X.shape[1], 4))
    return Case(X, y, 1e-3, parts, "leave-out")


def _one_hot() -> Case:
    """400 samples of four categories, one-hot, of which some are rare."""
    rng = generator(0, "hyfdca attacks", "one-hot")
    n, tables = 400, []
    for values in (40, 25, 60, 30):
        # the k-th most common has a share of about 1/k
        shares = 1.0 / np.arange(1, values + 1)
        drawn = rng.choice(values, n, p=shares / shares.sum())
        tables.append(np.eye(values)[drawn])
    X = np.hstack([*tables, np.ones((n, 1))])
    X = X[:, X.any(axis=0)]
    z = X @ rng.standard_normal(X.shape[1]) + 0.5 * rng.standard_normal(n)
    y = np.where(z > np.median(z), 1.0, -1.0)
    parts = _grid(X, 3, _columns(X.shape[1], 2))
    return Case(X, y, 1e-3, parts, "leave-out")


CANCER, HYBRID, HORIZONTAL, DIGITS, ONE_HOT = (
    "breast cancer, 3 × 3",
    "96 samples, hybrid 3 × 2",
    "96 samples, horizontal, 6 clients",
    "digits, 4 × 4",
    "one-hot columns, 3 × 2",
)
#: The data and how they are dealt.
SPLITS: dict[str, Callable[[], Case]] = {
    CANCER: _breast_cancer,
    HYBRID: lambda: _noisy(3, 2),
    HORIZONTAL: lambda: _noisy(6, 1),
    DIGITS: _digits,
    ONE_HOT: _one_hot,
}
#: The losses of labels −1 and +1.
LOSSES = ("hinge", "smoothed-hinge", "logistic")


@cache
def split(name: str) -> Case:
    """A split of :data:`SPLITS`."""
    return SPLITS[name]()


@dataclass
class Traffic:
    """What a server sees of a run.

    Attributes
    ----------
    w : list of ndarray of shape (p,)
        The model that the t-th search started from.
    sums : list of dict
        By unit the first proposal's V, shape (p,).
    strategy : HyFDCA
        After the run.
    """

    w: list[Array] = field(default_factory=list)
    sums: list[dict[int, Array]] = field(default_factory=list)
    strategy: HyFDCA | None = None

    @property
    def weights(self) -> Array:
        """All w, shape (T, p)."""
        return np.array(self.w)

    def of_unit(self, unit: int) -> Array:
        """All V of a unit, shape (T, p)."""
        return np.array([V[unit] for V in self.sums if unit in V])

    @property
    def units(self) -> list[int]:
        """The units."""
        return sorted({unit for V in self.sums for unit in V})


@contextmanager
def listening(traffic: Traffic) -> Iterator[None]:
    """Note what the server's searches are given."""
    search = DualBundle.search

    def heard(self: DualBundle, units: list[int], proposals: Proposals) -> Any:
        traffic.w.append(self.w)
        traffic.sums.append({u: V[0, 0].copy() for u, (V, _) in proposals.items()})
        return search(self, units, proposals)

    with mock.patch.object(DualBundle, "search", heard):
        yield


def record(
    case: Case,
    loss: str,
    rounds: int,
    client: dict[str, Any] | None = None,
    **settings: Any,
) -> Traffic:
    """Run HyFDCA and keep the server's view.

    Parameters
    ----------
    case : Case
    loss : str
    rounds : int
        At most; the run ends at a certified (P − D)/P of 10⁻⁶.
    client : dict, optional
        Of the clients' constructor.
    **settings
        Of the strategy.

    Returns
    -------
    Traffic
    """
    traffic = Traffic()
    with listening(traffic):
        traffic.strategy = _run(case, loss, rounds, client or {}, settings)
    return traffic


def depart(case: Case, loss: str, query: Query, rounds: int, **settings: Any) -> HyFDCA:
    """Run HyFDCA with a server that chooses w and α as an attack wishes.

    Its bundle says w and mixtures that the attack asks for; all else is the strategy,
    and the clients do not know.

    Parameters
    ----------
    case, loss, settings
        As for :func:`record`.
    query : generator
        See :data:`.attacks.Query`.
    rounds : int
        So many answers are asked for; clients may refuse before.

    Returns
    -------
    HyFDCA
        After the run.
    """
    search, (chosen, accept) = DualBundle.search, next(query)
    # w of the first round is not chosen: whatever is answered at it is no answer yet
    began = False

    def choose(G: Array, b: Array, theta: Array, blocks: list[slice], *_: Any) -> Array:
        if accept:  # the newest proposal is the last
            theta[:] = 0.0
            theta[-1] = 1.0
        return theta

    def heard(self: DualBundle, units: list[int], proposals: Proposals) -> Any:
        nonlocal chosen, accept, began
        if began:
            ((V, _),) = proposals.values()
            chosen, accept = query.send(V[0, 0])
        began = True
        return search(self, units, proposals)

    with (
        mock.patch.object(DualBundle, "search", heard),
        mock.patch.object(DualBundle, "w", property(lambda _: chosen)),
        mock.patch.object(bundles, "maximise_over_simplices", choose),
    ):
        return _run(case, loss, rounds, {}, {"tolerance": 0.0, **settings})


def _run(
    case: Case,
    loss: str,
    rounds: int,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> HyFDCA:
    app = client_app(lambda context: case.client(context, **options))
    grid = LocalGrid(app, len(case.parts))
    names = [f"feature {m}" for m in range(case.X.shape[1])]
    settings = {
        "encryption": "none",
        "feature_names": names,
        "exposed": case.exposed,
        **settings,
    }
    strategy = HyFDCA(loss, case.regularization, **settings)
    strategy.start(grid, ArrayRecord([np.zeros(len(names))]), num_rounds=rounds)
    return strategy
