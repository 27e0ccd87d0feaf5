"""Matrix completion against the loop over observations."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.objectives import MatrixCompletion
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
