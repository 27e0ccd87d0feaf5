"""scikit-learn's estimators, on data that lie on several nodes."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
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
from tests.harness import not_daily, programs, refused, run_program

EXACT: dict[str, Any] = {"tol": 1e-13, "max_iter": 10**6}


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    """Breast cancer, standardised, with ids and a label of two words."""
    table = load_breast_cancer(as_frame=True).frame.iloc[::2]
    X = table.iloc[:, :10]
    frame = (X - X.mean()) / X.std(ddof=0)
    frame["label"] = np.where(table["target"] == 1, "benign", "malignant")
    frame.index = pd.Index([f"p{i}" for i in range(len(frame))])
    return frame


@pytest.fixture(scope="module")
def diabetes() -> pd.DataFrame:
    table = load_diabetes(as_frame=True).frame
    features = ["age", "sex", "bmi", "bp", "s3", "s4", "s5", "s6"]
    table[features] = 20.0 * table[features] + 0.5
    return table[[*features, "target"]].rename(columns={"target": "label"})


def split(frame: pd.DataFrame, how: str) -> list[Any]:
    half = len(frame) // 2
    top, bottom = frame.iloc[:half], frame.iloc[half:]
    return {
        # whose columns may have any order
        "rows": [top, bottom[bottom.columns[::-1]]],
        "columns": [frame.iloc[:, :4], frame.iloc[:, 4:]],
        "both": [
            *(top.iloc[:, :4], top.iloc[:, 4:]),
            *(bottom.iloc[:, :7], bottom.iloc[:, 7:]),
        ],
    }[how]


def weights_of(frame: pd.DataFrame) -> pd.Series:
    """Weights with two digits after the point, and a 0."""
    s = np.round(np.random.default_rng(3).uniform(0.2, 3.0, len(frame)), 2)
    s[4] = 0.0
    return pd.Series(s, index=frame.index)


def check(
    model: Any, expected: Any, X: pd.DataFrame, height: float, near: float = 1e-6
) -> None:
    """The same coefficients and intercept, in whatever order the columns came."""
    order = [list(model.feature_names_in_).index(name) for name in X.columns]
    coef, largest = model.coef_[..., order], np.abs(expected.coef_).max()
    assert coef == pytest.approx(expected.coef_, abs=near * largest)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=near * height)


@pytest.mark.parametrize(
    ("how", "intercept", "weighted", "rule"),
    [
        ("rows", True, False, None),
        ("columns", False, False, None),
        ("both", True, False, None),
        ("rows", True, True, "balanced"),
        ("columns", True, True, {"benign": 0.5, "malignant": 4.0}),
    ],
)
def test_logistic_regression(
    patients: pd.DataFrame, how: str, intercept: bool, weighted: bool, rule: Any
) -> None:
    X, y, nodes = patients.drop(columns="label"), patients["label"], None
    s = weights_of(X) if weighted else 1.0 + 0.0 * weights_of(X)
    options: dict[str, Any] = {"class_weight": rule, "fit_intercept": intercept}
    C = 0.1 if weighted else 0.5
    newton = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, **options)
    expected = newton.fit(X, y, sample_weight=s)
    nodes = split(patients, how)
    model = FederatedLogisticRegression(C=C, tol=1e-13, **options)
    given = [s[node.index].to_numpy() for node in nodes] if weighted else None
    assert model.fit(nodes, sample_weight=given) is model
    near = 2e-6 if weighted else 1e-6
    check(model, expected, X, np.abs(expected.coef_).max(), near)
    assert list(model.classes_) == ["benign", "malignant"]
    whole = X[list(model.feature_names_in_)]
    chances = model.predict_proba(whole)
    assert chances == pytest.approx(expected.predict_proba(X), abs=2e-6)
    assert (model.predict(whole) == expected.predict(X)).all()
    assert model.score(nodes) == expected.score(X, y)
    # fixed point lets the gap be known to some 1e-12
    assert model.gap_ <= 1e-12 * model.objective_


def test_three_classes_are_one_against_the_rest() -> None:
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    pooled = LogisticRegression(solver="newton-cholesky", tol=1e-12)
    expected = OneVsRestClassifier(pooled).fit(X, y)
    model = FederatedLogisticRegression(tol=5e-14)
    model.fit([(X[part::3], y[part::3]) for part in range(3)])
    coef = np.concatenate([each.coef_ for each in expected.estimators_])
    assert model.coef_ == pytest.approx(coef, abs=1e-6 * np.abs(coef).max())
    probability = expected.predict_proba(X)
    assert model.predict_proba(X) == pytest.approx(probability, abs=1e-6)
    assert (model.predict(X) == expected.predict(X)).all()
    early = FederatedLogisticRegression(max_iter=4)
    with pytest.warns(ConvergenceWarning):
        early.fit([(X[::2], y[::2]), (X[1::2], y[1::2])])
    margins = (2.0 * (y[:, None] == range(3)) - 1.0) * early.decision_function(X)
    value = 0.5 * (early.coef_**2).sum() + np.logaddexp(0.0, -margins).sum()
    # each class's w is its best one, not that of one round
    assert early.objective_ == pytest.approx(value)


@pytest.mark.parametrize(
    ("how", "intercept", "weighted"),
    [
        ("rows", False, False),
        ("columns", True, True),
        ("both", False, True),
        *not_daily(("both", True, False)),
    ],
)
def test_ridge(
    diabetes: pd.DataFrame, how: str, intercept: bool, weighted: bool
) -> None:
    s = weights_of(diabetes) if weighted else 1.0 + 0.0 * weights_of(diabetes)
    # what has no weight has no say, whatever stands there
    diabetes = diabetes.assign(label=diabetes["label"].where(s > 0.0, 1e9))
    X, y = diabetes.drop(columns="label"), diabetes["label"]
    expected = Ridge(alpha=3.0, fit_intercept=intercept).fit(X, y, sample_weight=s)
    # a gap of ε lets w be off by √ε: 1e-14 is where rounding begins
    model = FederatedRidge(alpha=3.0, fit_intercept=intercept, tol=2e-14)
    nodes = split(diabetes, how)
    given = [s[node.index].to_numpy() for node in nodes] if weighted else None
    model.fit(nodes, sample_weight=given)
    check(model, expected, X, y.median(), 2e-6 if weighted else 1e-6)
    assert model.score(nodes) == pytest.approx(expected.score(X, y), abs=1e-7)
    least = s @ (y - expected.predict(X)) ** 2 + 3.0 * (expected.coef_**2).sum()
    assert model.objective_ == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 60.0, 600.0])
def test_a_column_far_from_zero_as_a_year_is(alpha: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) * [5, 1] + [2000, 0]
    y = 0.3 * X[:, 0] + rng.normal(size=60)
    model = FederatedRidge(alpha).fit([(X[:30], y[:30]), (X[30:], y[30:])])
    assert model.coef_ == pytest.approx(Ridge(alpha).fit(X, y).coef_, abs=1e-4)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("case", ["weighted", "scaled", "sparse", *not_daily("wide")])
def test_sparse_regression(case: str, intercept: bool) -> None:
    X, y = load_diabetes(return_X_y=True)
    alpha, s = 0.5, np.ones(len(y))
    if case == "scaled":
        # with a column that says nothing
        X = np.column_stack([X * np.logspace(-1, 2, 10), np.full(len(X), 7.0)])
    elif case == "sparse":
        X = np.where(np.abs(X) > 0.03, X, 0.0)
    elif case == "wide":
        X, y = np.random.default_rng(1).normal(size=(40, 80)), y[:40]
        alpha, s = 10.0, s[:40]
    else:
        s = weights_of(pd.DataFrame(X)).to_numpy()
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), 3)
    rows = sparse.csr_array(X) if case == "sparse" else X
    nodes = [(rows[part], y[part]) for part in parts]
    given = [s[part] for part in parts] if case == "weighted" else None
    for model, expected in (
        (FederatedLasso(alpha), Lasso(alpha, **EXACT)),
        (
            FederatedElasticNet(alpha, l1_ratio=0.7),
            ElasticNet(alpha, l1_ratio=0.7, **EXACT),
        ),
    ):
        for each in (model, expected):
            each.set_params(fit_intercept=intercept)
        expected.fit(X, y, sample_weight=s)
        model.fit(nodes, sample_weight=given)
        largest, height = np.abs(expected.coef_).max(), np.abs(y).max()
        assert model.coef_ == pytest.approx(expected.coef_, abs=2e-6 * largest)
        assert (model.coef_ != 0.0).tolist() == (expected.coef_ != 0.0).tolist()
        assert model.intercept_ == pytest.approx(expected.intercept_, abs=2e-6 * height)
        assert model.score(X, y) == pytest.approx(expected.score(X, y), abs=1e-6)
        if isinstance(model, FederatedLasso) and given is None:
            residual = y - expected.predict(X)
            least = 0.5 * (residual**2).mean() + alpha * np.abs(expected.coef_).sum()
            assert model.objective_ - model.gap_ <= least * (1 + 1e-12)
            assert model.objective_ == pytest.approx(least, rel=1e-7)
            assert 0.0 <= model.gap_ <= 1e-7 * np.square(y).mean()


@pytest.mark.slow
def test_an_elastic_net_of_columns(diabetes: pd.DataFrame) -> None:
    X, y = diabetes.drop(columns="label"), diabetes["label"]
    expected = ElasticNet(5.0, l1_ratio=0.9, **EXACT).fit(X, y)
    # fixed point lets P − D be known to some 1e-12, which some runs do not come below:
    # the coefficients get there all the same
    model = FederatedElasticNet(5.0, l1_ratio=0.9, tol=1e-12, max_iter=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(split(diabetes, "both"))
    check(model, expected, X, y.max())
    zeros = {name for name, w in zip(X, expected.coef_, strict=True) if w == 0.0}
    ours = zip(model.feature_names_in_, model.coef_, strict=True)
    assert zeros == {name for name, w in ours if w == 0.0} != set()
    model.fit(split(diabetes[:60].assign(label=0.1), "columns"))  # the mean rounds
    assert model.intercept_ == pytest.approx(0.1)


def test_a_support_vector_machine_and_its_probabilities() -> None:
    """As scikit-learn calibrates one, on the same folds."""
    rng, halves = np.random.default_rng(0), [slice(0, 35), slice(35, 60)]
    X = rng.standard_normal((60, 3))
    y = (X @ rng.standard_normal(3) + rng.standard_normal(60) > 0.0).astype(int)
    s = np.round(rng.uniform(0.5, 2.0, 60), 2)
    machine: Any = SVC(kernel="linear", C=0.1, tol=1e-10)
    model = FederatedSVC(C=0.1, tol=1e-7)
    nodes = [(X[part], y[part]) for part in halves]
    model.fit(nodes, sample_weight=[s[part] for part in halves])
    alone = machine.fit(X, y, sample_weight=s)
    assert model.coef_ == pytest.approx(alone.coef_, abs=1e-4)
    assert model.intercept_ == pytest.approx(alone.intercept_, abs=1e-4)
    z = np.where(y == 1, 1, -1) * alone.decision_function(X)
    least = 0.5 * (alone.coef_**2).sum() + 0.1 * np.maximum(0, 1 - z) @ s
    assert model.objective_ == pytest.approx(least, rel=1e-6)
    assert (model.predict(X) == alone.predict(X)).all()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    found, expected = (
        CalibratedClassifierCV(each, method="sigmoid", cv=folds, ensemble=False)
        .fit(X, y, sample_weight=s)
        .predict_proba(X)
        for each in (model, machine)
    )
    assert found == pytest.approx(expected, abs=1e-5)


A = pd.DataFrame({"a": [0.0, 1.0, 2.0], "label": [0, 1, 1]}, index=["i", "j", "k"])
B = pd.DataFrame({"b": [3.0, 1.0, 2.0]}, index=["k", "j", "i"])
ONE, TWO = np.zeros((2, 1)), np.zeros((2, 2))
TIMES = pd.DataFrame({"a": pd.to_timedelta([0, 1])})


@pytest.mark.parametrize(
    ("nodes", "weights", "message"),
    [
        ([A, B], [[1.0, 1.0]] * 2, r"weights of partition 0 have shape \(2,\), exp"),
        ([A, B], [[1.0, -1.0, 1.0], None], "of partition 0 must be finite numbers"),
        ([A, B], [[1.0, np.nan, 1.0], None], "1 samples have a weight nowhere, others"),
        ([A, B], [[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]], "sample 'j' has two weights"),
        ([A, B], [[1.0, 1e-12, 1.0], None], "less than a billionth of the largest"),
        ([A, B], np.ones(3), "must be a list with an array, or None, for each part"),
        (np.zeros((3, 2)), None, "y is missing"),
        ([A, B.iloc[:2]], None, "column 'b' of sample 'i' is nowhere"),
        ([A, B, B], None, "column 'b' of sample 'i' is in two partitions"),
        ([A, pd.concat([B, B])], None, "partition 1 has a sample's index twice"),
        ([A.drop(columns="label"), B], None, "3 samples have a target nowhere, 'i'"),
        ([A, (B, [1, 1, 1])], None, "sample 'i' has two targets"),
        ([(ONE, pd.Series(["u", None], dtype="string"))], None, "without a target"),
        ([(np.zeros((3, 1)), [0, 1])], None, r"has 3 rows and a y of shape \(2,"),
        ([(ONE, [0, 1]), (TWO, [0, 1])], None, "1 has 2 columns"),
        ([(ONE, pd.to_timedelta([0, 1]))], None, "partition 0 has a y of times"),
        ([(TIMES, [0, 1])], None, "it must be real numbers"),
        ([(np.array([[np.nan]]), [0.0])], None, "partition 0 has NaN"),
    ],
)
def test_what_makes_no_table(nodes: Any, weights: Any, message: str) -> None:
    model = FederatedLogisticRegression()
    refused(message, lambda: model.fit(nodes, sample_weight=weights), ValueError)
    why = "FederatedLasso needs whole rows"
    refused(why, lambda: FederatedLasso().fit([A, B]), ValueError)
    wrong: Any = {"max_iter is 0;": {"max_iter": 0}, "tol is -1": {"tol": -1.0}}
    for why, bad in wrong.items():
        refused(why, lambda: FederatedLasso(**bad).fit([A, B]), ValueError)  # noqa: B023


def test_seconds_truths_and_a_nullable_dtype_with_weights() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"since": 1.7e9 + 30.0 * rng.normal(size=60)})
    X["truth"], X["count"] = rng.random(60) > 0.5, pd.array(range(60), "Int64")
    y, s = rng.normal(size=60) + X["count"].to_numpy(float), 1.0 + rng.random(60)
    nodes, given = [(X[:30], y[:30]), (X[30:], y[30:])], [s[:30], s[30:]]
    model, Z = FederatedLasso(0.01).fit(nodes), X.astype(float) - [1.7e9, 0, 0]
    expected = Lasso(0.01, **EXACT).fit(Z, y)
    assert model.coef_ == pytest.approx(expected.coef_, abs=1e-6)
    found = model.score(nodes, sample_weight=given)
    assert found == pytest.approx(expected.score(Z, y, s), abs=1e-6)


# two fits by HyFDCA, whose clients draw from a key of the run, agree to the tolerance
RANDOM = {
    "check_fit_idempotent",  # two fits agree to the tolerance, not to 1e-7
    "check_classifier_data_not_an_array",  # the same, of other containers
    "check_supervised_y_2d",  # the same, of y and of y as a column
    "check_sample_weight_equivalence_on_dense_data",  # the same, of repeated rows
    "check_sample_weight_equivalence_on_sparse_data",
}


@pytest.mark.parametrize(
    ("model", "failing"),
    [
        (FederatedLasso(0.1), set()),
        *not_daily(
            (FederatedElasticNet(0.1), set()),
            (FederatedLogisticRegression(tol=1e-4), RANDOM),
            (FederatedSVC(tol=1e-4), RANDOM),
            (FederatedRidge(), RANDOM),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scikit_learns_checks(model: Any, failing: set[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_fail=None, on_skip=None)
    found = {each["check_name"] for each in results if each["status"] == "failed"}
    assert found <= failing, found
    assert len(results) > 40


def test_ten_lines_from_split_columns_to_a_score() -> None:
    page = Path(sim.__file__).parent / "docs" / "estimators.md"
    (program,) = programs(page)
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    names = run_program(page)
    assert names["accuracy"] > 0.95
    assert names["model"].gap_ < 1e-8
