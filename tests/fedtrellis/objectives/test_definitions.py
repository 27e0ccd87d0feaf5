"""Each objective by its definition: numbers by hand, plain loops, other libraries."""

import itertools
from math import sqrt
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.metrics import log_loss

from fedtrellis.domains import Domain, L1Ball, L2Ball, Simplex
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    QuadraticAssignment,
)
from fedtrellis.objectives.base import MeanObjective
from fedtrellis.objectives.demonstrations import (
    LowRankPerceptron,
    PerceptronClassifier,
    UniversalPerturbation,
)
from fedtrellis.objectives.linear_models import StackedLinear
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.arrays import Layout
from tests.fedtrellis.domains.cases import solve
from tests.fedtrellis.objectives.cases import (
    DISTANCES,
    ENTRIES,
    FLOWS,
    LABELS,
    MASK,
    Array,
    classifier,
    csr,
    features,
    perceptron,
    point,
)

# -- linear models


def test_least_squares_by_hand() -> None:
    # A = [[1, 2], [3, 4]], b = [1, 1], x = [1, 0]: residuals 0 and 2, ‖x‖² = 1
    A, b, x = [[1, 2], [3, 4]], [1, 1], np.array([1.0, 0.0])
    assert LeastSquares(A, b, weight=10, l2=3.0).value(x) == 10 * (4.0 + 1.5)
    assert LeastSquares(A, b, scale="half-mean").value(x) == 1.0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_log_loss_is_scikit_learns(classes: int, sparse: bool, intercept: bool) -> None:
    A, labels = features(40, 6), np.arange(40) % min(classes, 4)
    options: dict[str, Any] = {"l2": 0.4, "weight": 2.5, "intercept": intercept}
    make: Any = Logistic
    if classes > 2:
        make, options["classes"] = MultinomialLogistic, classes
    objective = make(csr(A) if sparse else A, labels, **options)
    x = point(objective)
    scores = np.hstack([A, np.ones((40, 1))]) @ x if intercept else A @ x
    penalised = x
    if classes == 2:  # the intercept is not penalised
        penalised, scores = x[:6], np.column_stack([np.zeros(40), scores])
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
        # 10⁴ for the two on the wrong side
        np.testing.assert_array_equal(logistic.values(np.stack([x, -x])), [5e3, 5e3])
        np.testing.assert_array_equal(logistic.gradient(x), [5e3])
        multinomial = MultinomialLogistic(A, [0, 0, 1, 1], 2, intercept=False)
        assert multinomial.value(np.array([[0.0, 1.0]])) == 5e3
        gradient = multinomial.gradient(np.array([[0.0, 1.0]]))
        np.testing.assert_array_equal(gradient, [[-5e3, 5e3]])


def test_the_mean_is_of_clients_and_metrics_are_of_all_examples() -> None:
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((d, 4)), rng.integers(0, 2, d)) for d in (2, 5, 9)]
    parts = [Logistic(A, b, l2=0.1) for A, b in data]
    f, x = MeanObjective(parts), np.array([0.3, -1.0, 2.0, 0.0])
    assert f.value(x) == pytest.approx(np.mean([p.value(x) for p in parts]), rel=1e-13)
    expected = np.mean([p.gradient(x) for p in parts], axis=0)
    np.testing.assert_allclose(f.gradient(x), expected, rtol=1e-13)
    assert (f.shape, f.num_examples) == ((4,), 16)
    whole = Logistic(*(np.concatenate(arrays) for arrays in zip(*data, strict=True)))
    assert f.metrics(x)["accuracy"] == pytest.approx(whole.metrics(x)["accuracy"])
    mixed = MeanObjective([parts[0], LeastSquares(data[1][0], np.zeros(5))])
    assert mixed.metrics(x) == {}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", [LeastSquares, Logistic, MultinomialLogistic])
def test_a_stacks_gradients_are_those_of_each(kind: Any, dtype: str) -> None:
    rng, near = np.random.default_rng(6), 1e-13 if dtype == "float64" else 2e-6
    more = {"classes": 4} if kind is MultinomialLogistic else {"l2": 0.1}
    each: list[Any] = [
        kind(rng.standard_normal((size, 6)), rng.integers(2, size=size), **more)
        for size in (9, 5, 8)
    ]
    each = [model.of_dtype(dtype) for model in each]
    points = rng.standard_normal((3, *each[0].shape)).astype(dtype)
    rows = [rng.permutation(model.num_examples)[:4] for model in each]
    for some in ([None] * 3, rows):
        parts = zip(each, points, some, strict=True)
        expected = [model._gradient(x, own) for model, x, own in parts]
        given = None if some[0] is None else rows
        found = StackedLinear(each).gradients(points, given)
        np.testing.assert_allclose(found, expected, rtol=near, atol=near)


# -- minima that are certified


@pytest.mark.parametrize("domain", [L1Ball(2.0), L2Ball(1.5), Simplex(1.0)], ids=repr)
def test_a_certified_minimum_is_cvxpys(domain: Domain) -> None:
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(30, 12)), rng.normal(size=30)
    objective, x = LeastSquares(A, b), cp.Variable(12)
    optimum = objective.value(solve(cp.sum_squares(A @ x - b), domain, x))
    found = certified_minimum(objective, domain, np.zeros(12), 1e-9)
    assert domain.contains(found.point)
    assert found.gap <= 1e-9 * max(1.0, found.value)
    assert found.value == pytest.approx(optimum, rel=1e-6)
    early = certified_minimum(objective, domain, np.ones(12), 1e-9, max_iterations=3)
    assert early.gap > 10 * found.gap
    assert early.value - early.gap <= found.value + 1e-12 <= early.value + 1e-9
    # L ≤ 1: the steps of FISTA, with O'Donoghue and Candès' restarts
    objective, start = LeastSquares(0.09 * A, b), np.arange(12.0) / 6
    x, y, t = domain.project(start), domain.project(start), 1.0
    for k in range(1, 10):
        g = objective.gradient(y)
        last, x, before, t = x, domain.project(y - g), t, (1 + sqrt(1 + 4 * t * t)) / 2
        found = certified_minimum(objective, domain, start, 0.0, max_iterations=k)
        np.testing.assert_allclose(found.point, x, rtol=1e-12, atol=1e-14)
        y = x + (before - 1) / t * (x - last)
        if before > 1 and g @ (x - last) > 0:
            x, y, t = last, last, 1.0


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
    expected = four_fold(X, np.ones((4, 4), dtype=bool))
    assert whole.value(X) == pytest.approx(expected, rel=1e-12)
    norms = np.linalg.norm([FLOWS, DISTANCES], 2, axis=(1, 2))
    assert whole.lipschitz() == pytest.approx(2.0 * norms.prod())
    part = QuadraticAssignment(FLOWS, DISTANCES, mask=MASK, weight=3.0)
    assert part.value(X) == pytest.approx(3.0 * four_fold(X, MASK), rel=1e-12)
    assert part.num_examples == MASK.sum()
    # as many points as there are copies
    pair = QuadraticAssignment(FLOWS, DISTANCES, copies=2)
    points = np.random.default_rng(0).standard_normal((2, 2, 4, 4))
    each = [pair.value(list(point)) for point in points]
    assert pair.values([points[:, 0], points[:, 1]]) == pytest.approx(each)


@pytest.mark.parametrize("d", [4, 30])
def test_components_are_those_of_the_sum(d: int) -> None:
    A = np.random.default_rng(d).standard_normal((d, 7))
    f = PrincipalComponents(A, 3, weight=1.5)
    points = np.random.default_rng(1).standard_normal((6, 7, 3))
    # −(weight/2d) Σ_j Tr(xᵀ a_j a_jᵀ x), a loop over the examples
    expected = [
        -1.5 / (2 * d) * sum(np.trace(x.T @ np.outer(a, a) @ x) for a in A)
        for x in points
    ]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    values, vectors = np.linalg.eigh(A.T @ A / d)
    assert f.optimum() == pytest.approx(-0.75 * values[-3:].sum(), rel=1e-12)
    assert f.lipschitz() == pytest.approx(1.5 * values[-1], rel=1e-9)
    angle, V = 0.3, vectors[:, ::-1]
    x = V[:, :3].copy()
    x[:, 0] = np.cos(angle) * V[:, 0] + np.sin(angle) * V[:, 5]
    # another basis of the same space
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    metrics = f.metrics(x @ rotation)
    assert metrics["subspace-error"] == pytest.approx(np.sin(angle), rel=1e-9)


NETS: dict[str, dict[str, Any]] = {
    "factored": {"rank": 2, "weight": 1.7},
    "matrix": {"rank": 2, "factored": False},
    "full": {"rank": None, "weight": 0.4},
}


def by_definition(f: LowRankPerceptron, x: Array) -> float:
    arrays = Layout(tuple(f.shapes)).layers(x)
    if f.factored:
        U, s, V = arrays[:3]
        W = U @ np.diag(s) @ V.T
    else:
        W = arrays[0]
    b, B, e = arrays[-3:]
    total = 0.0
    for a, y in zip(features(), LABELS, strict=True):
        pre = W.T @ a + b
        total -= log_softmax(B.T @ np.tanh(pre) + e)[y]
    return float(f.weight * total / len(LABELS))


@pytest.mark.parametrize("kind", NETS)
def test_values_are_those_of_the_definition(kind: str) -> None:
    f = perceptron(**NETS[kind])
    points = 0.5 * np.random.default_rng(1).standard_normal((9, *f.shape))
    expected = [by_definition(f, x) for x in points]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)


def test_the_start_is_one_network_on_each_manifold() -> None:
    nets = {k: perceptron(**NETS[k] | {"weight": 1.0}) for k in NETS}
    starts = {k: f.draw(np.random.default_rng(5)) for k, f in nets.items()}
    for kind, f in nets.items():
        flat = np.concatenate([array.ravel() for array in starts[kind]])
        assert f.manifold().contains(flat, 1e-12)
    # the best of rank 2 to that of full rank
    U, s, Vt = np.linalg.svd(starts["full"][0], full_matrices=False)
    best = (U[:, :2] * s[:2]) @ Vt[:2]
    np.testing.assert_allclose(starts["matrix"][0], best, atol=1e-13)
    values = [nets[kind].value(starts[kind]) for kind in ("factored", "matrix")]
    assert values[0] == pytest.approx(values[1], rel=1e-13)


IMAGES = np.random.default_rng(1).uniform(size=(17, 2, 3))


def test_an_attack_s_values_are_those_of_the_definition() -> None:
    """They need the classifier's outputs only."""
    box = SimpleNamespace(logits=classifier().logits)
    f = UniversalPerturbation(box, IMAGES, 2, balance=0.3, weight=1.4)
    points = 0.5 * np.random.default_rng(2).standard_normal((5, 2, 3))
    expected = []
    for delta in points:
        losses = []
        for a in IMAGES:
            # the scores' differences are those of the log-probabilities
            p = log_softmax(classifier().logits((a + delta)[None])[0])
            rival = max(p[k] for k in range(4) if k != 2)
            losses.append(max(p[2] - rival, 0.0))
        expected.append(1.4 * (np.mean(losses) + 0.3 * (delta**2).sum()))
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    with pytest.raises(NotImplementedError, match="Namespace has no pullback"):
        f.gradient(points[0])


def test_what_is_refused() -> None:
    for label, images, balance, match in (
        (4, IMAGES, 0.0, "from 0 to 3"),
        (0, IMAGES[:0], 0.0, "at least 1"),
        (0, IMAGES, -1.0, "balance"),
    ):
        with pytest.raises(ValueError, match=match):
            UniversalPerturbation(classifier(), images, label, balance=balance)
    with pytest.raises(ValueError, match="do not make a perceptron"):
        PerceptronClassifier([np.ones((2, 3))] * 2, [np.ones(3)] * 2)
