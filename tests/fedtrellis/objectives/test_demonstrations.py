"""Matrix completion, assignment, components, networks and attacks, by definition."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax

from fedtrellis.objectives import MatrixCompletion, QuadraticAssignment
from fedtrellis.objectives.demonstrations import (
    LowRankPerceptron,
    PerceptronClassifier,
    UniversalPerturbation,
)
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.wire.arrays import Layout
from tests.fedtrellis.objectives.cases import (
    DISTANCES,
    ENTRIES,
    FLOWS,
    LABELS,
    MASK,
    Array,
    classifier,
    features,
    perceptron,
    point,
)


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
    assert not np.allclose(FLOWS, FLOWS.T)
    assert not np.allclose(DISTANCES, DISTANCES.T)
    expected = four_fold(X, np.ones((4, 4), dtype=bool))
    assert whole.value(X) == pytest.approx(expected, rel=1e-12)
    trace = np.trace(FLOWS @ X @ DISTANCES.T @ X.T)
    assert whole.value(X) == pytest.approx(trace, rel=1e-12)
    part = QuadraticAssignment(FLOWS, DISTANCES, mask=MASK, weight=3.0)
    assert part.value(X) == pytest.approx(3.0 * four_fold(X, MASK), rel=1e-12)
    assert part.num_examples == MASK.sum()


def components(d: int = 30, p: int = 7, r: int = 3) -> tuple[Array, Any]:
    A = np.random.default_rng(d).standard_normal((d, p))
    return A, PrincipalComponents(A, r, weight=1.5)


@pytest.mark.parametrize("d", [4, 30])
def test_components_are_those_of_the_sum(d: int) -> None:
    A, f = components(d)
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
    gap = f.value(x) - f.optimum()
    assert gap > 0.01
    assert metrics["optimality-gap"] == pytest.approx(gap, rel=1e-9)
    best = f.metrics(V[:, :3])
    assert best["subspace-error"] < 1e-12
    assert abs(best["optimality-gap"]) < 1e-12


KINDS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_definition(kind: str) -> None:
    f = perceptron(**KINDS[kind])
    points = 0.5 * np.random.default_rng(1).standard_normal((9, *f.shape))
    expected = [by_definition(f, x) for x in points]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)


def test_the_start_is_one_network_on_each_manifold() -> None:
    nets = {k: perceptron(**KINDS[k] | {"weight": 1.0}) for k in KINDS}
    starts = {k: f.initial_point(np.random.default_rng(5)) for k, f in nets.items()}
    for kind, f in nets.items():
        assert [array.shape for array in starts[kind]] == f.shapes
        flat = np.concatenate([array.ravel() for array in starts[kind]])
        assert f.manifold().shape == f.shape
        assert f.manifold().contains(flat, 1e-12)
    U, s, Vt = np.linalg.svd(starts["full"][0], full_matrices=False)
    best = (U[:, :2] * s[:2]) @ Vt[:2]
    for kind in ("factored", "matrix"):
        first, *rest = starts[kind]
        near = (first * rest[0]) @ rest[1].T if kind == "factored" else first
        np.testing.assert_allclose(near, best, atol=1e-13)
    values = [nets[kind].value(starts[kind]) for kind in ("factored", "matrix")]
    assert values[0] == pytest.approx(values[1], rel=1e-13)


IMAGES = np.random.default_rng(1).uniform(size=(17, 2, 3))


def made(box: Any = None, **changes: Any) -> UniversalPerturbation:
    settings = {"balance": 0.3, "weight": 1.4} | changes
    return UniversalPerturbation(box or classifier(), IMAGES, 2, **settings)


POINTS = 0.5 * np.random.default_rng(2).standard_normal((5, 2, 3))


class OutputsOnly:
    def __init__(self) -> None:
        self.asked = 0

    def logits(self, images: np.ndarray) -> np.ndarray:
        self.asked += len(images)
        return classifier().logits(images)


def test_values_are_those_of_the_definition_attack() -> None:
    expected = []
    for delta in POINTS:
        losses = []
        for a in IMAGES:
            # the scores' differences are those of the log-probabilities
            p = log_softmax(classifier().logits((a + delta)[None])[0])
            rival = max(p[k] for k in range(4) if k != 2)
            losses.append(max(p[2] - rival, 0.0))
        expected.append(1.4 * (np.mean(losses) + 0.3 * (delta**2).sum()))
    np.testing.assert_allclose(made().values(POINTS), expected, rtol=1e-12)


def test_values_need_outputs_only() -> None:
    box = OutputsOnly()
    f = made(box)
    box.asked = 0
    np.testing.assert_array_equal(f.values(POINTS), made().values(POINTS))
    assert box.asked == 5 * 17
    with pytest.raises(NotImplementedError, match="OutputsOnly has no pullback"):
        f.gradient(POINTS[0])


def test_what_is_refused() -> None:
    for label in (-1, 4, 1.5):
        with pytest.raises(ValueError, match="from 0 to 3"):
            UniversalPerturbation(classifier(), IMAGES, label)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        UniversalPerturbation(classifier(), IMAGES[:0], 0)
    with pytest.raises(ValueError, match="balance"):
        made(balance=-1.0)
    for shape, biases in (((2, 3), [3, 3]), ((2, 3), [2])):
        weights = [np.ones(shape)] * len(biases)
        with pytest.raises(ValueError, match="do not make a perceptron"):
            PerceptronClassifier(weights, [np.ones(n) for n in biases])
