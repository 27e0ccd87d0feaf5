"""The task ``kernel-pca``: its data, its optimum and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA

from tasks import KernelPCA
from tasks.base import DataFileError
from tests.tasks.data.node_files import refused


def task(n: int = 5, seed: int = 0, **settings: Any) -> KernelPCA:
    return KernelPCA(num_clients=n, seed=seed, **settings)


def written(path: Path, array: np.ndarray, header: str = "") -> str:
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, features=array)
    else:
        np.savetxt(path, array, delimiter=",", header=header, comments="")
    return str(path)


def table(rows: int = 12) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 3)) + 5.0


def test_f_is_that_of_the_centred_covariance() -> None:
    images = load_digits(return_X_y=True)[0]
    made = task(scale=False)
    x = np.random.default_rng(0).standard_normal((64, 4))
    covariance = np.cov(images.T, bias=True)
    expected = -0.5 * np.trace(x.T @ covariance @ x)
    assert made.value(x) == pytest.approx(expected, rel=1e-12)
    # scaled: the same, by one factor
    factor = np.linalg.eigvalsh(covariance)[-1]
    assert task().value(x) == pytest.approx(expected / factor, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({}, load_digits(return_X_y=True)[0]),
        ({"samples": 200}, load_digits(return_X_y=True)[0][:200]),
        ({"dataset": "iris", "components": 2}, load_iris(return_X_y=True)[0]),
    ],
    ids=["digits", "200-digits", "iris"],
)
def test_the_optimum_is_that_of_scikit_learn(
    settings: dict[str, Any], images: np.ndarray
) -> None:
    made = task(**settings)
    components = made.components
    pca = PCA().fit(images)
    ratios = pca.explained_variance_ / pca.explained_variance_[0]
    optimum = made.objective().optimum()  # type: ignore[attr-defined]
    assert optimum == pytest.approx(-0.5 * ratios[:components].sum(), rel=1e-9)
    best = pca.components_[:components].T
    assert made.manifold().contains(best)
    assert made.value(best) == pytest.approx(optimum, rel=1e-9)
    metrics = made.metrics(best)
    assert abs(metrics["optimality-gap"]) < 1e-9
    assert metrics["subspace-error"] < 1e-7
    start = made.metrics(made.initial_point())
    assert start["optimality-gap"] > 0.1
    assert start["subspace-error"] > 0.5


def test_sorted_shares_are_of_few_classes() -> None:
    images, labels = load_iris(return_X_y=True)
    made = task(3, dataset="iris", components=2, scale=False)
    x = np.random.default_rng(1).standard_normal((4, 2))
    centred = images - images.mean(axis=0)
    for i in range(3):
        own = centred[labels == i]
        # −(n/2N) Tr(xᵀ A_iᵀA_i x)
        expected = -3 / 300 * np.trace(x.T @ own.T @ own @ x)
        assert made.client_objective(i).value(x) == pytest.approx(expected, rel=1e-12)


# -- files


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_files_of_each_format(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"matrix.{suffix}", table())
    made = task(4, dataset="file", path=path, components=2, scale=False)
    made.check()
    assert made.shapes() == [(3, 2)]
    assert made.num_examples() == 12
    x = np.random.default_rng(1).standard_normal((3, 2))
    expected = -0.5 * np.trace(x.T @ np.cov(table().T, bias=True) @ x)
    assert made.value(x) == pytest.approx(expected, rel=1e-12)
    # rows without labels keep their order
    own = (table() - table().mean(axis=0))[3:6]
    assert made.client_objective(1).value(x) == pytest.approx(
        -4 / 24 * np.trace(x.T @ own.T @ own @ x), rel=1e-12
    )


def test_files_that_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=table(), b=table())
    np.save(tmp_path / "vector.npy", np.ones(3))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "pickle.npy", np.array([[{}]]), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.array([[np.nan, 1.0]]))
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "short.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "raw.npz").write_bytes((tmp_path / "vector.npy").read_bytes())
    (tmp_path / "words.csv").write_text("1,2\n3,four\n")
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("matrix.txt", "matrix.dat"):
        (tmp_path / name).write_text("1,2\n")
    for name, match in [
        ("two.npz", "must have an array 'features'"),
        ("vector.npy", "of rows and columns"),
        ("text.npy", "must be of numbers"),
        ("pickle.npy", "cannot be read"),
        ("nan.npy", "row 1, column '1': must be a finite number"),
        ("short.npy", "cannot be read"),
        ("short.npz", "cannot be read"),
        ("raw.npz", "of rows and columns"),
        ("words.csv", "row 2, column '2': must be a number"),
        ("ragged.csv", "row 2: 1 fields; 2 are expected"),
        ("empty.csv", "the file is empty"),
        ("bytes.csv", "the first line: column 1 has no name"),
        ("matrix.txt", "line 1: must be a label"),
        ("matrix.dat", "must end in .csv"),
    ]:
        made = task(1, dataset="file", path=str(tmp_path / name), components=1)
        assert name in refused(DataFileError, match, made)
