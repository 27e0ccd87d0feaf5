"""The quadratic programme over simplices: against CVXPY, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.dual.penalty import maximise_over_simplices
from tests.fedtrellis.dual.programmes import optimum_over_simplices

Array = NDArray[np.float64]


def _objective(G: Array, b: Array, theta: Array) -> float:
    return float(b @ theta - 0.5 * theta @ G @ theta)


@pytest.mark.parametrize("rank", [1, 3, 40], ids=["line", "singular", "definite"])
@pytest.mark.parametrize("seed", range(6))
def test_the_maximum_is_cvxpys(seed: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, rng.integers(1, 6))
    stops = np.cumsum(sizes)
    blocks = [slice(int(e - s), int(e)) for s, e in zip(sizes, stops, strict=True)]
    n = int(stops[-1])
    V = rng.standard_normal((n, rank)) * 10.0 ** rng.uniform(-1, 1)
    b = rng.standard_normal(n)
    if n > 2:
        V[n // 2], b[n // 2] = V[0], b[0]  # the same point twice
    G = V @ V.T
    # from the corners, and from anywhere inside
    corner = np.zeros(n)
    corner[[block.start for block in blocks]] = 1.0
    inside = rng.random(n)
    for block in blocks:
        inside[block] /= inside[block].sum()
    best = optimum_over_simplices(V, b, blocks)
    for start in (corner, inside):
        theta = start.copy()
        assert maximise_over_simplices(G, b, theta, blocks) is theta
        assert (theta >= 0.0).all()
        for block in blocks:
            assert theta[block].sum() == pytest.approx(1.0, abs=1e-12)
        found = _objective(G, b, theta)
        assert found >= _objective(G, b, start) - 1e-14 * (1.0 + abs(found))
        assert found == pytest.approx(best, abs=1e-8 * (1.0 + abs(best)))
        # again from there: nothing gets worse
        again = maximise_over_simplices(G, b, theta.copy(), blocks)
        assert _objective(G, b, again) >= found - 1e-14 * (1.0 + abs(found))


def test_one_proposal_without_memory_is_a_line_search() -> None:
    """θ = (1 − γ, γ) with γ = (b₂ − b₁ − λ v₁ᵀ(v₂ − v₁)) / (λ‖v₂ − v₁‖²), clipped."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        V, b = rng.standard_normal((2, 3)), 3.0 * rng.standard_normal(2)
        d = V[1] - V[0]
        gamma = np.clip((b[1] - b[0] - V[0] @ d) / (d @ d), 0.0, 1.0)
        theta = np.array([1.0, 0.0])
        maximise_over_simplices(V @ V.T, b, theta, [slice(0, 2)])
        assert theta == pytest.approx([1.0 - gamma, gamma], abs=1e-10)


def test_no_difference_and_no_curvature() -> None:
    zero = np.zeros((3, 3))
    theta = maximise_over_simplices(zero, np.zeros(3), np.eye(3)[1], [slice(0, 3)])
    assert theta.sum() == pytest.approx(1.0)
    theta = maximise_over_simplices(
        zero, np.array([1.0, 3.0, 2.0]), np.eye(3)[0], [slice(0, 3)]
    )
    assert theta == pytest.approx([0.0, 1.0, 0.0])
