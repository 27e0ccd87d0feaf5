"""Models of HyFDCA against scikit-learn's, coefficient by coefficient, encrypted.

With several classes, weights of samples and classes, an elastic net, an intercept and
raw columns, such as an income in euros beside an age; and what of that is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.linear_model import ElasticNet, LogisticRegression, PoissonRegressor, Ridge
from sklearn.preprocessing import StandardScaler

from clients.hyfdca import NewSamples, Predictions, proposals
from clients.hyfdca.run import ClientRun, column_sums
from fedtrellis import LocalGrid
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.dual.weights import in_parts, of_parts
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from strategies import HyFDCA
from tests.harness import not_daily, refused
from tests.strategies.hyfdca_runs import Array, Run, Split, grid_parts, last_digits

N, P, LAMBDA = 120, 9, 1e-2
HYBRID = (3, 3)


def numbers(
    loss: str, cut: tuple[int, int] = HYBRID, scale: float = 1.0, λ: float = LAMBDA
) -> Split:
    """A regression that is split into sample groups × feature groups."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    z = X @ rng.standard_normal(P) / np.sqrt(P)
    y = scale * (z + 0.3 * rng.standard_normal(N))
    if loss == "poisson":
        y = rng.poisson(np.exp(z + 1.0)).astype(np.float64)
    return Split(X, y, grid_parts(N, P, *cut), loss, λ)


def classes_split(
    count: int, loss: str, n: int = N, p: int = P, cut: tuple[int, int] = HYBRID
) -> Split:
    """Samples of several classes; the first ``count`` are one of each."""
    rng = np.random.default_rng(count)
    X = rng.standard_normal((n, p))
    scores = X @ rng.standard_normal((p, count))
    y = np.argmax(scores + 0.5 * rng.standard_normal((n, count)), axis=1)
    y[:count] = np.arange(count)
    y[count : count + 20] = 1.0  # not all equally large
    return Split(X, y.astype(np.float64), grid_parts(n, p, *cut), loss, LAMBDA)


def against_the_rest(split: Split, c: int) -> Array:
    return np.where(split.y == c, 1.0, -1.0)


def two_classes(
    loss: str, cut: tuple[int, int] = HYBRID, n: int = N, p: int = P
) -> Split:
    split = classes_split(3, loss, n, p, cut)
    split.y = against_the_rest(split, 2)
    return split


def raw(split: Split) -> Split:
    """Columns of very different sizes and means, and a constant one."""
    split.X = split.X * np.logspace(0, 3, P) + 2.0
    split.X[:, -1] = 1.0
    return split


def fractions(n: int = N) -> Array:
    return np.random.default_rng(2).uniform(0.1, 3.0, n)


def with_weights(split: Split, s: Array) -> Split:
    split.weights = s
    return split


def encrypted(split: Split, rounds: int = 300, **options: Any) -> Array:
    """The model of a run with everything on, to the last digits."""
    run = Run(split, rounds, encryption="stream", **last_digits(), **options)
    assert len(run.strategy.history) < rounds
    return run.model


def logistic(scale: float, **options: Any) -> LogisticRegression:
    options = {"fit_intercept": False, **options}
    return LogisticRegression(
        C=1.0 / scale, solver="newton-cholesky", tol=1e-12, **options
    )


@pytest.mark.parametrize(
    ("loss", "cut", "weighted"),
    [
        *not_daily(("squared", HYBRID, False)),
        ("squared", (1, 3), True),
        ("poisson", (3, 1), True),
        ("logistic", (1, 3), True),
    ],
)
def test_scikit_learns_models(loss: str, cut: tuple[int, int], weighted: bool) -> None:
    s, size = (fractions() if weighted else np.ones(N)), 1e5
    split = two_classes(loss, cut) if loss == "logistic" else numbers(loss, cut, size)
    # λ = α of scikit-learn's Poisson regression, 1/(C Σ s) and α/Σ s of the others
    scale = LAMBDA * s.sum()
    poisson: Any = {"solver": "newton-cholesky", "tol": 1e-12, "fit_intercept": False}
    models = {
        "squared": Ridge(alpha=scale, fit_intercept=False, tol=1e-14),
        "poisson": PoissonRegressor(alpha=LAMBDA, **poisson),
        "logistic": logistic(scale),
    }
    expected = np.ravel(models[loss].fit(split.X, split.y, sample_weight=s).coef_)
    near = 1e-6 * (size if loss == "squared" else 1.0)
    found = encrypted(with_weights(split, s) if weighted else split)
    assert_allclose(found, expected, rtol=0, atol=near)
    if loss == "poisson":  # in the clear no dual point e^z of a far w may travel either
        clear = Run(split, 100, tolerance=1e-12, secure_sum=False)
        assert_allclose(clear.model, expected, rtol=0, atol=1e-5)


def test_noise_is_of_the_stated_size_in_units_of_the_heaviest_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s, drawn, plain = fractions(), list[tuple[ClientRun, Array]](), proposals._noise

    def noise(run: ClientRun, shape: tuple[int, ...]) -> Array:
        drawn.append((run, np.stack([plain(run, shape) for _ in range(4)])))
        return np.asarray(drawn[-1][1][0])

    monkeypatch.setattr(proposals, "_noise", noise)
    split = with_weights(two_classes("logistic", (1, 3)), s)
    found = Run(split, 80, encryption="stream", tolerance=0.0, noise=1e-4)
    exact = Run(split, 80, encryption="stream", tolerance=0.0)
    assert 1e-5 < np.abs(found.model - exact.model).max() < 1e-2
    parts = [(run.columns, np.ravel(array) * run.scale) for run, array in drawn]
    units = np.concatenate(
        [one / (np.abs(columns).max() * s.max() / s.mean()) for columns, one in parts]
    )
    assert len(units) > 2500  # of a mean of 0 a tenth is five deviations
    assert abs(units.std() - 1.0) < 0.1 > abs(units.mean())


@pytest.mark.parametrize(
    ("count", "cut", "rule", "lost"),
    [
        (3, (2, 3), "balanced", "012"),  # all holders of some samples
        *not_daily((3, (1, 3), {0: 1.0, 1: 5.0, 2: 0.5}, ""), (10, (3, 1), None, "")),
        (1, HYBRID, {-1: 0.25, 1: 3.0}, ""),
    ],
)
def test_each_class_against_the_rest_is_scikit_learns(
    count: int, cut: tuple[int, int], rule: Any, lost: str
) -> None:
    """Balanced each by itself; else each sample has its own class's weight."""
    split = classes_split(max(count, 3), "logistic", cut=cut)
    if count == 1:
        split.y = against_the_rest(split, 0)
    weights = {} if rule is None else {"class_weight": rule}

    def each(run: Run, t: int) -> None:  # who loses its state, does after iteration 6
        for name in lost if t == 6 else "":
            run.wipe(name)

    found = encrypted(split, classes=count, each=each, **weights)
    own, s = (rule, np.ones(N)) if rule == "balanced" else (None, np.ones(N))
    if isinstance(rule, dict):
        s = np.array([rule[int(y)] for y in split.y])
    for c, w in enumerate(found.reshape(P, count).T):
        model = logistic(LAMBDA * s.sum(), class_weight=own)
        y = split.y if count == 1 else against_the_rest(split, c)
        expected = model.fit(split.X, y, sample_weight=s).coef_[0]
        assert_allclose(w, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["logistic", *not_daily("net", "classes")])
def test_a_pipeline_with_an_intercept(case: str) -> None:
    """StandardScaler and a model with an intercept, of weighted raw rows."""
    s, λ = fractions(), 0.5 if case == "net" else 0.05
    split = numbers("squared") if case == "net" else classes_split(3, "logistic")
    split = with_weights(raw(split), s)
    split.X[:, 1] = 5.0  # a constant that is none of the model's
    split.regularization = λ
    options: dict[str, Any] = {"free_feature": split.names[-1], "standardize": True}
    scaler = StandardScaler().fit(split.X[:, :-1], sample_weight=s)
    Z = scaler.transform(split.X[:, :-1])
    model: Any = logistic(λ * s.sum(), fit_intercept=True)
    targets = [against_the_rest(split, c) for c in range(3)]
    if case == "classes":
        options["classes"] = 3
    elif case == "logistic":
        split.y = targets[2]
        targets = [split.y]
    else:
        split.y = split.y + 3.0 * Z @ (np.arange(8.0) == 5.0) + 3.0
        targets, options["l1_ratio"] = [split.y], 0.5
        model = ElasticNet(λ, l1_ratio=0.5, tol=1e-14, max_iter=10**6)
    found = encrypted(split, **options).reshape(P, -1)
    for y, w in zip(targets, found.T, strict=True):
        model.fit(Z, y, sample_weight=s)
        own, coef = w[:-1] * scaler.scale_, np.ravel(model.coef_)
        assert_allclose(own, coef, rtol=0, atol=1e-6)
        constant = w[-1] + scaler.mean_ @ w[:-1]
        assert_allclose(constant, np.ravel(model.intercept_)[0], atol=1e-6)
        if case == "net":  # what is 0 is 0, not about 0
            assert (coef == 0.0).any()
            np.testing.assert_array_equal(own == 0.0, coef == 0.0)


def test_labels_and_weights_may_be_on_different_holders() -> None:
    split, s = two_classes("logistic", (1, 3)), fractions()
    expected = logistic(LAMBDA * s.sum()).fit(split.X, split.y, sample_weight=s)

    def change(k: int, client: Any) -> None:
        if k != 0:
            client.labels = None
        # half on one, half on another
        client.weights = np.where(np.arange(N) % 2 == k - 1, s, np.nan) if k else None

    split.change = change
    assert_allclose(encrypted(split), expected.coef_[0], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "smoothed-hinge"])
def test_weighted_hinges_are_cvxpys(loss: str) -> None:
    split, s = two_classes(loss, n=60, p=6), fractions(60)
    s[7] = 0.0
    w = cp.Variable(6)
    gaps = cp.pos(1 - cp.multiply(split.y, split.X @ w))
    sizes = gaps if loss == "hinge" else cp.huber(gaps, 1.0) / 2
    value = s @ sizes / s.sum() + LAMBDA / 2 * cp.sum_squares(w)
    exact = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    least = cp.Problem(cp.Minimize(value)).solve(solver="CLARABEL", **exact)
    problem = with_weights(split, s).problem
    best = central_optimum(problem, 1e-11)
    assert best.value == pytest.approx(least, abs=1e-10)
    assert_allclose(best.w, w.value, rtol=0, atol=1e-6)
    run = Run(split, 150, memory=60, tolerance=1e-12, encryption="stream")
    assert problem.value(run.model) - least <= 1e-7  # as the page says
    assert_allclose(run.model, best.w, rtol=0, atol=1e-4)


def test_the_certificate_is_true() -> None:
    """Of weighted rows, an elastic net and an intercept: by CVXPY, in any round."""
    split, s, ρ = with_weights(numbers("squared"), fractions()), fractions(), 0.5
    split.X[:, -1], split.y = 1.0, split.y + 3.0
    w = cp.Variable(P)
    penalty = (1 - ρ) / 2 * cp.sum_squares(w[:-1]) + ρ * cp.norm1(w[:-1])
    risk = s @ cp.square(split.X @ w - split.y) / (2 * s.sum())
    value = risk + LAMBDA * penalty
    best = cp.Problem(cp.Minimize(value)).solve(solver="CLARABEL")
    run = Run(split, 40, l1_ratio=ρ, free_feature=split.names[-1])
    duals, primals = run.metric("dual"), run.metric("primal")
    assert (duals <= best + 1e-7).all()
    assert (primals >= best - 1e-7).all()
    assert (np.diff(run.metric("dual-bound")) >= -1e-9).all()
    w.value = run.model
    assert primals.min() == pytest.approx(float(value.value), rel=1e-9)
    assert primals.min() - best <= 1e-4


@pytest.mark.slow
def test_classes_in_the_clear_group_by_group() -> None:
    split = classes_split(3, "logistic", cut=(2, 2))
    hidden = Run(split, 150, classes=3, tolerance=1e-11).model
    clear: Any = {"classes": 3, "secure_sum": False}
    own = Run(split, 150, tolerance=1e-11, **clear)
    assert_allclose(own.model, hidden, rtol=0, atol=1e-5)


def test_a_run_from_an_earlier_model_is_never_worse_than_it() -> None:
    split = classes_split(3, "logistic")
    settings: Any = {"classes": 3, "tolerance": 1e-6, "encryption": "stream"}
    found = Run(split, 60, **settings)

    def again(rounds: int, start: Array, **options: Any) -> tuple[HyFDCA, Array]:
        options = {**settings, "feature_names": split.names, **options}
        strategy = HyFDCA("logistic", LAMBDA, **options)
        grid = LocalGrid(split.app(), split.num_clients, seed=0)
        result = strategy.start(grid, ArrayRecord([start]), num_rounds=rounds)
        return strategy, result.arrays.to_numpy_ndarrays()[0]

    strategy, model = again(1, found.model)
    # P of the given weights is known after one iteration, and they are the best
    value = float(found.strategy._primals.sum())
    assert strategy.history[-1].train["primal"] == pytest.approx(value, rel=1e-9)
    assert_allclose(model, found.model, rtol=1e-9)
    strategy, model = again(60, found.model)
    assert strategy.converged()
    assert_allclose(model, found.model, rtol=0, atol=0.02)
    paper: Any = {"step": "practical", "secure_sum": False, "classes": 1}
    why = "'practical' starts at weights of 0"
    refused(why, lambda: again(2, found.model[:, 0], **paper))


def huge() -> Split:
    split = raw(two_classes("logistic"))
    split.X = split.X * 1e22
    return split


def rare_class() -> Split:
    split = classes_split(3, "logistic")
    split.y = np.where(np.arange(N) < 2, 2.0, np.minimum(split.y, 1.0))
    return split


def contradicting() -> Split:
    split = with_weights(two_classes("logistic"), fractions())
    split.change = lambda k, c: setattr(c, "weights", c.weights + float(k == 1))
    return split


RARE: dict[str, Any] = {"class_weight": "balanced", "exposed": "refuse"}
#: Data, options, and what is said of them.
UNFIT: list[tuple[Callable[[], Split], dict[str, Any], str]] = [
    (lambda: numbers("squared"), {"free_feature": "age"}, "'age' is not the name of"),
    (lambda: classes_split(4, "hinge"), {"classes": 3}, "numbers of 3 classes, 0 to 2"),
    (
        lambda: classes_split(3, "logistic"),
        {"classes": 4, "class_weight": "balanced"},
        "no sample of any weight is of class 3",
    ),
    (rare_class, {"classes": 3, **RARE}, "class 2, which 2 of all samples"),
    (contradicting, {"step": "line-search"}, "does not go with step"),
    (contradicting, {}, "samples have other weights on another"),
    (huge, {"standardize": True}, "sum of squares is too large"),
    *(
        (partial(with_weights, two_classes("logistic"), change(fractions())), {}, why)
        for change, why in (
            (lambda s: -s, "weights must be finite numbers from 0"),
            (lambda s: np.inf * s, "weights must be finite"),
            (lambda s: np.where(s > 2.9, np.nan, s), "have weights on none of"),
            (lambda s: 1e-6 * s, "weights must be 0 or at least 0.0001"),
            (lambda s: 0.0 * s, "the weights of all samples are 0"),
            (lambda s: 1e9 * s, "largest|too large|exceeds|range"),
            (lambda s: s[:, None], r"weights have shape \(40, 1\), expected"),
        )
    ),
]


@pytest.mark.parametrize(("make", "options", "match"), UNFIT)
def test_data_that_does_not_fit(
    make: Callable[[], Split], options: dict[str, Any], match: str
) -> None:
    run: Any = partial(Run, encryption="stream", **options)
    refused(match, lambda: run(make(), 3), (SettingsError, RuntimeError))


def test_a_few_samples_that_outweigh_the_rest_are_refused() -> None:
    """Also where the others are as good as left out."""
    heavy, left = np.ones(N), np.zeros(N)
    heavy[:2], left[:6] = 1e4, 1.0
    for s in (heavy, left):
        split = with_weights(two_classes("logistic"), s)
        why = "outweigh the rest .* of samples"
        refused(why, partial(Run, split, 2, exposed="refuse"))
    Run(split, 2)


def _away(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _run(split: Split, rounds: int = 300, **options: Any) -> Run:
    return Run(split, rounds, **{"standardize": True, **options})


def test_without_a_constant_column_nothing_is_shifted() -> None:
    """Scores have nothing to hold what means add: columns are scaled alone."""
    split = raw(two_classes("logistic"))
    split.X[0, -1] = 2.0
    run = _run(split, **last_digits())
    scales = np.sqrt(np.square(split.X).mean(axis=0))
    loss = make_loss("logistic")
    problem = RegularizedLoss(split.X / scales, split.y, loss, LAMBDA)
    best = central_optimum(problem, 1e-13)
    assert_allclose(run.model * scales, best.w, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step": "line-search"},
        {"step": "practical", "secure_sum": False},
        {"classes": 3},
    ],
)
def test_sparse_rows_are_dense_rows(options: dict[str, Any]) -> None:
    """Shifted, they stay sparse; a column of one client and of two for one sample."""
    models = []
    for make in (np.asarray, sparse.csr_array):
        split = raw(classes_split(3, "logistic"))
        if "classes" not in options:
            split.y = against_the_rest(split, 2)
        split.X = make(split.X)
        split.regularization = 0.1
        models.append(_run(split, 6, **options).steps.w)
    assert _away(models[1], models[0]) < 1e-9


def test_two_holders_of_a_sample_subtract_a_mean_once() -> None:
    """Entries dealt one by one: both have the column, and each has other entries."""
    whole = raw(two_classes("logistic", (1, 1)))
    X, mine = whole.X, np.random.default_rng(1).random(whole.X.shape) < 0.5
    halves = Split(X, whole.y, whole.parts * 2, "logistic", LAMBDA)
    halves.change = lambda k, c: setattr(c, "features", np.where(mine == k, X, 0.0))
    models = [_run(split, **last_digits()).model for split in (whole, halves)]
    assert _away(models[1], models[0]) < 1e-6


@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_new_raw_samples_are_scored(loss: str) -> None:
    """In raw units; with probabilities where the loss has some."""
    whole = raw(two_classes(loss, n=320))
    X, y, names = whole.X, whole.y, [f"new-{i}" for i in range(120)]
    new, split = X[200:], Split(X[:200], y[:200], grid_parts(200, P, 1, 3), loss, 0.1)
    told: dict[int, Predictions] = {}

    def change(k: int, client: Any) -> None:
        # one client has labels, of half of them
        labels = np.where(np.arange(120) < 60, y[200:], np.nan) if k == 0 else None
        client.new_samples = NewSamples(new[:, split.parts[k][1]], names, labels)
        client.on_predictions = lambda found: told.__setitem__(k, found)

    split.change = change
    run = _run(split, 30, encryption="stream", client_evaluate_every=30)
    for found in told.values():
        assert list(found.sample_ids) == names
        assert np.abs(found.scores - new @ run.model).max() < 1e-8
        assert np.array_equal(found.predicted, np.sign(found.scores))
        if loss == "logistic":
            expected = 1.0 / (1.0 + np.exp(-found.scores))
            assert_allclose(np.asarray(found.probabilities), expected)
    # where all have all columns, a score would count three times
    split.parts = grid_parts(200, P, 3, 1)
    refused("same columns of one of them", lambda: _run(split, 1, encryption="stream"))


def test_an_honest_server_reads_the_sum_over_all_holders_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split, hidden = raw(two_classes("logistic")), ClientRun.hidden
    seen: dict[str, Any] = {}

    def sending(run: ClientRun, rows: Any, ends: Any) -> Any:
        words = hidden(run, rows, ends)
        return seen.setdefault(run.part.client_id, words) if len(ends) == 0 else words

    monkeypatch.setattr(ClientRun, "hidden", sending)
    # who is asked again, because an answer was lost, sends the same
    run = _run(split, 2, encryption="stream", faults={"reply_loss": 0.3})
    scales = run.strategy._scales
    assert scales is not None
    assert_allclose(scales.means[:-1], split.X[:, :-1].mean(axis=0))
    for name, words in seen.items():
        rows, columns = split.parts[int(name)]
        plain = in_parts(column_sums(split.X[rows][:, columns]), split.num_clients)
        assert not np.isin(words, plain.ravel()).any()
    # of all holders but one there is no sum either: its masks are left
    others = [k for k in seen if 0 in split.parts[int(k)][1]][1:]
    with np.errstate(over="ignore"):
        part = sum(seen[k][:-1].reshape(6, 2, -1)[:, :, 0] for k in others)
    rest = np.concatenate([split.parts[int(k)][0] for k in others])
    assert not np.isclose(of_parts(np.asarray(part))[0], split.X[rest, 0].sum())


def test_columns_of_which_two_sums_say_too_much_are_refused() -> None:
    split = raw(two_classes("logistic", (4, 1)))
    split.X[:, 0] = 0.0
    own = split.parts[0][0][:4], 0
    split.X[own] = 1.0  # a count, and nothing else
    _run(split, 1, exposed="refuse")
    split.X[own] = [3.0, 5.0, 8.0, 2.0]
    why = "'feature-0000' is not zero in 4 of its"
    refused(why, lambda: _run(split, 1, exposed="refuse"))


@pytest.mark.slow
def test_the_bundle_remembers_what_there_is_room_for() -> None:
    X, y = np.random.default_rng(0).standard_normal((20, 40_000)), np.ones(20)
    y[::2] = -1.0
    split = Split(X[:, :20_000], y, grid_parts(20, 20_000, 4, 1), "logistic", 0.1)
    run = _run(split, 7, memory_limit=1, standardize=False)
    # 2^20 bytes are 6.5 vectors of 160 000
    assert run.steps.bundle.memory == 5
    assert len(run.steps.bundle.ids) <= 5
    assert (np.diff(run.metric("dual-bound")) >= -1e-12).all()
    wide = Split(X, y, grid_parts(20, 40_000, 4, 1), "logistic", 0.1)
    why = "memory_limit = 1 MiB is too little"
    refused(why, lambda: Run(wide, 1, memory_limit=1))
