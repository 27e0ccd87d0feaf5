"""Readers of every format give what is in the file, and one table is one problem."""

import bz2
import gzip
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import sim
from fedtrellis.settings import SettingsError
from tasks.data.datasets import read_cifar, read_idx
from tasks.data.readers import read_csv, read_libsvm, read_own_table, read_table
from tasks.data.table import Schema
from tasks.linear import load_table
from tests.harness import refused
from tests.tasks.data.files import idx, real, write_csv, write_libsvm

Array = NDArray[np.float64]
TWO = Schema(2, target="class", labels=("no", "yes"))
NAMED = Schema(2, ("age", "weight"), "class", ("0", "1"))
SPLIT = Schema(3, target="class", labels=("-1", "1"), split=True)
# -- readers
GOOD: list[tuple[bytes, Schema, list[list[float]], list[float] | None]] = [
    (
        b'b,label,a\r\n1,yes,"2.5"\r\n-3e2, no,+4\r\n',
        TWO,
        [[1, 2.5], [-300, 4]],
        [1, 0],
    ),
    # a mark in front, and lines behind
    ("\ufeffa,b,label\n1,2,yes\n\n\n".encode(), TWO, [[1, 2]], [1]),
    # packed, with names in another order
    (gzip.compress(b"weight,label,age\n70,1.0,30\n"), NAMED, [[30, 70]], [1]),
    (b"id,x,label,y\nA_1,1,,2\nB,3,+1,4\n", SPLIT, [[1, 2], [3, 4]], [np.nan, 1]),
    (b"id,x\nA,1\n", SPLIT, [[1]], None),
    (b"id ,x\n007,1\n", replace(SPLIT, features=1), [[1]], None),
    # a label that is not asked for
    (b"x,label,y\n1,anything,2\n", Schema(2), [[1, 2]], None),
]


@pytest.mark.parametrize(("content", "schema", "rows", "targets"), GOOD, ids=range(7))
def test_csv(
    tmp_path: Path, content: bytes, schema: Schema, rows: Any, targets: Any
) -> None:
    path = tmp_path / ("a.csv.gz" if content[:1] == b"\x1f" else "a.csv")
    path.write_bytes(content)
    table = read_table(path, schema)
    assert table.features.tolist() == rows
    assert not table.features.flags.writeable
    assert (table.targets is None) == (targets is None)
    if targets is not None:
        np.testing.assert_array_equal(table.targets, targets)
    if schema is NAMED:
        assert table.names == ("age", "weight")
    if schema.split:
        lines = content.decode().splitlines()[1:]
        assert table.ids == tuple(line.split(",")[0] for line in lines)


def test_a_split_files_weights_may_be_elsewhere(tmp_path: Path) -> None:
    path, split = tmp_path / "own.csv", replace(SPLIT, weight_column="count")
    path.write_text("id,a,count\ni,1,2.5\nj,2,\n")
    np.testing.assert_array_equal(read_csv(path, split).weights, [2.5, np.nan])
    path.write_text("id,a\ni,1\n")
    assert read_csv(path, split).weights is None


numbers = st.floats(allow_nan=False, allow_infinity=False)
matrices = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=numbers
)


@given(values=matrices)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_format_gives_every_digit_back(tmp_path: Path, values: Array) -> None:
    labels = [float(n) for n in range(len(values))]
    schema = Schema(3, target="number")
    rows = np.column_stack([values, labels]).tolist()
    write_csv(tmp_path / "a.csv", ["x", "y", "z", "label"], rows)
    np.savez(tmp_path / "a.npz", features=values, labels=labels)
    write_libsvm(tmp_path / "a.svm", labels, values)
    for ending in ("csv", "npz", "svm"):
        table = read_table(tmp_path / f"a.{ending}", schema)
        features = table.features
        dense = features if ending != "svm" else features.toarray()
        np.testing.assert_array_equal(dense, values)
        np.testing.assert_array_equal(table.targets, labels)


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("end", PACKINGS)
def test_libsvm(tmp_path: Path, end: str) -> None:
    path, pack = tmp_path / f"data{end}", PACKINGS[end]
    path.write_bytes(pack(b"+1 1:0.5 4:-2 # a comment\n-1 2:1e3\n\n+1 3:1\n-1\n"))
    table = load_table("libsvm", path)
    expected = np.zeros((4, 4))
    expected[0, 0], expected[0, 3], expected[1, 1], expected[2, 2] = 0.5, -2, 1e3, 1
    assert table.features.format == "csr"
    np.testing.assert_array_equal(table.features.toarray(), expected)
    assert table.targets.tolist() == [1, 0, 1, 0]
    # from one, whatever a node has
    path.write_bytes(pack(b"1 2:5\n0 # nothing\n"))
    table = read_libsvm(path, Schema(3, target="class", labels=("0", "1")))
    assert table.features.toarray().tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dataset", ["qsar", "santander"])
def test_published_tables(tmp_path: Path, dataset: str, zipped: bool) -> None:
    rng, path, newline = np.random.default_rng(0), tmp_path / "table", "\r\n"
    if dataset == "qsar":
        expected = 1.0 * rng.integers(0, 2, (6, 1024))
        expected[2] = 0.0  # a row without any
        words = ["positive", "negative", "negative"] * 2
        pairs = zip(expected.astype(int), words, strict=True)
        lines = [";".join(map(str, row)) + ";" + word for row, word in pairs]
    else:
        expected = rng.normal(5, 10, (6, 200)).round(4)
        lines = ["ID_code,target," + ",".join(f"var_{i}" for i in range(200))]
        for i, row in enumerate(expected):
            lines.append(f"train_{i},{int(i % 3 == 0)}," + ",".join(map(str, row)))
    text = newline.join(lines) + newline
    path.write_bytes(text.encode())
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"folder/{dataset}.csv", text)
            archive.writestr("readme.txt", "not this one")
    table = load_table(dataset, path)
    features = table.features
    if dataset == "qsar":
        assert features.nnz == expected.sum()
        features = features.toarray()
    np.testing.assert_array_equal(features, expected)
    assert table.targets.tolist() == [1, 0, 0, 1, 0, 0]


def test_real_qsar() -> None:
    path = real("qsar_oral_toxicity/qsar_oral_toxicity.zip")
    table = load_table("qsar", path)
    assert table.features.shape == (8992, 1024)
    assert table.features.nnz == table.features.sum() == 856863
    assert np.bincount(table.targets.astype(int)).tolist() == [8251, 741]


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
LABELS = np.array([0, 9, 3, 3, 1, 7])


def test_images(tmp_path: Path) -> None:
    data = np.hstack([LABELS[:, None].astype(np.uint8), PIXELS]).tobytes()
    for end, pack in PACKINGS.items():
        path = tmp_path / f"data_batch_1.bin{end}"
        path.write_bytes(pack(data))
        images = read_cifar(path)
        np.testing.assert_array_equal(images[0], PIXELS.reshape(6, 3, 32, 32))
        np.testing.assert_array_equal(images[1], LABELS)
    some = PIXELS[:, :12].reshape(6, 3, 4)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(some)))
    np.testing.assert_array_equal(read_idx(tmp_path / "x.gz", 3), some)


def test_labels_are_numbers_where_all_are(tmp_path: Path) -> None:
    path, schema = tmp_path / "odd.csv", Schema(0, target="class")
    path.write_text("a,label\n1,10\n2,9.0\n3,+9\n4,1e1\n")
    found = read_own_table((schema, None), path)
    assert found.labels == (9.0, 10.0)
    assert found.targets.tolist() == [1.0, 0.0, 0.0, 1.0]
    path.write_text("a,label\n1,yes\n44,no\n")
    assert read_own_table((schema, None), path).labels == ("no", "yes")


# -- which libraries a file needs

BLOCKED = """
import sys
sys.modules.update(pandas=None, sklearn=None)
from tasks import make_task
config = {"logistic-regression.dataset": "nodes", "data.features": 2}
task = make_task("logistic-regression", config, 1, 0)
[objective] = task.node_parts({"data": sys.argv[1]}).values()
print(objective.value(objective.gradient([0.5, -1.0])))
"""


def test_numpys_archives_need_neither_pandas_nor_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, features=[[1.0, 2.0], [3.0, -1.0]], labels=[0, 1])
    command = [sys.executable, "-c", BLOCKED, str(path)]
    assert np.isfinite(float(subprocess.check_output(command)))


# -- one table in three formats

# columns as they stand in the file
RAW = {"data.prepare": False}


def table() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(60, 4)), 3)
    return X, np.round(X @ [1.0, -2.0, 0.0, 0.5] + rng.normal(size=60), 3)


def write(folder: Path, form: str, X: Array, y: Any, column: str = "label") -> str:
    path, names = folder / f"data.{form}", [f"c{j}" for j in range(X.shape[1])]
    if form == "csv":
        rows = [[*x, t] for x, t in zip(X.tolist(), y.tolist(), strict=True)]
        write_csv(path, [*names, column], rows)
    elif form == "npz":
        np.savez(path, features=X, labels=y, names=names)
    else:
        write_libsvm(path, y.tolist(), X)
    return str(path)


def experiment(task: str, path: str, **settings: Any) -> Any:
    config = {"task": task, f"{task}.dataset": "file", f"{task}.path": path}
    return sim.app.experiment(config | settings, 3)


@pytest.mark.parametrize("form", ["csv", "npz", "svm"])
def test_one_table_in_three_formats_is_one_problem(tmp_path: Path, form: str) -> None:
    X, y = table()
    truth, texts = y > 0, form != "svm"
    labels = np.where(truth, "b", "a") if texts else np.where(truth, 7.0, 3.0)
    path = write(tmp_path, form, X, labels, "kind")
    column = {"data.label-column": "kind"} if form == "csv" else {}
    w = np.array([1.0, -2.0, 0.0, 0.5])
    z = np.where(truth, 1, -1) * (X @ w)
    expected = np.logaddexp(0, -z).mean() + 0.0005 * w @ w
    plain = {"bias": 0.0, "least-entries": 0}
    own: dict[str, Any] = {"logistic-regression": {}}
    own |= {"hybrid-linear": plain, "hybrid-logistic": plain}
    for task, more in own.items():
        config = {f"{task}.{key}": value for key, value in more.items()}
        config |= {f"{task}.test-fraction": 0.0, **RAW, **column}
        method = "fedfw" if task == "logistic-regression" else "hyfdca"
        made = experiment(task, path, method=method, **config).task
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


def test_an_archive_is_prepared_as_a_csv_file_is(tmp_path: Path) -> None:
    X, y = table()
    X[::7, 0] = np.nan
    how, values = {"method": "fedgia", "data.drop": "c1"}, []
    for form in ("csv", "npz"):
        task = experiment("lasso", write(tmp_path, form, X, y), **how).task
        assert [*task.preparation().names()] == ["c0", "c0 (missing)", "c2", "c3"]
        values.append(task.value(np.ones(4)))
    assert values[0] == values[1]
    path = write(tmp_path, "npz", X, np.array([b"yes", b"no"] * 30))
    why = "'labels' must be of 60 numbers or texts$"
    refused(why, lambda: experiment("logistic-regression", path, **how))


def test_files_that_do_not_suit_the_run(tmp_path: Path) -> None:
    X, y = table()
    path, small = write(tmp_path, "csv", X, np.arange(60) % 3), {"radius": 1.0}
    svm = write(tmp_path, "svm", X, np.sign(y))
    hyfdca: dict[str, Any] = {"method": "hyfdca"}
    scaled = {"logistic-regression.scaling": "standard"}
    for task, file, more, match in (
        ("hybrid-svm", path, hyfdca, "a file with 3 labels, which has no rule"),
        ("lasso", path, small | {"lasso.rows": 7}, r"lasso\.rows = 7 has no meaning"),
        ("lasso", path, small | {"data.features": 4}, r"= 4 does not apply"),
        ("logistic-regression", svm, scaled, "'standard' does not fit"),
    ):
        refused(match, lambda: experiment(task, file, **more))  # noqa: B023
    positive = hyfdca | {"hybrid-svm.positive-class": 2}
    one = experiment("hybrid-svm", path, **positive).task
    signs = np.concatenate([one.client_data(i).labels for i in range(3)])
    assert set(signs) == {-1.0, 1.0}


@pytest.mark.parametrize("task", ["lasso", "logistic-regression", "hybrid-svm"])
def test_a_file_that_was_rewritten_is_another_task(tmp_path: Path, task: str) -> None:
    (X, y), losses = table(), []
    more = {"method": "hyfdca"} if task == "hybrid-svm" else {"method": "fedgia"}
    for part in (slice(None), slice(40), slice(None)):
        path = write(tmp_path, "csv", X[part], (y > 0)[part].astype(int))
        run = experiment(task, path, **more)
        losses.append(run.evaluate(run.initial_arrays())["loss"])
        losses.append(run.task.value([np.ones(s) for s in run.task.shapes()]))
    assert losses[:2] == losses[4:] != losses[2:4]
