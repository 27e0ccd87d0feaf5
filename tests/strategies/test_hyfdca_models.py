"""Models of HyFDCA against scikit-learn's, coefficient by coefficient, encrypted."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor, Ridge

from fedtrellis.settings import SettingsError
from tests.strategies.hyfdca_runs import Array, Run, Split, grid_parts, small

N, P, REGULARIZATION = 120, 9, 1e-2


def numbers(loss: str, cut: tuple[int, int] = (3, 3), scale: float = 1.0) -> Split:
    """A regression that is split into sample groups × feature groups."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    z = X @ rng.standard_normal(P) / np.sqrt(P)
    y = scale * (z + 0.3 * rng.standard_normal(N))
    if loss == "poisson":
        y = rng.poisson(np.exp(z + 1.0)).astype(np.float64)
    return Split(X, y, grid_parts(N, P, *cut), loss, REGULARIZATION)


def encrypted(split: Split, rounds: int = 250, **options: object) -> Array:
    """The model of a run with everything on, to the last digits."""
    settings = {"encryption": "stream", "tolerance": 1e-13, **options}
    run = Run(split, rounds, **settings)  # type: ignore[arg-type]
    assert run.strategy.converged()
    return run.model


@pytest.mark.parametrize("cut", [(3, 3), (3, 1), (1, 3)])
def test_the_squared_loss_is_ridge_regression(cut: tuple[int, int]) -> None:
    split = numbers("squared", cut, scale=1000.0)
    ridge = Ridge(alpha=REGULARIZATION * N, fit_intercept=False, tol=1e-14)
    expected = ridge.fit(split.X, split.y).coef_
    np.testing.assert_allclose(encrypted(split), expected, rtol=0, atol=1e-6 * 1000.0)


def test_the_poisson_loss_is_scikit_learns() -> None:
    split = numbers("poisson")
    poisson = PoissonRegressor(
        alpha=REGULARIZATION, fit_intercept=False, solver="newton-cholesky", tol=1e-12
    )
    expected = poisson.fit(split.X, split.y).coef_
    np.testing.assert_allclose(encrypted(split), expected, rtol=0, atol=1e-6)
    # in the clear no dual point e^z of a far w may travel either
    run = Run(split, 250, tolerance=1e-12, secure_sum=False)
    np.testing.assert_allclose(run.model, expected, rtol=0, atol=1e-5)


def test_targets_that_no_hidden_sum_has_room_for_are_refused_in_one_line() -> None:
    split = numbers("squared", scale=1e4)
    split.regularization = 1e-6
    with pytest.raises(SettingsError, match="scale the features or the labels") as told:
        Run(split, 3, encryption="stream")
    assert "\n" not in str(told.value)


def test_negative_labels_are_no_counts() -> None:
    split = small("squared")
    split.loss = "poisson"
    with pytest.raises(SettingsError, match="poisson loss must be finite and at least"):
        Run(split, 3)
