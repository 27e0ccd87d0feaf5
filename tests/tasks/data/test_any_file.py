"""One table in three formats gives one run, for every linear task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import dump_svmlight_file

import sim
from fedtrellis.settings import SettingsError
from tasks.base import DataFileError
from tasks.data.readers import read_own_table
from tasks.data.table import Schema

Array = NDArray[np.float64]
FORMATS = ("csv", "npz", "svm")
# columns as they stand in the file
RAW = {"data.prepare": False}


@pytest.fixture(scope="module")
def table() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(60, 4)), 3)
    return X, np.round(X @ [1.0, -2.0, 0.0, 0.5] + rng.normal(size=60), 3)


def write(folder: Path, form: str, X: Array, y: Any, column: str = "label") -> str:
    """Write a table; labels that are texts only where a format has texts."""
    path = folder / f"data.{form}"
    names = [f"c{j}" for j in range(X.shape[1])]
    if form == "csv":
        rows = [[*map(repr, map(float, x)), str(t)] for x, t in zip(X, y, strict=True)]
        lines = [",".join(row) for row in [[*names, column], *rows]]
        path.write_text("\n".join(lines) + "\n")
    elif form == "npz":
        np.savez(path, features=X, labels=np.asarray(y), names=names)
    else:
        dump_svmlight_file(X, y, str(path), zero_based=False)
    return str(path)


def experiment(task: str, path: str, **settings: Any) -> Any:
    config = {"task": task, f"{task}.dataset": "file", f"{task}.path": path}
    return sim.app.experiment(config | settings, 3)


@pytest.mark.parametrize("form", FORMATS)
def test_one_table_in_three_formats_is_one_problem(
    tmp_path: Path, table: tuple[Array, Array], form: str
) -> None:
    X, y = table
    truth, texts = y > 0, form != "svm"
    labels = np.where(truth, "b", "a") if texts else np.where(truth, 7.0, 3.0)
    path = write(tmp_path, form, X, labels, "kind")
    column = {"data.label-column": "kind"} if form == "csv" else {}
    w = np.array([1.0, -2.0, 0.0, 0.5])
    z = np.where(truth, 1, -1) * (X @ w)
    expected = np.logaddexp(0, -z).mean() + 0.0005 * w @ w
    plain = {"bias": 0.0, "least-entries": 0}
    own: dict[str, Any] = {"logistic-regression": {"scaling": "none"}}
    own |= {"hybrid-linear": plain, "hybrid-logistic": plain}
    for task, settings in own.items():
        config = {f"{task}.{key}": value for key, value in settings.items()}
        config |= {f"{task}.test-fraction": 0.0, **RAW, **column}
        if task != "logistic-regression":
            config["method"] = "hyfdca"
        made = experiment(task, path, **config).task
        assert made.value(w) == pytest.approx(expected)
    names = [f"c{j}" if texts else f"feature-{j + 1}" for j in range(4)]
    assert list(made.feature_names()) == names
    # numbers: 20 rows each, so that it is the same whatever counts the same
    path = write(tmp_path, form, X, y)
    residual = ((X @ w - y) ** 2).sum()
    for task, scale in (("linear-regression", 1.0 / 120), ("lasso", 1.0)):
        made = experiment(task, path, method="fedgia", **RAW).task
        assert made.num_examples() == 60
        parts = [made.client_objective(i).value(w) for i in range(3)]
        assert (made.value(w), np.mean(parts)) == pytest.approx([scale * residual] * 2)
        with pytest.raises(SettingsError, match="radius"):
            experiment(task, path, method="fedfw", **RAW)


def test_what_is_refused(tmp_path: Path, table: tuple[Array, Array]) -> None:
    X, y = table
    path, small = write(tmp_path, "csv", X, np.arange(60) % 3), {"radius": 1.0}
    svm = write(tmp_path, "svm", X, np.sign(y))
    hyfdca, scaled = {"method": "hyfdca"}, {"logistic-regression.scaling": "standard"}
    for task, file, settings, match in (
        ("logistic-regression", path, {}, "the labels are 0, 1, 2; there must be"),
        ("hybrid-svm", path, hyfdca, "a file with 3 labels, which has no rule"),
        ("lasso", "", {}, r"lasso\.path is empty; it must name"),
        ("lasso", path, small | {"lasso.rows": 7}, r"lasso\.rows = 7 has no meaning"),
        ("lasso", path, small | {"data.features": 4}, r"= 4 is for data"),
        ("logistic-regression", svm, scaled, "'standard' does not fit"),
        ("lasso", "/nowhere.csv", small, r"lasso\.path = '/nowhere\.csv'"),
    ):
        kinds = DataFileError, SettingsError, FileNotFoundError
        with pytest.raises(kinds, match=match):
            experiment(task, file, **settings)
    positive = hyfdca | {"hybrid-svm.positive-class": 2}
    one = experiment("hybrid-svm", path, **positive).task
    signs = np.concatenate([one.client_data(i).labels for i in range(3)])
    assert set(signs) == {-1.0, 1.0}


def test_labels_are_numbers_where_all_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("a,label\n1,10\n2,9.0\n3,+9\n4,1e1\n")
    found = read_own_table((Schema(0, target="class"), None), path)
    assert found.labels == (9.0, 10.0)
    assert found.targets.tolist() == [1.0, 0.0, 0.0, 1.0]
    path.write_text("a,label\n1,yes\n2,no\n3,yes\n44,no\n")
    found = read_own_table((Schema(0, target="class"), None), path)
    assert found.labels == ("no", "yes")
    assert found.targets.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert found.names == ("a",)
