"""The server's programme solved by CVXPY."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]


def optimum_over_simplices(V: Array, b: Array, blocks: list[slice]) -> float:
    """Maximum of bᵀθ − ½‖Vᵀθ‖² over the simplices, by CVXPY."""
    cp = pytest.importorskip("cvxpy")
    theta = cp.Variable(len(b), nonneg=True)
    problem = cp.Problem(
        cp.Maximize(b @ theta - 0.5 * cp.sum_squares(V.T @ theta)),
        [cp.sum(theta[block]) == 1 for block in blocks],
    )
    problem.solve(
        solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    return float(problem.value)
