"""What the estimators have in common: data in, rows to predict for, a score."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from fedtrellis.objectives.checks import Array, check_examples

from .partitions import (
    Part,
    Partitions,
    check_positive,
    is_frame,
    read_partitions,
)
from .runs import Found

__all__ = ["FederatedModel"]


class FederatedModel(BaseEstimator):  # type: ignore[misc]
    """Base class of linear models that are learnt from partitions.

    A subclass is a dataclass of scikit-learn's kind: its constructor's arguments are
    its parameters. It has ``tol``, ``max_iter``, ``label``, ``grid`` and ``verbose``
    beside its own, and implements :meth:`_learn`.
    """

    tol: float
    max_iter: int
    label: str
    #: Whether targets are numbers.
    _numeric = False

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
        return self._labelled(X) if y is None else (X, y)

    def _labelled(self, data: Any) -> tuple[Any, NDArray[Any]]:
        """Return whole rows and their targets of partitions."""
        check_is_fitted(self)
        partitions = read_partitions(data, self.label)
        named = partitions.named and hasattr(self, "feature_names_in_")
        names = list(self.feature_names_in_) if named else partitions.names
        rows, targets = partitions.table(names)
        # as numbers, texts or whatever they were
        return self._as_learnt(rows), np.array(targets.tolist())

    def _as_learnt(self, table: Array) -> Any:
        """Return a table as a frame of the learnt names, where there are names."""
        if not hasattr(self, "feature_names_in_"):
            return table
        from pandas import DataFrame

        return DataFrame(table, columns=self.feature_names_in_)

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
