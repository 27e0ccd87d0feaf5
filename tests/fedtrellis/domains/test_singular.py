"""Leading singular pairs against NumPy's decomposition, with and without a start."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from fedtrellis.domains import Domain, L1Ball, NuclearNormBall, singular
from fedtrellis.domains.singular import (
    Products,
    leading_pairs,
    sparse_plus_low_rank,
    top_pairs,
)

Array = NDArray[np.float64]

# small ones, wide and tall
SHAPES = [(5, 4), (60, 200), (130, 190), (190, 130)]


def ratings(shape: tuple[int, int], seed: int = 0) -> scipy.sparse.csr_array:
    """A sparse matrix with a few singular values that stand out."""
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
        (dense, dense.tolist()),
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
    """Matrices whose leading pairs turn and change places."""
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
def test_a_tolerance_holds_from_matrix_to_matrix(
    tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: dict[bool, int] = {True: 0, False: 0}
    original = leading_pairs

    def counted(products: Products, start: Array, *rest: Any) -> Any:
        found = original(products, start, *rest)
        passes[kept is not None] += int(found.passes[0])
        return found

    monkeypatch.setattr(singular, "leading_pairs", counted)
    # both count as blocks of products
    monkeypatch.setattr(singular, "_TIGHT", 0.0)
    start = None
    for matrix in drifting(12):
        largest = np.linalg.svd(matrix, compute_uv=False)[0]
        for kept in (None, start) if start is not None else (None,):
            left, values, right, after = top_pairs(matrix, 1, kept, tolerance)
            assert values[0] == pytest.approx(left[:, 0] @ matrix @ right[:, 0])
            # who has converged is mostly the first: 0.09 where the tolerance is 0.07
            assert (1 - 1.3 * tolerance) * largest <= values[0] <= largest * (1 + 1e-12)
            for error in (
                matrix @ right - left * values,
                matrix.T @ left - right * values,
            ):
                assert np.linalg.norm(error) <= (tolerance + 1e-13) * largest
        start = after
    assert passes[True] < 0.85 * passes[False]


def test_a_full_decomposition_where_it_does_not_converge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = np.random.default_rng(8).standard_normal((110, 100))
    left, values, right = np.linalg.svd(matrix)
    start = top_pairs(matrix).start
    monkeypatch.setattr(singular, "_AFFORDED", 100)  # one pass
    found = top_pairs(matrix, 1, start)
    assert values[0] == pytest.approx(found.values[0], rel=1e-14)
    np.testing.assert_allclose(abs(found.left[:, 0] @ left[:, 0]), 1.0)
    assert found.start is not None
    np.testing.assert_allclose(abs(right[:4] @ found.start), np.eye(4), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda g: top_pairs(np.where(g > 2.0, np.nan, g)), "finite"),
        (lambda g: top_pairs(scipy.sparse.csr_array(g * np.inf)), "finite"),
        (lambda g: top_pairs(aslinearoperator(np.where(g > 2.0, np.nan, g))), "finite"),
        (lambda g: top_pairs(g[0]), "rows"),
        (lambda g: top_pairs(g, 0), "count = 0"),
        (lambda g: top_pairs(g[:3], 4), r"count = 4 .*\(3, 150\)"),
        (lambda g: top_pairs(g, 1, np.ones(120)), r"shape \(120, b\)"),
        (lambda g: top_pairs(g, 1, np.ones((150, 2))), r"shape \(120, b\)"),
        (lambda g: top_pairs(g, 1, np.full((120, 2), np.nan)), "finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_refused(call: Callable[[Array], Any], says: str) -> None:
    matrix = np.random.default_rng(9).standard_normal((120, 150))
    with pytest.raises(ValueError, match=says) as caught:
        call(matrix)
    assert "\n" not in str(caught.value)


def batch(matrices: Array) -> Products:
    def products(v: Array, which: NDArray[np.intp]) -> tuple[Array, Array]:
        w = matrices[which] @ v
        return w, matrices[which].transpose(0, 2, 1) @ w

    return products


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_many_matrices_in_step(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((3, 80, 50)).astype(dtype)
    # one is done at once, one is zero, and the others go on
    matrices[1] = np.outer(np.ones(80), np.ones(50))
    if dtype is np.float32:
        signs = [np.where(np.arange(n) % 2, 0.5, -0.5) for n in (80, 50)]
        matrices[1] += np.outer(*signs)
    matrices = np.concatenate([matrices, np.zeros((1, 80, 50), dtype)])
    start = rng.standard_normal((4, 50, 4)).astype(dtype)
    precision = 1e-8 if dtype is np.float64 else 1e-3
    found = leading_pairs(batch(matrices), start, 2, precision, 2000)
    # in the one of rank 1 there is no second pair that squares could tell from zero
    assert found.converged.tolist() == [True, dtype is np.float32, True, True]
    assert found.left.dtype == found.start.dtype == dtype
    assert found.passes[3] == 1 < found.passes[1] < found.passes[0]
    values = np.linalg.svd(matrices, compute_uv=False)
    np.testing.assert_allclose(
        found.values, values[:, :2], atol=precision * values.max()
    )
    for one, left, sigma, right in zip(matrices, *found[:3], strict=True):
        np.testing.assert_allclose(one.T @ left, right * sigma, atol=10 * precision)
    # a loose one takes less work, and is nearly as good; a start is worth something
    loose = leading_pairs(batch(matrices), start, 1, 0.07, 2000)
    assert np.all(loose.passes <= found.passes)
    assert loose.passes.sum() < found.passes.sum()
    assert np.all(loose.values[:, 0] >= 0.93 * values[:, 0])
    warm = leading_pairs(batch(matrices), found.start, 2, precision, 2000)
    assert np.all(warm.passes[[0, 2]] < found.passes[[0, 2]])
    # and where it may not go on, it says so
    cut = leading_pairs(batch(matrices), start, 1, precision, 2)
    assert cut.passes.max() == 2
    assert cut.converged.tolist() == [False, True, False, True]


def test_the_ball_follows_its_gradients() -> None:
    exact, loose = NuclearNormBall(3.0), NuclearNormBall(3.0, tolerance=0.03)
    starts: list[Array | None] = [None, None]
    for matrix in drifting(6):
        expected = exact.lmo(matrix)
        best = -3.0 * np.linalg.svd(matrix, compute_uv=False)[0]
        for k, (ball, error) in enumerate(((exact, 1e-12), (loose, 0.03))):
            atom, starts[k] = ball.lmo_from(matrix, starts[k])
            assert np.linalg.norm(atom.left) == pytest.approx(3.0, rel=1e-13)
            assert np.linalg.norm(atom.right) == pytest.approx(1.0, rel=1e-13)
            assert atom.dot(matrix) <= (1 - error) * best
            assert atom.left[np.abs(atom.left).argmax()] < 0.0
        # a bound takes the exact oracle
        assert loose.gap(matrix, 0.0 * matrix) == -expected.dot(matrix)
    other: Domain = L1Ball(2.0)
    vertex, kept = other.lmo_from(matrix, None)
    assert kept is None
    np.testing.assert_array_equal(vertex.dense(), other.lmo(matrix).dense())


def test_an_operator_is_never_made_dense_where_it_converges() -> None:
    matrix = forms((130, 190))[0][0]
    largest = 0

    def product(x: Array) -> Array:
        nonlocal largest
        largest = max(largest, x.size // 190)
        return np.asarray(matrix @ x)

    operator: Any = LinearOperator(
        matrix.shape,
        matvec=product,
        matmat=product,
        rmatvec=lambda x: matrix.T @ x,
        rmatmat=lambda x: matrix.T @ x,
        dtype=np.float64,
    )
    start = top_pairs(operator).start
    top_pairs(operator, 2, start)
    assert largest <= singular._BLOCKS
