"""The task ``lasso``."""

import numpy as np
import pytest

from fedtrellis.domains import L1Ball, L2Ball
from fedtrellis.objectives import LeastSquares
from tasks import Lasso
from tasks.data.task import data_of


def test_the_data_is_what_the_paper_describes() -> None:
    task = Lasso(num_clients=3, seed=0)
    A, b, solution = *data_of(task)[:2], task.solution()
    assert A.shape == (200, 400)
    assert np.count_nonzero(solution) == 20
    np.testing.assert_allclose(b, A @ solution)
    # 80 000 entries with variances from U[1, 2]
    assert A.mean() == pytest.approx(0.0, abs=0.02)
    assert A.var() == pytest.approx(1.5, abs=0.05)
    columns = A.var(axis=0)
    assert columns.std() == pytest.approx(np.sqrt(1 / 12 + 2 * 2.33 / 200), rel=0.15)


@pytest.mark.parametrize("n", [1, 7, 200])
def test_rows_are_dealt_evenly_in_order(n: int) -> None:
    task = Lasso(num_clients=n, seed=0)
    data = data_of(task)
    x = np.random.default_rng(0).standard_normal(400)
    start = 0
    for i in range(n):
        objective = task.client_objective(i)
        assert isinstance(objective, LeastSquares)
        rows = slice(start, start + objective.num_examples)
        start = rows.stop
        residual = data.features[rows] @ x - data.targets[rows]
        assert objective.value(x) == pytest.approx(n * residual @ residual)
        assert objective.num_examples in (200 // n, 200 // n + 1)
    assert start == 200


def test_the_optimum_is_zero_at_the_truth() -> None:
    task = Lasso(num_clients=4, seed=1)
    truth = task.solution()
    radius = task.domains()["l1-ball"]
    assert radius == np.abs(truth).sum()
    assert task.value(truth) == 0.0
    assert task.metrics(truth) == {"solution-error": 0.0}
    assert task.reference_optimum(L1Ball(radius)) == 0.0
    assert task.reference_optimum(L2Ball(radius)) == 0.0
    assert task.reference_optimum(L1Ball(0.99 * radius)) is None
    noisy = Lasso(num_clients=4, seed=1, noise=0.1)
    assert noisy.reference_optimum(L1Ball(radius)) is None
    assert noisy.value(noisy.solution()) == pytest.approx(200 * 0.01, rel=0.5)
