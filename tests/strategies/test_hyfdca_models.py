"""Models of HyFDCA against scikit-learn's, coefficient by coefficient, encrypted."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from flwr.app import ArrayRecord
from sklearn.linear_model import (
    ElasticNet,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)

from fedtrellis import LocalGrid
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from strategies import HyFDCA
from tests.strategies.hyfdca_runs import (
    LAST_DIGITS,
    Array,
    Run,
    Split,
    grid_parts,
    small,
)

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


def encrypted(split: Split, rounds: int = 300, **options: Any) -> Array:
    """The model of a run with everything on, to the last digits."""
    run = Run(split, rounds, encryption="stream", **LAST_DIGITS, **options)
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
    run = Run(split, 100, tolerance=1e-12, secure_sum=False)
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


# -- one class against the rest


def classes_split(
    count: int, loss: str, n: int = N, p: int = P, cut: tuple[int, int] = (3, 3)
) -> Split:
    """Samples of several classes; the first ``count`` are one of each."""
    rng = np.random.default_rng(count)
    X = rng.standard_normal((n, p))
    scores = X @ rng.standard_normal((p, count))
    y = np.argmax(scores + 0.5 * rng.standard_normal((n, count)), axis=1)
    y[:count] = np.arange(count)
    split = Split(X, np.ones(n), grid_parts(n, p, *cut), loss, REGULARIZATION)
    split.y = y.astype(np.float64)
    return split


def against_the_rest(split: Split, c: int) -> Array:
    return np.where(split.y == c, 1.0, -1.0)


@pytest.mark.parametrize(
    ("count", "cut"),
    [
        (3, (3, 3)),
        (3, (1, 3)),
        (10, (3, 1)),
        pytest.param(20, (3, 3), marks=pytest.mark.slow),
    ],
)
def test_classes_against_the_rest_are_scikit_learns(
    count: int, cut: tuple[int, int]
) -> None:
    split = classes_split(count, "logistic", cut=cut)
    found = encrypted(split, classes=count)
    assert found.shape == (P, count)
    model = LogisticRegression(
        C=1.0 / (REGULARIZATION * N),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
    )
    for c in range(count):
        expected = model.fit(split.X, against_the_rest(split, c)).coef_[0]
        np.testing.assert_allclose(found[:, c], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 10, 20])
def test_hinges_against_the_rest(count: int) -> None:
    """Each class's objective to 1e-8, its coefficients to 1e-4."""
    split = classes_split(count, "hinge", 60, 6)
    rounds = 150 + 20 * count
    run = Run(split, rounds, encryption="stream", classes=count, tolerance=1e-13)
    for c in range(count):
        y = against_the_rest(split, c)
        problem = RegularizedLoss(split.X, y, make_loss("hinge"), REGULARIZATION)
        best = central_optimum(problem, 1e-11)
        assert problem.value(run.model[:, c]) - best.value <= 1e-8
        np.testing.assert_allclose(run.model[:, c], best.w, rtol=0, atol=1e-4)


def test_the_certificate_of_classes_is_the_sum_of_theirs() -> None:
    split = classes_split(4, "smoothed-hinge")
    run = Run(split, 12, classes=4)
    problems = [
        RegularizedLoss(
            split.X, against_the_rest(split, c), make_loss(split.loss), 1e-2
        )
        for c in range(4)
    ]
    values = [one.value(run.model[:, c]) for c, one in enumerate(problems)]
    optima = [central_optimum(one).value for one in problems]
    strategy = run.strategy
    np.testing.assert_allclose(strategy._primals, values, rtol=1e-12)
    assert (strategy._duals <= np.array(optima) + 1e-9).all()
    gap = run.metric("duality-gap")[-1]
    assert gap == pytest.approx(sum(values) - strategy._duals.sum())
    # a wave for the inner products and one for the proposals, as with one class
    alone = Run(small(), 2)
    assert (
        run.strategy.history[-1].round_trips == alone.strategy.history[-1].round_trips
    )


def test_classes_in_the_clear_group_by_group() -> None:
    split = classes_split(3, "logistic", cut=(2, 2))
    hidden = Run(split, 150, classes=3, tolerance=1e-12).model
    clear = Run(split, 150, classes=3, tolerance=1e-12, secure_sum=False).model
    np.testing.assert_allclose(clear, hidden, rtol=0, atol=1e-5)
    local = Run(
        classes_split(3, "logistic", cut=(4, 1)),
        60,
        classes=3,
        tolerance=1e-9,
        secure_sum=False,
        local_passes=1,
    )
    assert local.strategy.converged()


@pytest.mark.parametrize("wiped", [("0",), ("0", "1", "2")])
def test_a_client_of_classes_that_lost_its_state_is_given_it_again(
    wiped: tuple[str, ...],
) -> None:
    split = classes_split(3, "logistic", cut=(2, 3))

    def wipe(run: Run, server_round: int) -> None:
        if server_round == 12:
            for name in wiped:
                run.wipe(name)

    run = Run(split, 120, classes=3, each=wipe, tolerance=1e-10, encryption="stream")
    assert run.strategy.converged()
    whole = Run(split, 120, classes=3, tolerance=1e-10, encryption="stream")
    np.testing.assert_allclose(run.model, whole.model, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"classes": 2}, "classes = 2 is one problem"),
        ({"classes": 3, "step": "practical", "secure_sum": False}, "'practical'; allo"),
        ({"classes": 3, "loss": "squared"}, "which is none of two classes"),
    ],
)
def test_classes_that_do_not_fit(options: dict[str, object], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        HyFDCA(**options)  # type: ignore[arg-type]


def test_labels_beyond_the_classes_are_refused() -> None:
    split = classes_split(4, "logistic")
    with pytest.raises(SettingsError, match="the numbers of 3 classes, 0 to 2"):
        Run(split, 2, classes=3)


# -- elastic net, and an intercept that is not penalised


def with_constant(split: Split, value: float = 1.0) -> Split:
    """The last column is constant; the labels are shifted, so that it matters."""
    split.X = split.X.copy()
    split.X[:, -1] = value
    if split.loss in ("squared", "poisson"):
        split.y = split.y + 3.0
    return split


@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_the_elastic_net_is_scikit_learns(ratio: float) -> None:
    split = numbers("squared")
    λ = 0.1
    split.regularization = λ
    model = ElasticNet(
        alpha=λ, l1_ratio=ratio, fit_intercept=False, tol=1e-14, max_iter=10**6
    )
    expected = model.fit(split.X, split.y).coef_
    assert ratio < 0.5 or (expected == 0.0).any()
    found = encrypted(split, l1_ratio=ratio)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    # what is 0 is 0, not about 0
    np.testing.assert_array_equal(found == 0.0, expected == 0.0)


@pytest.mark.slow
def test_poisson_with_an_elastic_net_is_a_long_proximal_gradient_loop() -> None:
    split = with_constant(numbers("poisson"))
    λ, ρ = 0.05, 0.5
    split.regularization = λ
    X, y, w = split.X, split.y, np.zeros(P)
    penalised = np.arange(P) != P - 1
    step = 0.05
    for _ in range(20_000):
        slope = X.T @ (np.exp(X @ w) - y) / N + λ * (1 - ρ) * w * penalised
        w = w - step * slope
        shrunk = np.sign(w) * np.maximum(np.abs(w) - step * λ * ρ, 0.0)
        w = np.where(penalised, shrunk, w)
    found = encrypted(split, l1_ratio=ρ, free_feature=split.names[-1], rounds=400)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        *("squared", "logistic"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("smoothed-hinge", "hinge")),
    ],
)
def test_an_intercept_that_is_not_penalised(loss: str) -> None:
    value = 5.0
    if loss == "squared":
        split = with_constant(numbers(loss), value)
    else:
        split = with_constant(classes_split(3, loss), value)
        split.y = np.where(split.y == 2.0, 1.0, -1.0)
    options: dict[str, Any] = {"free_feature": split.names[-1]}
    if loss == "hinge":
        run = Run(split, 300, encryption="stream", tolerance=1e-7, **options)
        assert run.strategy.converged()
        found = run.model
    else:
        found = encrypted(split, **options)
    X, y = split.X[:, :-1], split.y
    if loss == "squared":
        model = Ridge(alpha=REGULARIZATION * N, tol=1e-14).fit(X, y)
        expected = np.append(model.coef_, model.intercept_ / value)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    elif loss == "logistic":
        c = 1.0 / (REGULARIZATION * N)
        model = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-12).fit(X, y)
        expected = np.append(model.coef_[0], model.intercept_ / value)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    else:
        w, b = cp.Variable(P - 1), cp.Variable()
        gaps = cp.pos(1 - cp.multiply(y, X @ w + b))
        sizes = gaps if loss == "hinge" else cp.huber(gaps, 1.0) / 2
        value_of = cp.sum(sizes) / N + REGULARIZATION / 2 * cp.sum_squares(w)
        best = cp.Problem(cp.Minimize(value_of)).solve(solver="CLARABEL")
        w.value, b.value = found[:-1], found[-1] * value
        assert abs(float(value_of.value) - best) <= 1e-7


def test_the_certificate_with_an_elastic_net_and_an_intercept_is_true() -> None:
    """The gap is never below the distance to the optimum, in any round."""
    split = with_constant(numbers("squared"))
    ρ = 0.5
    w = cp.Variable(P)
    penalty = (1 - ρ) / 2 * cp.sum_squares(w[:-1]) + ρ * cp.norm1(w[:-1])
    risk = cp.sum_squares(split.X @ w - split.y) / (2 * N)
    best = cp.Problem(cp.Minimize(risk + REGULARIZATION * penalty)).solve(
        solver="CLARABEL"
    )
    run = Run(split, 90, l1_ratio=ρ, free_feature=split.names[-1])
    duals, primals = run.metric("dual"), run.metric("primal")
    assert (duals <= best + 1e-7).all()
    assert (primals >= best - 1e-7).all()
    assert (np.diff(run.metric("dual-bound")) >= -1e-9).all()
    assert primals.min() - best <= 1e-6


def test_a_free_feature_that_there_is_not() -> None:
    with pytest.raises(SettingsError, match="'age' is not the name of any feature"):
        Run(numbers("squared"), 2, free_feature="age")


# -- from an earlier model


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_from_an_earlier_model_is_never_worse_than_it(count: int) -> None:
    split = classes_split(3, "logistic")
    if count == 1:
        split.y = against_the_rest(split, 0)
    found = Run(split, 60, classes=count, tolerance=1e-6)

    def again(start: Array, rounds: int, **options: object) -> tuple[HyFDCA, Array]:
        settings: dict[str, object] = {"classes": count, "tolerance": 1e-6} | options
        strategy = HyFDCA(
            split.loss,
            split.regularization,
            feature_names=split.names,
            encryption="stream",
            **settings,  # type: ignore[arg-type]
        )
        grid = LocalGrid(split.app(), split.num_clients, seed=0)
        result = strategy.start(grid, ArrayRecord([start]), num_rounds=rounds)
        return strategy, result.arrays.to_numpy_ndarrays()[0]

    strategy, model = again(found.model, 1)
    # P of the given weights is known after one iteration, and they are the best
    value = float(found.strategy._primals.sum())
    assert strategy.history[-1].train["primal"] == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(model, found.model, rtol=1e-9)
    strategy, model = again(found.model, 60)
    assert strategy.converged()
    np.testing.assert_allclose(model, found.model, rtol=0, atol=0.02)
    if count == 1:
        with pytest.raises(SettingsError, match="'practical' starts at weights of 0"):
            again(found.model, 2, step="practical", secure_sum=False)
