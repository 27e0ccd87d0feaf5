"""Linear classifiers and regressions, from rows, columns or both on different nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from fedtrellis.dual.weights import BALANCED, shares
from fedtrellis.objectives.base import Array, check_number

from .base import FederatedModel, Found, dual_ascent, sparse_regression
from .partitions import Partitions, known, read_partitions


class _Scored:
    """What scikit-learn scores, of partitions too."""

    def score(
        self, X: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the part of the classes that ``predict`` finds, or R² of numbers.

        X and y are as ``fit`` takes them: rows with their y, or partitions.
        """
        model: Any = self
        if y is None:
            check_is_fitted(model)
            weights: Any = sample_weight
            partitions = read_partitions(X, model.label, weights=weights)
            sample_weight = None if weights is None else partitions.weights()
            learnt: Any = getattr(model, "feature_names_in_", None)
            named = partitions.named and learnt is not None
            names = tuple(learnt) if named else partitions.names
            X, targets = partitions.table(names)
            # as numbers, texts or whatever they were
            y = np.array(targets.tolist())
            if learnt is not None:
                from pandas import DataFrame

                X = DataFrame(X, columns=learnt)
        scored: Any = super()
        return float(scored.score(X, y, sample_weight))


@dataclass(eq=False, repr=False)
class _Classifier(_Scored, ClassifierMixin, FederatedModel):  # type: ignore[misc]
    """½‖w‖² + C Σ l(y_i (x_iᵀw + b)), one class against the rest of them."""

    C: float = 1.0
    _: KW_ONLY
    standardize: bool = False
    class_weight: Mapping[Any, float] | str | None = None
    _loss: ClassVar[str]

    def _learn(self, partitions: Partitions) -> None:
        C = check_number("C", self.C, positive=True)
        # a class of weight 0 is none
        counted = partitions.weights() > 0.0
        targets = np.array(partitions.joined("targets")[counted].tolist())
        check_classification_targets(targets)
        self.classes_ = np.unique(targets)
        if len(self.classes_) < 2:
            raise ValueError(
                f"the targets have one class, {self.classes_[0]!r}; at least 2 are "
                "needed"
            )
        units, found = self._fitted(partitions, C)
        self._keep(found, units)
        self.coef_ = np.atleast_2d(found.coef)
        self.intercept_ = np.atleast_1d(found.intercept)
        self.n_iter_ = np.array([len(found.history)])

    def _fitted(self, partitions: Partitions, C: float) -> tuple[float, Found]:
        """Return C S and what a run finds, S the sum of all weights."""
        count = len(self.classes_)
        numbers = [_numbered(part.targets, self.classes_) for part in partitions.parts]
        rule = self._class_rule()
        weights = partitions.weights()
        if isinstance(rule, Mapping):  # balanced, a class counts 1 on average
            each = _numbered(partitions.joined("targets"), self.classes_)
            weights = weights * [rule.get(number, 1.0) for number in each.tolist()]
        S = C * float(weights.sum())
        return S, dual_ascent(
            self,
            partitions,
            numbers,
            loss=self._loss,
            classes=count if count > 2 else 1,
            class_weight=rule,
            # ½‖w‖² + C Σ s l = CS ((λ/2)‖w‖² + (1/S) Σ s l) with λ = 1/(CS)
            regularization=1.0 / S,
            standardize=self.standardize,
        )

    def _class_rule(self) -> str | dict[float, float] | None:
        """Return classes' weights by their numbers."""
        rule = self.class_weight
        if rule is None or rule == BALANCED:
            return rule
        if not isinstance(rule, Mapping):
            raise ValueError(
                f"class_weight is {rule!r}; it must be 'balanced', or weights by class"
            )
        known = self.classes_.tolist()
        found: dict[float, float] = {}
        for name, weight in rule.items():
            if name not in known:
                raise ValueError(
                    f"class_weight names class {name!r}, which the targets do not have"
                )
            check_number(f"class_weight of {name!r}", weight)
            k = known.index(name)
            found[float(k) if len(known) > 2 else 2.0 * k - 1.0] = weight
        return found

    def decision_function(self, X: Any) -> Array:
        """Return x_iᵀw + b: (n,) of two classes, (n, K) of more.

        X has shape (n, p), or is a list of data frames with the same samples and
        together all columns.
        """
        scores = self._linear(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return each row's class, the one with the highest score."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.asarray(self.classes_[(scores > 0.0).astype(np.intp)])
        return np.asarray(self.classes_[scores.argmax(axis=1)])


def _numbered(target: Any, classes: NDArray[Any]) -> Any:
    """Return the classes' numbers, of two classes −1 and +1; NaN where there is none.

    Of two classes the second is the positive one.
    """
    if target is None:
        return None
    there = known(target)
    numbers = np.full(len(target), np.nan)
    # of one kind: a column in which some are missing is of objects
    found = np.searchsorted(classes, np.array(target[there].tolist()))
    # a class of weight 0 may be beyond the last
    numbers[there] = np.minimum(found, len(classes) - 1)
    return numbers if len(classes) > 2 else 2.0 * numbers - 1.0


@dataclass(eq=False, repr=False)
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
    class_weight : dict or "balanced", optional
        What samples of a class count: weights by class, 1 where none is given, or
        ``"balanced"``, the same sum for both sides. For more than two classes each
        problem of one against the rest is balanced by itself.
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
        found = shares(self.decision_function(X))
        return np.column_stack([1.0 - found, found]) if found.ndim == 1 else found


@dataclass(eq=False, repr=False)
class FederatedSVC(_Classifier):
    """Linear support vector machine by HyFDCA, from rows, columns or both.

    Solves min over w and b of ½‖w‖² + C Σ max(0, 1 − y_i (x_iᵀw + b)), with y_i = ±1:
    for two classes scikit-learn's ``SVC(kernel="linear", C=C)``; for more one class
    against the rest, ``OneVsRestClassifier(SVC(kernel="linear", C=C))``. Other
    parameters and attributes are those of :class:`FederatedLogisticRegression`.

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


class _Regressor(_Scored, RegressorMixin, FederatedModel):  # type: ignore[misc]
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

        X has shape (n, p), or is a list of data frames with the same samples and
        together all columns.
        """
        return self._linear(X)


@dataclass(eq=False, repr=False)
class FederatedElasticNet(_Regressor):
    """Sparse linear regression, from rows, columns or both on different nodes.

    Solves min over w and b of (1/2N)‖y − Xw − b‖² + α ρ ‖w‖₁ + (α (1 − ρ)/2) ‖w‖², as
    scikit-learn's ``ElasticNet(alpha=α, l1_ratio=ρ)``: by FedFW where nodes have whole
    rows, else by HyFDCA. Before the run nodes with whole rows agree on the means of y,
    y², and of each column and its squares; others on the targets' mean and spread.

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
    objective_, gap_, history_, n_features_in_, feature_names_in_
        As of :class:`FederatedLogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.estimators import FederatedElasticNet
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedElasticNet(alpha=1e-6).fit([(X[:2], [1, 3]), (X[2:], [5, 7])])
    >>> model.predict([[4.0]]).round(2)
    array([9.])
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
            _numbers(part.targets)
            for part in partitions.parts
            if part.targets is not None
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
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedLasso(alpha=1e-6).fit([(X[:2], [1, 3]), (X[2:], [5, 7])])
    >>> model.predict([[4.0]]).round(2)
    array([9.])
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
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedRidge(alpha=0.1).fit([(X[:2], [1, 3]), (X[2:], [5, 7])])
    >>> model.predict([[4.0]]).round(1)
    array([8.9])
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
    intercept the centre is 0. A row of weight 0 has no say, and the target 0.
    """
    y, weights = _numbers(partitions.joined("targets")), partitions.weights()
    centre = float(np.average(y, weights=weights)) if intercept else 0.0
    s = float(np.sqrt(np.average(np.square(y - centre), weights=weights)))
    s = s if s > 1e-14 * abs(centre) else 1.0
    y = np.where(weights > 0.0, (y - centre) / s, 0.0)
    targets = [
        t if t is None else np.where(known(t), y[rows], np.nan)
        for _, _, rows, t, _ in partitions.parts
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
