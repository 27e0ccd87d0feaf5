"""The polar factor on every path: near orthonormal, ill-conditioned, degenerate."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import polar, sqrtm

from fedtrellis.manifolds import FixedRank, polar_factor

Array = NDArray[np.float64]

SHAPES = [(4, 2), (64, 4), (10, 10), (500, 10), (7, 1), (1, 1)]
# the eigenvalues of xᵀx give way to the singular values at √1000
CONDITIONS = [*np.logspace(0, 12, 25), 31.6, 31.62277, 31.63, 33.0, 1e14]


def known(
    rng: np.random.Generator, shape: tuple[int, int], condition: float
) -> tuple[Array, Array]:
    """Return x = q h and its polar factor q, h of this condition number."""
    p, r = shape
    q = np.linalg.qr(rng.standard_normal((p, r))).Q
    w = np.linalg.qr(rng.standard_normal((r, r))).Q
    h = (w * np.geomspace(1.0, 1.0 / condition, r)) @ w.T
    return q @ h, q


def assert_polar(x: Array, u: Array) -> None:
    """Check the definition: orthonormal u, and uᵀx symmetric, positive, u uᵀx = x."""
    r = x.shape[1]
    scale = np.linalg.norm(x, 2)
    assert np.abs(u.T @ u - np.eye(r)).max() <= 1e-14 * r
    h = u.T @ x
    assert np.abs(h - h.T).max() <= 1e-12 * scale
    assert np.linalg.eigvalsh(0.5 * (h + h.T)).min() >= -1e-12 * scale
    assert np.abs(u @ h - x).max() <= 1e-12 * scale


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_condition_number(shape: tuple[int, int], condition: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        x, q = known(rng, shape, condition)
        u = polar_factor(x[None])[0]
        assert_polar(x, u)
        # the problem's own sensitivity, and 1e-12 where xᵀx was formed
        assert np.abs(u - q).max() <= 1e-12 + 1e-14 * condition


@pytest.mark.parametrize("distance", [0.0, 1e-15, 1e-8, 1e-4, 1e-2, 0.04, 0.06, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_near_orthonormal_against_scipy(
    shape: tuple[int, int], distance: float
) -> None:
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.standard_normal(shape)).Q
    noise = rng.standard_normal((20, *shape))
    x = q + distance * noise / np.linalg.norm(noise, axis=(1, 2), keepdims=True)
    u = polar_factor(x)
    for one, factor in zip(x, u, strict=True):
        assert_polar(one, factor)
        np.testing.assert_allclose(factor, polar(one)[0], atol=1e-13)
        root = np.real(sqrtm(one.T @ one))
        np.testing.assert_allclose(factor, one @ np.linalg.inv(root), atol=1e-12)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-120, 1e-30, 1e30, 1e120, 1e250])
def test_scales(scale: float) -> None:
    rng = np.random.default_rng(5)
    x = np.rint(rng.standard_normal((5, 6, 3)) * 2.0**6)  # exact, subnormal too
    u = polar_factor(scale * x)
    if scale > 1e-300:
        np.testing.assert_allclose(u, polar_factor(x), atol=1e-12)
    np.testing.assert_allclose(
        u.swapaxes(1, 2) @ u, np.stack([np.eye(3)] * 5), atol=1e-14
    )


def test_dependent_columns() -> None:
    rng = np.random.default_rng(6)
    thin = rng.standard_normal((6, 2))
    column = rng.standard_normal((6, 1))
    awkward = [
        np.zeros((6, 3)),
        np.hstack([thin, np.zeros((6, 1))]),
        np.hstack([thin, thin[:, :1]]),
        column @ np.ones((1, 3)),
        np.eye(6)[:, [2, 2, 2]],
        np.hstack([thin, 1e-200 * column]),
        1e-200 * np.hstack([thin, thin[:, :1]]),
    ]
    for x in awkward:
        u = polar_factor(x[None])[0]
        assert_polar(x, u)
        np.testing.assert_array_equal(polar_factor(x[None])[0], u)
        # any nearest point is at distance √Σ(σ_i − 1)²
        sigma = np.linalg.svd(x, compute_uv=False)
        nearest = np.linalg.norm(sigma - 1.0)
        assert np.linalg.norm(x - u) == pytest.approx(nearest, rel=1e-12)


def low_rank(rng: np.random.Generator, values: Array, shape: tuple[int, int]) -> Array:
    k = len(values)
    left = np.linalg.qr(rng.standard_normal((shape[0], k))).Q
    right = np.linalg.qr(rng.standard_normal((shape[1], k))).Q
    result: Array = (left * values) @ right.T
    return result


def truncation(x: Array, rank: int) -> Array:
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    result: Array = (u[:, :rank] * s[:rank]) @ vt[:rank]
    return result


SPECTRA: list[Callable[[int], Array]] = [
    lambda k: np.r_[[3.0, 2.0, 1.0], np.full(k - 3, 1e-5)],
    lambda k: np.r_[[3.0, 2.0, 1.0], np.full(k - 3, 1e-2)],
    lambda k: np.r_[[1e6, 1.0, 1e-3], np.full(k - 3, 1e-7)],
    lambda k: np.r_[[1.0, 1.0, 1.0], np.zeros(k - 3)],
    lambda k: np.r_[[1.0, 1e-14, 0.0], np.zeros(k - 3)],  # of smaller rank
    lambda k: np.r_[[1.0, 1.0, 1.0 + 1e-9], np.full(k - 3, 1.0)],  # hardly a gap
    lambda k: np.geomspace(1.0, 1e-3, k),
    lambda k: np.zeros(k),
]


@pytest.mark.parametrize("shape", [(20, 30), (40, 16), (6, 5)])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_truncation_against_the_decomposition(
    shape: tuple[int, int], spectrum: Callable[[int], Array], scale: float
) -> None:
    rng = np.random.default_rng(11)
    values = spectrum(min(shape))
    batch = np.stack([low_rank(rng, values, shape) for _ in range(5)])
    ours = FixedRank(shape, 3).project(scale * batch) / scale
    tail = np.linalg.norm(np.sort(values)[:-3])
    gap = np.diff(np.sort(values)[[-4, -3]])[0]
    for x, y in zip(batch, ours, strict=True):
        size = float(np.linalg.norm(x))
        # as near as the best (Eckart, Young, Mirsky), and of the rank
        assert np.linalg.norm(x - y) == pytest.approx(tail, abs=1e-13 * size)
        assert np.linalg.svd(y, compute_uv=False)[3] <= 1e-14 * size
        if gap > 1e-8:  # unique
            np.testing.assert_allclose(y, truncation(x, 3), atol=1e-12 * size)
