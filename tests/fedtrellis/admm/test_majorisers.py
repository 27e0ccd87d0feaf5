"""Diagonals above H, and the ADMM steps in the coordinates that they scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from fedtrellis.admm.hessians import majoriser_of
from fedtrellis.admm.shifted_systems import cached_system
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from tests.harness import Array


def badly_scaled(rows: int = 30, columns: int = 6, seed: int = 0) -> Array:
    """Correlated columns of lengths from 1 to 1 000, one of them zeros."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns)) + 2.0 * rng.standard_normal((rows, 1))
    A *= np.geomspace(1.0, 1e3, columns)
    A[:, 2] = 0.0
    return A


def losses() -> dict[str, Any]:
    A = badly_scaled()
    b = (np.arange(30) % 2).astype(float)
    wide = badly_scaled(4, 9)
    return {
        "least squares": LeastSquares(A, b, scale="half-mean"),
        "ridge": LeastSquares(A, b, scale="half-mean", l2=0.3),
        "logistic": Logistic(A, b, l2=0.1),
        "sparse": Logistic(scipy.sparse.csr_array(A), b, l2=0.1),
        "wide": LeastSquares(wide, b[:4], scale="half-mean"),
        "multinomial": MultinomialLogistic(A, np.arange(30) % 3, 3, l2=0.1),
        "many": LeastSquares(badly_scaled(90, 80), np.zeros(90)),
    }


@pytest.mark.parametrize("name", losses())
def test_it_majorises_and_touches(name: str) -> None:
    objective = losses()[name]
    H = np.asarray(objective.hessian_bound())
    d = majoriser_of(objective)
    assert isinstance(d, np.ndarray)
    assert d.shape == (len(H),)
    lengths = np.sqrt(np.where(H.diagonal() > 0, H.diagonal(), 1.0))
    gap = (np.diag(d) - H) / lengths / lengths[:, None]
    # c·D − H is positive semi-definite, and singular where a column counts
    assert np.linalg.eigvalsh(gap)[0] > -1e-12
    present = H.diagonal() > 0
    assert np.linalg.eigvalsh(gap[np.ix_(present, present)])[0] < 1e-6
    assert (d[~present] == 0.0).all()


def test_a_file_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "factor.npz")
    first = majoriser_of(losses()["logistic"], None, path)
    monkeypatch.setattr(
        "fedtrellis.admm.hessians.largest_eigenvalue",
        lambda *_: pytest.fail("it was computed again"),
    )
    again = majoriser_of(losses()["logistic"], None, path)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("name", losses())
def test_steps_are_those_with_a_diagonal_sigma(
    name: str, hessian: str, steps: int
) -> None:
    objective = losses()[name]
    H = np.asarray(objective.hessian_bound())
    if hessian == "diagonal":
        H = np.diag(majoriser_of(objective))
    rng = np.random.default_rng(1)
    scale = np.geomspace(1e-2, 1e4, len(H))
    u, weight, shift = rng.standard_normal(len(H)), 0.2, 0.7
    sigma = shift * scale
    w = u.copy()
    for _ in range(steps - 1):
        w = w - sigma * np.linalg.solve(weight * H + np.diag(sigma), w)
    d = np.linalg.solve(weight * H + np.diag(sigma), w)
    options: Any = {"scale": scale, "weight": weight, "shift": shift, "steps": steps}
    system = cached_system(objective, hessian, **options)
    assert cached_system(objective, hessian, **options) is system
    found = system.admm_steps(u, steps)
    root = np.sqrt(scale)
    # in the coordinates that are scaled, where all entries count alike
    solved = system.solve(w)
    pairs = ((found[0] / root, w / root), (found[1] * root, d * root))
    for got, expected in (*pairs, (solved * root, d * root)):
        assert np.abs(got - expected).max() <= 1e-9 * np.abs(u / root).max()
