"""The benchmark of columns that two parties have, at sizes that mean nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks import vertical
from benchmarks.taylor_paillier import taylor_descent
from fedtrellis.dual.regularized_loss import RegularizedLoss
from fedtrellis.objectives.losses import make_loss


def test_the_credit_data_are_a_banks() -> None:
    X, y = vertical.credit(2_000, seed=3)
    assert X.shape == (2_000, 25)
    assert (X[:, -1] == 1.0).all()
    np.testing.assert_allclose(X[:, :-1].std(axis=0), 1.0)
    assert 0.15 < (y > 0).mean() < 0.3
    again = vertical.credit(2_000, seed=3)
    assert (again[0] == X).all()
    assert (again[1] == y).all()


def test_the_taylor_gradient_ends_above_the_optimum() -> None:
    X, y = vertical.credit(300)
    problem = RegularizedLoss(X, y, make_loss("logistic"), 1e-2)
    run = taylor_descent(X, y, 1e-2, problem.value, slack=0.0, iterations=3_000)
    far = taylor_descent(X, y, 1e-2, problem.value, slack=1e9, iterations=3)
    assert far.iterations == 0
    # ∇ of ln 2 − ½ y z + ⅛ z², and the ridge, is 0 where it ends if that is lowest
    gradient = X.T @ (0.25 * (X @ run.w) - 0.5 * y) / 300 + 1e-2 * run.w
    assert run.iterations < 3_000 or np.linalg.norm(gradient) < 1e-6
    assert problem.value(run.w) < np.log(2.0)


def test_it_runs() -> None:
    phe = pytest.importorskip("phe")
    assert phe is not None
    (result,) = vertical.compare(vertical.Case(60, 3))
    assert [row["method"] for row in result.rows] == [
        *("HyFDCA", "HyFDCA, to Taylor's loss", "Taylor, Paillier")
    ] * 3
    assert all(aim.met for aim in result.aims)


def test_it_runs_without_phe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    (result,) = vertical.compare(vertical.Case(60, 3))
    assert len(result.rows) == 3
    assert "phe is not installed" in result.about
    # the certificate holds: no more above the optimum than the relative gap
    assert all(float(str(row["above the optimum"])) <= 1e-4 for row in result.rows)
