"""What the estimators have in common: data in, rows to predict for, a score."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from fedtrellis.objectives.checks import Array, check_examples
from fedtrellis.wire.local_grid import LocalGrid

from .partitions import Part, Partitions, check_positive, is_frame, read_partitions

__all__ = ["FederatedModel", "Found", "Grids"]


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

        Raises
        ------
        ValueError
            The partitions do not make one table, or a parameter is not allowed.
        """
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
            if hasattr(self, name):
                delattr(self, name)
        if y is None:
            found = read_partitions(partitions, self.label, weights=weights)
            self.n_features_in_ = len(found.names)
            if found.named:
                self.feature_names_in_ = np.array(found.names, dtype=object)
            return found
        X, target = validate_data(
            self,
            partitions,
            y,
            accept_sparse="csr",
            dtype=np.float64,
            y_numeric=self._numeric,
        )
        X = check_examples("X", X)
        names = tuple(f"x{j}" for j in range(X.shape[1]))
        names = tuple(getattr(self, "feature_names_in_", names))
        ids = tuple(f"0.{i}" for i in range(X.shape[0]))
        if weights is not None:
            weights = _check_sample_weight(
                weights, X, dtype=np.float64, ensure_non_negative=True
            )
        part = Part(X, names, ids, target, weights)
        return Partitions((part,), names, False, False)

    def _rows(self, X: Any) -> Any:
        """Return rows to predict for, (n, p): those of one table, or of frames."""
        check_is_fitted(self)
        if isinstance(X, list | tuple) and X and all(map(is_frame, X)):
            partitions = read_partitions(X, self.label, targets=False)
            return partitions.table(list(self.feature_names_in_))[0]
        return validate_data(
            self, X, accept_sparse="csr", dtype=np.float64, reset=False
        )

    def _linear(self, X: Any) -> Array:
        """Return x_iᵀw + b of each row, for each row of ``coef_``: (n,) or (n, K)."""
        rows = self._rows(X)
        return np.asarray(rows @ np.asarray(self.coef_).T + self.intercept_)

    def _whole(self, X: Any, y: ArrayLike | None) -> tuple[Any, Any]:
        """Return rows and their targets, of one table or of partitions."""
        if y is not None:
            return X, y
        check_is_fitted(self)
        partitions = read_partitions(X, self.label)
        learnt = getattr(self, "feature_names_in_", None)
        names = partitions.names
        if partitions.named and learnt is not None:
            names = tuple(learnt)
        rows, targets = partitions.table(names)
        # as numbers, texts or whatever they were
        y = np.array(targets.tolist())
        if learnt is None:
            return rows, y
        from pandas import DataFrame

        return DataFrame(rows, columns=learnt), y

    def _keep(self, found: Found, units: float) -> None:
        """Set what a run certifies."""
        self._check_arrived(found)
        self.objective_ = units * found.objective
        self.gap_ = units * found.gap
        self.history_ = found.history

    def _check_arrived(self, found: Found) -> None:
        """Warn if a run ended before its gap was small enough."""
        if not found.gap <= self.tol * found.scale:
            warnings.warn(
                f"not converged after {len(found.history)} of max_iter = "
                f"{self.max_iter} rounds: the gap is {found.gap:.3g}, tol = "
                f"{self.tol:g} allows {self.tol * found.scale:.3g}",
                ConvergenceWarning,
                stacklevel=5,
            )
