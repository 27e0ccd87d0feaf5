"""Nodes' own files: what is read and refused, and that nobody is told the rest."""

import bz2
import gzip
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import sim
from fedtrellis import LocalGrid
from fedtrellis.settings import SettingsError
from tasks import DataFileError, make_task
from tasks.data.readers import read_ratings, read_table
from tasks.data.table import Schema
from tests.tasks.data.node_files import idx, write_csv, write_libsvm

TWO = Schema(2, target="class", labels=("no", "yes"))
NAMED = Schema(2, ("age", "weight"), "class", ("0", "1"))
NUMBERS = Schema(2, target="number")
BARE = Schema(2)
DIGITS = Schema(2, target="class", labels=("0", "1"))
SPLIT = Schema(3, target="class", labels=("-1", "1"), split=True)

# what a row holds in the tests below, and nobody may be told
SECRETS = ("s3cret", "77.125", "patient-9", "Ünseen")


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
    # a label that is not asked for
    (b"x,label,y\n1,anything,2\n", BARE, [[1, 2]], None),
]


@pytest.mark.parametrize(("content", "schema", "rows", "targets"), GOOD, ids=range(6))
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
    if schema is SPLIT:
        assert table.ids == {1: ("A",), 2: ("A_1", "B")}[len(rows)]


@given(
    values=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.just(3)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_format_gives_every_digit_back(tmp_path: Path, values: Any) -> None:
    labels = [float(n) for n in range(len(values))]
    schema = Schema(3, target="number")
    write_csv(
        tmp_path / "a.csv",
        ["x", "y", "z", "label"],
        ([*row, label] for row, label in zip(values.tolist(), labels, strict=True)),
    )
    np.savez(tmp_path / "a.npz", features=values, labels=labels)
    write_libsvm(tmp_path / "a.svm", labels, values)
    for ending in ("csv", "npz", "svm"):
        table = read_table(tmp_path / f"a.{ending}", schema)
        features = table.features
        dense = features if ending != "svm" else features.toarray()
        np.testing.assert_array_equal(dense, values)
        np.testing.assert_array_equal(table.targets, labels)


CSV_FAULTS = [
    ("", TWO, "cannot be read as a csv table"),
    ("77.125,s3cret,3\n1,2,3\n", TWO, "no column 'label'"),
    ("77.125,3\n1,2\n", BARE, "there are numbers in it"),
    ("s3cret,3\n1,2\n", NAMED, "no column 'label'"),
    ("s3cret,age,label\n1,2,3\n", NAMED, "column 1 is not among data.feature-names"),
    ("age,label\n77.125,1\n", NAMED, "no column 'weight'"),
    ("a,a,label\n1,2,no\n", TWO, "columns 1 and 2 have one name"),
    ("a,,label\n1,2,no\n", TWO, "column 2 has no name"),
    ("a,b,c,label\n1,2,3,no\n", TWO, "3 feature columns; data.features says 2"),
    ("a,label\n1,no\n", TWO, "1 feature columns; data.features says 2"),
    ("a,b,label\n", TWO, "cannot be read as a csv table"),
    (
        "a,b,label\n1,2,no\n1,s3cret,no\n",
        TWO,
        "row 2, column 'b': must be a finite",
    ),
    ("a,b,label\n1,2,no\n1,,no\n", TWO, "row 2, column 'b': is empty"),
    ("a,b,label\n1,nan,no\n", TWO, "row 1, column 'b': is empty"),
    ("label,a,b\nno,1,2\nno,-inf,77.125\n", TWO, "row 2, column 'a': must be a finite"),
    ("a,b,label\n1,2_0,no\n", TWO, "row 1, column 'b': must be a finite"),
    ("a,b,label\n1,١,no\n", TWO, "row 1, column 'b': must be a finite"),
    ("a,b,label\n1,Ünseen,no\n", TWO, "row 1, column 'b': must be a finite"),
    ("a,b,label\n1,2,s3cret\n", TWO, "row 1, column 'label': is not among the labels"),
    ("a,b,label\n1,2,\n", TWO, "row 1, column 'label': is empty"),
    ("a,b,label\n1,2,s3cret\n", NUMBERS, "row 1, column 'label': must be a finite"),
    ("a,b,label\n1,2,3\n1,2,inf\n", NUMBERS, "row 2, column 'label': must be a finite"),
    ("a,b,label\n1,2\n", TWO, "row 1, column 'label': is empty"),
    ("a,b,label\n1,2,no,s3cret\n", TWO, "cannot be read as a csv table"),
    ('a,b,label\n1,2,no\n1,"s3cret,no\n', TWO, "cannot be read as a csv table"),
    (
        "id,a\npatient-9,1\nB,2\npatient-9,3\n",
        SPLIT,
        "row 3, column 'id': is the id of",
    ),
    ("id,a\n ,1\n", SPLIT, "row 1, column 'id': is empty"),
    ("a,label\n1,1\n", SPLIT, "no column 'id'"),
    ("id,label\nA,1\n", SPLIT, "names no feature"),
    ("id,a,b,c,d\nA,1,2,3,4\n", SPLIT, "4 feature columns; data.features says 3"),
    (
        b"a,b,label\n1,\xff77.125,no\n",
        TWO,
        "row 1, column 'b': must be a finite",
    ),
]
LIBSVM_FAULTS = [
    ("", "no examples"),
    ("77.125 1:1\n", "row 1, column 'label': is not among the labels"),
    *(
        (text, f"line {line}: must be a label and index:value pairs of finite numbers")
        for text, line in (
            ("0 1:1\n1 1:s3cret\n", 2),
            ("0 1:1\n1 2:nan\n", 2),
            ("s3cret 1:1\n", 1),
            ("0 0:77.125\n", 1),
            ("0 1:1\n\n0 3:77.125\n", 3),
            ("0 2:1 1:77.125\n", 1),
            ("0 s3cret\n", 1),
        )
    ),
]
RATINGS_FAULTS = [
    ("", "cannot be read"),
    ("1\t2\t3\t4\n1\ts3cret\t3\t4\n", "row 2, column 'item': must be a finite"),
    ("77.125\t1\t3\n", "row 1, column 'user': must be a whole number from 1 to 9"),
    ("1\t1\ts3cret\n", "row 1, column 'rating': must be a finite"),
    ("1\t1\n", "row 1, column 'rating': is empty"),
]
NPZ_FAULTS: list[tuple[dict[str, Any], Schema, str]] = [
    ({"labels": [0]}, TWO, "must have an array 'features'"),
    ({"features": [["s3cret"]]}, TWO, "'features' must be of numbers"),
    ({"features": [[1, 77.125, 3]], "labels": ["no"]}, TWO, "3 feature columns"),
    (
        {"features": [[1, np.nan]], "labels": ["no"]},
        TWO,
        "row 1, column '2': must be a",
    ),
    ({"features": [[1, 2]]}, TWO, "must have an array 'labels'"),
    ({"features": [[1, 2]], "labels": ["no", "no"]}, TWO, "must be of 1 numbers or"),
    (
        {"features": [[1, 2]], "labels": ["s3cret"]},
        TWO,
        "row 1, column 'labels': is not",
    ),
    (
        {"features": [[1, 2]], "labels": ["s3cret"]},
        NUMBERS,
        "'labels' must be of 1 numbers",
    ),
    ({"features": [[1, 2]], "labels": [np.inf]}, NUMBERS, "row 1, column 'labels'"),
    ({"features": [[1, 2]], "labels": [1]}, NAMED, "must have an array 'names'"),
    (
        {"features": [[1, 2]], "labels": [1], "names": ["age", "s3cret"]},
        NAMED,
        "column 2 is not among",
    ),
    ({"features": [[1]], "names": ["a"]}, SPLIT, "must have an array 'ids'"),
    (
        {"features": [[1], [2]], "names": ["a"], "ids": ["patient-9"] * 2},
        SPLIT,
        "row 2, column 'ids': is the id of row 1",
    ),
]


def told(error: BaseException) -> str:
    seen = []
    link: BaseException | None = error
    while link is not None:
        seen.append(f"{link!r} {link}")
        link = link.__cause__ or link.__context__
    return " ".join([*seen, *traceback.format_exception(error)])


def refused(
    path: Path, schema: Schema, match: str, read: Callable[..., Any] = read_table
) -> None:
    with pytest.raises(DataFileError) as caught:
        read(path, schema)
    message = str(caught.value)
    assert match in message
    assert message.startswith(str(path))
    assert "\n" not in message
    # the source lines of a traceback are ours, not the file's: only messages count
    messages = (message + repr(caught.value)).replace(str(path), "")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not [secret for secret in SECRETS if secret in messages]


@pytest.mark.parametrize(("text", "schema", "match"), CSV_FAULTS)
def test_faults_of_csv(
    tmp_path: Path, text: str | bytes, schema: Schema, match: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    refused(path, schema, match)


@pytest.mark.parametrize(("text", "match"), LIBSVM_FAULTS)
def test_faults_of_libsvm(tmp_path: Path, text: str, match: str) -> None:
    packings: dict[str, Callable[[bytes], bytes]] = {
        ".svm": bytes,
        ".txt.gz": gzip.compress,
        ".libsvm.bz2": bz2.compress,
    }
    for ending, pack in packings.items():
        path = tmp_path / f"bad{ending}"
        path.write_bytes(pack(text.encode()))
        refused(path, DIGITS, match)


@pytest.mark.parametrize(("content", "schema", "match"), NPZ_FAULTS)
def test_faults_of_npz(
    tmp_path: Path, content: dict[str, Any], schema: Schema, match: str
) -> None:
    path = tmp_path / "bad.npz"
    made: dict[str, Any] = {name: np.array(value) for name, value in content.items()}
    np.savez(path, **made)
    refused(path, schema, match)


@pytest.mark.parametrize(("text", "match"), RATINGS_FAULTS)
def test_faults_of_ratings(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "u.data"
    path.write_text(text)
    refused(path, TWO, match, lambda path, _: read_ratings(path, 9, 4))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "a.npz", "a.svm.gz", "a.parquet"):
        (tmp_path / name).write_bytes(b"s3cret 77.125")
        refused(tmp_path / name, TWO if "svm" not in name else BARE, "")
    # Python objects are not unpickled
    np.savez(tmp_path / "b.npz", features=np.array([["s3cret", None]], dtype=object))
    refused(tmp_path / "b.npz", TWO, "cannot be read as an archive")
    truncated = gzip.compress(b"a,b,label\n" + b"1,2,yes\n" * 50)[:-12]
    (tmp_path / "c.csv.gz").write_bytes(truncated)
    refused(tmp_path / "c.csv.gz", TWO, "cannot be read as a csv table")


def test_libsvm_counts_from_one_whatever_a_node_has(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.txt", replace(DIGITS, features=3)
    path.write_text("1 2:5\n0 # nothing\n")
    table = read_table(path, schema)
    assert table.features.toarray().tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]
    with pytest.raises(DataFileError, match="no names for features"):
        read_table(path, NAMED)


def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    pixels = np.arange(8).reshape(2, 2, 2)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pixels))
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    schema = Schema(4, target="class", labels=("0", "1", "2"))
    labels.write_bytes(gzip.compress(idx([2, 0])))
    table = read_table(tmp_path, schema)
    np.testing.assert_array_equal(table.features, pixels.reshape(2, 4) / 255.0)
    np.testing.assert_array_equal(table.targets, [2.0, 0.0])
    for content, match in (
        (gzip.compress(idx([2, 77])), "row 2, column 'label': is not"),
        (gzip.compress(b"s3cret"), "the magic number of an idx file"),
        (b"s3cret", "cannot be decompressed"),
    ):
        labels.write_bytes(content)
        with pytest.raises(DataFileError, match=match) as caught:
            read_table(tmp_path, schema)
        said = str(caught.value).replace(str(tmp_path), "")
        for secret in ("77", b"s3cret".hex()[:8], "b's3"):
            assert secret not in said
    assert "b's3" not in told(caught.value)
    labels.unlink()
    refused(tmp_path, schema, "has 0 files *labels-idx1-ubyte")


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("logistic-regression", "a.csv", b"a,b,label\n77.125,s3cret,1\n"),
        ("logistic-regression", "a.csv", b"77.125,s3cret\n1,2\n"),
        ("logistic-regression", "a.svm", b"s3cret 77.125:2\n"),
        ("logistic-regression", "a.npz", b"s3cret 77.125"),
        ("kernel-pca", "a.csv.gz", gzip.compress(b"a,b\n77.125,s3cret\n")),
        ("hybrid-svm", "a.csv", b"id,a\npatient-9,s3cret\n"),
        ("hybrid-svm", "a.csv", b"id,a,label\npatient-9,1,77.125\n"),
        ("matrix-completion", "a.data", b"77.125\ts3cret\t2\n"),
    ],
    ids=range(8),  # they are in the file's path
)
def test_a_bad_file_tells_nobody_what_it_holds(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    logged: list[str],
    capfd: pytest.CaptureFixture[str],
    task: str,
    name: str,
    content: bytes,
) -> None:
    """The node's log, the server's, the messages between them and the record."""
    path = tmp_path / name
    path.write_bytes(content)
    table = {"data.features": 2, "data.prepare": False}
    more: dict[str, dict[str, Any]] = {
        "logistic-regression": table,
        "hybrid-svm": {**table, "method": "hyfdca", "hybrid-svm.bias": 0.0},
        "kernel-pca": {**table, "kernel-pca.scale": False, "kernel-pca.components": 1},
        "matrix-completion": {f"{task}.users": 9, f"{task}.items": 9, "radius": 1.0},
    }
    config = sim.app.default_config() | more[task]
    config |= {"results-dir": str(tmp_path / "runs"), "task": task}
    config[f"{task}.dataset"] = "nodes"
    nodes = [{"client-id": "A", "data": str(path)}]
    said: list[str] = []

    class Listening(LocalGrid):
        def _answer(self, message: Any, strikes: Any, answer: Any) -> None:
            said.append(answer if isinstance(answer, str) else "")
            super()._answer(message, strikes, answer)

    grid = Listening(sim.client_app, 1, run_config=config, node_configs=nodes)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RuntimeError, match="none of 1 nodes can be used") as caught:
        sim.app.run(grid, config)
    output = capfd.readouterr()
    kept = [
        p.read_text()
        for p in (tmp_path / "runs").rglob("*")
        if p.suffix in (".json", ".jsonl", ".toml")
    ]
    heard = [told(caught.value), caplog.text, *logged, output.out, output.err]
    assert str(path) in said[0]  # the file is named
    assert str(path) in " ".join(logged)
    everything = " ".join([*heard, *said, *kept])
    assert not [secret for secret in SECRETS if secret in everything]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "data.features = 0 and data.feature-names is empty"),
        ({"data.features": 3, "data.feature-names": "a,b"}, "which has 2 names"),
        ({"data.feature-names": "a,b,a"}, "has 'a' twice"),
        ({"data.feature-names": "a,,b"}, "between two commas"),
        ({"data.feature-names": "a,label"}, "the name of another column"),
        ({"data.features": 3, "data.classes": 3}, "3 classes; the task has 2"),
        ({"data.features": 3, "data.labels": "a,b,c"}, "3 classes; the task has 2"),
        (
            {"data.features": 3, "logistic-regression.partition": "labels"},
            "logistic-regression.partition = 'labels' has no meaning",
        ),
        (
            {"data.features": 3, "logistic-regression.scaling": "standard"},
            "measured on the examples of all nodes",
        ),
        ({"data.features": 3, "reference": True}, "reference = True does not fit"),
        ({"data.features": 3, "stop-metric": "gap"}, "allowed: loss, accuracy"),
        (
            {"data.features": 3, "outer-domain": "l2-ball", "outer-fraction": 0.5},
            "outer-fraction = 0.5 does not fit",
        ),
    ],
)
def test_bad_settings(config: dict[str, Any], match: str) -> None:
    whole = {
        **sim.app.default_config(),
        "task": "logistic-regression",
        "logistic-regression.dataset": "nodes",
        **config,
    }
    with pytest.raises(SettingsError, match=match) as caught:
        sim.app.experiment(whole, 2).strategy()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("logistic-regression", {"logistic-regression.l2": 0.5}),
        ("logistic-regression", {"logistic-regression.intercept": True}),
        ("linear-regression", {}),
        ("lasso", {}),
        ("kernel-pca", {"kernel-pca.scale": False, "kernel-pca.components": 2}),
        ("classification", {"data.classes": 2}),
        (
            "low-rank-network",
            {"data.classes": 2, "low-rank-network.rank": 2, "low-rank-network.l2": 0.1},
        ),
        (
            "matrix-completion",
            {"matrix-completion.users": 4, "matrix-completion.items": 3},
        ),
    ],
)
def test_weights_make_every_example_count_once(
    tmp_path: Path, task: str, config: dict[str, Any]
) -> None:
    """(1/n) Σ f_i of three unequal files is the loss of one file with all rows."""
    rng = np.random.default_rng(0)
    if task == "matrix-completion":
        rows = np.column_stack([rng.integers(1, 4, 12), rng.integers(1, 3, 12)])
        whole = np.column_stack([rows, rng.normal(size=12)])
        data: dict[str, Any] = {}
    else:
        whole = np.column_stack([rng.normal(size=(12, 3)), np.arange(12) % 2])
        data = {"data.features": 3}
    settings = {f"{task}.dataset": "nodes", "data.examples": 12, **data, **config}

    def save(name: str, part: Any) -> Path:
        path = tmp_path / name
        if task == "matrix-completion":
            np.savetxt(path, part, fmt=["%d", "%d", "%.17g"], delimiter="\t")
        else:
            write_csv(path, ["x", "y", "z", "label"], part.tolist())
        return path

    several, alone = make_task(task, settings, 3, 0), make_task(task, settings, 1, 0)
    paths = [save(f"{i}.csv", part) for i, part in enumerate(np.split(whole, [2, 5]))]
    point = [rng.normal(size=shape) for shape in several.shapes()]
    if several.manifold() is not None:
        point = several.initial_point()
    x = several.argument(point)
    objectives = [several.node_objective(path) for path in paths]
    values = [objective.value(x) for objective in objectives]
    expected = alone.node_objective(save("all.csv", whole)).value(x)
    assert np.mean(values) == pytest.approx(expected, rel=1e-12)
    # and so does what the nodes answer when they are asked to evaluate
    losses = [
        several.weigh_evaluation(f.value(x), f.num_examples, {"accuracy": 1.0})[0]
        for f in objectives
    ]
    told = [several.node_attributes({"data": str(path)}) for path in paths]
    counts = [attributes["announcement"]["num-examples"] for attributes in told]
    assert np.average(losses, weights=counts) == pytest.approx(expected, rel=1e-12)
    assert counts == [2, 3, 7]
    assert several.method_options() == {}
