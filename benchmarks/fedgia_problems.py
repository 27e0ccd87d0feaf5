"""Twenty problems that FedGiA on its defaults has to get through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.wire.arrays import FloatArray

__all__ = ["PROBLEMS", "Problem", "problem"]


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
    def bound(self) -> FloatArray:
        """The mean of the Θ_i, shape (n, n)."""
        mean: FloatArray = np.mean([f.hessian_bound() for f in self.losses], axis=0)
        return mean

    @cached_property
    def lipschitz(self) -> FloatArray:
        """r_i, shape (m,)."""
        return np.array([f.lipschitz() for f in self.losses])

    @cached_property
    def curvature(self) -> float:
        """L, the largest eigenvalue of the mean of the Θ_i."""
        return float(np.linalg.eigvalsh(self.bound)[-1])

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


def _drawn(kind: str, rng: np.random.Generator, data: _Data) -> tuple[FloatArray, Any]:
    """Features, and labels that a model fits moderately well.

    ``condition`` is the population's, of AᵀA; the columns' units go up to ``scaled``.
    """
    rows, columns = data.rows, data.columns
    A = rng.standard_normal((rows, columns))
    if data.condition > 1.0:
        Q = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
        A = (A * np.geomspace(1.0, data.condition**-0.5, columns)) @ Q.T
    A *= np.geomspace(1.0, data.scaled, columns)
    spread = np.linalg.norm(A, axis=0) / np.sqrt(rows)
    w = rng.standard_normal((columns, 3)) / spread[:, None] / np.sqrt(columns)
    scores = 2.0 * A @ w
    if kind == "least squares":
        return A, scores[:, 0] + 0.5 * rng.standard_normal(rows)
    if kind == "multinomial":
        return A, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    chance = 1.0 / (1.0 + np.exp(-2.0 * scores[:, 0]))
    return A, (rng.random(rows) < chance).astype(int)


def _losses(
    kind: str, A: Any, labels: Any, shares: Sequence[Any], data: _Data
) -> list[Any]:
    """``zeros``: a column is 0 everywhere, and three more at every second client."""
    losses: list[Objective] = []
    for number, share in enumerate(shares):
        features = np.array(A[share], dtype=np.float64)
        if data.zeros:
            features[:, 0] = 0.0
            if number % 2:
                features[:, 1:4] = 0.0
        given = labels[share]
        if kind == "least squares":
            losses.append(LeastSquares(features, given, scale="half-mean", l2=data.l2))
        elif kind == "multinomial":
            classes = int(labels.max()) + 1
            losses.append(MultinomialLogistic(features, given, classes, l2=data.l2))
        else:
            loss = Logistic if kind == "logistic" else NonconvexLogistic
            losses.append(loss(features, given, l2=data.l2))
    return losses


def _loaded(name: str) -> tuple[FloatArray, Any]:
    """One of scikit-learn's data sets, as it comes."""
    from sklearn import datasets

    A, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return A / 16.0 if name == "digits" else A, labels


_CLASS, _UNEQUAL, _ROW = "one class a client", "unequal shares", "one row"
_LOADED = {
    "logistic, breast cancer, raw": "breast_cancer",
    "multinomial, wine, raw, one class": "wine",
    "multinomial, digits, unequal, zero columns": "digits",
}


class _Data(NamedTuple):
    """The seed, clients, rows of all and columns of what is drawn, and how."""

    seed: int
    m: int
    rows: int = 0
    columns: int = 0
    how: str = "iid"
    condition: float = 1.0
    scaled: float = 1.0
    zeros: bool = False
    l2: float = 0.0


#: A name begins with the kind of loss; the first two are those that a fixed default
#: broke on.
PROBLEMS = {
    "least squares, 10 × 500 rows, 20 columns": _Data(0, 10, 5000, 20),
    "least squares, 10 × 50 rows, columns 1 to 10³": _Data(1, 10, 500, 20, scaled=1e3),
    "least squares, 30 × 20 rows, 60 columns": _Data(2, 30, 600, 60),
    "least squares, one class, condition 10": _Data(
        3, 8, 800, 30, _CLASS, condition=10.0
    ),
    "least squares, unequal, condition 10³": _Data(
        4, 12, 1500, 30, _UNEQUAL, condition=1e3
    ),
    "least squares, condition 10⁶": _Data(5, 10, 1000, 40, condition=1e6),
    "least squares, a client with one row": _Data(6, 8, 400, 20, _ROW),
    "least squares, zero columns": _Data(7, 10, 500, 20, zeros=True),
    "least squares, unequal, condition 10³, columns 1 to 10³": _Data(
        8, 10, 800, 25, _UNEQUAL, condition=1e3, scaled=1e3
    ),
    "logistic, 20 × 100 rows": _Data(9, 20, 2000, 30, l2=1e-3),
    "logistic, one class": _Data(10, 10, 1000, 30, _CLASS, l2=1e-3),
    "logistic, unequal, columns 1 to 10³": _Data(
        11, 10, 1000, 30, _UNEQUAL, scaled=1e3, l2=1e-3
    ),
    "logistic, condition 10⁶": _Data(12, 10, 1000, 40, condition=1e6, l2=1e-6),
    "logistic, a client with one row": _Data(13, 8, 400, 20, _ROW, l2=1e-2),
    "logistic, breast cancer, raw": _Data(14, 10, l2=1e-3),
    "multinomial, 10 × 100 rows": _Data(15, 10, 1000, 20, l2=1e-3),
    "multinomial, wine, raw, one class": _Data(16, 3, how=_CLASS, l2=1e-2),
    "multinomial, digits, unequal, zero columns": _Data(17, 10, how=_UNEQUAL, l2=1e-3),
    "non-convex, condition 10³": _Data(18, 10, 1000, 30, condition=1e3, l2=1e-2),
    "non-convex, one class, columns 1 to 10³": _Data(
        19, 10, 1000, 20, _CLASS, scaled=1e3, l2=1e-2
    ),
}


def problem(name: str) -> Problem:
    """One of them, made."""
    kind, data = name.split(", ")[0], PROBLEMS[name]
    rng = np.random.default_rng(data.seed)
    if name in _LOADED:
        A, labels = _loaded(_LOADED[name])
    else:
        A, labels = _drawn(kind, rng, data)
    shares = _deal(rng, labels, data.m, data.how)
    losses = _losses(kind, A, labels, shares, data)
    return Problem(name, losses, kind != "non-convex")
