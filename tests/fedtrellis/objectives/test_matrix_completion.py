"""Matrix completion against the loop over observations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from fedtrellis.objectives import (
    MatrixCompletion,
)
from tests.fedtrellis.objectives.cases import ENTRIES, point


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
