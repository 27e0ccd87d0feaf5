"""The tasks ``hybrid-linear``, ``-svm`` and ``-logistic``: data, partitions, minima."""

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, issparse
from sklearn.datasets import load_digits

from tasks import HybridLinear, HybridLogistic, HybridSVM, HybridTask
from tasks.hybrid.shares import (
    Share,
    deal_entries,
    group_counts,
    sample_groups,
    selected_entries,
    without_rare_entries,
)
from tests.harness import refused


def svm(n: int = 16, seed: int = 0, **settings: Any) -> HybridSVM:
    return HybridSVM(num_clients=n, seed=seed, **settings)


def dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())


def put_together(task: HybridTask, *, test: bool = False) -> tuple[Any, ...]:
    """The sum of all clients' entries, how many hold each, the labels and the ids."""
    take = task.test_client_data if test else task.client_data
    parts = [take(client) for client in range(task.num_clients)]
    names = {name: j for j, name in enumerate(task.feature_names())}
    ids = sorted({i for part in parts for i in part.sample_ids}, key=int)
    rows = {sample: i for i, sample in enumerate(ids)}
    total = np.zeros((len(ids), len(names)))
    holders = np.zeros_like(total)
    labels: list[set[float]] = [set() for _ in ids]
    for part in parts:
        X = dense(part.features)
        assert X.dtype == np.float64
        where = np.ix_(
            [rows[i] for i in part.sample_ids], [names[n] for n in part.feature_names]
        )
        total[where] += X
        holders[where] += 1 if task.partition != "entries" else X != 0
        if part.labels is not None:
            for sample, label in zip(part.sample_ids, part.labels, strict=True):
                if not np.isnan(label):
                    labels[rows[sample]].add(float(label))
    return total, holders, labels, ids


def check_partition(task: HybridTask) -> None:
    """Check that the clients hold the whole problem, once."""
    task.check()
    problem = task.objective()
    total, holders, labels, ids = put_together(task)
    np.testing.assert_array_equal(total, dense(problem.features))  # type: ignore[attr-defined]
    if task.partition == "entries":
        np.testing.assert_array_equal(holders, total != 0)
    else:
        np.testing.assert_array_equal(holders, np.ones_like(total))
    assert labels == [{y} for y in problem.labels]  # type: ignore[attr-defined]
    assert len(ids) == task.num_examples()
    if task.test_fraction:
        tests, holders, labels, test_ids = put_together(task, test=True)
        assert not set(test_ids) & set(ids)
        assert all(len(found) == 1 for found in labels)
        assert holders.max() == 1
        # what clients compute together is the score of the whole test sample
        w = np.random.default_rng(0).standard_normal(task.shapes()[0])
        signs = np.array([found.pop() for found in labels])
        accuracy = np.mean((tests @ w > 0) == (signs > 0))
        assert task.metrics(w) == {"accuracy": accuracy}


def test_the_quadrants_of_digits() -> None:
    task = svm()
    names = [task.client_data(client).feature_names for client in range(4)]
    assert names[0] == tuple(f"pixel-{i}-{j}" for i in range(4) for j in range(4))
    assert names[3][-2:] == ("pixel-7-7", "bias")
    # client s·Q + q: the same quadrant in the next sample group
    assert task.client_data(6).feature_names == names[2]
    assert task.client_data(6).sample_ids == task.client_data(4).sample_ids
    sizes = {task.client_data(client).features.shape for client in range(16)}
    assert sizes == {(n, p) for n in (359, 360) for p in (16, 17)}


def test_the_logistic_task_is_its_formula() -> None:
    task = HybridLogistic(num_clients=4, seed=0)
    w = np.random.default_rng(0).standard_normal(65)
    total, _, labels, _ = put_together(task)
    y = np.array([found.pop() for found in labels])
    expected = np.mean(np.logaddexp(0, -y * (total @ w))) + 5e-4 * w @ w
    assert task.value(w) == pytest.approx(expected)
    assert task.optimum().value <= task.value(np.zeros(65)) == pytest.approx(np.log(2))
    refused("hyfdca, hyfem or hybrid-fedavg", lambda: task.client_objective(0))


def of(partition: str, **more: Any) -> dict[str, Any]:
    return {"partition": partition, **more}


@pytest.mark.parametrize(
    ("n", "settings"),
    [
        (1, {}),
        (12, {"sample_groups": 2}),
        (12, {"feature_groups": 1, "dataset": "breast-cancer"}),
        (6, of("entries", bias=0.0, row_scaling="unit")),
        (5, of("horizontal", test_fraction=0.0)),
        (65, of("vertical", train_limit=20)),
        (9, of("entries", dataset="breast-cancer")),
        (6, {"samples": "uneven"}),
        (6, {"samples": "labels"}),
    ],
)
def test_clients_hold_every_entry_once(n: int, settings: dict[str, Any]) -> None:
    check_partition(svm(n, seed=3, **settings))


def test_samples_by_label_and_in_uneven_shares() -> None:
    for samples, test in ((s, t) for s in ("labels", "uneven") for t in (False, True)):
        task = svm(5, partition="horizontal", samples=samples)
        take = task.test_client_data if test else task.client_data
        labels = [np.asarray(take(client).labels) for client in range(5)]
        pure = [len(np.unique(of_one)) == 1 for of_one in labels]
        sizes = {len(of_one) for of_one in labels}
        if samples == "labels":
            assert sum(pure) == 4
            assert max(sizes) - min(sizes) <= 1
        else:
            assert max(sizes) > 2 * min(sizes)


def test_group_counts() -> None:
    assert [group_counts(svm(n)) for n in (16, 10, 7)] == [(4, 4), (5, 2), (7, 1)]
    assert group_counts(svm(12, sample_groups=2)) == (2, 6)
    assert group_counts(svm(12, feature_groups=4)) == (3, 4)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    d=st.integers(1, 20),
    p=st.integers(1, 8),
    least=st.integers(1, 6),
    sparse=st.booleans(),
    entries=st.booleans(),
)
def test_what_is_left_out_of_any_matrix(
    seed: int, d: int, p: int, least: int, sparse: bool, entries: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, (d, p)).astype(float)
    matrix, train = csr_array(values), int(rng.integers(0, d + 1))
    coordinates = matrix.tocoo().coords
    rows = sample_groups(np.zeros(d), 2, rng)
    blocks = [Share(r, c) for r in rows for c in np.array_split(np.arange(p), 2)]
    shares = deal_entries(matrix, rows, 2, rng) if entries else blocks
    for number, share in enumerate(shares if entries else ()):
        np.testing.assert_array_equal(share.rows, rows[number // 2])
        assert share.entries is not None
        # half of each row's, or one more
        own = np.bincount(coordinates[0][share.entries], minlength=d)[share.rows]
        whole = np.diff(matrix.indptr)[share.rows]
        assert ((own == whole // 2) | (own == -(-whole // 2))).all()
    features = matrix if sparse else values
    found, kept = without_rare_entries(features, shares, train, least, matrix)
    expected = values.copy()
    for share, after in zip(shares, kept, strict=True):
        own = np.zeros((d, p), dtype=bool)
        if share.entries is None:
            own[np.ix_(share.rows, share.columns)] = True
        else:
            own[tuple(one[share.entries] for one in coordinates)] = True
        held = own & (values != 0)
        few = held[:train].sum(axis=0) < least
        expected[:train][held[:train] & few] = 0.0
        if after.entries is not None:
            part = selected_entries(matrix, after.rows, after.columns, after.entries)
            theirs = np.zeros((d, p))
            theirs[np.ix_(after.rows, after.columns)] = part.toarray()
            held[:train, few] = False
            np.testing.assert_array_equal(theirs, values * held)
    np.testing.assert_array_equal(dense(found), expected)
    assert found is features or not np.array_equal(expected, values)


NUMBERS: dict[str, Any] = {"loss": "squared", "dataset": "diabetes"}


def test_libsvm_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{1 + i % 5} {1 + i % 3}:1.5 {4 + rng.integers(3)}:-2" for i in range(60)]
    path = tmp_path / "news20.bz2"
    path.write_bytes(bz2.compress("\n".join(lines).encode()))
    task = svm(4, dataset="news20", path=str(path), partition="entries", bias=0.0)
    check_partition(task)
    classes = 1 + np.arange(60) % 5
    _, _, labels, ids = put_together(task)
    # the upper half of five classes is 3, 4 and 5
    expected = [{1.0 if classes[int(i)] >= 3 else -1.0} for i in ids]
    assert labels == expected
    assert task.feature_names() == tuple(f"feature-{j}" for j in range(1, 7))
    one = svm(4, dataset="news20", path=str(tmp_path), positive_class=4)
    _, _, labels, ids = put_together(one)
    assert labels == [{1.0 if classes[int(i)] == 4 else -1.0} for i in ids]
    why = "two classes; allowed: -1"
    refused(why, svm(4, dataset="a9a", path=str(path), positive_class=1).check)
    single = tmp_path / "a9a"
    single.write_text("1 1:1\n1 2:1\n")
    why = "all rows of 'a9a' have one label"
    refused(why, svm(1, dataset="a9a", path=str(single)).check)


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_diabetes(loss: str) -> None:
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import PoissonRegressor, Ridge

    task = HybridLinear(6, 0, dataset="diabetes", loss=loss, bias=0.0, test_fraction=0)
    task.check()
    total, _, labels, ids = put_together(task)
    rows = [int(i) for i in ids]
    targets = load_diabetes().target[rows]
    np.testing.assert_array_equal([found.pop() for found in labels], targets)
    np.testing.assert_allclose(total.std(axis=0), 1.0)
    λ, exact = task.regularization, {"solver": "newton-cholesky", "tol": 1e-10}
    model = Ridge(alpha=λ * len(rows), fit_intercept=False)
    if loss == "poisson":
        model = PoissonRegressor(alpha=λ, fit_intercept=False, **exact)
    model.fit(total, targets)
    found = task.optimum()
    np.testing.assert_allclose(found.w, model.coef_, rtol=1e-3, atol=1e-3)
    assert found.gap <= 1e-9 * found.value
    explained = task.metrics(found.w)["train-explained"]
    assert explained == pytest.approx(model.score(total, targets), abs=1e-6)


def test_every_class_of_digits() -> None:
    task = HybridLinear(16, 0, classes="all", train_limit=400)
    task.check()
    assert task.shapes() == [(65, 10)]
    assert task.method_options()["classes"] == 10
    rows = load_digits().target
    part = task.client_data(0)
    assert part.labels is not None
    np.testing.assert_array_equal(part.labels, rows[[int(i) for i in part.sample_ids]])
    found = task.optimum()
    assert found.gap <= 1e-8 * found.value
    assert task.metrics(found.w)["accuracy"] > 0.85


def test_an_elastic_net_with_an_intercept_is_the_task_s_objective() -> None:
    settings: Any = {**NUMBERS, "test_fraction": 0}
    task = HybridLinear(6, 0, **settings)
    other = HybridLinear(6, 0, **settings, l1_ratio=0.25, free_feature="bias")
    other.check()
    w = np.random.default_rng(0).standard_normal(11)
    own, λ = w[:-1], task.regularization
    plain = task.objective().value(w) - λ / 2 * w @ w
    penalty = 0.75 / 2 * own @ own + 0.25 * np.abs(own).sum()
    assert other.objective().value(w) == pytest.approx(plain + λ * penalty, rel=1e-13)
    assert other.certified_optimum() is None


def test_covtype(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-3, 9, (60, 55)) * (rng.random((60, 55)) < 0.4)
    table[:, 0] += 1859
    table[:, -1] = rng.integers(1, 8, 60)
    path = tmp_path / "covtype.data.gz"
    lines = [",".join(map(str, row)) for row in table]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    settings: dict[str, Any] = {"bias": 0.0, "test_fraction": 0.0, "least_entries": 0}
    X = table[:, :54].astype(float)
    span = X.max(axis=0) - X.min(axis=0)
    task = svm(4, dataset="covtype", path=str(path), **settings)
    check_partition(task)
    total, _, labels, _ = put_together(task)
    expected = (X - X.min(axis=0)) / np.where(span > 0, span, 1)
    np.testing.assert_allclose(total, expected, atol=1e-15)
    assert labels == [{1.0 if kind == 2 else -1.0} for kind in table[:, -1]]
    assert issparse(task.client_data(0).features)
    names = task.feature_names()
    assert (names[0], names[53]) == ("elevation", "soil-type-40")
