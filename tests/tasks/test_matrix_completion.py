"""The task ``matrix-completion``."""

from pathlib import Path

import numpy as np
import pytest

from fedtrellis.domains import NuclearNormBall
from tasks import MatrixCompletionTask
from tasks.data.task import data_of
from tasks.matrices import synthetic_ratings


@pytest.mark.parametrize("n", [1, 3, 40])
def test_every_rating_is_used_once(tmp_path: Path, n: int) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "u.data"
    cells = rng.choice(30 * 20, 203, replace=False)
    columns = [cells // 20 + 1, cells % 20 + 1, rng.integers(1, 6, 203), cells]
    np.savetxt(path, np.transpose(columns), fmt="%d", delimiter="\t")
    task = MatrixCompletionTask(num_clients=n, seed=0, path=str(path))
    data = data_of(task)
    assert len(data.test_targets) == 41  # 20 % of 203, rounded
    found = np.concatenate([data.features @ [20, 1], data.test_features @ [20, 1]])
    np.testing.assert_array_equal(np.sort(found), np.sort(cells))
    # each client's gradient is non-zero where its ratings are
    [shape] = task.shapes()
    x = np.full(shape, 100.0)
    held = [task.client_objective(i).gradient(x) != 0 for i in range(n)]
    observed = np.zeros(shape, dtype=int)
    observed[tuple(data.features.T.astype(int))] = 1
    np.testing.assert_array_equal(np.sum(held, axis=0), observed)
    assert {int(h.sum()) for h in held} <= {162 // n, 162 // n + 1}


def test_generated_ratings() -> None:
    cells, values, shape, _ = synthetic_ratings(0)
    assert shape == (60, 50)
    assert len(values) == len(np.unique(cells @ [50, 1])) == 1500
    task = MatrixCompletionTask(num_clients=4, seed=0)
    domain = NuclearNormBall(task.domains()["nuclear-norm-ball"])
    x = np.zeros(shape)
    start = task.metrics(x)["rmse"]
    for t in range(1, 201):
        atom = domain.lmo(task.gradient(x))
        x *= 1 - 2 / (t + 1)
        atom.add_to(x, 2 / (t + 1))
    metrics = task.metrics(x)
    # low rank is learnt: unseen entries are predicted, too
    assert metrics["rmse-train"] < 0.12
    assert metrics["rmse"] < 0.25 * start
