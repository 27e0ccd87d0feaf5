"""Objectives against finite differences, plain loops, scikit-learn and enumeration."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
    QuadraticAssignment,
)
from fedtrellis.objectives.base import draw_batch
from fedtrellis.objectives.design_matrix import DesignMatrix

Array = NDArray[np.float64]


def features(rows: int = 5, columns: int = 3, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, columns))
    dense[rng.random(dense.shape) < 0.3] = 0.0
    return dense


def csr(dense: Array) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(dense)


TARGETS = np.array([0.5, -1.0, 2.0, 0.0, 1.5])
BITS = np.array([0, 1, 1, 0, 1])
LABELS = np.array([2, 0, 1, 1, 2])
ENTRIES: tuple[list[int], list[int], list[float]] = (
    [0, 2, 0, 1, 0],
    [1, 3, 1, 0, 2],
    [1.0, -2.0, 3.0, 0.5, 4.0],  # (0, 1) is observed twice, as 1 and as 3
)
FLOWS, DISTANCES = features(4, 4, 1), features(4, 4, 2)
MASK = np.random.default_rng(3).random((4, 4)) < 0.4

CASES: dict[str, Callable[[], Objective]] = {
    "least squares, sum": lambda: LeastSquares(features(), TARGETS, weight=3.0),
    "least squares, half mean, l2": lambda: LeastSquares(
        features(), TARGETS, scale="half-mean", l2=0.7, weight=2.0
    ),
    "least squares, wide": lambda: LeastSquares(features(5, 9), TARGETS, l2=0.1),
    "least squares, sparse": lambda: LeastSquares(csr(features()), TARGETS, l2=0.2),
    "logistic": lambda: Logistic(features(), BITS),
    "logistic, l2": lambda: Logistic(features(), BITS, l2=0.3, weight=4.0),
    "logistic, sparse": lambda: Logistic(csr(features()), BITS, l2=0.3),
    "logistic, sparse, wide": lambda: Logistic(csr(features(5, 8)), BITS),
    "multinomial": lambda: MultinomialLogistic(features(), LABELS, 3),
    "multinomial, no intercept": lambda: MultinomialLogistic(
        features(), LABELS, 4, intercept=False, l2=0.1, weight=2.0
    ),
    "multinomial, sparse": lambda: MultinomialLogistic(
        csr(features(5, 7)), LABELS, 3, l2=0.2
    ),
    "matrix completion": lambda: MatrixCompletion(*ENTRIES, (3, 4), weight=2.0),
    "assignment": lambda: QuadraticAssignment(FLOWS, DISTANCES),
    "assignment, rows": lambda: QuadraticAssignment(
        FLOWS, DISTANCES, rows=[2, 0], weight=3.0
    ),
    "assignment, mask": lambda: QuadraticAssignment(FLOWS, DISTANCES, mask=MASK),
}
every_objective = pytest.mark.parametrize("name", CASES)


def point(objective: Objective, seed: int = 0, scale: float = 1.0) -> Array:
    rng = np.random.default_rng([seed, 77])
    return scale * rng.standard_normal(objective.shape)


def dense_bound(objective: Objective) -> Array:
    bound = objective.hessian_bound()
    assert isinstance(bound, np.ndarray)
    return bound


def finite_difference(
    value: Callable[[Array], float], x: Array, step: float = 1e-5
) -> Array:
    """Return the gradient by central differences, entry by entry."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (value(up) - value(down)) / (2 * step)
    return gradient


class FixedBatch(np.random.Generator):
    """A generator that draws the batch it was made with."""

    def __init__(self, batch: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.batch = np.array(batch)

    def choice(self, *args: Any, **kwargs: Any) -> Any:
        return self.batch


# -- every objective


@every_objective
def test_gradient_is_that_of_central_differences(name: str) -> None:
    objective = CASES[name]()
    x = point(objective)
    gradient = objective.gradient(x)
    expected = finite_difference(objective.value, x)
    assert gradient.shape == x.shape
    assert gradient.dtype == np.float64
    assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)


@every_objective
def test_value_and_gradient_are_the_value_and_the_gradient(name: str) -> None:
    objective = CASES[name]()
    x = point(objective)
    before = x.copy()
    value, gradient = objective.value_and_gradient(x)
    assert value == objective.value(x)
    np.testing.assert_array_equal(gradient, objective.gradient(x))
    np.testing.assert_array_equal(x, before)
    assert gradient is not x


@every_objective
@pytest.mark.parametrize("slice_entries", [2**23, 1])
def test_values_are_those_of_a_loop(
    name: str, slice_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtrellis.objectives.base._SLICE_ENTRIES", slice_entries)
    objective = CASES[name]()
    points = np.stack([point(objective, seed) for seed in range(6)])
    expected = [objective.value(x) for x in points]
    values = objective.values(points, np.random.default_rng(0))
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-14)
    assert objective.values(points[:0]).shape == (0,)


@every_objective
@pytest.mark.parametrize("batch_size", [1, 2])
def test_mini_batches_average_to_the_gradient(name: str, batch_size: int) -> None:
    objective = CASES[name]()
    x = point(objective)
    points = np.stack([x, point(objective, 1)])
    subsets = itertools.combinations(range(objective.num_examples), batch_size)
    batches = [FixedBatch(subset) for subset in subsets]
    gradients = [objective.stochastic_gradient(x, b, batch_size) for b in batches]
    np.testing.assert_allclose(
        np.mean(gradients, axis=0), objective.gradient(x), rtol=1e-10, atol=1e-12
    )
    assert np.std(gradients, axis=0).max() > 1e-3
    values = [objective.values(points, b, batch_size=batch_size) for b in batches]
    np.testing.assert_allclose(
        np.mean(values, axis=0), objective.values(points), rtol=1e-10, atol=1e-12
    )


@every_objective
def test_a_mini_batch_s_gradient_is_that_of_its_values(name: str) -> None:
    objective = CASES[name]()
    x, batch = point(objective), FixedBatch((0, 3))

    def value(at: Array) -> float:
        return float(objective.values(at[None], batch, batch_size=2)[0])

    expected = finite_difference(value, x)
    gradient = objective.stochastic_gradient(x, batch, 2)
    error = np.linalg.norm(gradient - expected)
    assert error <= 1e-6 * np.linalg.norm(expected) + 1e-9


@every_objective
def test_a_full_batch_gives_the_gradient_and_seeds_repeat(name: str) -> None:
    objective = CASES[name]()
    x, count = point(objective), objective.num_examples
    for size in (count, count + 5):
        full = objective.stochastic_gradient(x, np.random.default_rng(0), size)
        np.testing.assert_array_equal(full, objective.gradient(x))
    first, second = (
        objective.stochastic_gradient(x, np.random.default_rng(4), 2) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="batch_size is 0"):
        objective.stochastic_gradient(x, np.random.default_rng(0), 0)
    with pytest.raises(ValueError, match="rng is None"):
        objective.values(x[None], batch_size=2)


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


def test_batches_are_drawn_evenly_and_without_replacement() -> None:
    rng = np.random.default_rng(0)
    counts: dict[frozenset[int], int] = {}
    for _ in range(10_000):
        rows = draw_batch(rng, 5, 2)
        assert rows is not None
        key = frozenset(rows.tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 10
    assert all(len(key) == 2 for key in counts)
    # each of the ten is expected 1000 ± 30 times
    assert all(abs(count - 1000) < 150 for count in counts.values())


@every_objective
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-2, 1.0, 30.0]))
def test_hessian_bound_majorises(name: str, seed: int, scale: float) -> None:
    objective = CASES[name]()
    x, z = point(objective, seed, scale), point(objective, seed + 1, scale)
    difference = (x - z).ravel()
    theta = objective.hessian_bound()
    quadratic = 0.5 * float(difference @ (theta @ difference))
    linear = float(np.vdot(objective.gradient(z), x - z))
    bound = objective.value(z) + linear + quadratic
    size = abs(objective.value(z)) + abs(linear) + quadratic
    assert objective.value(x) <= bound + 1e-11 * size
    if isinstance(objective, LeastSquares | MatrixCompletion):
        assert objective.value(x) == pytest.approx(bound, abs=1e-11 * size)


@every_objective
def test_gradients_do_not_change_faster_than_lipschitz(name: str) -> None:
    objective = CASES[name]()
    for seed in range(20):
        x, z = point(objective, seed), point(objective, seed + 100)
        change = np.linalg.norm(objective.gradient(x) - objective.gradient(z))
        assert change <= objective.lipschitz() * np.linalg.norm(x - z) * (1 + 1e-12)


@every_objective
def test_lipschitz_is_the_largest_eigenvalue(name: str) -> None:
    objective = CASES[name]()
    theta = objective.hessian_bound()
    assert isinstance(theta, np.ndarray)
    assert theta.shape == (np.prod(objective.shape),) * 2
    np.testing.assert_allclose(theta, theta.T, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(theta)
    assert eigenvalues[0] >= -1e-12 * eigenvalues[-1]
    assert objective.lipschitz() == pytest.approx(eigenvalues[-1], rel=1e-12)


@every_objective
def test_a_large_bound_is_an_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, largest = CASES[name]().hessian_bound(), CASES[name]().lipschitz()
    for module in (
        "symmetric",
        "linear_models",
        "multinomial_logistic",
        "matrix_completion",
        "quadratic_assignment",
    ):
        monkeypatch.setattr(f"fedtrellis.objectives.{module}.DENSE_ORDER", 2)
    objective = CASES[name]()
    operator = objective.hessian_bound()
    assert not isinstance(operator, np.ndarray)
    assert isinstance(dense, np.ndarray)
    np.testing.assert_allclose(operator @ np.eye(len(dense)), dense, atol=1e-13)
    assert objective.lipschitz() == pytest.approx(largest, rel=1e-10)
    assert Objective.lipschitz(objective) == pytest.approx(largest, rel=1e-10)


@every_objective
def test_points_of_another_shape_are_refused(name: str) -> None:
    objective = CASES[name]()
    for wrong in (np.zeros((*objective.shape, 1)), np.zeros(objective.shape)[:-1]):
        with pytest.raises(ValueError, match="x has shape"):
            objective.value(wrong)
        with pytest.raises(ValueError, match="x has shape"):
            objective.gradient(wrong)
        with pytest.raises(ValueError, match="points has shape"):
            objective.values(wrong[None])


def test_a_users_objective_needs_value_and_gradient_only() -> None:
    class Half(Objective):
        shape, num_examples = (2,), 1

        def value(self, x: Array) -> float:
            return 0.5 * float(x @ x)

        def gradient(self, x: Array) -> Array:
            return x

    half, x = Half(), np.array([3.0, 4.0])
    assert half.value_and_gradient(x)[0] == 12.5
    np.testing.assert_array_equal(half.values(np.stack([x, 0 * x])), [12.5, 0.0])
    assert half.metrics(x) == {}
    with pytest.raises(NotImplementedError, match="Half has no hessian_bound"):
        half.lipschitz()
    with pytest.raises(NotImplementedError, match="Half has no stochastic_gradient"):
        half.stochastic_gradient(x, np.random.default_rng(0), 1)


# -- linear models


def test_least_squares_by_hand() -> None:
    # A = [[1, 2], [3, 4]], b = [1, 1], x = [1, 0]: residuals 0 and 2, ‖x‖² = 1
    A, b, x = [[1, 2], [3, 4]], [1, 1], np.array([1.0, 0.0])
    assert LeastSquares(A, b).value(x) == 4.0
    assert LeastSquares(A, b, weight=10, l2=3.0).value(x) == 10 * (4.0 + 1.5)
    assert LeastSquares(A, b, scale="half-mean").value(x) == 1.0
    np.testing.assert_array_equal(LeastSquares(A, b).gradient(x), [12.0, 16.0])


@pytest.mark.parametrize("sparse", [False, True])
def test_half_mean_theta_is_the_gram_matrix(sparse: bool) -> None:
    A = features(7, 3)
    given_matrix: Any = csr(A) if sparse else A
    objective = LeastSquares(given_matrix, np.ones(7), scale="half-mean")
    np.testing.assert_allclose(dense_bound(objective), A.T @ A / 7, atol=1e-15)


@pytest.mark.parametrize("name", [n for n in CASES if n[:4] in ("leas", "logi")])
def test_hessian_factor_is_the_hessian_bound(name: str) -> None:
    objective = CASES[name]()
    assert isinstance(objective, LeastSquares | Logistic)
    matrix, scale, shift = objective.hessian_factor()
    gram = np.asarray((matrix.T @ matrix) @ np.eye(matrix.shape[1]))
    expected = scale * gram + shift * np.eye(len(gram))
    np.testing.assert_allclose(dense_bound(objective), expected, atol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
def test_logistic_is_scikit_learns_log_loss(sparse: bool) -> None:
    A, b = features(40, 6), np.arange(40) % 3 == 0
    objective = Logistic(csr(A) if sparse else A, b, l2=0.4, weight=2.5)
    x = point(objective)
    probability = 1 / (1 + np.exp(-A @ x))
    expected = 2.5 * (log_loss(b, probability) + 0.2 * x @ x)
    assert objective.value(x) == pytest.approx(expected, rel=1e-12)
    assert objective.metrics(x) == {"accuracy": np.mean((probability > 0.5) == b)}
    np.testing.assert_array_equal(objective.predict(x, A[:7]), A[:7] @ x > 0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_multinomial_is_scikit_learns_log_loss(sparse: bool, intercept: bool) -> None:
    F, labels = features(40, 6), np.arange(40) % 4
    given_features: Any = csr(F) if sparse else F
    objective = MultinomialLogistic(given_features, labels, 5, intercept=intercept)
    x = point(objective)
    scores = np.hstack([F, np.ones((40, 1))]) @ x if intercept else F @ x
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = log_loss(labels, probabilities, labels=range(5))
    assert objective.value(x) == pytest.approx(expected, rel=1e-12)
    predicted = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(objective.predict(x), predicted)
    np.testing.assert_array_equal(objective.predict(x, F[:3]), predicted[:3])
    assert objective.metrics(x) == {"accuracy": np.mean(predicted == labels)}


def test_multinomial_of_two_classes_is_logistic() -> None:
    A = features(30, 4)
    b = np.arange(30) % 2
    two = MultinomialLogistic(A, b, 2, intercept=False)
    one = Logistic(A, b)
    x = point(one)
    pair = np.stack([np.zeros(4), x], axis=1)
    assert two.value(pair) == pytest.approx(one.value(x), rel=1e-13)
    np.testing.assert_allclose(two.gradient(pair)[:, 1], one.gradient(x), atol=1e-14)
    # λ_max(½ (I − 11ᵀ/2)) = ½ belongs to x_1 = −x_2: the curvature along it is twice
    # a quarter
    assert two.lipschitz() == pytest.approx(2 * one.lipschitz())


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


def test_small_logistic_losses_keep_their_digits() -> None:
    # ln(1 + e^−40) = 4.2e-18, lost when computed as ln(1 + e^40) − 40
    objective = Logistic([[40.0], [-40.0]], [1, 0])
    assert objective.value(np.ones(1)) == pytest.approx(np.exp(-40.0), rel=1e-12)


def test_data_is_kept_once_without_a_copy_where_it_can_be() -> None:
    A, b = features(6, 4), np.ones(6)
    assert np.shares_memory(LeastSquares(A, b).hessian_factor()[0], A)
    kept = LeastSquares(np.asfortranarray(A, dtype=np.float32), b).hessian_factor()[0]
    assert kept.flags.c_contiguous
    assert kept.dtype == np.float64
    sparse = csr(A)
    assert np.shares_memory(
        LeastSquares(sparse, b).hessian_factor()[0].data, sparse.data
    )


@pytest.mark.parametrize("kind", ["least squares", "logistic", "multinomial"])
def test_a_gradient_needs_no_large_temporaries(kind: str) -> None:
    A = np.ones((2000, 300))
    labels = np.arange(2000) % 2
    made: dict[str, Objective] = {
        "least squares": LeastSquares(A, labels),
        "logistic": Logistic(A, labels),
        "multinomial": MultinomialLogistic(A, labels, 3),
    }
    objective = made[kind]
    x = point(objective)
    tracemalloc.start()
    objective.gradient(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # the scores (2000 × classes) and the gradient, a few times; A takes 4.8 MB
    assert peak < 300_000


# -- matrix completion


def test_matrix_completion_is_the_loop_over_observations() -> None:
    objective = MatrixCompletion(*ENTRIES, (3, 4), weight=2.0)
    x = point(objective)
    value, gradient = 0.0, np.zeros((3, 4))
    for i, j, rating in zip(*ENTRIES, strict=True):
        value += 2.0 / 5 * (x[i, j] - rating) ** 2
        gradient[i, j] += 2.0 / 5 * 2 * (x[i, j] - rating)
    assert objective.value(x) == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(objective.gradient(x), gradient, rtol=1e-14)
    assert objective.metrics(x)["rmse"] == pytest.approx(np.sqrt(value / 2.0))
    # (0, 1) is observed twice: its second derivative is 2 · 2 · 2/5
    assert objective.lipschitz() == pytest.approx(8.0 / 5)


def test_the_sparse_gradient_is_the_dense_one() -> None:
    objective = MatrixCompletion(*ENTRIES, (3, 4))
    x = point(objective)
    sparse = objective.sparse_gradient(x)
    assert isinstance(sparse, scipy.sparse.csr_matrix)
    assert sparse.nnz == 4  # the five observations are of four entries
    assert sparse.has_canonical_format
    np.testing.assert_array_equal(sparse.toarray(), objective.gradient(x))
    sparse.data[:] = 0.0
    sparse.eliminate_zeros()  # changes the pattern in place
    assert objective.sparse_gradient(x).nnz == 4


def test_empty_rows_have_an_empty_sparse_gradient() -> None:
    objective = MatrixCompletion([2], [0], [1.0], (5, 2))
    sparse = objective.sparse_gradient(np.zeros((5, 2)))
    np.testing.assert_array_equal(sparse.indptr, [0, 0, 0, 1, 1, 1])
    assert sparse[2, 0] == -2.0


# -- quadratic assignment


def four_fold(X: Array, chosen: NDArray[np.bool_]) -> float:
    """Return Σ A_ij B_kl X_ik X_jl over the (i, j) chosen and all k, l."""
    total = 0.0
    for i, j, k, m in itertools.product(range(4), repeat=4):
        if chosen[i, j]:
            total += FLOWS[i, j] * DISTANCES[k, m] * X[i, k] * X[j, m]
    return total


def test_assignment_is_the_four_fold_sum_and_the_trace() -> None:
    whole = QuadraticAssignment(FLOWS, DISTANCES)
    X = point(whole)
    assert not np.allclose(FLOWS, FLOWS.T)
    assert not np.allclose(DISTANCES, DISTANCES.T)
    expected = four_fold(X, np.ones((4, 4), dtype=bool))
    assert whole.value(X) == pytest.approx(expected, rel=1e-12)
    trace = np.trace(FLOWS @ X @ DISTANCES.T @ X.T)
    assert whole.value(X) == pytest.approx(trace, rel=1e-12)
    part = QuadraticAssignment(FLOWS, DISTANCES, mask=MASK, weight=3.0)
    assert part.value(X) == pytest.approx(3.0 * four_fold(X, MASK), rel=1e-12)
    assert part.num_examples == MASK.sum()


def test_assignment_at_permutations_is_the_cost_of_assigning() -> None:
    objective = QuadraticAssignment(FLOWS, DISTANCES)
    for p in itertools.permutations(range(4)):
        cost = sum(
            FLOWS[i, j] * DISTANCES[p[i], p[j]] for i in range(4) for j in range(4)
        )
        X = np.eye(4)[list(p)]  # X[i, p(i)] = 1
        assert objective.value(X) == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize("clients", [2, 3, 8, 16])
def test_parts_of_a_partition_add_up(clients: int) -> None:
    whole = QuadraticAssignment(FLOWS, DISTANCES)
    X = point(whole)
    owner = np.random.default_rng(0).permutation(16).reshape(4, 4) % clients
    parts = [
        QuadraticAssignment(FLOWS, DISTANCES, mask=owner == i) for i in range(clients)
    ]
    if clients == 2:
        halves = ([1], [3, 0, 2])
        parts = [QuadraticAssignment(FLOWS, DISTANCES, rows=rows) for rows in halves]
    value = sum(part.value(X) for part in parts)
    gradient = np.sum([part.gradient(X) for part in parts], axis=0)
    assert value == pytest.approx(whole.value(X), rel=1e-12)
    np.testing.assert_allclose(gradient, whole.gradient(X), rtol=1e-12, atol=1e-13)
    assert sum(part.num_examples for part in parts) == 16


# -- what is refused

NAN = np.array([[1.0, np.nan]])
SQUARE = np.eye(3)
REFUSED: list[tuple[str, Callable[[], object]]] = [
    (r"A has shape \(2,\)", lambda: LeastSquares([1.0, 2.0], [1.0, 2.0])),
    ("A has NaN or infinite", lambda: LeastSquares(NAN, [1.0])),
    ("A.data has NaN", lambda: LeastSquares(csr(NAN), [1.0])),
    (r"A has shape \(0, 2\)", lambda: LeastSquares(np.zeros((0, 2)), [])),
    (r"A has shape \(0, 2\)", lambda: LeastSquares(csr(np.zeros((0, 2))), [])),
    ("A has dtype", lambda: LeastSquares([["a"]], [1.0])),
    ("A has dtype complex", lambda: LeastSquares([[1j]], [1.0])),
    ("b has 1 entries; it must have 3", lambda: LeastSquares(SQUARE, [1.0])),
    ("b has NaN", lambda: LeastSquares([[1.0]], [np.inf])),
    ("scale is 'mean'; allowed", lambda: LeastSquares([[1.0]], [1.0], scale="mean")),
    ("weight is 0", lambda: LeastSquares([[1.0]], [1.0], weight=0)),
    ("weight is -1", lambda: MatrixCompletion([0], [0], [1.0], (1, 1), weight=-1)),
    ("weight is nan", lambda: QuadraticAssignment(SQUARE, SQUARE, weight=np.nan)),
    ("l2 is -0.1", lambda: Logistic([[1.0]], [1], l2=-0.1)),
    ("l2 is 'x'", lambda: Logistic([[1.0]], [1], l2="x")),  # type: ignore[arg-type]
    ("b has the entry -1", lambda: Logistic([[1.0], [2.0]], [-1, 1])),
    ("b has the entry 0.5", lambda: Logistic([[1.0]], [0.5])),
    ("labels has the entry 3", lambda: MultinomialLogistic(SQUARE, [0, 3, 1], 3)),
    ("labels has 2 entries", lambda: MultinomialLogistic(SQUARE, [0, 1], 3)),
    ("classes is 1", lambda: MultinomialLogistic([[1.0]], [0], 1)),
    ("rows has the entry 3", lambda: MatrixCompletion([3], [0], [1.0], (3, 3))),
    ("columns has the entry -1", lambda: MatrixCompletion([0], [-1], [1.0], (3, 3))),
    ("rows has 2 entries", lambda: MatrixCompletion([0, 1], [0], [1.0], (3, 3))),
    ("ratings is empty", lambda: MatrixCompletion([], [], [], (3, 3))),
    ("ratings has NaN", lambda: MatrixCompletion([0], [0], [np.nan], (3, 3))),
    (r"shape is \(3, 0\)", lambda: MatrixCompletion([0], [0], [1.0], (3, 0))),
    (r"A has shape \(1, 2\)", lambda: QuadraticAssignment([[1, 2]], [[1, 2]])),
    (r"B has shape \(2, 2\)", lambda: QuadraticAssignment(SQUARE, np.eye(2))),
    (
        "rows names a row twice",
        lambda: QuadraticAssignment(SQUARE, SQUARE, rows=[1, 1]),
    ),
    ("rows has the entry 3", lambda: QuadraticAssignment(SQUARE, SQUARE, rows=[3])),
    ("rows selects nothing", lambda: QuadraticAssignment(SQUARE, SQUARE, rows=[])),
    ("mask has dtype", lambda: QuadraticAssignment(SQUARE, SQUARE, mask=SQUARE)),
    ("mask selects", lambda: QuadraticAssignment(SQUARE, SQUARE, mask=SQUARE > 2)),
    (
        "rows and mask are both given",
        lambda: QuadraticAssignment(SQUARE, SQUARE, rows=[0], mask=SQUARE > 0),
    ),
    (
        r"A has shape \(1, 2\); it must have 1 columns",
        lambda: Logistic([[1.0]], [1]).predict(np.ones(1), [[1.0, 2.0]]),
    ),
]


@pytest.mark.parametrize(("message", "make"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
