"""Linear regressions, from rows on different nodes, or columns too."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from fedtrellis.objectives.checks import Array, check_number

from .base import FederatedModel, Found
from .partitions import Partitions, known
from .runs import dual_ascent, sparse_regression

__all__ = ["FederatedElasticNet", "FederatedLasso", "FederatedRidge"]


class _Regressor(RegressorMixin, FederatedModel):  # type: ignore[misc]
    """A linear model of numbers."""

    _numeric = True

    def _of_numbers(
        self, found: Found, units: float, centre: float = 0.0, scale: float = 1.0
    ) -> None:
        """Set the attributes, of targets that were (y − centre)/scale."""
        self._keep(found, units)
        self.coef_ = scale * found.coef
        self.intercept_ = float(centre + scale * found.intercept)
        self.n_iter_ = len(found.history)

    def predict(self, X: Any) -> Array:
        """Return x_iᵀw + b of each row, (n,).

        Parameters
        ----------
        X : array_like of shape (n, p), or a list of data frames
            The frames have the same samples and together all columns.
        """
        return self._linear(X)

    def score(
        self, X: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R², the part of the targets' variance that is predicted.

        Parameters
        ----------
        X, y
            As ``fit`` takes them: rows with their y, or partitions.
        sample_weight : array_like of shape (n,), optional
        """
        X, y = self._whole(X, y)
        return float(super().score(X, y, sample_weight))


@dataclass(eq=False, repr=False)
class FederatedElasticNet(_Regressor):
    """Sparse linear regression, from rows, columns or both on different nodes.

    Solves min over w and b of (1/2N)‖y − Xw − b‖² + α ρ ‖w‖₁ + (α (1 − ρ)/2) ‖w‖², as
    scikit-learn's ``ElasticNet(alpha=α, l1_ratio=ρ)``: by FedFW where nodes have whole
    rows, else by HyFDCA. Before the first round nodes with whole rows send the sums of
    y, y², and of each column and its squares; others agree on the targets' mean and
    spread.

    Parameters
    ----------
    alpha : float, default 1.0
        α > 0.
    l1_ratio : float, default 0.5
        ρ > 0, at most 1; below 1 where columns are split.
    fit_intercept : bool, default True
    tol : float, default 1e-8
        The run stops when the nodes agree to tol, relative to their coefficients, and
        the gap is at most tol times the objective at w = 0.
    max_iter : int, default 2000
        Rounds at most.
    label, grid, verbose
        As of :class:`FederatedLogisticRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (p,)
        Those below tol, relative to the largest in scaled columns, are 0.
    intercept_ : float
    n_iter_ : int
        Rounds.
    objective_, gap_ : float
        The value reached, and the certificate: no model is lower by more than gap_.
    history_ : list of dict
        What each round took and came to.
    n_features_in_, feature_names_in_
        As scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedElasticNet
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = 2 * X[:, 0]
    >>> nodes = [(X[:30], y[:30]), (X[30:], y[30:])]
    >>> model = FederatedElasticNet(alpha=0.1).fit(nodes)
    >>> round(float(model.score(X, y)), 1)
    1.0
    """

    alpha: float = 1.0
    _: KW_ONLY
    l1_ratio: float = 0.5
    tol: float = 1e-8
    max_iter: int = 2000

    def _learn(self, partitions: Partitions) -> None:
        alpha = check_number("alpha", self.alpha, positive=True)
        ratio = check_number("l1_ratio", self.l1_ratio, positive=True)
        if ratio > 1.0:
            raise ValueError(f"l1_ratio is {ratio:g}; it must be above 0 and at most 1")
        if partitions.split:
            self._learn_split(partitions, alpha, ratio)
            return
        targets = [
            _numbers(part.target)
            for part in partitions.parts
            if part.target is not None
        ]
        found = sparse_regression(
            self, partitions, targets, l1=alpha * ratio, l2=alpha * (1.0 - ratio)
        )
        self._of_numbers(found, 1.0)

    def _learn_split(self, partitions: Partitions, alpha: float, ratio: float) -> None:
        """Learn from parts of rows, by HyFDCA."""
        if ratio == 1.0:
            raise ValueError(
                f"{type(self).__name__} needs whole rows on every node, and these "
                "partitions have different columns; allowed: FederatedElasticNet with "
                "l1_ratio below 1, whose penalty has a dual"
            )
        targets, centre, s = _scaled_targets(partitions, self.fit_intercept)
        # with y = s y' and w = s w' the function is s² times that of y' and w', where
        # λ(1 − ρ') = α(1 − ρ) and λρ' = αρ/s
        regularization = alpha * (1.0 - ratio) + alpha * ratio / s
        found = dual_ascent(
            self,
            partitions,
            targets,
            loss="squared",
            regularization=regularization,
            l1_ratio=alpha * ratio / s / regularization,
        )
        self._of_numbers(found, s**2, centre, s)


@dataclass(eq=False, repr=False)
class FederatedLasso(FederatedElasticNet):
    """Sparse linear regression by FedFW, from rows on different nodes.

    Solves min over w and b of (1/2N)‖y − Xw − b‖² + α ‖w‖₁, as scikit-learn's
    ``Lasso(alpha=α)``: :class:`FederatedElasticNet` with ρ = 1, whose other parameters
    and attributes it has.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedLasso
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = 2 * X[:, 0]
    >>> nodes = [(X[:30], y[:30]), (X[30:], y[30:])]
    >>> model = FederatedLasso(alpha=0.1).fit(nodes)
    >>> round(float(model.score(X, y)), 1)
    1.0
    """

    l1_ratio: ClassVar[float] = 1.0  # type: ignore[misc]


@dataclass(eq=False, repr=False)
class FederatedRidge(_Regressor):
    """Ridge regression by HyFDCA, from rows, columns or both on different nodes.

    Solves min over w and b of ‖y − Xw − b‖² + α ‖w‖², as scikit-learn's
    ``Ridge(alpha=α)``. Before the run the nodes agree on the targets' mean and spread.

    Parameters
    ----------
    alpha : float, default 1.0
        α > 0.
    fit_intercept : bool, default True
    standardize, tol, max_iter, label, grid, verbose
        As of :class:`FederatedLogisticRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (p,)
    intercept_ : float
    n_iter_, objective_, gap_, history_, n_features_in_, feature_names_in_
        As of :class:`FederatedElasticNet`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedRidge
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = 2 * X[:, 0]
    >>> nodes = [(X[:30], y[:30]), (X[30:], y[30:])]
    >>> model = FederatedRidge(alpha=0.1).fit(nodes)
    >>> round(float(model.score(X, y)), 1)
    1.0
    """

    alpha: float = 1.0
    _: KW_ONLY
    standardize: bool = False

    def _learn(self, partitions: Partitions) -> None:
        alpha = check_number("alpha", self.alpha, positive=True)
        # N, or Σ s
        N = float(partitions.weights().sum())
        targets, centre, s = _scaled_targets(partitions, self.fit_intercept)
        found = dual_ascent(
            self,
            partitions,
            targets,
            loss="squared",
            # ‖y − Xw − b‖² + α‖w‖² = 2N ((λ/2)‖w‖² + (1/N) Σ ½(z − y)²), λ = α/N
            regularization=alpha / N,
            standardize=self.standardize,
        )
        self._of_numbers(found, 2.0 * N * s**2, centre, s)


def _scaled_targets(
    partitions: Partitions, intercept: bool
) -> tuple[list[Array | None], float, float]:
    """Return (y − centre)/s of each node, centre and s.

    Encrypted numbers have a range, and w and b go with the targets' scale. Without an
    intercept the centre is 0.
    """
    y = _numbers(partitions.targets())
    centre = float(y.mean()) if intercept else 0.0
    s = float(np.sqrt(np.square(y - centre).mean())) or 1.0
    targets = [
        None if part.target is None else (_numbers(part.target) - centre) / s
        for part in partitions.parts
    ]
    return targets, centre, s


def _numbers(target: NDArray[Any]) -> Array:
    """Return targets as finite numbers, NaN where there is none."""
    there = known(target)
    numbers = np.full(len(target), np.nan)
    numbers[there] = target[there].astype(np.float64)
    if np.isinf(numbers).any():
        raise ValueError("a target is infinite; all must be finite numbers")
    return numbers
