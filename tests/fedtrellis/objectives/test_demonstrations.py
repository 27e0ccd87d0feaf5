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
    MASK,
    Array,
    classifier,
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


def components(d: int = 30, p: int = 7, r: int = 3, weight: float = 1.5) -> tuple:  # type: ignore[type-arg]
    A = np.random.default_rng(d).standard_normal((d, p))
    return A, PrincipalComponents(A, r, weight=weight)


# fewer examples than features, and more: the products differ
@pytest.mark.parametrize("d", [4, 30])
def test_components_are_those_of_the_sum(d: int) -> None:
    A, f = components(d)
    rng = np.random.default_rng(1)
    points = rng.standard_normal((6, 7, 3))
    # −(weight/2d) Σ_j Tr(xᵀ a_j a_jᵀ x), a loop over the examples
    expected = [
        -1.5 / (2 * d) * sum(np.trace(x.T @ np.outer(a, a) @ x) for a in A)
        for x in points
    ]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    assert [f.value(x) for x in points] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [4, 30])
def test_optimum_and_constant_are_eigenvalues(d: int) -> None:
    A, f = components(d)
    values, vectors = np.linalg.eigh(A.T @ A / d)
    assert f.optimum() == pytest.approx(-0.75 * values[-3:].sum(), rel=1e-12)
    assert f.lipschitz() == pytest.approx(1.5 * values[-1], rel=1e-9)
    x = vectors[:, :-4:-1]
    assert f.value(x) == pytest.approx(f.optimum(), rel=1e-12)
    # no random point with xᵀx = I is below
    rng = np.random.default_rng(0)
    others = np.linalg.qr(rng.standard_normal((200, 7, 3)))[0]
    assert (f.values(others) > f.optimum()).all()


def test_metrics_measure_gap_and_angle() -> None:
    A, f = components()
    V = np.linalg.eigh(A.T @ A)[1][:, ::-1]
    angle = 0.3
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
    "factored": {"rank": 2},
    "factored-relu-l2": {"rank": 2, "activation": "relu", "l2": 0.1, "weight": 1.7},
    "matrix": {"rank": 2, "factored": False, "l2": 0.3},
    "full": {"rank": None, "weight": 0.4},
}


def data(d: int = 23) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((d, 6)), np.arange(d) % 3


def network(kind: str, **changes: Any) -> LowRankPerceptron:
    features, labels = data()
    return LowRankPerceptron(features, labels, 3, 4, **(KINDS[kind] | changes))


def batch(f: LowRankPerceptron, m: int, seed: int = 1) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).standard_normal((m, *f.shape))


def by_definition(f: LowRankPerceptron, x: np.ndarray) -> float:
    arrays = Layout(tuple(f.shapes)).layers(x)
    if f.factored:
        U, s, V = arrays[:3]
        W = U @ np.diag(s) @ V.T
    else:
        W = arrays[0]
    b, B, e = arrays[-3:]
    features, labels = data()
    total = 0.0
    for a, y in zip(features, labels, strict=True):
        pre = W.T @ a + b
        hidden = np.tanh(pre) if f.activation == "tanh" else np.maximum(pre, 0.0)
        total -= log_softmax(B.T @ hidden + e)[y]
    return float(f.weight * (total / len(labels) + 0.5 * f.l2 * (x @ x)))


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_definition(kind: str) -> None:
    f = network(kind)
    points = batch(f, 9)
    expected = [by_definition(f, x) for x in points]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    assert [f.value(x) for x in points] == pytest.approx(expected, rel=1e-12)


def test_the_start_is_one_network_on_each_manifold() -> None:
    nets = {kind: network(kind) for kind in ("factored", "matrix", "full")}
    starts = {
        kind: f.initial_point(np.random.default_rng(5)) for kind, f in nets.items()
    }
    for kind, f in nets.items():
        assert [array.shape for array in starts[kind]] == f.shapes
        flat = np.concatenate([array.ravel() for array in starts[kind]])
        assert f.manifold().shape == f.shape
        assert f.manifold().contains(flat, 1e-12)
    W = starts["full"][0]
    U, s, Vt = np.linalg.svd(W)
    best = (U[:, :2] * s[:2]) @ Vt[:2]
    for kind in ("factored", "matrix"):
        first, *rest = starts[kind]
        near = (first * rest[0]) @ rest[1].T if kind == "factored" else first
        np.testing.assert_allclose(near, best, atol=1e-13)
    plain = [network(kind, l2=0.0) for kind in ("factored", "matrix")]
    values = [
        f.value(starts[kind])
        for f, kind in zip(plain, ("factored", "matrix"), strict=True)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-13)


def images(d: int = 17) -> np.ndarray:
    return np.random.default_rng(1).uniform(size=(d, 2, 3))


def made(**changes: Any) -> UniversalPerturbation:
    settings = {"balance": 0.3, "weight": 1.4, "confidence": 2.0} | changes
    return UniversalPerturbation(classifier(), images(), 2, **settings)


def points(m: int) -> np.ndarray:
    return 0.5 * np.random.default_rng(2).standard_normal((m, 2, 3))


class OutputsOnly:
    def __init__(self) -> None:
        self.asked = 0

    def logits(self, images: np.ndarray) -> np.ndarray:
        self.asked += len(images)
        return classifier().logits(images)


@pytest.mark.parametrize("clip", [False, True])
def test_values_are_those_of_the_definition_attack(clip: bool) -> None:
    f, batch = made(clip=clip), points(5)
    expected = []
    for delta in batch:
        losses = []
        for a in images():
            seen = np.clip(a + delta, 0, 1) if clip else a + delta
            # the scores' differences are those of the log-probabilities
            p = log_softmax(classifier().logits(seen[None])[0])
            rival = max(p[k] for k in range(4) if k != 2)
            losses.append(max(p[2] - rival, -2.0))
        expected.append(1.4 * (np.mean(losses) + 0.3 * (delta**2).sum()))
    np.testing.assert_allclose(f.values(batch), expected, rtol=1e-12)
    assert [f.value(delta) for delta in batch] == pytest.approx(expected, rel=1e-12)


def test_values_need_outputs_only() -> None:
    box = OutputsOnly()
    f = UniversalPerturbation(box, images(), 2, balance=0.3, weight=1.4, confidence=2.0)
    box.asked = 0
    np.testing.assert_array_equal(f.values(points(5)), made().values(points(5)))
    assert box.asked == 5 * 17
    with pytest.raises(NotImplementedError, match="OutputsOnly has no pullback"):
        f.gradient(points(1)[0])


def test_what_is_refused() -> None:
    for label in (-1, 4, 1.5):
        with pytest.raises(ValueError, match="from 0 to 3"):
            UniversalPerturbation(classifier(), images(), label)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        UniversalPerturbation(classifier(), images()[:0], 0)
    with pytest.raises(ValueError, match="confidence"):
        made(confidence=-1.0)
    with pytest.raises(ValueError, match="do not make a perceptron"):
        PerceptronClassifier([np.ones((2, 3)), np.ones((2, 3))], [np.ones(3)] * 2)
    with pytest.raises(ValueError, match="do not make a perceptron"):
        PerceptronClassifier([np.ones((2, 3))], [np.ones(2)])
