"""The objective of principal component analysis."""

import numpy as np
import pytest

from fedtrellis.objectives.matrices import PrincipalComponents


def made(d: int = 30, p: int = 7, r: int = 3, weight: float = 1.5) -> tuple:  # type: ignore[type-arg]
    A = np.random.default_rng(d).standard_normal((d, p))
    return A, PrincipalComponents(A, r, weight=weight)


# fewer examples than features, and more: the products differ
@pytest.mark.parametrize("d", [4, 30])
def test_values_and_gradients_are_those_of_the_sum(d: int) -> None:
    A, f = made(d)
    rng = np.random.default_rng(1)
    points = rng.standard_normal((6, 7, 3))
    # −(weight/2d) Σ_j Tr(xᵀ a_j a_jᵀ x), a loop over the examples
    expected = [
        -1.5 / (2 * d) * sum(np.trace(x.T @ np.outer(a, a) @ x) for a in A)
        for x in points
    ]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    assert [f.value(x) for x in points] == pytest.approx(expected, rel=1e-12)
    x, direction = points[0], points[1]
    slope = (f.value(x + 1e-5 * direction) - f.value(x - 1e-5 * direction)) / 2e-5
    assert slope == pytest.approx(np.vdot(f.gradient(x), direction), rel=1e-8)


def test_mini_batches_are_shared_and_unbiased() -> None:
    A, f = made(6)
    points = np.random.default_rng(2).standard_normal((4, 7, 3))
    rows = np.random.default_rng(3).choice(6, size=2, replace=False, shuffle=False)
    part = PrincipalComponents(A[rows], 3, weight=1.5)
    batch = f.values(points, np.random.default_rng(3), batch_size=2)
    np.testing.assert_allclose(batch, part.values(points), rtol=1e-12)
    gradient = f.stochastic_gradient(points[0], np.random.default_rng(3), 2)
    np.testing.assert_allclose(gradient, part.gradient(points[0]), rtol=1e-12)
    draws = [
        f.values(points, np.random.default_rng(k), batch_size=2) for k in range(4000)
    ]
    assert np.mean(draws, axis=0) == pytest.approx(f.values(points), rel=0.05)


@pytest.mark.parametrize("d", [4, 30])
def test_optimum_and_constant_are_eigenvalues(d: int) -> None:
    A, f = made(d)
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
    A, f = made()
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


def test_what_is_refused() -> None:
    A, f = made()
    for components in (0, 8, 1.5):
        with pytest.raises(ValueError, match="from 1 to 7"):
            PrincipalComponents(A, components)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight"):
        PrincipalComponents(A, 2, weight=0.0)
    with pytest.raises(ValueError, match="NaN"):
        PrincipalComponents(A * np.nan, 2)
    with pytest.raises(ValueError, match="must be"):
        f.value(np.zeros((7, 2)))
