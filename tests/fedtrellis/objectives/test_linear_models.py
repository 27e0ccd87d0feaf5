"""Linear models against numbers by hand, scikit-learn and dense products."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import log_loss

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MultinomialLogistic,
)
from fedtrellis.objectives.linear_models import DesignMatrix
from tests.fedtrellis.objectives.cases import (
    csr,
    features,
    point,
)


def test_least_squares_by_hand() -> None:
    # A = [[1, 2], [3, 4]], b = [1, 1], x = [1, 0]: residuals 0 and 2, ‖x‖² = 1
    A, b, x = [[1, 2], [3, 4]], [1, 1], np.array([1.0, 0.0])
    assert LeastSquares(A, b).value(x) == 4.0
    assert LeastSquares(A, b, weight=10, l2=3.0).value(x) == 10 * (4.0 + 1.5)
    assert LeastSquares(A, b, scale="half-mean").value(x) == 1.0
    np.testing.assert_array_equal(LeastSquares(A, b).gradient(x), [12.0, 16.0])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_it_is_scikit_learns_log_loss(
    classes: int, sparse: bool, intercept: bool
) -> None:
    A, labels = features(40, 6), np.arange(40) % min(classes, 4)
    data: Any = csr(A) if sparse else A
    options: dict[str, Any] = {"l2": 0.4, "weight": 2.5, "intercept": intercept}
    make: Any = Logistic
    if classes > 2:
        make, options["classes"] = MultinomialLogistic, classes
    objective = make(data, labels, **options)
    x = point(objective)
    scores = np.hstack([A, np.ones((40, 1))]) @ x if intercept else A @ x
    if classes == 2:  # the intercept is not penalised
        penalised, scores = x[:6], np.column_stack([np.zeros(40), scores])
    else:
        penalised = x
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = log_loss(labels, probabilities, labels=range(classes))
    expected = 2.5 * (loss + 0.2 * np.sum(penalised**2))
    assert objective.value(x) == pytest.approx(expected, rel=1e-12)
    predicted = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(objective.predict(x), predicted)
    assert objective.metrics(x) == {"accuracy": np.mean(predicted == labels)}


def test_large_scores_do_not_overflow() -> None:
    A, x = np.array([[1e4], [-1e4], [1e4], [-1e4]]), np.ones(1)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        logistic = Logistic(A, [0, 0, 1, 1])
        assert logistic.value(x) == 5e3  # 10⁴ for the two on the wrong side
        np.testing.assert_array_equal(logistic.values(np.stack([x, -x])), [5e3, 5e3])
        np.testing.assert_array_equal(logistic.gradient(x), [5e3])
        multinomial = MultinomialLogistic(A, [0, 0, 1, 1], 2, intercept=False)
        assert multinomial.value(np.array([[0.0, 1.0]])) == 5e3
        gradient = multinomial.gradient(np.array([[0.0, 1.0]]))
        np.testing.assert_array_equal(gradient, [[-5e3, 5e3]])


@pytest.mark.parametrize("columns", [None, 1, 3, 128, 129])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("layout", ["C", "F", "csr"])
def test_products_with_the_data_are_those_of_the_dense_matrix(
    columns: int | None, intercept: bool, layout: Any
) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((40, 7))
    dense = np.column_stack([data, np.ones(40)]) if intercept else data
    csr = layout == "csr"
    kept = scipy.sparse.csr_array(data) if csr else np.array(data, order=layout)
    design = DesignMatrix(kept, intercept=intercept)
    tail = () if columns is None else (columns,)
    x = rng.standard_normal((dense.shape[1], *tail))
    y = rng.standard_normal((40, *tail))
    before = x.copy(), y.copy()
    np.testing.assert_allclose(design.apply(x), dense @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(design.adjoint(y), dense.T @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])
