"""scikit-learn's estimators, on data that lie on several nodes."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

import sim
from fedtrellis.estimators import (
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedRidge,
    FederatedSVC,
)

Array = NDArray[np.float64]


def rows_of(X: Any, y: Array, count: int) -> list[tuple[Any, Array]]:
    order = np.random.default_rng(0).permutation(len(y))
    return [(X[part], y[part]) for part in np.array_split(order, count)]


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    """Breast cancer, standardised, with ids and a label of two words."""
    table = load_breast_cancer(as_frame=True).frame.iloc[::2]
    X = table.iloc[:, :10]
    frame = (X - X.mean()) / X.std(ddof=0)
    frame["label"] = np.where(table["target"] == 1, "benign", "malignant")
    frame.index = pd.Index([f"p{i}" for i in range(len(frame))])
    return frame


def split(frame: pd.DataFrame, how: str) -> list[Any]:
    half = len(frame) // 2
    if how == "rows":
        return [frame.iloc[:half], frame.iloc[half:]]
    if how == "columns":
        return [frame.iloc[:, :4], frame.iloc[:, 4:]]
    top, bottom = frame.iloc[:half], frame.iloc[half:]
    return [top.iloc[:, :4], top.iloc[:, 4:], bottom.iloc[:, :7], bottom.iloc[:, 7:]]


@pytest.mark.parametrize("how", ["rows", "columns", "both"])
@pytest.mark.parametrize("intercept", [False, True])
def test_logistic_regression(patients: pd.DataFrame, how: str, intercept: bool) -> None:
    X, y = patients.drop(columns="label"), patients["label"]
    expected = LogisticRegression(
        C=0.5, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12
    ).fit(X, y)
    nodes = split(patients, how)
    model = FederatedLogisticRegression(C=0.5, fit_intercept=intercept, tol=5e-14)
    assert model.fit(nodes) is model
    largest = np.abs(expected.coef_).max()
    order = [list(model.feature_names_in_).index(name) for name in X.columns]
    coef = model.coef_[:, order]
    assert coef == pytest.approx(expected.coef_, abs=1e-6 * largest)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-6 * largest)
    assert list(model.classes_) == ["benign", "malignant"]
    whole = X[list(model.feature_names_in_)]
    chances = model.predict_proba(whole)
    assert chances == pytest.approx(expected.predict_proba(X), abs=1e-6)
    assert (model.predict(whole) == expected.predict(X)).all()
    assert model.score(nodes) == expected.score(X, y)
    # ½‖w‖² + C Σ ln(1 + exp(−y z)), and nothing is lower by more than the gap
    z = np.where(y == "malignant", 1, -1) * expected.decision_function(X)
    least = 0.5 * (expected.coef_**2).sum() + 0.5 * np.logaddexp(0, -z).sum()
    assert model.objective_ == pytest.approx(least, rel=1e-9)
    assert model.gap_ <= 5e-14 * least


def test_support_vector_machine(patients: pd.DataFrame) -> None:
    X, y = patients.drop(columns="label"), patients["label"]
    expected = SVC(kernel="linear", C=0.1, tol=1e-10).fit(X, y)
    model = FederatedSVC(C=0.1, tol=1e-7).fit(split(patients, "columns"))
    assert model.coef_ == pytest.approx(expected.coef_, abs=1e-4)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-4)
    z = np.where(y == "malignant", 1, -1) * expected.decision_function(X)
    least = 0.5 * (expected.coef_**2).sum() + 0.1 * np.maximum(0, 1 - z).sum()
    assert model.objective_ == pytest.approx(least, rel=1e-6)
    assert (model.predict(X) == expected.predict(X)).all()


def test_three_classes_are_one_against_the_rest() -> None:
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    pooled = LogisticRegression(solver="newton-cholesky", tol=1e-12)
    expected = OneVsRestClassifier(pooled).fit(X, y)
    model = FederatedLogisticRegression(tol=5e-14).fit(rows_of(X, y, 3))
    coef = np.concatenate([each.coef_ for each in expected.estimators_])
    assert model.coef_ == pytest.approx(coef, abs=1e-6 * np.abs(coef).max())
    intercepts = np.concatenate([each.intercept_ for each in expected.estimators_])
    assert model.intercept_ == pytest.approx(intercepts, abs=3e-6)
    probability = expected.predict_proba(X)
    assert model.predict_proba(X) == pytest.approx(probability, abs=1e-6)
    assert (model.predict(X) == expected.predict(X)).all()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("case", ["plain", "scaled", "sparse", "wide"])
def test_sparse_regression(case: str, intercept: bool) -> None:
    X, y = load_diabetes(return_X_y=True)
    alpha = 0.5
    if case == "scaled":
        # with a column that says nothing
        X = np.column_stack([X * np.logspace(-1, 2, 10), np.full(len(X), 7.0)])
    elif case == "sparse":
        X = np.where(np.abs(X) > 0.03, X, 0.0)
    elif case == "wide":
        X, y = np.random.default_rng(1).normal(size=(40, 80)), y[:40]
        alpha = 10.0
    nodes = rows_of(sparse.csr_array(X) if case == "sparse" else X, y, 3)
    exact: dict[str, Any] = {"tol": 1e-13, "max_iter": 10**6}
    for model, expected in (
        (FederatedLasso(alpha), Lasso(alpha, **exact)),
        (
            FederatedElasticNet(alpha, l1_ratio=0.7),
            ElasticNet(alpha, l1_ratio=0.7, **exact),
        ),
    ):
        for each in (model, expected):
            each.set_params(fit_intercept=intercept)
        expected.fit(X, y)
        model.fit(nodes)
        largest = np.abs(expected.coef_).max()
        assert model.coef_ == pytest.approx(expected.coef_, abs=1e-6 * largest)
        assert (model.coef_ != 0.0).tolist() == (expected.coef_ != 0.0).tolist()
        height = np.abs(y).max()
        assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-6 * height)
        assert model.score(X, y) == pytest.approx(expected.score(X, y), abs=1e-6)
        residual = y - expected.predict(X)
        penalty = expected.alpha * np.abs(expected.coef_).sum()
        if isinstance(model, FederatedLasso):
            least = 0.5 * (residual**2).mean() + penalty
            assert model.objective_ - model.gap_ <= least * (1 + 1e-12)
            assert model.objective_ == pytest.approx(least, rel=1e-7)
            assert 0.0 <= model.gap_ <= 1e-7 * np.square(y).mean()


@pytest.mark.parametrize("how", ["rows", "columns", "both"])
@pytest.mark.parametrize("intercept", [False, True])
def test_ridge(how: str, intercept: bool) -> None:
    table = load_diabetes(as_frame=True).frame
    features = ["age", "sex", "bmi", "bp", "s3", "s4", "s5", "s6"]
    table[features] = 20.0 * table[features] + 0.5
    table = table[[*features, "target"]].rename(columns={"target": "label"})
    X, y = table[features], table["label"]
    expected = Ridge(alpha=3.0, fit_intercept=intercept).fit(X, y)
    # a gap of ε lets w be off by √ε: 1e-14 is where rounding begins
    model = FederatedRidge(alpha=3.0, fit_intercept=intercept, tol=2e-14)
    nodes = split(table, how)
    model.fit(nodes)
    order = [list(model.feature_names_in_).index(name) for name in X.columns]
    largest = np.abs(expected.coef_).max()
    assert model.coef_[order] == pytest.approx(expected.coef_, abs=1e-6 * largest)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-6 * y.max())
    assert model.score(nodes) == pytest.approx(expected.score(X, y), abs=1e-7)
    residual = ((y - expected.predict(X)) ** 2).sum()
    least = residual + 3.0 * (expected.coef_**2).sum()
    assert model.objective_ == pytest.approx(least, rel=1e-9)


def test_an_elastic_net_of_columns() -> None:
    table = load_diabetes(as_frame=True).frame
    features = ["age", "sex", "bmi", "bp", "s3", "s4", "s5", "s6"]
    table[features] = 20.0 * table[features] + 0.5
    table = table[[*features, "target"]].rename(columns={"target": "label"})
    X, y = table[features], table["label"]
    expected = ElasticNet(5.0, l1_ratio=0.9, tol=1e-13, max_iter=10**6).fit(X, y)
    # fixed point lets P − D be known to some 1e-12, which some runs do not come below:
    # the coefficients get there all the same
    model = FederatedElasticNet(5.0, l1_ratio=0.9, tol=1e-12, max_iter=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(split(table, "both"))
    order = [list(model.feature_names_in_).index(name) for name in X.columns]
    largest = np.abs(expected.coef_).max()
    assert model.coef_[order] == pytest.approx(expected.coef_, abs=1e-6 * largest)
    zeros = expected.coef_ == 0.0
    assert zeros.any()
    assert (model.coef_[order][zeros] == 0.0).all()
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-6 * y.max())


def counts(n: int, seed: int = 3) -> Array:
    """Weights with two digits after the point, and a 0."""
    s = np.round(np.random.default_rng(seed).uniform(0.2, 3.0, n), 2)
    s[4] = 0.0
    return s


def dealt(nodes: list[Any], s: pd.Series) -> list[Array]:
    return [s[node.index].to_numpy() for node in nodes]


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("rows", "balanced"),
        ("columns", {"benign": 0.5, "malignant": 4.0}),
        pytest.param("both", None, marks=pytest.mark.slow),
    ],
)
def test_weighted_logistic_regression(
    patients: pd.DataFrame, how: str, rule: Any
) -> None:
    X, y = patients.drop(columns="label"), patients["label"]
    s = pd.Series(counts(len(y)), index=y.index)
    expected = LogisticRegression(
        C=0.1, class_weight=rule, solver="newton-cholesky", tol=1e-12
    ).fit(X, y, sample_weight=s)
    nodes = split(patients, how)
    model = FederatedLogisticRegression(C=0.1, class_weight=rule, tol=5e-14)
    model.fit(nodes, sample_weight=dealt(nodes, s))
    order = [list(model.feature_names_in_).index(name) for name in X.columns]
    largest = np.abs(expected.coef_).max()
    assert model.coef_[:, order] == pytest.approx(expected.coef_, abs=2e-6 * largest)
    chances = model.predict_proba(X[list(model.feature_names_in_)])
    assert chances == pytest.approx(expected.predict_proba(X), abs=2e-6)
    # ½‖w‖² + C Σ s c ln(1 + exp(−y z))
    positive = (y == "malignant").to_numpy()
    c = np.ones(len(y))
    if rule == "balanced":
        sides = s.to_numpy()[positive].sum(), s.to_numpy()[~positive].sum()
        c = s.sum() / (2.0 * np.where(positive, *sides))
    elif rule:
        c = np.where(positive, rule["malignant"], rule["benign"])
    z = np.where(positive, 1, -1) * expected.decision_function(X)
    sizes = s.to_numpy() * c * np.logaddexp(0, -z)
    least = 0.5 * (expected.coef_**2).sum() + 0.1 * sizes.sum()
    assert model.objective_ == pytest.approx(least, rel=1e-9)


def test_weighted_regressions() -> None:
    X, y = load_diabetes(return_X_y=True)
    X = 20.0 * X[:150, :6] + 0.5
    y = y[:150]
    s = counts(len(y))
    parts = [slice(0, 70), slice(70, 150)]
    nodes, weights = [(X[part], y[part]) for part in parts], [s[part] for part in parts]
    exact: dict[str, Any] = {"tol": 1e-13, "max_iter": 10**6}
    cases: list[tuple[Any, Any]] = [
        (FederatedRidge(3.0, tol=1e-13), Ridge(3.0)),
        (FederatedLasso(0.5), Lasso(0.5, **exact)),
        (
            FederatedElasticNet(0.5, l1_ratio=0.7),
            ElasticNet(0.5, l1_ratio=0.7, **exact),
        ),
    ]
    for model, expected in cases:
        expected.fit(X, y, sample_weight=s)
        model.fit(nodes, sample_weight=weights)
        largest = np.abs(expected.coef_).max()
        assert model.coef_ == pytest.approx(expected.coef_, abs=2e-6 * largest)
        height = np.abs(y).max()
        assert model.intercept_ == pytest.approx(expected.intercept_, abs=2e-6 * height)
        if isinstance(model, FederatedRidge):
            residual = s @ (y - expected.predict(X)) ** 2
            least = residual + 3.0 * (expected.coef_**2).sum()
            assert model.objective_ == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("classes", "weighted"),
    [(2, True), pytest.param(3, False, marks=pytest.mark.slow)],
)
def test_probabilities_of_a_support_vector_machine(
    classes: int, weighted: bool
) -> None:
    """As scikit-learn calibrates one, on the same folds."""
    n, rng = 60, np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    scores = X @ rng.standard_normal((3, classes)) + rng.standard_normal((n, classes))
    y = scores.argmax(axis=1)
    s = np.round(rng.uniform(0.5, 2.0, n), 2) if weighted else None
    machine: Any = SVC(kernel="linear", C=0.1, tol=1e-10)
    if classes > 2:
        machine = OneVsRestClassifier(machine)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    expected = CalibratedClassifierCV(
        machine, method="sigmoid", cv=folds, ensemble=False
    ).fit(X, y, sample_weight=s)
    model = FederatedSVC(C=0.1, probability=True, tol=1e-7)
    halves = [slice(0, 35), slice(35, n)]
    weights = None if s is None else [s[part] for part in halves]
    model.fit([(X[part], y[part]) for part in halves], sample_weight=weights)
    # a class may have all of the gap that the sum over the classes is allowed
    close = 1e-5 if classes == 2 else 1e-3
    assert model.predict_proba(X) == pytest.approx(expected.predict_proba(X), abs=close)
    assert not hasattr(FederatedSVC(), "predict_proba")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 1.0]] * 2, r"weights of partition 0 have shape \(2,\), expected \(3,"),
        (
            [[1.0, -1.0, 1.0], None],
            "weights of partition 0 must be finite numbers",
        ),
        ([[1.0, np.inf, 1.0], None], "weights of partition 0 must be finite numbers"),
        ([[1.0, np.nan, 1.0], None], "1 samples have a weight nowhere, others have"),
        ([[0.0, 0.0, 0.0], None], "all sample weights are 0"),
        ([[0.0, 1.0, 2.0], None], "the targets have one class"),
        ([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]], "sample 'j' has two weights"),
        ([[1.0, 1e-12, 1.0], None], "less than a billionth of the largest"),
        ([[1.0, 1.0, 1.0]], "sample_weight has 1 entries for 2 partitions"),
        (np.ones(3), "must be a list with an array, or None, for each partition"),
    ],
)
def test_weights_that_are_none(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedLogisticRegression().fit([A, B], sample_weight=weights)


A = pd.DataFrame({"a": [0.0, 1.0, 2.0], "label": [0, 1, 1]}, index=["i", "j", "k"])
B = pd.DataFrame({"b": [3.0, 1.0, 2.0]}, index=["k", "j", "i"])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (np.zeros((3, 2)), "y is missing"),
        ([], "y is missing"),
        ([A, (np.zeros((2, 1)), [0, 1])], "partition 1 is no data frame"),
        ([A, B.iloc[:2]], "column 'b' of sample 'i' is nowhere"),
        ([A, B, B], "column 'b' of sample 'i' is in two partitions"),
        ([A, pd.concat([B, B])], "partition 1 has a sample's index twice"),
        ([A.drop(columns="label"), B], "3 samples have a target nowhere, 'i' among"),
        ([A, (B, [1, 1, 1])], "sample 'i' has two targets"),
        ([(np.zeros((3, 1)), [0, 1])], r"partition 0 has 3 rows and a y of shape \(2,"),
        ([(np.zeros((2, 1)), [0, 1]), (np.zeros((2, 2)), [0, 1])], "1 has 2 columns"),
        ([(np.zeros((2, 1)), [0.0, np.nan])], "partition 0 has rows without a target"),
        ([(np.array([[np.nan]]), [0.0])], "partition 0 has NaN"),
        ([(np.zeros((2, 1)), [1, 1])], "the targets have one class, "),
    ],
)
def test_partitions_that_make_no_table(nodes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedLogisticRegression().fit(nodes)


def test_a_lasso_needs_whole_rows() -> None:
    with pytest.raises(ValueError, match="FederatedLasso needs whole rows"):
        FederatedLasso().fit([A, B])


# HyFDCA's clients draw what they propose from a key of the run's own, so that two runs
# agree to the tolerance, and these checks ask for more
RANDOM = {
    "check_fit_idempotent": "two fits agree to the tolerance, not to 1e-7",
    "check_supervised_y_2d": "the same, of y and of y as a column",
    "check_sample_weight_equivalence_on_dense_data": "the same, of repeated rows",
    "check_sample_weight_equivalence_on_sparse_data": "the same, of repeated rows",
}


@pytest.mark.parametrize(
    ("model", "failing"),
    [
        (FederatedLasso(0.1), {}),
        (FederatedElasticNet(0.1), {}),
        (FederatedLogisticRegression(tol=1e-6), RANDOM),
        pytest.param(FederatedSVC(tol=1e-4), RANDOM, marks=pytest.mark.slow),
        pytest.param(FederatedRidge(), RANDOM, marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scikit_learns_checks(model: Any, failing: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_fail=None, on_skip=None)
    found = {each["check_name"] for each in results if each["status"] == "failed"}
    assert found <= set(failing), found
    assert len(results) > 40


PAGE = Path(sim.__file__).parent / "docs" / "estimators.md"


def test_ten_lines_from_split_columns_to_a_score() -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["accuracy"] > 0.95
    assert names["model"].gap_ < 1e-8


def test_rows_of_frames_may_have_their_columns_in_any_order() -> None:
    wide = A.join(B)
    nodes = [wide, wide[["b", "label", "a"]]]
    model = FederatedLogisticRegression().fit(nodes)
    again = FederatedLogisticRegression().fit([wide, wide])
    assert model.coef_ == pytest.approx(again.coef_, abs=1e-4)
    assert model.score(nodes) == again.score([wide, wide])
