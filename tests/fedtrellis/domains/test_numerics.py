"""Leading singular pairs, thresholds and polar factors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import aslinearoperator

from fedtrellis.domains import L1Ball, SpectralNormBall, singular
from fedtrellis.domains.singular import sparse_plus_low_rank, top_pairs
from fedtrellis.manifolds import FixedRank, polar_factor

Array = NDArray[np.float64]

# small ones, wide and tall
SHAPES = [(5, 4), (60, 200), (130, 190), (190, 130)]


def ratings(shape: tuple[int, int], seed: int = 0) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, 6)) for size in shape]
    seen = rng.random(shape) < 0.3
    return scipy.sparse.csr_array(
        seen * ((factors[0] * 0.7 ** np.arange(6)) @ factors[1].T)
    )


def forms(shape: tuple[int, int]) -> list[tuple[Array, Any]]:
    """Matrices as arrays, and as something that stands for the same one."""
    rng = np.random.default_rng(1)
    sparse = ratings(shape)
    left, right = (0.3 * rng.standard_normal((size, 3)) for size in shape)
    dense = sparse.toarray()
    return [
        (dense, dense),
        (dense, np.asfortranarray(dense)),
        (dense, sparse),
        (dense, scipy.sparse.csc_matrix(dense)),
        (dense, aslinearoperator(sparse)),
        (dense + left @ right.T, sparse_plus_low_rank(sparse, left, right)),
    ]


def assert_leading(matrix: Array, pairs: Any, tolerance: float = 1e-10) -> None:
    """Check the pairs by their definition, and the values against NumPy's."""
    left, values, right = pairs[:3]
    count = len(values)
    expected = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(
        values, expected[:count], atol=1e-13 * expected[0] + tolerance**2 * expected[0]
    )
    for one in (left, right):
        np.testing.assert_allclose(one.T @ one, np.eye(count), atol=1e-13)
    for residual in (matrix @ right - left * values, matrix.T @ left - right * values):
        norms = np.linalg.norm(residual, axis=0)
        assert norms.max() <= (tolerance + 1e-14) * expected[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_forms_of_a_matrix(shape: tuple[int, int], count: int) -> None:
    for matrix, form in forms(shape):
        cold = top_pairs(form, count)
        assert_leading(matrix, cold)
        again = top_pairs(form, count)
        np.testing.assert_array_equal(again.left, cold.left)
        # ... and of a similar one, from there
        change = 0.05 * np.outer(matrix[:, 0], matrix[0])
        warm = top_pairs(matrix + change, count, cold.start)
        assert_leading(matrix + change, warm)
        if cold.start is not None:
            assert cold.start.shape[0] == min(shape)


def drifting(steps: int) -> list[Array]:
    rng = np.random.default_rng(2)
    now = ratings((150, 120), 3).toarray()
    result = []
    for _ in range(steps):
        left, values, right = np.linalg.svd(now)
        # what Frank-Wolfe does: the leading pair is pushed down, others come up
        now = now - 0.2 * values[0] * np.outer(left[:, 0], right[0])
        now = now + 0.02 * values[0] * rng.standard_normal(now.shape) / 10.0
        result.append(now)
    return result


@pytest.mark.parametrize("tolerance", [0.07, 1e-2, 1e-5, 1e-10])
def test_a_tolerance_holds(tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one matrix to the next, by blocks of products alone."""
    monkeypatch.setattr(singular, "_TIGHT", 0.0)
    monkeypatch.setattr(singular, "thin_svd", None)
    start = None
    for matrix in drifting(12):
        largest = np.linalg.svd(matrix, compute_uv=False)[0]
        for kept in (None, start):
            left, values, right, after = top_pairs(matrix, 1, kept, tolerance)
            assert values[0] == pytest.approx(left[:, 0] @ matrix @ right[:, 0])
            # who has converged is mostly the first: 0.09 where the tolerance is 0.07
            assert (1 - 1.3 * tolerance) * largest <= values[0] <= largest * (1 + 1e-12)
            ends = matrix @ right - left * values, matrix.T @ left - right * values
            assert max(map(np.linalg.norm, ends)) <= (tolerance + 1e-13) * largest
        start = after


def test_similar_pairs_come_to_those_of_the_whole_matrix() -> None:
    pairs = singular.SimilarPairs(np.random.default_rng(0).standard_normal((120, 3)))
    for matrix in drifting(2):
        keep = L1Ball(0.3 * float(np.linalg.norm(matrix, "nuc"))).project
        *_, found = (pairs.of(matrix, keep) for _ in range(80))
        known = singular.kept_pairs(matrix, keep)
        ours, whole = ((u * s) @ v.T for u, s, v in (found, known))
        np.testing.assert_allclose(ours, whole, atol=1e-9 * np.abs(whole).max())


POLAR_SHAPES = [(1, 1), (7, 1), (4, 2), (70, 64), (10, 10), (500, 10), (260, 256)]
# the eigenvalues of xᵀx give way to the singular values at √1000
CONDITIONS = [*np.logspace(0, 12, 13), 31.6, 31.62277, 31.63, 1e14, math.inf]


@pytest.mark.parametrize("shape", POLAR_SHAPES)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_polar_factors(shape: tuple[int, int], condition: float) -> None:
    """The definition: orthonormal q, and qᵀx symmetric, positive, with q qᵀx = x."""
    rng = np.random.default_rng(3)
    left, values, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    values = np.geomspace(1.0, 1.0 / min(condition, 1e14), len(values))
    if condition == math.inf:
        values[len(values) // 2 :] = 0.0
    x = (left * values) @ right
    exact = left @ right if condition <= 1e14 else None
    # singular, wide, huge and tiny matrices only in the ball
    scales = (1e-250, 1e-3, 1.0, 1e250)
    near = 1e-10 if condition <= 1e5 else math.inf
    lmo = SpectralNormBall(1.0).lmo
    found = [(lmo(-scale * x).dense(), 1e-13, near) for scale in scales]
    found.append((lmo(-x.T).dense().T, 1e-13, near))
    if exact is not None:
        # the problem's own sensitivity, and 1e-12 where xᵀx was formed
        own = 1e-12 + 1e-14 * condition
        found.append((polar_factor(x[None])[0], 1e-14 * shape[1], own))
    for q, accuracy, nearness in found:
        assert np.linalg.norm(q, 2) <= 1.0 + 1e-14 * shape[1]
        assert np.abs(q.T @ q - np.eye(shape[1])).max() <= accuracy
        h = q.T @ x
        assert np.abs(h - h.T).max() <= 1e-12
        assert np.linalg.eigvalsh(0.5 * (h + h.T)).min() >= -1e-12
        assert np.abs(q @ h - x).max() <= 1e-12
        if exact is not None:
            assert np.abs(q - exact).max() <= nearness


SPECTRA: list[Callable[[int], Array]] = [
    lambda k: np.r_[[3.0, 2.0, 1.0], np.full(k - 3, 1e-2)],
    lambda k: np.r_[[1e6, 1.0, 1e-3], np.full(k - 3, 1e-7)],
    lambda k: np.r_[[1.0, 1.0, 1.0], np.zeros(k - 3)],
    lambda k: np.r_[[1.0, 1e-14, 0.0], np.zeros(k - 3)],  # of smaller rank
    lambda k: np.r_[[1.0, 1.0, 1.0 + 1e-9], np.full(k - 3, 1.0)],  # hardly a gap
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
    left, right = (
        np.linalg.qr(rng.standard_normal((5, side, len(values)))).Q for side in shape
    )
    batch = (left * values) @ right.mT
    ours = FixedRank(shape, 3).project(scale * batch) / scale
    tail = np.linalg.norm(np.sort(values)[:-3])
    gap = np.diff(np.sort(values)[[-4, -3]])[0]
    for x, y in zip(batch, ours, strict=True):
        size = float(np.linalg.norm(x))
        # as near as the best (Eckart, Young, Mirsky), and of the rank
        assert np.linalg.norm(x - y) == pytest.approx(tail, abs=1e-13 * size)
        assert np.linalg.svd(y, compute_uv=False)[3] <= 1e-14 * size
        if gap > 1e-8:  # unique
            u, s, vt = np.linalg.svd(x, full_matrices=False)
            best = (u[:, :3] * s[:3]) @ vt[:3]
            np.testing.assert_allclose(y, best, atol=1e-12 * size)
