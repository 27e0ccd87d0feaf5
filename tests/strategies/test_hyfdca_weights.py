"""HyFDCA with weights of samples and of classes, encrypted, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import (
    ElasticNet,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.preprocessing import StandardScaler

from clients import HyFDCAClient
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.dual.weights import outweighed
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from strategies import HyFDCA
from tests.strategies.hyfdca_runs import Array, Run, Split
from tests.strategies.test_hyfdca_models import (
    REGULARIZATION,
    N,
    P,
    against_the_rest,
    classes_split,
    encrypted,
    numbers,
)


def counts(n: int = N) -> Array:
    """Whole weights, some of them 0."""
    return np.random.default_rng(1).integers(0, 4, n).astype(np.float64)


def fractions(n: int = N) -> Array:
    return np.random.default_rng(2).uniform(0.1, 3.0, n)


def two_classes(loss: str, cut: tuple[int, int] = (3, 3)) -> Split:
    split = classes_split(3, loss, cut=cut)
    split.y = against_the_rest(split, 2)
    return split


def with_weights(split: Split, s: Array) -> Split:
    split.weights = s
    return split


def logistic(c: float, **options: Any) -> LogisticRegression:
    return LogisticRegression(
        C=c, solver="newton-cholesky", tol=1e-12, fit_intercept=False, **options
    )


# ------------------------------------------------------------------- weights of samples


@pytest.mark.parametrize(
    ("loss", "cut"),
    [
        ("squared", (3, 3)),
        ("poisson", (3, 1)),
        ("logistic", (1, 3)),
    ],
)
def test_weighted_samples_are_scikit_learns(loss: str, cut: tuple[int, int]) -> None:
    s = fractions()
    split = two_classes(loss, cut) if loss == "logistic" else numbers(loss, cut)
    # λ = α of scikit-learn's Poisson regression, 1/(C Σ s) and α/Σ s of the others
    scale = REGULARIZATION * s.sum()
    models = {
        "squared": Ridge(alpha=scale, fit_intercept=False, tol=1e-14),
        "poisson": PoissonRegressor(
            alpha=REGULARIZATION,
            fit_intercept=False,
            solver="newton-cholesky",
            tol=1e-12,
        ),
        "logistic": logistic(1.0 / scale),
    }
    expected = models[loss].fit(split.X, split.y, sample_weight=s).coef_
    found = encrypted(with_weights(split, s))
    np.testing.assert_allclose(found, np.ravel(expected), rtol=0, atol=1e-6)


def hinge_split(loss: str) -> Split:
    split = classes_split(3, loss, 60, 6)
    split.y = against_the_rest(split, 2)
    return with_weights(split, fractions(60))


def weighted_optimum(split: Split, tolerance: float = 1e-11) -> Any:
    problem = RegularizedLoss(
        split.X,
        split.y,
        make_loss(split.loss),
        split.regularization,
        weights=split.weights,
    )
    return problem, central_optimum(problem, tolerance)


@pytest.mark.parametrize("loss", ["hinge", "smoothed-hinge"])
def test_the_central_optimum_of_weighted_hinges_is_cvxpys(loss: str) -> None:
    split = hinge_split(loss)
    s = np.asarray(split.weights).copy()
    s[7] = 0.0
    split.weights = s
    w = cp.Variable(6)
    gaps = cp.pos(1 - cp.multiply(split.y, split.X @ w))
    sizes = gaps if loss == "hinge" else cp.huber(gaps, 1.0) / 2
    value = s @ sizes / s.sum() + REGULARIZATION / 2 * cp.sum_squares(w)
    exact = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    least = cp.Problem(cp.Minimize(value)).solve(solver="CLARABEL", **exact)
    _, best = weighted_optimum(split)
    assert best.value == pytest.approx(least, abs=1e-10)
    np.testing.assert_allclose(best.w, w.value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "smoothed-hinge"])
def test_weighted_hinges(loss: str) -> None:
    split = hinge_split(loss)
    problem, best = weighted_optimum(split)
    run = Run(split, 150, encryption="stream", tolerance=1e-12, memory=60)
    assert problem.value(run.model) - best.value <= 1e-8
    np.testing.assert_allclose(run.model, best.w, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "standardize"), [("logistic", True), ("squared", False)]
)
def test_whole_weights_are_repeated_rows(loss: str, standardize: bool) -> None:
    """And a weight of 0 leaves its row out, whatever is in it."""
    split = two_classes(loss) if loss == "logistic" else numbers(loss)
    s = counts()
    split.X = split.X.copy()
    if standardize:
        split.X = split.X * np.logspace(0, 3, P) + 2.0
        split.X[:, -1] = 1.0
    split.X[s == 0.0, :-1] = 9.0
    X, y = (np.repeat(one, s.astype(int), axis=0) for one in (split.X, split.y))
    rows = X
    if standardize:
        rows = np.column_stack([StandardScaler().fit_transform(X[:, :-1]), X[:, -1]])
    scale = REGULARIZATION * len(y)
    model: Any = logistic(1.0 / scale)
    if loss == "squared":
        model = Ridge(alpha=scale, fit_intercept=False, tol=1e-14)
    expected = np.ravel(model.fit(rows, y).coef_)
    found = encrypted(with_weights(split, s), standardize=standardize)
    np.testing.assert_allclose(X @ found, rows @ expected, rtol=0, atol=1e-5)
    deviations = np.append(X[:, :-1].std(axis=0), 0.0) if standardize else np.ones(P)
    np.testing.assert_allclose(
        (found * deviations)[:-1], expected[:-1], rtol=0, atol=1e-6
    )


def test_the_certificate_of_weighted_samples_is_true() -> None:
    """P as a plain loop has it, and D never above the minimum."""
    split = with_weights(numbers("squared"), fractions())
    s = np.asarray(split.weights)
    best = weighted_optimum(split, 1e-13)[1].value
    told: list[tuple[float, Array]] = []
    run = Run(split, 40, each=lambda run, t: told.append((t, run.steps.w.copy())))
    primals = run.metric("primal")
    for (_, w), primal in zip(told[:5], primals[1:], strict=False):
        plain = 0.5 * REGULARIZATION * sum(x * x for x in w)
        for i in range(N):
            z = sum(split.X[i, j] * w[j] for j in range(P))
            plain += s[i] * 0.5 * (z - split.y[i]) ** 2 / s.sum()
        assert primal == pytest.approx(plain, rel=1e-9)
    assert (run.metric("dual") <= best + 1e-9).all()
    assert (primals >= best - 1e-9).all()
    assert run.metric("duality-gap")[-1] < 1e-4


def test_labels_and_weights_may_be_on_different_holders() -> None:
    split, s = two_classes("logistic", (1, 3)), fractions()
    expected = logistic(1.0 / (REGULARIZATION * s.sum())).fit(
        split.X, split.y, sample_weight=s
    )

    class Apart(Split):
        def client(self, context: Any, **options: Any) -> HyFDCAClient:
            client = super().client(context, **options)
            k = context.node_config["partition-id"]
            if k != 0:
                client.labels = None
            # half on one, half on another
            own = np.where(np.arange(N) % 2 == k - 1, s, np.nan)
            client.weights = own if k else None
            return client

    split.__class__ = Apart
    found = encrypted(split)
    np.testing.assert_allclose(found, expected.coef_[0], rtol=0, atol=1e-6)


def test_the_elastic_net_of_weighted_samples() -> None:
    split, s = numbers("squared"), fractions()
    split.regularization = 0.1
    model = ElasticNet(0.1, l1_ratio=0.5, fit_intercept=False, tol=1e-14)
    expected = model.fit(split.X, split.y, sample_weight=s).coef_
    found = encrypted(with_weights(split, s), l1_ratio=0.5)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ weights of classes


@pytest.mark.parametrize("rule", ["balanced", {-1: 0.25, 1: 3.0}])
def test_weighted_classes_are_scikit_learns(rule: Any) -> None:
    split, s = two_classes("logistic"), None
    own = {-1.0: 1.0, 1.0: 1.0} | ({} if rule == "balanced" else rule)
    size = sum(own[y] for y in split.y) if rule != "balanced" else N
    model = logistic(1.0 / (REGULARIZATION * size), class_weight=rule)
    expected = model.fit(split.X, split.y, sample_weight=s).coef_[0]
    found = encrypted(split, class_weight=rule)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["balanced", {0: 1.0, 1: 5.0, 2: 0.5}])
def test_each_class_against_the_rest_with_weights(rule: Any) -> None:
    """Balanced each by itself; else each sample has its own class's weight."""
    split = classes_split(3, "logistic")
    split.y[:20] = 1.0  # not all equally large
    found = encrypted(split, classes=3, class_weight=rule)
    if rule == "balanced":
        s, size, own = np.ones(N), float(N), "balanced"
    else:
        s, own = np.array([rule[int(y)] for y in split.y]), None
        size = float(s.sum())
    for c in range(3):
        model = logistic(1.0 / (REGULARIZATION * size), class_weight=own)
        model.fit(split.X, against_the_rest(split, c), sample_weight=s)
        np.testing.assert_allclose(found[:, c], model.coef_[0], rtol=0, atol=1e-6)


# ----------------------------------------------------------- what else a run has to do


def test_balanced_classes_of_repeated_rows_on_a_client_that_lost_its_state() -> None:
    """All of it is there again, and the same."""

    def wipe(run: Run, t: int) -> None:
        if t == 6:
            run.wipe("1")

    split, s = two_classes("logistic"), counts()
    X, y = (np.repeat(one, s.astype(int), axis=0) for one in (split.X, split.y))
    model = logistic(1.0 / (REGULARIZATION * len(y)), class_weight="balanced")
    expected = model.fit(X, y).coef_[0]
    split = with_weights(split, s)
    found = encrypted(split, class_weight="balanced", each=wipe)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_run_that_goes_on_has_its_weights(tmp_path: Any) -> None:
    split = with_weights(two_classes("logistic"), fractions())
    keys: dict[str, Any] = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    first = Run(split, 5, class_weight="balanced", **keys)
    then = Run(split, 9, grid=first.grid, class_weight="balanced", **keys)
    whole = Run(split, 9, class_weight="balanced")
    np.testing.assert_allclose(then.model, whole.model, rtol=0, atol=1e-9)


def test_weights_take_one_wave_more_before_round_1_and_none_later() -> None:
    split = two_classes("logistic")
    plain, heavy = Run(split, 2), Run(with_weights(split, fractions()), 2)
    trips = [run.strategy.history[-1].round_trips for run in (plain, heavy)]
    assert trips[0] == trips[1]
    assert "weighted" not in plain.strategy.agreement.settings
    assert heavy.strategy.agreement.settings["weighted"] is True


# ------------------------------------------------------------------------- bad weights


def _spoilt(change: Callable[[Array], Array]) -> Split:
    return with_weights(two_classes("logistic"), change(fractions()))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: np.where(s > 2.9, -1.0, s), "weights must be finite numbers from 0"),
        (lambda s: np.where(s > 2.9, np.inf, s), "weights must be finite numbers"),
        (lambda s: 1e-6 * s, "weights must be 0 or at least 0.0001"),
        (lambda s: np.where(s > 2.9, np.nan, s), "samples have weights on none of"),
        (lambda s: 0.0 * s, "the weights of all samples are 0"),
        (lambda s: 1e9 * s, "largest|too large|exceeds|range"),
    ],
)
def test_weights_that_are_none(change: Any, match: str) -> None:
    with pytest.raises((SettingsError, RuntimeError), match=match) as told:
        Run(_spoilt(change), 3, encryption="stream", exposed="accept")
    assert "\n" not in str(told.value)


def test_weights_of_another_length_and_others_of_another_holder() -> None:
    with pytest.raises(SettingsError, match=r"weights have shape \(3,\), expected"):
        Run(two_classes("logistic"), 2, client={"weights": np.ones(3)})
    split = with_weights(two_classes("logistic"), fractions())

    class Contradicts(Split):
        def client(self, context: Any, **options: Any) -> HyFDCAClient:
            client = super().client(context, **options)
            if context.node_config["partition-id"] == 1:
                client.weights = np.asarray(client.weights) + 1.0
            return client

    split.__class__ = Contradicts
    with pytest.raises(SettingsError, match="samples have other weights on another"):
        Run(split, 2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"class_weight": "balance"}, "class_weight = 'balance' is no rule"),
        ({"class_weight": {0: 2.0}}, "names class 0, which there is not; allowed: -1"),
        ({"class_weight": {1: -2.0}}, "must be a finite number from 0 on"),
        ({"class_weight": {1: "2"}}, "must be a finite number from 0 on"),
        ({"class_weight": {1: 0.0, -1: 0}}, "0 of every class"),
        ({"class_weight": {3: 2.0}, "classes": 3}, "allowed: 0, 1, 2"),
        ({"class_weight": "balanced", "loss": "squared"}, "none of two classes"),
        (
            {"class_weight": "balanced", "step": "line-search"},
            "does not go with step = 'line-search'; allowed: 'bundle'",
        ),
        (
            {"class_weight": {1: 2}, "local_passes": 1, "secure_sum": False},
            "does not go with local_passes = 1; allowed: 0",
        ),
    ],
)
def test_weights_of_classes_that_do_not_fit(options: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        HyFDCA(**options)


def test_samples_weights_need_the_bundle() -> None:
    split = with_weights(two_classes("logistic"), fractions())
    with pytest.raises(SettingsError, match="weights, which does not go with step"):
        Run(split, 2, step="line-search")


def test_a_class_that_nobody_has_cannot_be_balanced() -> None:
    split = classes_split(3, "logistic")
    with pytest.raises(SettingsError, match="no sample of any weight is of class 3"):
        Run(split, 2, classes=4, class_weight="balanced")


# -------------------------------------------------------------------- what they reveal


def test_a_few_samples_that_outweigh_the_rest_are_refused() -> None:
    split = two_classes("logistic")
    s = np.ones(N)
    s[:2] = 1e4
    with pytest.raises(SettingsError, match="outweigh the rest .* 1 group of samples"):
        Run(with_weights(split, s), 2, encryption="stream")
    # as good as left out: what is left is two samples
    left = np.zeros(N)
    left[:6] = 1.0
    with pytest.raises(SettingsError, match="outweigh the rest"):
        Run(with_weights(split, left), 2, encryption="stream")
    Run(with_weights(split, left), 2, encryption="stream", exposed="accept")
    rare = classes_split(4, "logistic")
    rare.y = np.where(rare.y == 3.0, 2.0, rare.y)
    rare.y[5] = 3.0
    with pytest.raises(SettingsError, match="class 3, which 1 of all samples have"):
        Run(rare, 2, encryption="stream", classes=4, class_weight="balanced")


def test_what_outweighs() -> None:
    assert not outweighed(np.ones(3), 3)
    assert outweighed(np.ones(2), 3)
    assert outweighed(np.array([1.0, 1.0, 1e-3]), 3)
    assert not outweighed(np.array([1.0, 1.0, 0.03]), 3)
    assert outweighed(np.array([1.0, 1.0, 0.0, 0.0]), 3)
    assert not outweighed(np.zeros(5), 3)  # they add nothing at all
