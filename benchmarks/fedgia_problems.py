"""Twenty problems that FedGiA on its defaults has to get through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.wire.arrays import FloatArray

__all__ = ["PROBLEMS", "Problem", "generated", "problem"]

Shares = list[Any]


@dataclass(frozen=True)
class Problem:
    """F = (1/m) Σ f_i, and what its error is.

    Parameters
    ----------
    name : str
    losses : sequence of Objective
        f_i, a client each.
    convex : bool
    """

    name: str
    losses: Sequence[Any]
    convex: bool

    @property
    def m(self) -> int:
        """How many clients."""
        return len(self.losses)

    @cached_property
    def size(self) -> int:
        """n, the number of parameters."""
        return int(np.prod(self.losses[0].shape))

    def value(self, x: FloatArray) -> float:
        """F(x), for x of shape (n,)."""
        shape = self.losses[0].shape
        return float(np.mean([f.value(x.reshape(shape)) for f in self.losses]))

    def gradients(self, x: FloatArray) -> FloatArray:
        """∇f_i(x)/m in rows, shape (m, n)."""
        point = x.reshape(self.losses[0].shape)
        return np.array([f.gradient(point).ravel() for f in self.losses]) / self.m

    @cached_property
    def bounds(self) -> list[FloatArray]:
        """Θ_i, each of shape (n, n)."""
        return [np.asarray(f.hessian_bound()) for f in self.losses]

    @cached_property
    def bound(self) -> FloatArray:
        """The mean of the Θ_i."""
        mean: FloatArray = np.mean(self.bounds, axis=0)
        return mean

    @cached_property
    def lipschitz(self) -> FloatArray:
        """r_i, shape (m,)."""
        return np.array([f.lipschitz() for f in self.losses])

    @cached_property
    def curvatures(self) -> tuple[float, float]:
        """The largest and the least eigenvalue of the mean of the Θ_i."""
        values = np.linalg.eigvalsh(self.bound)
        return float(values[-1]), float(max(values[0], 0.0))

    @cached_property
    def _start(self) -> tuple[float, float]:
        zero = np.zeros(self.size)
        return self.value(zero), float(np.sum(self.gradients(zero).sum(axis=0) ** 2))

    @cached_property
    def optimum(self) -> float:
        """F*, in coordinates in which the mean of the Θ_i is the identity."""
        values, vectors = np.linalg.eigh(self.bound)
        present = values > 1e-14 * values[-1]
        T = vectors[:, present] / np.sqrt(values[present])

        def whitened(u: FloatArray) -> tuple[float, FloatArray]:
            x = T @ u
            return self.value(x), T.T @ self.gradients(x).sum(axis=0)

        found = scipy.optimize.minimize(
            whitened,
            np.zeros(T.shape[1]),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-12, "maxiter": 3000},
        )
        return float(found.fun)

    def error(self, x: FloatArray) -> float:
        """(F(x) − F*)/(F(0) − F*); of a non-convex F ‖∇F(x)‖²/‖∇F(0)‖²."""
        if not self.convex:
            gradient = self.gradients(x).sum(axis=0)
            return float(gradient @ gradient) / self._start[1]
        return (self.value(x) - self.optimum) / (self._start[0] - self.optimum)


def _deal(
    rng: np.random.Generator, labels: FloatArray, m: int, how: str
) -> list[NDArray[np.intp]]:
    """The rows of each client."""
    rows = rng.permutation(len(labels))
    if how == "one class a client":
        rows = rows[np.argsort(labels[rows], kind="stable")]
    if how == "unequal shares":  # up to fifty times as many, at least one
        weights = np.geomspace(1.0, 50.0, m)
        cuts = np.cumsum(weights / weights.sum() * (len(rows) - m)).astype(int)
        return np.split(rows, cuts[:-1] + np.arange(1, m))
    if how == "one row":
        return [rows[:1], *np.array_split(rows[1:], m - 1)]
    return np.array_split(rows, m)


def generated(
    kind: str,
    seed: int,
    m: int,
    rows: int,
    columns: int,
    how: str = "iid",
    *,
    condition: float = 1.0,
    scaled: float = 1.0,
    zeros: bool = False,
    l2: float = 0.0,
) -> Shares:
    """Losses on data drawn for a model that fits them moderately well.

    Parameters
    ----------
    kind : {"least squares", "logistic", "multinomial", "non-convex"}
    seed, m, rows, columns : int
        ``rows`` of all m clients together.
    how : {"iid", "one class a client", "unequal shares", "one row"}
    condition : float
        Of the population's AᵀA.
    scaled : float
        The last column is that many times as large as the first.
    zeros : bool
        The first column is 0 everywhere, three more with every other client.
    l2 : float
    """
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns))
    if condition > 1.0:
        Q = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
        A = (A * np.geomspace(1.0, condition**-0.5, columns)) @ Q.T
    A *= np.geomspace(1.0, scaled, columns)
    spread = np.linalg.norm(A, axis=0) / np.sqrt(rows)
    w = rng.standard_normal((columns, 3)) / spread[:, None] / np.sqrt(columns)
    scores = 2.0 * A @ w
    if kind == "least squares":
        labels = scores[:, 0] + 0.5 * rng.standard_normal(rows)
    elif kind == "multinomial":
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    else:
        chance = 1.0 / (1.0 + np.exp(-2.0 * scores[:, 0]))
        labels = (rng.random(rows) < chance).astype(int)
    return _losses(kind, A, labels, _deal(rng, labels, m, how), l2, zeros)


def _losses(
    kind: str, A: Any, labels: Any, shares: Sequence[Any], l2: float, zeros: bool
) -> Shares:
    losses: list[Objective] = []
    for number, share in enumerate(shares):
        features = np.array(A[share], dtype=np.float64)
        if zeros:
            features[:, 0] = 0.0
            if number % 2:
                features[:, 1:4] = 0.0
        given = labels[share]
        if kind == "least squares":
            losses.append(LeastSquares(features, given, scale="half-mean", l2=l2))
        elif kind == "multinomial":
            classes = int(labels.max()) + 1
            losses.append(MultinomialLogistic(features, given, classes, l2=l2))
        else:
            loss = Logistic if kind == "logistic" else NonconvexLogistic
            losses.append(loss(features, given, l2=l2))
    return losses


def _loaded(kind: str, name: str, seed: int, m: int, how: str, l2: float) -> Shares:
    """Losses on one of scikit-learn's data sets, as it comes."""
    from sklearn import datasets

    A, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    shares = _deal(np.random.default_rng(seed), labels, m, how)
    return _losses(kind, A / 16.0 if name == "digits" else A, labels, shares, l2, False)


_LS, _LOG, _MULTI, _NON = "least squares", "logistic", "multinomial", "non-convex"
_ONE, _UNEQUAL = "one class a client", "unequal shares"

#: By name, what makes the losses.
PROBLEMS: dict[str, Callable[[], Shares]] = {
    # the two that a fixed default broke on
    "least squares, 10 × 500 rows, 20 columns": lambda: generated(_LS, 0, 10, 5000, 20),
    "least squares, 10 × 50 rows, columns 1 to 10³": lambda: generated(
        _LS, 1, 10, 500, 20, scaled=1e3
    ),
    "least squares, 30 × 20 rows, 60 columns": lambda: generated(_LS, 2, 30, 600, 60),
    "least squares, one class, condition 10": lambda: generated(
        _LS, 3, 8, 800, 30, _ONE, condition=10.0
    ),
    "least squares, unequal, condition 10³": lambda: generated(
        _LS, 4, 12, 1500, 30, _UNEQUAL, condition=1e3
    ),
    "least squares, condition 10⁶": lambda: generated(
        _LS, 5, 10, 1000, 40, condition=1e6
    ),
    "least squares, a client with one row": lambda: generated(
        _LS, 6, 8, 400, 20, "one row"
    ),
    "least squares, zero columns": lambda: generated(_LS, 7, 10, 500, 20, zeros=True),
    "least squares, unequal, condition 10³, columns 1 to 10³": lambda: generated(
        _LS, 8, 10, 800, 25, _UNEQUAL, condition=1e3, scaled=1e3
    ),
    "logistic, 20 × 100 rows": lambda: generated(_LOG, 9, 20, 2000, 30, l2=1e-3),
    "logistic, one class": lambda: generated(_LOG, 10, 10, 1000, 30, _ONE, l2=1e-3),
    "logistic, unequal, columns 1 to 10³": lambda: generated(
        _LOG, 11, 10, 1000, 30, _UNEQUAL, scaled=1e3, l2=1e-3
    ),
    "logistic, condition 10⁶": lambda: generated(
        _LOG, 12, 10, 1000, 40, condition=1e6, l2=1e-6
    ),
    "logistic, a client with one row": lambda: generated(
        _LOG, 13, 8, 400, 20, "one row", l2=1e-2
    ),
    "logistic, breast cancer, raw": lambda: _loaded(
        _LOG, "breast_cancer", 14, 10, "iid", 1e-3
    ),
    "multinomial, 10 × 100 rows": lambda: generated(_MULTI, 15, 10, 1000, 20, l2=1e-3),
    "multinomial, wine, raw, one class": lambda: _loaded(
        _MULTI, "wine", 16, 3, _ONE, 1e-2
    ),
    "multinomial, digits, unequal, zero columns": lambda: _loaded(
        _MULTI, "digits", 17, 10, _UNEQUAL, 1e-3
    ),
    "non-convex, condition 10³": lambda: generated(
        _NON, 18, 10, 1000, 30, condition=1e3, l2=1e-2
    ),
    "non-convex, one class, columns 1 to 10³": lambda: generated(
        _NON, 19, 10, 1000, 20, _ONE, scaled=1e3, l2=1e-2
    ),
}


def problem(name: str) -> Problem:
    """One of them, made."""
    return Problem(name, PROBLEMS[name](), not name.startswith(_NON))
