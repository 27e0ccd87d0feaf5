"""HyFDCA on raw columns: an income in euros beside an age, however they are split."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from clients.hyfdca import NewSamples, Predictions
from clients.hyfdca.run import column_sums
from fedtrellis.dual.calibration import Sigmoid
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.dual.weights import ColumnScales, in_parts, of_parts
from fedtrellis.encryption.fixed_point import RangeError
from fedtrellis.objectives.losses import make_loss
from strategies import HyFDCA
from tests.harness import refused
from tests.strategies.hyfdca_runs import LAST_DIGITS, Array, Run, Split, grid_parts

SPLITS = {"horizontal": (4, 1), "vertical": (1, 3), "hybrid": (3, 2)}


def raw(n: int = 120, constant: float = 1.0) -> tuple[Array, Array]:
    """Income, age, year, a length in metres, a yes or no, and a constant column."""
    rng = np.random.default_rng(0)
    columns = [
        rng.lognormal(10.5, 0.5, n),
        rng.integers(18, 90, n).astype(float),
        2015.0 + rng.integers(0, 6, n),
        1e-6 * rng.standard_normal(n),
        (rng.random(n) < 0.4).astype(float),
        np.full(n, constant),
    ]
    X = np.stack(columns if constant else columns[:-1], axis=1)
    Z = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0.0, X.std(axis=0), 1.0)
    z = Z @ rng.standard_normal(X.shape[1]) + 0.7 + 0.5 * rng.standard_normal(n)
    return X, np.where(z > 0.0, 1.0, -1.0)


def _split(kind: str, **options: Any) -> Split:
    X, y = raw(**options)
    return Split(X, y, grid_parts(len(X), X.shape[1], *SPLITS[kind]), "logistic", 0.1)


def _away(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _run(split: Split, rounds: int = 300, **options: Any) -> Run:
    return Run(split, rounds, **{"standardize": True, "exposed": "accept", **options})


@pytest.mark.parametrize("kind", SPLITS)
def test_every_split_of_raw_columns_is_one_model(kind: str) -> None:
    """Encrypted; by scikit-learn's scaler and a central solver it is the same."""
    split = _split(kind, n=400)
    split.regularization = 1.0
    scaler = StandardScaler().fit(split.X[:, :-1])
    Z = np.column_stack([scaler.transform(split.X[:, :-1]), split.X[:, -1]])
    problem = RegularizedLoss(Z, split.y, make_loss("logistic"), 1.0)
    best = central_optimum(problem, 1e-13)
    run = _run(split, encryption="stream", **LAST_DIGITS)
    assert run.strategy._primals.sum() == pytest.approx(best.value, rel=1e-10)
    assert _away(run.model[:-1] * scaler.scale_, best.w[:-1]) < 1e-6
    assert _away(split.X @ run.model, Z @ best.w) < 1e-6


def test_without_a_constant_column_nothing_is_shifted() -> None:
    """Scores have nothing to hold what means add: columns are scaled alone."""
    split = _split("hybrid", constant=0.0)
    run = _run(split, **LAST_DIGITS)
    scales = np.sqrt(np.square(split.X).mean(axis=0))
    problem = RegularizedLoss(split.X / scales, split.y, make_loss("logistic"), 0.1)
    best = central_optimum(problem, 1e-13)
    assert np.abs(run.model * scales - best.w).max() < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step": "line-search"},
        {"step": "practical", "secure_sum": False},
        {"classes": 3},
        {"local_passes": 2, "secure_sum": False, "kind": "horizontal"},
    ],
)
def test_sparse_rows_are_dense_rows(options: dict[str, Any]) -> None:
    """Shifted, they stay sparse; a column of one client and of two for one sample."""
    models, kind = [], options.pop("kind", "hybrid")
    for make in (np.asarray, sparse.csr_array):
        split = _split(kind)
        if "classes" in options:
            split.y = np.where(split.y < 0, 0.0, 1.0 + (split.X[:, 1] > 50.0))
        split.X = make(split.X)
        models.append(_run(split, 6, **options).model)
    # passes go through the samples in an order of the run's
    near = 1e-2 if "local_passes" in options else 1e-9
    assert _away(models[1], models[0]) < near


def test_two_holders_of_a_sample_subtract_a_mean_once() -> None:
    """Entries dealt one by one: both have the column, and each has other entries."""
    X, y = raw()
    mine = np.random.default_rng(1).random(X.shape) < 0.5
    held = np.arange(len(X)), np.arange(X.shape[1])
    whole = Split(X, y, [held], "logistic", 0.1)
    halves = Split(X, y, [held] * 2, "logistic", 0.1)
    halves.change = lambda k, c: setattr(c, "features", np.where(mine == k, X, 0.0))
    models = [_run(split, **LAST_DIGITS).model for split in (whole, halves)]
    assert _away(models[1], models[0]) < 1e-6


@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_new_raw_samples_are_scored_and_calibrated(loss: str) -> None:
    """In raw units; with probabilities where the loss has some, or there are labels."""
    X, y = raw(320)
    new, names = X[200:], [f"new-{i}" for i in range(120)]
    split = Split(X[:200], y[:200], grid_parts(200, X.shape[1], 1, 3), loss, 0.1)
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
        if loss == "smoothed-hinge":
            assert found.probabilities is None
        else:
            assert found.probabilities is not None
            expected = 1.0 / (1.0 + np.exp(-found.scores))
            assert np.allclose(found.probabilities, expected)
    assert told[1].calibrated is told[2].calibrated is None
    # which tests of it compare with scikit-learn's
    sigmoid = Sigmoid.of(told[0].scores[:60], y[200:260] > 0)
    assert told[0].calibrated is not None
    assert np.allclose(told[0].calibrated, sigmoid.probabilities(told[0].scores))


class Looks(HyFDCA):
    """Keeps what clients answer to the question for their columns' sums."""

    seen: dict[str, Array]

    def ask_everyone(self, kind: str, *rest: Any) -> None:
        if kind == "train.columns":
            type(self).seen = {}
            entries, take, *others = rest

            def look(answer: Any) -> None:
                self.seen[answer.client] = answer.arrays[0]
                take(answer)

            rest = (entries, look, *others)
        super().ask_everyone(kind, *rest)


def test_an_honest_server_reads_the_sum_over_all_holders_and_no_other() -> None:
    split = _split("hybrid")
    run = _run(split, 2, strategy=Looks, encryption="stream")
    scales = run.strategy._scales
    assert scales is not None
    assert np.allclose(scales.means[:-1], split.X[:, :-1].mean(axis=0))
    for name, words in Looks.seen.items():
        rows, columns = split.parts[int(name)]
        plain = in_parts(column_sums(split.X[rows][:, columns]), split.num_clients)
        assert not np.isin(words, plain.ravel()).any()
    # of all holders but one there is no sum either: its masks are left
    (first, *others) = [k for k in Looks.seen if 0 in split.parts[int(k)][1]]
    with np.errstate(over="ignore"):
        part = sum(Looks.seen[k][:-1].reshape(6, 2, -1)[:, :, 0] for k in others)
    rest = np.concatenate([split.parts[int(k)][0] for k in others])
    assert not np.isclose(of_parts(np.asarray(part))[0], split.X[rest, 0].sum())
    assert first not in others


def test_columns_of_which_two_sums_say_too_much_are_refused() -> None:
    X, y = raw()
    X = np.column_stack([X, np.zeros(len(X))])
    parts = grid_parts(len(X), X.shape[1], 4, 1)
    for entries, why in (
        (np.ones(4), ""),  # a count, and nothing else
        ([3.0, 5.0, 8.0, 2.0], "'feature-0006' is not zero in 4 of its"),
    ):
        X[parts[0][0][:4], -1] = entries
        split = Split(X, y, parts, "logistic", 0.1)
        if why:
            refused(why, partial(_run, split, 1, exposed="refuse"))
        else:
            _run(split, 1, exposed="refuse")


def test_numbers_of_any_size_add_up_in_words() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 40)) * 10.0 ** rng.integers(-30, 38, 40)
    words = np.zeros((6, 40), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for one in values:
            words = words + in_parts(one, len(values))
    total = values.sum(axis=0)
    sizes = np.abs(values).max(axis=0)
    assert (np.abs(of_parts(words) - total) <= 1e-15 * sizes + 2.0**-110).all()
    for bad in (np.inf, np.nan, 1e43):
        with pytest.raises(RangeError):
            in_parts(np.array([bad]), 5)
    split = _split("hybrid")
    split.X = split.X * 1e22
    refused("sum of squares is too large", lambda: _run(split, 1))


def test_a_column_that_hardly_varies_is_constant() -> None:
    X = np.array([[2.0, 1e9, 0.0], [2.0, 1e9 + 1.0, 1.0], [2.0, 1e9, 3.0]])
    counts = np.full(3, 3)
    found = ColumnScales.of(X.sum(axis=0), np.square(X).sum(axis=0), counts, 3)
    assert (found.constant, found.value) == (0, 2.0)
    assert np.allclose(found.scales, [2.0, 1e9, X[:, 2].std()])
    assert np.allclose(found.means, [0.0, 0.0, X[:, 2].mean()])
    w = np.array([0.5, 1.0, -2.0])
    moved = (X - found.means) / found.scales
    assert np.allclose(X @ found.raw(w), moved @ w)


def test_norms_travel_only_where_a_step_uses_them() -> None:
    for step, there in (("bundle", False), ("line-search", True)):
        run = _run(_split("hybrid"), 1, step=step)
        assert all(bool(one.get("norms")) == there for one in run.strategy._labels)
        assert ("norms" in run.client_state("0")) == there


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
