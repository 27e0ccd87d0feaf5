"""FedGiA on its defaults beside every fixed t, on a few of the problems."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks import fedgia_safe
from benchmarks.fedgia_problems import PROBLEMS, problem
from clients import FedGiAClient
from fedtrellis.objectives import LeastSquares
from strategies import FedGiA
from tests.harness import Watch, grid_of, play

NAMES = list(PROBLEMS)


def test_a_few_problems() -> None:
    result = fedgia_safe.compare(
        fedgia_safe.Cases([NAMES[0], NAMES[1], NAMES[13], NAMES[19]], 40)
    )
    assert [aim.met for aim in result.aims] == [True, True]
    rows = {row["problem"]: row for row in result.rows}
    # the two that a fixed default broke on: many rows, and scaled columns
    assert int(str(rows[NAMES[0]]["FedGiA"])) < 10
    assert int(str(rows[NAMES[1]]["FedGiA"])) < 10
    assert "e-" in str(rows[NAMES[1]]["t, scalar"])


def test_the_fixed_loop_is_the_method() -> None:
    task = problem(NAMES[3])
    loop = list(islice(fedgia_safe.fixed(task, False, 0.4), 12))
    grid = grid_of(FedGiAClient, list(task.losses))
    watch = Watch(grid)
    strategy = FedGiA(sigma_scale=0.4, tolerance=0.0, callbacks=[watch])
    play(strategy, grid, np.zeros(task.size), 12)
    assert np.abs(np.array(loop) - np.array(watch.models)).max() < 1e-10


def test_minima_and_shares() -> None:
    assert len(PROBLEMS) == 20
    task = problem("least squares, a client with one row")
    assert task.losses[0].num_examples == 1
    A = [f.hessian_factor()[0] for f in task.losses]
    # the minimum of (1/m) Σ ‖A_i x − b_i‖²/(2 d_i) by normal equations
    right = np.mean([f.gradient(np.zeros(20)) for f in task.losses], axis=0)
    x = np.linalg.solve(task.bound, -right)
    assert task.optimum == pytest.approx(task.value(x), rel=1e-12)
    assert abs(task.error(x)) < 1e-10
    assert {a.shape[1] for a in A} == {20}
    zeros = problem("least squares, zero columns")
    assert all(isinstance(f, LeastSquares) for f in zeros.losses)
    assert zeros.bound[0].max() == 0.0
    columns = problem("least squares, 10 × 50 rows, columns 1 to 10³")
    lengths = np.sqrt(columns.bound.diagonal())
    assert 500 < lengths[-1] / lengths[0] < 2000
