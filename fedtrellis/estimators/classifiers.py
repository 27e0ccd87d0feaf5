"""Linear classifiers, from rows, columns or both on different nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from fedtrellis.objectives.checks import Array, check_number

from .base import FederatedModel
from .partitions import Partitions, known
from .runs import Grids, dual_ascent

__all__ = ["FederatedLogisticRegression", "FederatedSVC"]


class _Classifier(ClassifierMixin, FederatedModel):  # type: ignore[misc]
    """½‖w‖² + C Σ l(y_i (x_iᵀw + b)), one class against the rest of them."""

    _loss: str

    def __init__(
        self,
        C: float = 1.0,
        *,
        fit_intercept: bool = True,
        standardize: bool = False,
        tol: float = 1e-10,
        max_iter: int = 1000,
        label: str = "label",
        grid: Grids = None,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.tol = tol
        self.max_iter = max_iter
        self.label = label
        self.grid = grid
        self.verbose = verbose

    def _learn(self, partitions: Partitions) -> None:
        C = check_number("C", self.C, positive=True)
        targets = np.array(partitions.targets().tolist())
        check_classification_targets(targets)
        self.classes_ = np.unique(targets)
        if len(self.classes_) < 2:
            raise ValueError(
                f"the targets have one class, {self.classes_[0]!r}; at least 2 are "
                "needed"
            )
        count = len(self.classes_)
        N = partitions.num_samples
        found = dual_ascent(
            partitions,
            [_numbered(part.target, self.classes_) for part in partitions.parts],
            loss=self._loss,
            classes=count if count > 2 else 1,
            # ½‖w‖² + C Σ l = CN ((λ/2)‖w‖² + (1/N) Σ l) with λ = 1/(CN)
            regularization=1.0 / (C * N),
            intercept=self.fit_intercept,
            standardize=self.standardize,
            tolerance=self.tol,
            rounds=self.max_iter,
            grids=self.grid,
            verbose=self.verbose,
        )
        self._check_arrived(found)
        self.coef_ = np.atleast_2d(found.coef)
        self.intercept_ = np.atleast_1d(found.intercept)
        self.n_iter_ = np.array([len(found.history)])
        self.objective_ = C * N * found.objective
        self.gap_ = C * N * found.gap
        self.history_ = found.history

    def decision_function(self, X: Any) -> Array:
        """Return x_iᵀw + b: (n,) of two classes, (n, K) of more.

        Parameters
        ----------
        X : array_like of shape (n, p), or a list of data frames
            The frames have the same samples and together all columns.
        """
        scores = self._linear(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return each row's class, the one with the highest score."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.asarray(self.classes_[(scores > 0.0).astype(np.intp)])
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def score(
        self, X: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the part of the classes that :meth:`predict` finds.

        Parameters
        ----------
        X, y
            As ``fit`` takes them: rows with their y, or partitions.
        sample_weight : array_like of shape (n,), optional
        """
        X, y = self._whole(X, y)
        return float(super().score(X, y, sample_weight))


def _numbered(target: NDArray[Any] | None, classes: NDArray[Any]) -> Array | None:
    """Return the classes' numbers, of two classes −1 and +1; NaN where nobody has said.

    Of two classes the second is the positive one.
    """
    if target is None:
        return None
    there = known(target)
    numbers = np.full(len(target), np.nan)
    # of one kind: a column in which some are missing is of objects
    numbers[there] = np.searchsorted(classes, np.array(target[there].tolist()))
    return numbers if len(classes) > 2 else 2.0 * numbers - 1.0


class FederatedLogisticRegression(_Classifier):
    """Logistic regression by HyFDCA, from rows, columns or both on different nodes.

    Solves min over w and b of ½‖w‖² + C Σ ln(1 + exp(−y_i (x_iᵀw + b))), with y_i = ±1:
    for two classes scikit-learn's ``LogisticRegression(C=C)``; for more one class
    against the rest, ``OneVsRestClassifier(LogisticRegression(C=C))``.

    Parameters
    ----------
    C : float, default 1.0
        As scikit-learn's: the smaller, the stronger the regularisation.
    fit_intercept : bool, default True
    standardize : bool, default False
        Whether the penalty is on the weights of standardised columns, as after
        scikit-learn's ``StandardScaler``: for raw columns. coef_ is in the columns' own
        units all the same.
    tol : float, default 1e-10
        Of the certificate: the run stops when the gap is at most tol times the
        objective. Coefficients are then right to about its root.
    max_iter : int, default 1000
        Rounds at most.
    label : str, default "label"
        The column of the target in data frames that come without a y.
    grid : LocalGrid or callable, optional
        A :class:`~fedtrellis.LocalGrid` of as many nodes as partitions, or what makes
        a Flower ``Grid`` of a ClientApp and the number of nodes; by default
        ``LocalGrid``.
    verbose : bool, default False
        Whether to log the rounds.

    Attributes
    ----------
    coef_ : ndarray of shape (1, p), or (K, p) of K > 2 classes
    intercept_ : ndarray of shape (1,) or (K,)
    classes_ : ndarray of shape (K,)
    n_iter_ : ndarray of int of shape (1,)
        Rounds.
    objective_, gap_ : float
        The value reached, and the certificate: no model is lower by more than gap_. Of
        K > 2 classes both are sums over them.
    history_ : list of dict
        What each round took and came to.
    n_features_in_, feature_names_in_
        As scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedLogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> nodes = [(X[:30], y[:30]), (X[30:], y[30:])]
    >>> model = FederatedLogisticRegression().fit(nodes)
    >>> round(float(model.score(X, y)), 1)
    1.0
    """

    _loss = "logistic"

    def predict_proba(self, X: Any) -> Array:
        """Return each class's probability, (n, K): σ(xᵀw + b), normalised."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            second = expit(scores)
            return np.column_stack([1.0 - second, second])
        shares = expit(scores)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of :meth:`predict_proba`."""
        return np.log(self.predict_proba(X))


class FederatedSVC(_Classifier):
    """Linear support vector machine by HyFDCA, from rows, columns or both.

    Solves min over w and b of ½‖w‖² + C Σ max(0, 1 − y_i (x_iᵀw + b)), with y_i = ±1:
    for two classes scikit-learn's ``SVC(kernel="linear", C=C)``; for more one class
    against the rest, ``OneVsRestClassifier(SVC(kernel="linear", C=C))``. Parameters and
    attributes are those of :class:`FederatedLogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedSVC
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> nodes = [(X[:30], y[:30]), (X[30:], y[30:])]
    >>> model = FederatedSVC(tol=1e-6).fit(nodes)
    >>> round(float(model.score(X, y)), 1)
    1.0
    """

    _loss = "hinge"
