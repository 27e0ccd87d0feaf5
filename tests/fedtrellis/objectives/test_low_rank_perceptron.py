"""The perceptron with a hidden matrix of low rank."""

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from fedtrellis.objectives.demonstrations import LowRankPerceptron
from fedtrellis.wire.arrays import Layout

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
    """An independent evaluation, example by example."""
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


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rank": 5}, "from 1 to 4"),
        ({"rank": 0}, "from 1 to 4"),
        ({"activation": "sigmoid"}, "'relu', 'tanh'"),
        ({"l2": -1.0}, "l2 is -1.0"),
        ({"weight": 0.0}, "weight is 0.0"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        network("factored", **changes)
    assert "\n" not in str(caught.value)
